//go:build !windows

package store

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/beneath"
)

// lockFile is unused on Unix: the lock is on the directory itself.
const lockFile = ""

// lockRoot locks the root for this process until the returned file is closed or the process dies.
func lockRoot(root *beneath.Dir) (*os.File, error) {
	dir, err := root.OpenDirFile(".")
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	runtime.KeepAlive(dir)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errors.New("another process serves it")
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock the root: %w", err)
	}
	return dir, nil
}

// unlockRoot releases the lock. A child process that is being started has the descriptor until its
// exec, and would keep the lock after a mere close.
func unlockRoot(dir *os.File) error {
	err := unix.Flock(int(dir.Fd()), unix.LOCK_UN)
	return errors.Join(err, dir.Close())
}

// Space returns the space of the root's filesystem.
func (s *Store) Space() (Space, error) {
	var st unix.Statfs_t
	raw, err := s.lock.SyscallConn()
	if err != nil {
		return Space{}, err
	}
	var failed error
	// An error means that the root is being closed.

	if err := raw.Control(func(fd uintptr) { failed = unix.Fstatfs(int(fd), &st) }); err != nil {
		return Space{}, err
	}
	if failed != nil {
		return Space{}, &os.PathError{Op: "statfs", Path: s.path, Err: failed}
	}
	unit, reserved := blockSize(&st), int64(st.Bfree)-int64(st.Bavail)
	return Space{
		Total:  (int64(st.Blocks) - reserved) * unit,
		Free:   int64(st.Bavail) * unit,
		Inodes: int64(st.Files), FreeInodes: int64(st.Ffree),
		ReadOnly: int64(st.Flags)&readOnlyFlag != 0, //nolint:unconvert // 32 bits on macOS
		Whole:    s.whole,
	}, nil
}

// IsFull reports whether a disk or a quota is full.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// IsTooLarge reports whether the filesystem rejects files of that size.
func IsTooLarge(err error) bool { return errors.Is(err, unix.EFBIG) }

// IsReadOnly reports whether the filesystem is read-only.
func IsReadOnly(err error) bool { return errors.Is(err, unix.EROFS) }

// IsInUse returns false: open files can be moved and removed here.
func IsInUse(error) bool { return false }
