package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/figures"
	"github.com/causeway-csi/causeway/test/sidecars/rig"
)

// upstream are the binaries that csi-sidecars takes the place of, and the modules that have them as tools. The provisioner has
// one for itself: its main doesn't compile with the Kubernetes of the others.
var upstream = map[string]components.Tool{
	"csi-attacher":    {Module: "others", Package: "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"},
	"csi-resizer":     {Module: "others", Package: "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"},
	"csi-snapshotter": {Module: "others", Package: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"},
	"csi-provisioner": {Module: "provisioner", Package: "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"},
}

// Ours.
const (
	combined = "csi-sidecars"
	nodeOnly = "csi-sidecars-node"
)

// build returns the paths of all binaries, by name. All are built alike: without cgo, with -trimpath and -s -w.
func build(ctx context.Context, dir string) (map[string]string, error) {
	module, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/causeway-csi/causeway/test/sidecars").Output()
	if err != nil {
		return nil, err
	}
	cached, err := components.BuildTools(ctx, os.Stderr, filepath.Join(strings.TrimSpace(string(module)), "upstream"), upstream)
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for name := range upstream {
		paths[name] = filepath.Join(cached, name)
	}
	for _, name := range []string{combined, nodeOnly} {
		if paths[name], err = rig.Build(ctx, dir, name); err != nil {
			return nil, err
		}
	}
	return paths, settle(paths)
}

// settle writes the files to the disk: a page of a program that isn't there yet counts as private and dirty memory.
func settle(paths map[string]string) (err error) {
	for _, path := range paths {
		f, opening := os.Open(path)
		if opening != nil {
			return opening
		}
		err = errors.Join(err, f.Sync(), f.Close())
	}
	return err
}

// sizes compares files. The separate liveness probe is ours: upstream's module isn't a program's that others can build.
func (b *bench) sizes(context.Context) error {
	separate, err := b.megabytes(nodeOnly)
	if err != nil {
		return err
	}
	for name := range upstream {
		size, err := b.megabytes(name)
		if err != nil {
			return err
		}
		separate += size
	}
	one, err := b.megabytes(combined)
	if err != nil {
		return err
	}
	b.table.limit("binaries, MB", separate, one, figures.AtMost(70))
	return nil
}

func (b *bench) megabytes(binary string) (float64, error) {
	info, err := os.Stat(b.binaries[binary])
	if err != nil {
		return 0, err
	}
	return float64(info.Size()) / 1e6, nil
}
