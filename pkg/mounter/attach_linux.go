package mounter

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// A mount never goes to a path, but to a descriptor that was opened without following a link
// (target). Then the path is resolved again, and must lead to the new mount: its directory may have
// been moved away meanwhile. The mount is held by a descriptor of its own, and undone by that.

// recipe describes how a mount is made, in the two ways that kernels offer.
type recipe struct {
	// detached makes the mount without a path, and returns a descriptor of its root. A close of the
	// descriptor unmounts it.
	detached func() (fd int, err error)
	// legacy puts the mount on target by mount(2).
	legacy func(target string) error
	// onlyLegacy: the new system calls cannot make this mount.
	onlyLegacy bool
	// remount gives a mount that legacy made its options. May be nil.
	remount func(root string) error
	// check compares the mount, by its root, with the expected mount. Where the kernel permits,
	// check runs before the mount has a path.
	check func(root int) error
	// record runs the last steps, when the mount is at its path. After an error the mount is
	// undone.
	record func(root int) error
}

// attach makes a mount on t. attach returns nil when the mount is at t's path; after an error no
// mount is left. Errors: ErrPath if t was moved or replaced meanwhile.
func (l *linux) attach(t target, r recipe) error {
	m, err := l.put(t, r)
	if err != nil {
		return err
	}
	defer unix.Close(m.fd)
	err = l.confirm(m, t.path)
	if err == nil && r.record != nil {
		err = r.record(m.fd)
	}
	if err != nil {
		return errors.Join(err, m.undo())
	}
	return nil
}

// put makes a mount on t, which may have been moved.
func (l *linux) put(t target, r recipe) (ownMount, error) {
	if !l.legacy.Load() && !r.onlyLegacy {
		m, err := putDetached(t, r)
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
			return m, err
		}
		l.legacy.CompareAndSwap(false, errors.Is(err, unix.ENOSYS)) // EPERM can concern this mount alone
	}
	return putLegacy(t, r)
}

// putDetached puts the mount on t with all of its options in one step.
func putDetached(t target, r recipe) (ownMount, error) {
	fd, err := r.detached()
	if err != nil {
		return ownMount{}, err
	}
	at, err := statFD(fd)
	if err == nil {
		err = r.check(fd)
	}
	if err == nil {
		if err = unix.MoveMount(fd, "", t.fd, "",
			unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
			err = fmt.Errorf("move_mount: %w", notThere(err))
		}
	}
	if err != nil {
		unix.Close(fd)
		return ownMount{}, err
	}
	return ownMount{fd, at.mount}, nil
}

// notThere wraps the error of a mount on a removed directory in ErrPath.
func notThere(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: the target was removed: %w", ErrPath, err)
	}
	return err
}

// putLegacy makes the mount by mount(2). A bind mount ignores MS_RDONLY silently and needs a second
// call, until which it is writable.
func putLegacy(t target, r recipe) (ownMount, error) {
	if err := r.legacy(procPath(t.fd)); err != nil {
		return ownMount{}, notThere(err)
	}
	m, err := t.mountOn()
	if err != nil { // umount2(2) goes to the topmost mount on the directory that the descriptor holds
		return ownMount{}, errors.Join(err, unix.Unmount(procPath(t.fd), unix.MNT_DETACH))
	}
	if r.remount != nil {
		err = r.remount(procPath(m.fd))
	}
	if err == nil {
		err = r.check(m.fd)
	}
	if err != nil {
		err = errors.Join(err, m.undo())
		unix.Close(m.fd)
		return ownMount{}, err
	}
	return m, nil
}

