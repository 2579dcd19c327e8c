package archive

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// OpenLocal opens a file or a directory of this machine as a source. It follows links in path, and
// none below it. The caller closes the Entry.
func OpenLocal(path string) (Entry, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		root, err := os.OpenRoot(path)
		if err != nil {
			return nil, err
		}
		return openDir(root, info)
	}
	open := func() (*os.File, error) { return os.OpenFile(path, os.O_RDONLY|nonblock, 0) }
	return &localEntry{info: info, open: open}, nil
}

// localEntry is an Entry below an os.Root, or a file that the user has named.
type localEntry struct {
	info fs.FileInfo
	link func() (string, error)
	open func() (*os.File, error)
	root *os.Root // of a directory
}

// openDir returns the Entry of a directory, which closes root.
func openDir(root *os.Root, expected fs.FileInfo) (Entry, error) {
	info, err := root.Stat(".")
	if err == nil && !os.SameFile(info, expected) {
		err = ErrChanged
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return &localEntry{info: info, root: root}, nil
}

func (e *localEntry) Info() Info {
	i := Info{Mode: e.info.Mode(), Size: e.info.Size(), Modified: e.info.ModTime()}
	i.UID, i.GID = owner(e.info)
	return i
}

func (e *localEntry) Link() (string, error) { return e.link() }

func (e *localEntry) Open() (io.ReadCloser, error) {
	f, err := e.open()
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !os.SameFile(info, e.info) {
		err = ErrChanged
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (e *localEntry) Names(limit int) ([]string, error) {
	dir, err := e.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return readNames(dir, limit)
}

// readNames returns up to limit names of a directory, and one more if there are more.
func readNames(dir *os.File, limit int) ([]string, error) {
	names, err := dir.Readdirnames(limit + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

func (e *localEntry) Child(name string) (Entry, error) {
	info, err := e.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		root, err := e.root.OpenRoot(name)
		if err != nil {
			return nil, err
		}
		return openDir(root, info)
	case fs.ModeSymlink:
		return &localEntry{info: info, link: func() (string, error) { return e.root.Readlink(name) }}, nil
	}
	open := func() (*os.File, error) { return e.root.OpenFile(name, os.O_RDONLY|nonblock, 0) }
	return &localEntry{info: info, open: open}, nil
}

func (e *localEntry) Close() error {
	if e.root == nil {
		return nil
	}
	return e.root.Close()
}
