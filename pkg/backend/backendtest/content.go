package backendtest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// The suite mounts nothing. It reads and writes the content of a volume at the source of its mount.
// The content is two pieces, which must stay consistent: two files in a directory, or two ranges of
// an image or disk. The ranges are far from the start, where a fake filesystem has its
// identification.

// pieces are the offsets of the two pieces on an image or disk, in bytes. Every volume to which the
// suite writes has at least Size.
var pieces = []int64{1 * MiB, Size - maxText}

// maxText is the greatest length of a text, in bytes.
const maxText = 4096

// where returns a mount whose source has the content of the volume, until the caller calls end.
func (s *subject) where(id string) (m mounter.Mount, end func()) {
	s.Helper()
	return s.use(id, backend.Access{Block: s.access.Block})
}

// use returns the mount of the volume for this access, until the caller calls end. It attaches a
// disk without source to the first node until then.
func (s *subject) use(id string, access backend.Access) (m mounter.Mount, end func()) {
	s.Helper()
	ctx := context.Background()
	m, err := s.Mount(ctx, id, access)
	if err != nil {
		s.Fatalf("Mount(%q): %v", id, err)
	}
	a, attaches := s.Backend.(backend.Attacher)
	if m.Source != "" || m.Kind != mounter.BlockDevice || !attaches {
		return m, func() {}
	}
	o := alone(Nodes[0])
	o.Access = access
	if access.PublishContext, err = a.Attach(ctx, id, o); err != nil {
		s.Fatalf("Attach(%q): %v", id, err)
	}
	if m, err = s.Mount(ctx, id, access); err != nil || m.Source == "" || m.Serial == "" {
		s.Fatalf("Mount(%q) of an attached disk = %+v, %v, want a source and a serial number", id, m, err)
	}
	return m, func() {
		s.Helper()
		if err := a.Detach(ctx, id, Nodes[0], nil); err != nil {
			s.Fatalf("Detach(%q): %v", id, err)
		}
	}
}

// directory returns the directory of this machine with the files of the mount. ok is false for an
// image or a device.
func (s *subject) directory(m mounter.Mount) (dir string, ok bool) {
	s.Helper()
	switch {
	case m.Kind == mounter.Directory:
		return m.Source, true
	case m.Kind != mounter.Share:
		return "", false
	case s.kind.Files == nil:
		s.Fatal("the Mount is a Share: set Kind.Files")
	}
	return s.kind.Files(m), true
}

// files returns the paths of the two files in a directory.
func files(dir string) []string {
	return []string{filepath.Join(dir, "file"), filepath.Join(dir, "a", "b", "file")}
}

// write replaces the content of the volume by a text.
func (s *subject) write(id, text string) {
	s.Helper()
	m, end := s.where(id)
	defer end()
	dir, ok := s.directory(m)
	if !ok {
		for _, at := range pieces {
			s.writeAt(m, at, append([]byte(text), make([]byte, maxText-len(text))...))
		}
		return
	}
	for _, path := range files(dir) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			s.Fatal(err)
		}
	}
}

// writeAt writes p at the offset at of an image or disk.
func (s *subject) writeAt(m mounter.Mount, at int64, p []byte) {
	s.Helper()
	f, err := os.OpenFile(m.Source, os.O_WRONLY, 0)
	if err != nil {
		s.Fatal(err)
	}
	_, err = f.WriteAt(p, at)
	if err := errors.Join(err, f.Close()); err != nil {
		s.Fatal(err)
	}
}

// holds checks that the content of the volume is this text. "" is the content of a new volume.
func (s *subject) holds(id, want string) {
	s.Helper()
	for i := range pieces {
		if got := s.read(id, i); got != want {
			s.Errorf("piece %d of volume %s = %.40q, want %.40q", i, id, got, want)
		}
	}
}

// read returns a piece of the content of the volume.
func (s *subject) read(id string, piece int) string {
	s.Helper()
	m, end := s.where(id)
	defer end()
	if dir, ok := s.directory(m); ok {
		text, err := os.ReadFile(files(dir)[piece])
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.Fatal(err)
		}
		return string(text)
	}
	f, err := os.Open(m.Source)
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	text := make([]byte, maxText)
	if _, err := f.ReadAt(text, pieces[piece]); err != nil {
		s.Fatal(err)
	}
	return string(bytes.TrimRight(text, "\x00"))
}