// confirm returns ErrPath unless path leads to m and to no mount on top of it.
func (l *linux) confirm(m ownMount, path string) error {
	rel, err := paths.Below(l.dir, path)
	if err != nil {
		return err
	}
	fd, err := resolve(l.real+"/"+rel, unix.O_PATH)
	if err == nil {
		defer unix.Close(fd)
		var at state
		if at, err = statFD(fd); err == nil && (!at.mounted || at.mount != m.id) {
			err = errors.New("another file, directory or mount is there now")
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %s was moved or replaced during the mount: %w", ErrPath, path, err)
	}
	return nil
}

// ownMount is a mount that this call has made.
type ownMount struct {
	fd int    // of its root
	id uint64 // mount ID; no other mount gets it while fd is open
}

// undo unmounts m, even after a move. umount2(2) first removes mounts of other processes on top of
// m, and returns EINVAL when m itself is no longer mounted.
func (m ownMount) undo() error {
	for range maxLayers {
		switch err := unix.Unmount(procPath(m.fd), unix.MNT_DETACH); {
		case errors.Is(err, unix.EINVAL):
			return nil
		case err != nil:
			return fmt.Errorf("unmount mount %d: %w", m.id, err)
		}
	}
	return fmt.Errorf("unmount mount %d: still a mount after %d tries", m.id, maxLayers)
}

// mountOn finds the mount that mount(2) has put on t. The kernel has no call that goes from a
// directory to the mount on it, so mountOn finds the mount in mountinfo and opens its path.
func (t target) mountOn() (ownMount, error) {
	below, err := statFD(t.fd)
	if err != nil {
		return ownMount{}, err
	}
	path, err := os.Readlink(procPath(t.fd)) // where the target is now
	if err != nil {
		return ownMount{}, err
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return uint64(i.Parent) != below.mount || i.Mountpoint != path, false
	})
	if err != nil {
		return ownMount{}, err
	}
	if len(infos) != 1 {
		return ownMount{}, fmt.Errorf("%w: %s was moved or replaced during the mount", ErrPath, t.path)
	}
	fd, err := resolve(path, unix.O_PATH)
	if err != nil {
		return ownMount{}, err
	}
	at, err := statFD(fd)
	if err == nil && at.mount != uint64(infos[0].ID) {
		err = fmt.Errorf("%w: %s was moved or replaced during the mount", ErrPath, t.path)
	}
	if err != nil {
		unix.Close(fd)
		return ownMount{}, err
	}
	return ownMount{fd, at.mount}, nil
}

// verifyFlags verifies that a mount has exactly these of the ST_* flags that options control.
func verifyFlags(root int, want int64) error {
	got, err := flagsOf(root)
	if err == nil && got&managedFlags != want {
		err = fmt.Errorf("has the mount flags %#x, not %#x", got&managedFlags, want)
	}
	return err
}

// flagsOf returns the ST_* flags of the mount through which a file was opened.
func flagsOf(fd int) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return 0, fmt.Errorf("statfs: %w", err)
	}
	return st.Flags, nil
}

// cloneTree returns a further mount of the file or directory that fd stands for, without a path.
func cloneTree(fd int) (int, error) {
	tree, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	return tree, nil
}

// directoryRecipe mounts a directory once more, with options. shown are the ST_* flags that the
// mount is to have.
func directoryRecipe(src source, attr attributeSet, shown int64) recipe {
	return recipe{
		detached: func() (int, error) {
			tree, err := cloneTree(src.fd)
			if err != nil {
				return -1, err
			}
			set := unix.MountAttr{Attr_set: attr.set, Attr_clr: attr.clear}
			if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &set); err != nil {
				unix.Close(tree)
				return -1, fmt.Errorf("mount_setattr: %w", err)
			}
			return tree, nil
		},
		legacy: func(target string) error {
			if err := unix.Mount(procPath(src.fd), target, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("bind: %w", err)
			}
			return nil
		},
		remount: func(root string) error {
			if err := unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|mountFlags(shown), ""); err != nil {
				return fmt.Errorf("remount: %w", err)
			}
			return nil
		},
		check: func(root int) error {
			return errors.Join(checkSame(root, src), verifyFlags(root, shown))
		},
	}
}

// checkSame returns an error unless root is the directory src.
func checkSame(root int, src source) error {
	at, err := statFD(root)
	if err == nil && at.id != src.id {
		err = errors.New("another directory was mounted")
	}
	return err
}

