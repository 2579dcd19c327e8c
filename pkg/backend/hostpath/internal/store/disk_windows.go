package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/windows"

	"github.com/causeway-csi/causeway/internal/beneath"
)

// lockFile is the file that lockRoot locks: Windows has no locks on directories.
const lockFile = "lock"

// lockRoot locks the root for this process until the returned file is closed or the process dies.
func lockRoot(root *beneath.Dir) (*os.File, error) {
	f, err := root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	if err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, new(windows.Overlapped)); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the root, which another process may serve: %w", err)
	}
	return f, nil
}

func unlockRoot(f *os.File) error { return f.Close() }

// Space returns the space of the root's filesystem.
func (s *Store) Space() (Space, error) {
	path, err := windows.UTF16PtrFromString(s.path)
	if err != nil {
		return Space{}, err
	}
	var free, total uint64
	if err := windows.GetDiskFreeSpaceEx(path, &free, &total, nil); err != nil {
		return Space{}, &os.PathError{Op: "GetDiskFreeSpaceEx", Path: s.path, Err: err}
	}
	return Space{Total: int64(total), Free: int64(free), Whole: s.whole}, nil
}

// IsFull reports whether a disk is full.
func IsFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL)
}

// IsTooLarge reports whether the filesystem rejects files of that size.
func IsTooLarge(err error) bool { return errors.Is(err, windows.ERROR_FILE_TOO_LARGE) }

// IsReadOnly reports whether the filesystem is read-only.
func IsReadOnly(err error) bool { return errors.Is(err, windows.ERROR_WRITE_PROTECT) }

// IsInUse reports whether a file could not be moved or removed, as a process has it open, or a file
// in it. For the move of a directory with an open file Windows reports that access is denied.
func IsInUse(err error) bool {
	return errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_LOCK_VIOLATION) ||
		errors.Is(err, windows.ERROR_ACCESS_DENIED)
}
