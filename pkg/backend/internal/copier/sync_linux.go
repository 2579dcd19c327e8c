package copier

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// fewFiles is the number of files and directories up to which each is synced by itself. For more
// files a single syncfs is faster, although it waits for the data of other processes.
const fewFiles = 16

// made holds the files and directories that have to be made durable, up to fewFiles.
type made struct {
	all   atomic.Bool // sync the filesystem
	mu    sync.Mutex
	files []madeFile
}

type madeFile struct {
	fd   int
	dir  *dir
	name string // in dir; "" for dir itself
}

// add adds an open file of the target, or the directory d if name is "".
func (m *made) add(fd int, d *dir, name string) error {
	if m.all.Load() {
		return nil
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = append(m.files, madeFile{own, d, name})
	if len(m.files) > fewFiles || m.all.Load() {
		m.drop()
	}
	return nil
}

// node records that the copy has an entry that cannot be opened for a sync.
func (m *made) node() {
	if m.all.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop()
}

// drop closes all files: sync then syncs the whole filesystem. m.mu is locked.
func (m *made) drop() {
	m.all.Store(true)
	for _, f := range m.files {
		unix.Close(f.fd)
	}
	m.files = nil
}

func (m *made) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop()
}

// sync makes the target durable.
func (t *tree) sync() error {
	if t.made.all.Load() {
		if err := retry(func() error { return unix.Syncfs(t.dst) }); err != nil {
			return fmt.Errorf("sync the filesystem of the copy: %w", err)
		}
		return nil
	}
	for _, f := range t.made.files {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		if err := retry(func() error { return unix.Fsync(f.fd) }); err != nil {
			return f.dir.wrong("sync", f.name, err)
		}
	}
	return nil
}
