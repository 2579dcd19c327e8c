package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// badTree makes a directory with n*10 files, and n files that the user of the session cannot read
// or remove. Each of these has the name "bad".
func (b bench) badTree(dir string, n int) {
	b.Helper()
	for i := range n {
		locked := filepath.Join(dir, fmt.Sprint("locked-", i))
		err := os.MkdirAll(locked, 0o755)
		for j := range 10 {
			name := filepath.Join(dir, fmt.Sprintf("file-%d-%d", i, j))
			err = errors.Join(err, os.WriteFile(name, []byte("x"), 0o666))
		}
		if err = errors.Join(err, os.WriteFile(filepath.Join(locked, "bad"), nil, 0o000), os.Chmod(locked, 0o555),
			os.Chmod(dir, 0o777)); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { os.Chmod(locked, 0o777) })
	}
}

// copyUntil copies a file again and again until stop is closed, and then sends the first error.
func copyUntil(s *Share, file string, stop <-chan struct{}) <-chan error {
	result := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			to := fmt.Sprint("copy-", i)
			err := s.CopyFile(context.Background(), file, to, new(Progress))
			if err = errors.Join(err, s.Remove(context.Background(), to)); err != nil {
				result <- err
				return
			}
			select {
			case <-stop:
				result <- nil
				return
			default:
			}
		}
	}()
	return result
}

// TestABadFileLeavesOtherOperations: a tree has entries that the user of the session cannot read or
// remove, while a long copy uses the same session.
func TestABadFileLeavesOtherOperations(t *testing.T) {
	b := serve(t)
	root := filepath.Join(b.Dir, smbtest.Encrypted) // its user is not an administrator
	const bad = 40
	b.badTree(filepath.Join(root, "tree"), bad)
	if err := os.WriteFile(filepath.Join(root, "long"), content(40<<20), 0o666); err != nil {
		t.Fatal(err)
	}
	s, other := b.open(smbtest.Encrypted), b.open(smbtest.Encrypted)
	if s.session != other.session {
		t.Fatal("the operations do not use the same session")
	}
	first, stop := s.session, make(chan struct{})
	copied := copyUntil(other, "long", stop)
	for i := range 3 {
		to := fmt.Sprint("to-", i)
		if err := s.Mkdir(context.Background(), to); err != nil {
			t.Error(err)
		}
		if err := s.CopyTree(context.Background(), "tree", to, new(Progress)); !errors.Is(err, backend.ErrDenied) {
			t.Errorf("the copy of a file that cannot be read: %v", err)
		}
		if err := s.RemoveTree(context.Background(), to); err != nil {
			t.Error(err)
		}
	}
	if err := s.RemoveTree(context.Background(), "tree"); !errors.Is(err, backend.ErrDenied) {
		t.Errorf("the removal of files that cannot be removed: %v", err)
	}
	close(stop)
	if err := <-copied; err != nil {
		t.Errorf("another copy on the session: %v", err)
	}
	if !b.pool.usable(first) {
		t.Error("the session has ended")
	}
	var left []string
	filepath.WalkDir(filepath.Join(root, "tree"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, filepath.Base(path))
		}
		return nil
	})
	if slices.Sort(left); !slices.Equal(left, slices.Repeat([]string{"bad"}, bad)) {
		t.Errorf("%d files are left, want %d: %q", len(left), bad, left)
	}
}

// TestRemovalsReportWhatStays: an error that a repetition does not heal takes precedence.
func TestRemovalsReportWhatStays(t *testing.T) {
	for name, row := range map[string]struct {
		errs []error
		want error
	}{
		"nothing":  {[]error{nil, nil}, nil},
		"shared":   {[]error{nil, ErrShared, nil}, ErrShared},
		"denied":   {[]error{ErrShared, backend.ErrDenied, ErrNotEmpty}, backend.ErrDenied},
		"reversed": {[]error{backend.ErrDenied, ErrShared}, backend.ErrDenied},
	} {
		var left remains
		for _, err := range row.errs {
			if !left.add(err) {
				t.Errorf("%s: %v stops the removal", name, err)
			}
		}
		if !errors.Is(left.err, row.want) {
			t.Errorf("%s: %v, want %v", name, left.err, row.want)
		}
	}
	var left remains
	for _, err := range []error{context.Canceled, backend.ErrUnavailable, connectError{backend.ErrDenied}} {
		if left.add(err) {
			t.Errorf("%v does not stop the removal", err)
		}
	}
}

// TestATreeStopsAtItsFirstError: the copy of a tree begins no file after the error of another.
func TestATreeStopsAtItsFirstError(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	ctx := context.Background()
	if err := errors.Join(s.Mkdir(ctx, "from"), s.Mkdir(ctx, "to")); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		b.file(fmt.Sprint("from/", i), []byte("x"))
	}
	for i := 0; i < 200; i += 2 {
		b.file(fmt.Sprint("to/", i), nil)
	}
	var p Progress
	err := s.CopyTree(ctx, "from", "to", &p)
	if !errors.Is(err, fs.ErrExist) || p.Files.Load() >= 100 {
		t.Errorf("%d of 100 new files were copied: %v", p.Files.Load(), err)
	}
}
