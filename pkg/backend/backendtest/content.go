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

// What is in a volume is written and read where Mount says that it is, as nothing is mounted here. A volume gets two
// pieces of it, which must stay together: of a directory two files, of an image or a disk two places far from its start,
// where a fake filesystem has what it is known by.

// pieces are where they are on a disk, in bytes. Every volume that is written to has at least Size.
var pieces = []int64{1 * MiB, Size - maxText}

// maxText is how long a text may be, in bytes.
const maxText = 4096

// where returns what to mount so that the content of a volume is at its source, until end is called.
func (s *subject) where(id string) (m mounter.Mount, end func()) {
	s.Helper()
	return s.use(id, backend.Access{Block: s.access.Block})
}

// use returns what to mount for an access, until end is called. A disk that has no source yet is
// attached to the first node until then.
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

// files are the two of a directory.
func files(m mounter.Mount) []string {
	return []string{filepath.Join(m.Source, "file"), filepath.Join(m.Source, "a", "b", "file")}
}

// write puts a text into the volume, in place of what was there.
func (s *subject) write(id, text string) {
	s.Helper()
	m, end := s.where(id)
	defer end()
	if m.Kind != mounter.Directory {
		for _, at := range pieces {
			s.writeAt(m, at, append([]byte(text), make([]byte, maxText-len(text))...))
		}
		return
	}
	for _, path := range files(m) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			s.Fatal(err)
		}
	}
}

// writeAt writes to an image or a disk.
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

// holds makes sure that the volume has a text, and was written to never if that is "".
func (s *subject) holds(id, want string) {
	s.Helper()
	for i := range pieces {
		if got := s.read(id, i); got != want {
			s.Errorf("piece %d of volume %s is %.40q, want %.40q", i, id, got, want)
		}
	}
}

// read returns a piece of what is in the volume.
func (s *subject) read(id string, piece int) string {
	s.Helper()
	m, end := s.where(id)
	defer end()
	if m.Kind == mounter.Directory {
		text, err := os.ReadFile(files(m)[piece])
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
