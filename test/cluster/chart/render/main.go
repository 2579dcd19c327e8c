// Command render writes the files derived from charts/causeway: the manifests in deploy, the
// chart's README, and the files that the tests compare with.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/causeway-csi/causeway/test/cluster/chart"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	bin, err := chart.Programs(ctx, os.Stderr)
	if err != nil {
		return err
	}
	files, err := chart.Files(ctx, bin)
	if err != nil {
		return err
	}
	for path, text := range files {
		path = filepath.Join(chart.Sources(), path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
