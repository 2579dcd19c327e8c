package controlplane

import (
	"os"
	"path/filepath"

	"github.com/causeway-csi/causeway/internal/flock"
)

// prefix is that of planes' directories.
const prefix = "causeway-plane-"

// makeDir makes a plane's directory in parent and locks it, for as long as the returned file is
// open. Before that it removes the directories of planes whose process ended without closing them,
// as it does when a test's time is up: they have 100 MB each and more.
func makeDir(parent string) (string, *os.File, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	parent, err := filepath.Abs(parent) // components run in it, and are told its path
	if err != nil {
		return "", nil, err
	}
	sweep(parent)
	for {
		dir, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return "", nil, err
		}
		if locked, err := tryLock(dir); locked != nil || err != nil {
			return dir, locked, err
		} // the sweep of another process was in between
	}
}

// sweep removes the directories of planes that are not locked. Directories that it cannot remove,
// such as another user's, stay.
func sweep(parent string) {
	left, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	if err != nil {
		return // parent is no pattern
	}
	for _, dir := range left {
		if locked, _ := tryLock(dir); locked != nil {
			os.RemoveAll(dir)
			locked.Close()
		}
	}
}

// tryLock locks a directory. tryLock returns nil if another process holds the lock, or has removed
// the directory.
func tryLock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	got, err := flock.Try(f)
	if err != nil || !got || !is(f, dir) {
		f.Close()
		return nil, err
	}
	return f, nil
}

// is reports whether an open file is still that at path.
func is(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(opened, there)
}
