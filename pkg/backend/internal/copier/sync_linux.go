package copier

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// fewFiles is up to how many files and directories are made durable one by one. For more one syncfs is faster, though
// it waits for what others have written.
const fewFiles = 16

// made remembers what is to be made durable.
type made struct {
	mu    sync.Mutex
	files []entryOf // fewFiles and one more at most
	nodes bool      // there is something that can't be opened for fsync
}

// entryOf is a file in a directory of the target, or the directory itself where name is "".
type entryOf struct {
	dir  *dir
	name string
}

func (m *made) add(d *dir, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.files) <= fewFiles {
		m.files = append(m.files, entryOf{d, name})
	}
}

func (m *made) special() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes = true
}

// sync makes the target durable. It runs when everything is in its place.
func (t *tree) sync() error {
	if t.made.nodes || len(t.made.files) > fewFiles {
		return t.syncAll()
	}
	for _, f := range t.made.files {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		names := f.dir.names()
		if f.name != "" {
			names = append(names, f.name)
		}
		fd, err := openSteps(t.dst, names, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME)
		if err != nil { // its mode is such that even its owner can't read it
			return t.syncAll()
		}
		err = retry(func() error { return unix.Fsync(fd) })
		unix.Close(fd)
		if err != nil {
			return f.dir.wrong("sync", f.name, err)
		}
	}
	return nil
}

func (t *tree) syncAll() error {
	if err := retry(func() error { return unix.Syncfs(t.dst) }); err != nil {
		return fmt.Errorf("sync the filesystem of the copy: %w", err)
	}
	return nil
}
