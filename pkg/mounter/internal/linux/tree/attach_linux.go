package tree

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
)

// A mount never goes to a path, but to a descriptor that was opened without following a link
// (target). Then the path is resolved again, and must lead to the new mount: its directory may have
// been moved away meanwhile. The mount is held by a descriptor of its own, and undone by that.

// Recipe describes how a mount is made, in the two ways that kernels offer.
type Recipe struct {
	// detached makes the mount without a path, and returns a descriptor of its root. A close of the
	// descriptor unmounts it.
	Detached func() (fd int, err error)
	// legacy puts the mount on target by mount(2).
	Legacy func(target string) error
	// onlyLegacy: the new system calls cannot make this mount.
	onlyLegacy bool
	// remount gives a mount that legacy made its options. May be nil.
	remount func(root string) error
	// check compares the mount, by its root, with the expected mount. Where the kernel permits,
	// check runs before the mount has a path.
	Check func(root int) error
	// record runs the last steps, when the mount is at its path. After an error the mount is
	// undone.
	Record func(root int) error
}

// Attach makes a mount on t. Attach returns nil when the mount is at t's path; after an error no
// mount is left. Errors: ErrPath if t was moved or replaced meanwhile.
func (tr *Tree) Attach(t Target, r Recipe) error {
	m, err := tr.put(t, r)
	if err != nil {
		return err
	}
	defer unix.Close(m.FD)
	err = tr.Confirm(m, t.Path)
	if err == nil && r.Record != nil {
		err = r.Record(m.FD)
	}
	if err != nil {
		return errors.Join(err, m.Undo())
	}
	return nil
}

// put makes a mount on t, which may have been moved.
func (tr *Tree) put(t Target, r Recipe) (OwnMount, error) {
	if !tr.Legacy.Load() && !r.onlyLegacy {
		m, err := putDetached(t, r)
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
			return m, err
		}
		tr.Legacy.CompareAndSwap(false, errors.Is(err, unix.ENOSYS)) // EPERM can concern this mount alone
	}
	return putLegacy(t, r)
}

// putDetached puts the mount on t with all of its options in one step.
func putDetached(t Target, r Recipe) (OwnMount, error) {
	fd, err := r.Detached()
	if err != nil {
		return OwnMount{}, err
	}
	at, err := StatFD(fd)
	if err == nil {
		err = r.Check(fd)
	}
	if err == nil {
		if err = unix.MoveMount(fd, "", t.FD, "",
			unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
			err = fmt.Errorf("move_mount: %w", notThere(err))
		}
	}
	if err != nil {
		unix.Close(fd)
		return OwnMount{}, err
	}
	return OwnMount{fd, at.Mount}, nil
}

// notThere wraps the error of a mount on a removed directory in ErrPath.
func notThere(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: the target was removed: %w", mounter.ErrPath, err)
	}
	return err
}

// putLegacy makes the mount by mount(2). A bind mount ignores MS_RDONLY silently and needs a second
// call, until which it is writable.
func putLegacy(t Target, r Recipe) (OwnMount, error) {
	if err := r.Legacy(ProcPath(t.FD)); err != nil {
		return OwnMount{}, notThere(err)
	}
	m, err := t.MountOn()
	if err != nil { // umount2(2) goes to the topmost mount on the directory that the descriptor holds
		return OwnMount{}, errors.Join(err, unix.Unmount(ProcPath(t.FD), unix.MNT_DETACH))
	}
	if r.remount != nil {
		err = r.remount(ProcPath(m.FD))
	}
	if err == nil {
		err = r.Check(m.FD)
	}
	if err != nil {
		err = errors.Join(err, m.Undo())
		unix.Close(m.FD)
		return OwnMount{}, err
	}
	return m, nil
}

