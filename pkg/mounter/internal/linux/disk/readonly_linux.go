package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
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
func unwritten(m mounter.Mount, dev *os.File, o tree.Fresh) tree.Recipe {
	r := tree.FilesystemRecipe(m.Source, m.FSType, o)
	first, last, xfs := r, r, m.FSType == "xfs"
	if xfs { // the first mount verifies that the log is empty, the second never writes
		o.Text = append(slices.Clone(o.Text), "norecovery")
		last = tree.FilesystemRecipe(m.Source, m.FSType, o)
	}
	r.Detached = func() (int, error) {
		fd := -1
		closeFD := func() error { return unix.Close(fd) }
		err := whileReadOnly(m, dev, func() (err error) {
			if xfs {
				if fd, err = first.Detached(); err == nil {
					err = closeFD()
				}
			}
			if err == nil {
				fd, err = last.Detached()
			}
			return err
		}, closeFD)
		return fd, err
	}
	r.Legacy = func(target string) error {
		unmount := func() error { return unix.Unmount(target, unix.MNT_DETACH) }
		return whileReadOnly(m, dev, func() (err error) {
			if xfs {
				if err = first.Legacy(target); err == nil {
					err = unmount()
				}
			}
			if err == nil {
				err = last.Legacy(target)
			}
			return err
		}, unmount)
	}
	return r
}

// whileReadOnly makes the device of m read-only during a call of mount. If it then cannot make the
// device writable again, it calls unmount. Errors: ErrDevice if the filesystem has a log to replay.
func whileReadOnly(m mounter.Mount, dev *os.File, mount, unmount func() error) error {
	was, err := tree.IsReadOnly(dev)
	if err == nil && !was {
		err = tree.SetDeviceReadOnly(dev, true)
	}
	if err != nil {
		return err
	}
	crashpoint.Reached("device:read-only")
	err = mount()
	if err != nil && (errors.Is(err, unix.EROFS) || m.FSType == tree.Btrfs && hasLog(dev)) {
		err = fmt.Errorf("%w: the %s on %s was not unmounted and has a log, which a read-only mount must not replay:"+
			" mount the volume once for writing: %w", mounter.ErrDevice, m.FSType, m.Source, err)
	}
	if was {
		return err
	}
	if failed := tree.SetDeviceReadOnly(dev, false); failed != nil {
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