// deviceNodeRecipe mounts the node of a block device, which fd stands for, on a file.
func deviceNodeRecipe(fd int, device fileID) recipe {
	return recipe{
		detached: func() (int, error) { return cloneTree(fd) },
		legacy: func(target string) error {
			if err := unix.Mount(procPath(fd), target, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("bind: %w", err)
			}
			return nil
		},
		check: func(root int) error {
			at, err := statFD(root)
			if err == nil && (at.kind() != unix.S_IFBLK || at.device != device) {
				err = fmt.Errorf("not the block device %d:%d", device.major, device.minor)
			}
			return err
		},
	}
}

// filesystemRecipe mounts the filesystem on a device.
func filesystemRecipe(device, fsType string, o fresh) recipe {
	return recipe{
		detached: func() (int, error) {
			fd, err := newFilesystem(device, fsType, o.parameters(), o.attributes)
			return fd, notFormat(fsType, err)
		},
		legacy: func(target string) error {
			return notFormat(fsType, unix.Mount(device, target, fsType, o.flags, o.data()))
		},
		check: func(root int) error { return verifyFlags(root, o.shown) },
		// Before Linux 6.8, fsconfig(2) keeps the label from btrfs, which sets labels itself, and each mount
		// is EINVAL: btrfs_mount_root in fs/btrfs/super.c.
		onlyLegacy: fsType == btrfs && o.label != "",
	}
}

// notFormat wraps the errors by which a kernel rejects the content of a device in ErrFormat.
func notFormat(fsType string, err error) error {
	if errors.Is(err, ErrOption) {
		return err
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EUCLEAN) {
		return fmt.Errorf("%w: no %s that can be mounted: %w", ErrFormat, fsType, err)
	}
	return err
}

// newFilesystem mounts the filesystem on a device without a path, and returns a descriptor of its
// root, whose close unmounts it. parameters are options of the filesystem, attributes MOUNT_ATTR_*.
func newFilesystem(device, fsType string, parameters []string, attributes uint64) (int, error) {
	fsys, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", fsType, err)
	}
	defer unix.Close(fsys)
	err = unix.FsconfigSetString(fsys, "source", device)
	for _, o := range parameters {
		if err != nil {
			break
		}
		if key, value, ok := strings.Cut(o, "="); ok {
			err = unix.FsconfigSetString(fsys, key, value)
			if key == options.Context && errors.Is(err, unix.EINVAL) {
				err = fmt.Errorf("%w: %s: the node does not have SELinux, or its policy does not have this label: %w",
					ErrOption, options.Context, err)
			}
		} else {
			err = unix.FsconfigSetFlag(fsys, o)
		}
	}
	if err == nil {
		err = unix.FsconfigCreate(fsys)
	}
	if errors.Is(err, unix.EBUSY) { // such as e2fsck, which an earlier driver has started
		err = fmt.Errorf("%w: a program has the device: %w", ErrStalled, err)
	}
	if err != nil {
		return -1, fmt.Errorf("mount the %s on %s: %w%s", fsType, device, err, kernelMessages(fsys))
	}
	fd, err := unix.Fsmount(fsys, unix.FSMOUNT_CLOEXEC, int(attributes))
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w%s", err, kernelMessages(fsys))
	}
	return fd, nil
}

// maxMessages bounds how many messages of the kernel an error shows.
const maxMessages = 8

// kernelMessages returns the kernel's reasons for rejecting a filesystem, if it gives any: each
// read from the descriptor of fsopen(2) is a message, after a letter for its severity.
func kernelMessages(fsys int) string {
	var all strings.Builder
	buf := make([]byte, 1024)
	for range maxMessages {
		n, err := unix.Read(fsys, buf)
		if err != nil || n <= 0 {
			break
		}
		message := strings.TrimSpace(string(buf[:n]))
		if len(message) > 2 && message[1] == ' ' {
			message = message[2:]
		}
		all.WriteString(", " + strconv.Quote(message))
	}
	if all.Len() == 0 {
		return ""
	}
	return " (kernel log:" + strings.TrimPrefix(all.String(), ",") + ")"
}
