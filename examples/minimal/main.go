// Command minimal is a CSI driver in a single file. A volume is an ext4 filesystem in a file of the
// node's directory --dir, so its size is enforced and is recorded nowhere else.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/csidriver"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

const fsType, smallest = "ext4", 16 << 20 // bytes

func main() {
	dir := ""
	csidriver.Main(csidriver.Program{Name: "minimal.csi.example.com", Backends: []csidriver.Backend{{
		Name: "minimal", Type: (*storage)(nil),
		Flags: func(set *flag.FlagSet) {
			set.StringVar(&dir, "dir", "/var/lib/minimal", "minimal: `directory` that holds the volumes; it must exist")
		},
		Open: func(c csidriver.Config) (backend.Backend, error) {
			opened, err := os.Open(dir)
			return &storage{opened, c.NodeID, c.Images}, err
		},
	}}})
}

// storage is a backend.Backend, and a backend.NodeLocal by its method Node.
type storage struct {
	dir    *os.File
	node   string
	images mounter.Images
}

func (s *storage) Node() string          { return s.node }
func (s *storage) path(id string) string { return filepath.Join(s.dir.Name(), id) }

// Create finds the volume by its ID, which its name determines, or makes it, whole or not at all.
func (s *storage) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	v := backend.Volume{ID: volumeid.New(volumeid.Volume, s.node, o.Name), Size: max(o.Required, smallest)}
	for key := range o.Parameters {
		return v, fmt.Errorf("%w: unknown parameter %.64q, must be none", backend.ErrInvalid, key)
	}
	if err := check(o.Access...); err != nil {
		return v, err
	}
	old, err := s.Get(ctx, v.ID, nil)
	switch {
	case err == nil && (old.Size < o.Required || o.Limit > 0 && old.Size > o.Limit):
		return v, fmt.Errorf("%w: with %d bytes", backend.ErrExists, old.Size)
	case err == nil:
		return old, s.durable(nil)
	case !errors.Is(err, backend.ErrNotFound):
		return v, err
	case o.Limit > 0 && v.Size > o.Limit:
		return v, fmt.Errorf("%w: a volume has at least %d bytes", backend.ErrOutOfRange, smallest)
	}
	if err = mounter.CreateImage(ctx, s.images, s.path(v.ID), v.Size, fsType); errors.Is(err, syscall.ENOSPC) ||
		errors.Is(err, syscall.EFBIG) {
		return v, fmt.Errorf("%w: %w", backend.ErrExhausted, err)
	}
	return v, s.durable(err)
}

// durable completes a change of the directory. If that fails, the outcome is unknown.
func (s *storage) durable(err error) error {
	if err = errors.Join(err, s.dir.Sync()); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return nil
}

func (s *storage) Get(_ context.Context, id string, _ map[string]string) (backend.Volume, error) {
	parsed, malformed := volumeid.Parse(id)
	info, err := os.Lstat(s.path(id))
	if malformed != nil || parsed.Kind != volumeid.Volume || errors.Is(err, fs.ErrNotExist) {
		return backend.Volume{}, fmt.Errorf("%w: volume %.64q", backend.ErrNotFound, id)
	} else if err != nil {
		return backend.Volume{}, err
	}
	return backend.Volume{ID: id, Size: info.Size()}, nil
}

func (s *storage) Delete(ctx context.Context, id string, _ map[string]string) error {
	if _, err := s.Get(ctx, id, nil); errors.Is(err, backend.ErrNotFound) {
		return s.durable(nil)
	}
	if users, err := s.images.MountPointsOf(s.path(id)); err != nil || len(users) > 0 {
		return cmp.Or(err, fmt.Errorf("%w: mounted at %q", backend.ErrInUse, users))
	}
	return s.durable(os.Remove(s.path(id)))
}

func (s *storage) Mount(ctx context.Context, id string, a backend.Access) (mounter.Mount, error) {
	_, err := s.Get(ctx, id, nil)
	return mounter.Mount{Kind: mounter.Image, Source: s.path(id), FSType: fsType, Options: a.Options,
		ReadOnly: a.ReadOnly}, cmp.Or(err, check(a))
}

// check returns an error for a use that no volume can serve.
func check(uses ...backend.Access) error {
	for _, a := range uses {
		if a.Block || a.FSType != "" && a.FSType != fsType || len(a.Context) > 0 {
			return fmt.Errorf("%w: a volume must be mounted as %s and has no context", backend.ErrInvalid, fsType)
		}
		if err := mounter.CheckOptions(mounter.Image, fsType, a.Options); err != nil {
			return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
		}
	}
	return nil
}