// Confirm returns ErrPath unless path leads to m and to no mount on top of it.
func (tr *Tree) Confirm(m OwnMount, path string) error {
	rel, err := paths.Below(tr.Dir, path)
	if err != nil {
		return err
	}
	fd, err := Resolve(tr.Real+"/"+rel, unix.O_PATH)
	if err == nil {
		defer unix.Close(fd)
		var at State
		if at, err = StatFD(fd); err == nil && (!at.Mounted || at.Mount != m.ID) {
			err = errors.New("another file, directory or mount is there now")
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %s was moved or replaced during the mount: %w", mounter.ErrPath, path, err)
	}
	return nil
}

// OwnMount is a mount that this call has made.
type OwnMount struct {
	FD int    // of its root
	ID uint64 // mount ID; no other mount gets it while fd is open
}

// Undo unmounts m, even after a move. umount2(2) first removes mounts of other processes on top of
// m, and returns EINVAL when m itself is no longer mounted.
func (m OwnMount) Undo() error {
	for range MaxLayers {
		switch err := unix.Unmount(ProcPath(m.FD), unix.MNT_DETACH); {
		case errors.Is(err, unix.EINVAL):
			return nil
		case err != nil:
			return fmt.Errorf("unmount mount %d: %w", m.ID, err)
		}
	}
	return fmt.Errorf("unmount mount %d: still a mount after %d tries", m.ID, MaxLayers)
}

// MountOn finds the mount that mount(2) has put on t. The kernel has no call that goes from a
// directory to the mount on it, so MountOn finds the mount in mountinfo and opens its path.
func (t Target) MountOn() (OwnMount, error) {
	below, err := StatFD(t.FD)
	if err != nil {
		return OwnMount{}, err
	}
	path, err := os.Readlink(ProcPath(t.FD)) // where the target is now
	if err != nil {
		return OwnMount{}, err
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return uint64(i.Parent) != below.Mount || i.Mountpoint != path, false
	})
	if err != nil {
		return OwnMount{}, err
	}
	if len(infos) != 1 {
		return OwnMount{}, fmt.Errorf("%w: %s was moved or replaced during the mount", mounter.ErrPath, t.Path)
	}
	fd, err := Resolve(path, unix.O_PATH)
	if err != nil {
		return OwnMount{}, err
	}
	at, err := StatFD(fd)
	if err == nil && at.Mount != uint64(infos[0].ID) {
		err = fmt.Errorf("%w: %s was moved or replaced during the mount", mounter.ErrPath, t.Path)
	}
	if err != nil {
		unix.Close(fd)
		return OwnMount{}, err
	}
	return OwnMount{fd, at.Mount}, nil
}

// VerifyFlags verifies that a mount has exactly these of the ST_* flags that options control.
func VerifyFlags(root int, want int64) error {
	got, err := FlagsOf(root)
	if err == nil && got&ManagedFlags != want {
		err = fmt.Errorf("has the mount flags %#x, not %#x", got&ManagedFlags, want)
	}
	return err
}

// FlagsOf returns the ST_* flags of the mount through which a file was opened.
func FlagsOf(fd int) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return 0, fmt.Errorf("statfs: %w", err)
	}
	return st.Flags, nil
}

// CloneTree returns a further mount of the file or directory that fd stands for, without a path.
func CloneTree(fd int) (int, error) {
	tree, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	return tree, nil
}

