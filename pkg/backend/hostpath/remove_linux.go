package hostpath

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
)

// maxDepth is the number of levels that removeTree descends, and so the number of its descriptors.
const maxDepth = 64

// removeTree removes the entry name of dir with its content, and calls each after each file.
// removeTree follows no link, and returns an error for a mount, also for a mount of the same
// filesystem. A tree deeper than maxDepth comes apart: the deeper parts become entries of dir,
// which the caller finds later.
func removeTree(dir *os.File, name string, each func() error) error {
	defer runtime.KeepAlive(dir) // otherwise the collector may close it during the call
	r := remover{top: int(dir.Fd()), each: each}
	return r.remove(r.top, name, 0)
}

type remover struct {
	top  int
	each func() error
}

func (r *remover) remove(dir int, name string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return r.each()
	case !errors.Is(err, unix.EISDIR): // EPERM: the entry is immutable
		return fmt.Errorf("remove %q: %w", name, err)
	case depth == maxDepth:
		return unix.Renameat(dir, name, r.top, "deep-"+store.Random())
	}
	if err := r.clear(dir, name, depth); err != nil {
		return err
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	return r.each()
}

// clear removes the content of the directory name.
func (r *remover) clear(dir int, name string, depth int) error {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	}
	fd, err := unix.Openat2(dir, name, &how)
	if err != nil {
		return fmt.Errorf("open %q to remove its content: %w", name, err)
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	for { // until a whole pass finds nothing: a removal during the listing may hide an entry from that pass
		found := 0
		for {
			names, err := d.Readdirnames(1024)
			if err != nil && err != io.EOF {
				return fmt.Errorf("read %q: %w", name, err)
			}
			if len(names) == 0 {
				break
			}
			found += len(names)
			for _, n := range names {
				if err := r.remove(fd, n, depth+1); err != nil {
					return err
				}
			}
		}
		if found == 0 {
			return nil
		}
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}
