package hostpath

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// BenchmarkVolume measures calls for a single volume. If TMPDIR is a tmpfs, fsyncs and renames take
// no time, and the rest is measured.
func BenchmarkVolume(b *testing.B) {
	ctx := context.Background()
	b.Run("create and delete", func(b *testing.B) {
		storage, n := openForBench(b), 0
		for b.Loop() {
			n++
			v, err := storage.Create(ctx, backend.CreateOptions{Name: fmt.Sprint(n), Required: 4096})
			if err != nil {
				b.Fatal(err)
			}
			if err := storage.Delete(ctx, v.ID, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, k := range []kind{directory, image} {
		b.Run("mount "+string(k), func(b *testing.B) {
			storage := openForBench(b)
			o := backend.CreateOptions{Name: "v", Required: 4096, Parameters: map[string]string{kindKey: string(k)},
				Access: []backend.Access{{Block: k == image}}}
			v, err := storage.Create(ctx, o)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := storage.Mount(ctx, v.ID, o.Access[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOpen measures a start with 1,000 volumes.
func BenchmarkOpen(b *testing.B) {
	storage := openForBench(b)
	for i := range 1000 {
		if _, err := storage.Create(b.Context(),
			backend.CreateOptions{Name: fmt.Sprint(i), Required: 4096}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if err := storage.Close(); err != nil {
			b.Fatal(err)
		}
		storage = openAgain(b, storage.cfg)
	}
	b.Cleanup(func() { storage.Close() })
}

// openForBench opens a backend on an empty root.
func openForBench(b *testing.B) *Backend {
	dir := b.TempDir()
	fake := mountertest.NewFake(dir)
	cfg := Config{Root: filepath.Join(dir, "root"), Node: "node-1", RootRecord: filepath.Join(dir, "seen.json"),
		Release: "test", Init: true,
		Images: fake}
	if err := os.Mkdir(cfg.Root, 0o700); err != nil {
		b.Fatal(err)
	}
	storage := openAgain(b, cfg)
	b.Cleanup(func() { storage.Close() })
	return storage
}

// openAgain opens a backend and waits until it is ready.
func openAgain(b *testing.B, cfg Config) *Backend {
	storage, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	awaitReady(b, storage)
	return storage
}
