package main

import (
	"context"
	"errors"
	"os"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
	"github.com/causeway-csi/causeway/test/figures"
)

// upstreams are upstream's programs, whose place csi-sidecars takes.
var upstreams = []string{"csi-attacher", "csi-provisioner", "csi-resizer", "csi-snapshotter"}

// Ours.
const (
	combined = "csi-sidecars"
	nodeOnly = "csi-sidecars-node"
)

// build returns the paths of all binaries, by name. All are built alike: without cgo, with
// -trimpath and -s -w.
func build(ctx context.Context, dir string) (map[string]string, error) {
	paths, err := rig.Upstream(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{combined, nodeOnly} {
		if paths[name], err = rig.Build(ctx, dir, name); err != nil {
			return nil, err
		}
	}
	return paths, settle(paths)
}

// settle writes the files to the disk: a page of a program that is not written yet counts as
// private and dirty memory.
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

// sizes compares files. The separate liveness probe is this project's: upstream's module cannot be
// built as a program.
func (b *bench) sizes(context.Context) error {
	sum, err := b.megabytes(nodeOnly)
	if err != nil {
		return err
	}
	for _, name := range upstreams {
		size, err := b.megabytes(name)
		if err != nil {
			return err
		}
		sum += size
	}
	one, err := b.megabytes(combined)
	if err != nil {
		return err
	}
	b.table.limit("binaries, MB", sum, one, figures.AtMost(70))
	return nil
}

func (b *bench) megabytes(binary string) (float64, error) {
	info, err := os.Stat(b.binaries[binary])
	if err != nil {
		return 0, err
	}
	return float64(info.Size()) / 1e6, nil
}