// DirectoryRecipe mounts a directory once more, with options. shown are the ST_* flags that the
// mount is to have.
func DirectoryRecipe(src Source, attr AttributeSet, shown int64) Recipe {
	return Recipe{
		Detached: func() (int, error) {
			tree, err := CloneTree(src.FD)
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
		Legacy: func(target string) error {
			if err := unix.Mount(ProcPath(src.FD), target, "", unix.MS_BIND, ""); err != nil {
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
		Check: func(root int) error {
			return errors.Join(CheckSame(root, src), VerifyFlags(root, shown))
		},
	}
}

// CheckSame returns an error unless root is the directory src.
func CheckSame(root int, src Source) error {
	at, err := StatFD(root)
	if err == nil && at.ID != src.ID {
		err = errors.New("another directory was mounted")
	}
	return err
}

// DeviceNodeRecipe mounts the node of a block device, which fd stands for, on a file.
func DeviceNodeRecipe(fd int, device FileID) Recipe {
	return Recipe{
		Detached: func() (int, error) { return CloneTree(fd) },
		Legacy: func(target string) error {
			if err := unix.Mount(ProcPath(fd), target, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("bind: %w", err)
			}
			return nil
		},
		Check: func(root int) error {
			at, err := StatFD(root)
			if err == nil && (at.Kind() != unix.S_IFBLK || at.Device != device) {
				err = fmt.Errorf("not the block device %d:%d", device.Major, device.Minor)
			}
			return err
		},
	}
}

// FilesystemRecipe mounts the filesystem on a device.
func FilesystemRecipe(device, fsType string, o Fresh) Recipe {
	return Recipe{
		Detached: func() (int, error) {
			fd, err := NewFilesystem(device, fsType, o.parameters(), o.Attributes)
			return fd, notFormat(fsType, err)
		},
		Legacy: func(target string) error {
			return notFormat(fsType, unix.Mount(device, target, fsType, o.flags, o.data()))
		},
		Check: func(root int) error { return VerifyFlags(root, o.Shown) },
		// Before Linux 6.8, fsconfig(2) keeps the label from btrfs, which sets labels itself, and
		// each mount is EINVAL: btrfs_mount_root in fs/btrfs/super.c.
		onlyLegacy: fsType == Btrfs && o.label != "",
	}
}

// notFormat wraps the errors by which a kernel rejects the content of a device in ErrFormat.
func notFormat(fsType string, err error) error {
	if errors.Is(err, mounter.ErrOption) {
		return err
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EUCLEAN) {
		return fmt.Errorf("%w: no %s that can be mounted: %w", mounter.ErrFormat, fsType, err)
	}
	return err
}

// NewFilesystem mounts the filesystem on a device without a path, and returns a descriptor of its
// root, whose close unmounts it. parameters are options of the filesystem, attributes MOUNT_ATTR_*.
func NewFilesystem(device, fsType string, parameters []string, attributes uint64) (int, error) {
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
					mounter.ErrOption, options.Context, err)
			}
		} else {
			err = unix.FsconfigSetFlag(fsys, o)
		}
	}
	if err == nil {
		err = unix.FsconfigCreate(fsys)
	}
	if errors.Is(err, unix.EBUSY) { // such as e2fsck, which an earlier driver has started
		err = fmt.Errorf("%w: a program has the device: %w", mounter.ErrStalled, err)
	}
	if err != nil {
		return -1, fmt.Errorf("mount the %s on %s: %w%s", fsType, device, err, KernelMessages(fsys))
	}
	fd, err := unix.Fsmount(fsys, unix.FSMOUNT_CLOEXEC, int(attributes))
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w%s", err, KernelMessages(fsys))
	}
	return fd, nil
}

// maxMessages bounds how many messages of the kernel an error shows.
const maxMessages = 8

// KernelMessages returns the kernel's reasons for rejecting a filesystem, if it gives any: each
// read from the descriptor of fsopen(2) is a message, after a letter for its severity.
func KernelMessages(fsys int) string {
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

// Btrfs is the type of a filesystem whose subvolumes have device numbers of their own.
const Btrfs = "btrfs"

// MountDetached mounts the filesystem on a device at no path. The mount lasts until the returned
// file is closed.
func MountDetached(device, fsType string, flags ...string) (*os.File, error) {
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	mount, err := NewFilesystem(device, fsType, flags, attributes)
	if err != nil {
		return nil, err
	}
	defer unix.Close(mount) // ioctl does not accept this descriptor; dir below keeps the mount
	dir, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the %s on %s: %w", fsType, device, err)
	}
	return os.NewFile(uintptr(dir), device), nil
}

// MaxLayers bounds the number of stacked mounts that Unmount removes from a path.
const MaxLayers = 32
