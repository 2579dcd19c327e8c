package mounter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// A filesystem that is mounted read-only can still write to its device. ext4, xfs and btrfs replay
// their logs: ext4_load_journal, xlog_recover and btrfs_replay_log in fs/ of Linux. If the disk is
// attached to several nodes, several kernels may replay at once. A read-only device prevents the
// replay. The driver makes the device read-only during mount(2) only: after mount(2) no log is left
// to replay. But xfs also writes a record at its unmount (xfs_log_unmount_write), unless it is
// mounted with the option norecovery.

// unwritten returns the recipe that mounts the filesystem on a device read-only, without a write to
// the device.
func unwritten(m Mount, dev *os.File, o fresh) recipe {
	r := filesystemRecipe(m.Source, m.FSType, o)
	first, last, xfs := r, r, m.FSType == "xfs"
	if xfs { // the first mount verifies that the log is empty, the second never writes
		o.text = append(slices.Clone(o.text), "norecovery")
		last = filesystemRecipe(m.Source, m.FSType, o)
	}
	r.detached = func() (int, error) {
		fd := -1
		closeFD := func() error { return unix.Close(fd) }
		err := m.whileReadOnly(dev, func() (err error) {
			if xfs {
				if fd, err = first.detached(); err == nil {
					err = closeFD()
				}
			}
			if err == nil {
				fd, err = last.detached()
			}
			return err
		}, closeFD)
		return fd, err
	}
	r.legacy = func(target string) error {
		unmount := func() error { return unix.Unmount(target, unix.MNT_DETACH) }
		return m.whileReadOnly(dev, func() (err error) {
			if xfs {
				if err = first.legacy(target); err == nil {
					err = unmount()
				}
			}
			if err == nil {
				err = last.legacy(target)
			}
			return err
		}, unmount)
	}
	return r
}

// whileReadOnly makes the device of m read-only during a call of mount. If it then cannot make the
// device writable again, it calls unmount. Errors: ErrDevice if the filesystem has a log to replay.
func (m Mount) whileReadOnly(dev *os.File, mount, unmount func() error) error {
	was, err := isReadOnly(dev)
	if err == nil && !was {
		err = setDeviceReadOnly(dev, true)
	}
	if err != nil {
		return err
	}
	crashpoint.Reached("device:read-only")
	err = mount()
	if err != nil && (errors.Is(err, unix.EROFS) || m.FSType == btrfs && hasLog(dev)) {
		err = fmt.Errorf("%w: the %s on %s was not unmounted and has a log, which a read-only mount must not replay:"+
			" mount the volume once for writing: %w", ErrDevice, m.FSType, m.Source, err)
	}
	if was {
		return err
	}
	if failed := setDeviceReadOnly(dev, false); failed != nil {
		if err == nil {
			failed = errors.Join(failed, unmount())
		}
		err = errors.Join(err, failed)
	}
	return err
}

// hasLog reports whether a btrfs has a log to replay: log_root of struct btrfs_super_block in
// include/uapi/linux/btrfs_tree.h of Linux. A mount on a read-only device then fails with EIO, as
// on a broken disk.
func hasLog(dev *os.File) bool {
	root := make([]byte, 8)
	_, err := dev.ReadAt(root, signature.BtrfsStart+96)
	return err == nil && binary.LittleEndian.Uint64(root) != 0
}
