package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/cifs"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/disk"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/freeze"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/image"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Host is a Linux machine.
type Host struct {
	*image.Images
	*freeze.Freezer
	Tree        *tree.Tree
	Loops       *loop.Devices
	Locks       *loop.Locks
	Tools       *tool.Runner
	Filesystems *filesystem.Programs
	Disks       *disk.Disks
	Shares      *cifs.Shares
	layers      inflight.Group[string, layer] // of overlays, by path
	opens       inflight.Group[int, struct{}] // opens the root of a filesystem, by mount ID
}

// New returns the Host of this machine for paths below dir, the kubelet directory, which must
// exist. state is a directory for the Host alone, which must outlive the process. New creates a
// missing state directory. New first thaws the filesystems that an earlier process has left
// frozen. If a thaw takes longer than a few seconds, New retries it in the background, and Failing
// reports the filesystem.
//
// New needs CAP_SYS_ADMIN in the user namespace that owns the mount namespace.
func New(dir, state string) (*Host, error) {
	h := &Host{Shares: cifs.New(), Tools: tool.NewRunner(), Loops: &loop.Devices{}}
	var err error
	if h.Tree, err = tree.New(dir, h.Shares.Registry.MayBeShare); err != nil {
		return nil, err
	}
	if err := mayMount(); err != nil {
		return nil, err
	}
	h.Shares.SetTree(h.Tree)
	h.Locks = loop.NewLocks(h.Tree, h.Loops)
	h.Filesystems = filesystem.New(h.Tools)
	h.Images = image.New(h.Tree, h.Loops, h.Locks, h.Tools, h.Filesystems)
	h.Disks = disk.New(state, h.Tree, h.Locks, h.Tools, h.Filesystems)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("directory for the records of frozen filesystems: %w", err)
	}
	if h.Freezer, err = freeze.New(state, h.Loops, h.Locks, h.Tools); err != nil {
		return nil, err
	}
	if err := h.findMounts(); err != nil {
		return nil, fmt.Errorf("mounts below %s: %w", dir, err)
	}
	return h, nil
}

// HelperTasks are the tasks of a Host that run in helper processes. A program that uses Freeze,
// Grow or Trim passes them to helper.Main.
func HelperTasks() []helper.Task {
	return slices.Concat(freeze.HelperTasks(), cifs.HelperTasks(), []helper.Task{filesystem.GrowTask})
}

// mountFunc mounts m at p, with the options attr.
type mountFunc func(ctx context.Context, m mounter.Mount, p tree.Handle, attr tree.AttributeSet) error

// sourceFunc is a mountFunc that has the source of m, and the lock of its image.
type sourceFunc func(ctx context.Context, m mounter.Mount, src tree.Source, p tree.Handle, attr tree.AttributeSet) error

// mountFuncs returns the function for each kind of a mount.
func (h *Host) mountFuncs() map[mounter.Kind]mountFunc {
	return map[mounter.Kind]mountFunc{
		mounter.Directory:   h.withSource(h.mountDirectory),
		mounter.Image:       h.withSource(h.Images.Mount),
		mounter.Disk:        h.withSource(h.Images.MountNode),
		mounter.Device:      h.withSource(h.mountDevice),
		mounter.BlockDevice: h.withSource(h.Disks.Mount),
		mounter.Share:       h.Shares.Mount,
	}
}

// withSource returns a function that opens and locks the source for mount.
func (h *Host) withSource(mount sourceFunc) mountFunc {
	return func(ctx context.Context, m mounter.Mount, p tree.Handle, attr tree.AttributeSet) error {
		src, release, err := h.Locks.LockSource(ctx, m)
		if err != nil {
			return err
		}
		defer release()
		return mount(ctx, m, src, p, attr)
	}
}

// Occupied implements mounter.Mounter.
func (h *Host) Occupied(ctx context.Context, path string) (bool, error) {
	return h.Tree.Occupied(ctx, path)
}

// OtherTargets implements mounter.Mounter.
func (h *Host) OtherTargets(ctx context.Context, path string) ([]string, error) {
	return h.Tree.OtherTargets(ctx, path)
}

// Checks implements mounter.Images.
func (h *Host) Checks() []mounter.Check { return h.Filesystems.Checks() }

// CleanPath is that of mounter.PathCleaner.
func (h *Host) CleanPath(path string) (string, error) { return h.Tree.CleanPath(path) }

// Mount implements mounter.Mounter.
func (h *Host) Mount(ctx context.Context, m mounter.Mount, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	attr, err := tree.Attributes(m)
	if err != nil {
		return err
	}
	p, err := h.Tree.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s does not exist: the kubelet must create it, and its --root-dir must be the "+
			"kubelet directory of the driver", mounter.ErrPath, filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if m.Kind == mounter.BlockDevice && m.Source == "" {
		return fmt.Errorf("%w: the volume is not attached to this node:"+
			" does the driver's CSIDriver have attachRequired?", mounter.ErrDevice)
	}
	return h.mountFuncs()[m.Kind](ctx, m, p, attr)
}

// releaseDisk unmounts the device of a Disk, if there is one, from the directory at p. releaseDisk
// then removes the files of the driver from the directory, and no others. at is the state of p.
func (h *Host) releaseDisk(ctx context.Context, p tree.Handle, at tree.State) error {
	if at.Kind() != unix.S_IFDIR {
		return nil
	}
	d, err := p.Node()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	at, err = d.Stat()
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, mounter.ErrPath) {
		return err
	}
	if at.Mounted {
		writable := disk.BecomesWritable(d, at)
		if err := h.Images.ReleaseDevice(ctx, d, at); err != nil {
			return err
		}
		writable()
	}
	h.Tree.Known.Forget(d.Path)
	_, there, err := d.ReadBacking()
	if err != nil && !errors.Is(err, mounter.ErrNotEmpty) {
		return err
	}
	empty := at.Kind() == unix.S_IFREG && at.Size == 0
	if at.Mounted || at.IsTarget() || (empty && there) {
		if err := d.RemoveFile(true); err != nil {
			return err
		}
	}
	if there { // removed last, as it proves that the target file belongs to the driver
		return d.RemoveBacking()
	}
	return nil
}

// mayMount returns an error if this process lacks CAP_SYS_ADMIN. Otherwise the process would start
// and its first mount would fail, much later.
func mayMount() error {
	if !tool.HasCapability(unix.CAP_SYS_ADMIN) {
		return fmt.Errorf("%w: mounting needs CAP_SYS_ADMIN: run as root, in Kubernetes in a privileged container",
			fs.ErrPermission)
	}
	return nil
}

// findMounts records the mounts that an earlier process has made below the kubelet directory, for
// OtherTargets. findMounts also marks the target files of block devices, for Remove.
func (h *Host) findMounts() error {
	below := mountinfo.PrefixFilter(h.Tree.Real)
	var devices []string // paths of loop devices' nodes
	numbers := map[string]string{}
	ours := map[string]bool{} // names of the devices of Disks
	_, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		if skip, _ := below(i); skip || i.Mountpoint == h.Tree.Real {
			return true, false
		}
		path := h.Tree.Dir + strings.TrimPrefix(i.Mountpoint, h.Tree.Real)
		h.Tree.Known.Add(path, tree.SourceOf(i, i.Root))
		if i.FSType == cifs.FSType {
			h.Shares.Registry.Add(uint32(i.Major), uint32(i.Minor))
		}
		if n, ok := loop.Number(i.Source); ok && i.FSType == tree.Btrfs { // a local disk, so statx does not stall
			if at, err := statAt(i); err == nil {
				h.Loops.ShowsOn(at.ID, n)
			}
		}
		if _, ok := loop.Number("/dev" + i.Root); ok {
			devices, numbers[path] = append(devices, path), i.Root
			ours[i.Root] = ours[i.Root] || h.Tree.IsDisk(path)
		}
		return true, false
	})
	for _, path := range devices {
		if p, err := h.Tree.Open(path); err == nil {
			if ours[numbers[path]] {
				p.MarkBelow() // without the mark, Remove accepts a file only after its own unmount of the device
			}
			p.Close()
		}
	}
	return err
}

// statAt returns the state of the root of a mount. Errors: ErrPath if its path now leads to another
// mount.
func statAt(i *mountinfo.Info) (tree.State, error) {
	fd, err := tree.Resolve(i.Mountpoint, unix.O_PATH)
	if err != nil {
		return tree.State{}, err
	}
	defer unix.Close(fd)
	at, err := tree.StatFD(fd)
	if err == nil && at.Mount != uint64(i.ID) {
		err = fmt.Errorf("%w: another mount is at %s", mounter.ErrPath, i.Mountpoint)
	}
	return at, err
}

// mountDirectory mounts a directory once more.
func (h *Host) mountDirectory(_ context.Context, m mounter.Mount, src tree.Source, p tree.Handle,
	attr tree.AttributeSet) error {
	if src.Kind() != unix.S_IFDIR {
		return &fs.PathError{Op: "mount", Path: m.Source, Err: unix.ENOTDIR}
	}
	flags, err := h.Shares.FlagsAt(src.FD, src.State)
	if err != nil {
		return err
	}
	if flags&unix.ST_RDONLY != 0 && attr.Flags&unix.ST_RDONLY == 0 {
		return fmt.Errorf("%w: %s", mounter.ErrReadOnly, m.Source)
	}
	shown := (flags&tree.ManagedFlags)&^attr.ClearFlags() | attr.Flags
	t, done, err := p.Prepare(unix.S_IFDIR, func(at tree.State, root int) (bool, error) {
		return at.ID == src.ID, h.Shares.VerifyFlagsAt(root, at, shown)
	})
	if done || err != nil {
		return err
	}
	defer t.Close()
	crashpoint.Reached("mount:target-made")
	r := tree.DirectoryRecipe(src, attr, shown)
	share, err := h.Shares.InfoOf(src.State)
	if err != nil {
		return t.Failed(m, err)
	}
	if share != nil { // only mountinfo shows its flags without a question to its server
		r.Check = func(root int) error { return tree.CheckSame(root, src) }
	}
	r.Record = func(root int) error {
		if share != nil {
			if err := h.Shares.VerifyRoot(root, shown); err != nil {
				return err
			}
		}
		return h.Tree.Remember(p.Path, src)
	}
	return t.Failed(m, h.Tree.Attach(t, r))
}

// Grow grows the mount m at path.
func (h *Host) Grow(ctx context.Context, m mounter.Mount, path string) error {
	switch m.Kind {
	case mounter.Image, mounter.Disk:
		return h.Images.Grow(ctx, m, path)
	case mounter.BlockDevice:
		return h.Disks.Grow(ctx, m, path)
	}
	return nil
}

// Unmount is that of mounter.Mounter.
func (h *Host) Unmount(ctx context.Context, path string) error {
	release, err := h.Locks.LockAt(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	return h.unmountLayers(ctx, path, false)
}

// Remove is that of mounter.Mounter.
func (h *Host) Remove(ctx context.Context, path string) error {
	release, err := h.Locks.LockAt(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	return h.unmountLayers(ctx, path, true)
}

// unmountLayers unmounts layer by layer until path is no mount point. With remove, the removal of
// path shows that no layer is left. The caller holds the locks of the image that is mounted there.
func (h *Host) unmountLayers(ctx context.Context, path string, remove bool) error {
	hold, err := h.Shares.LockPath(ctx, path)
	if err != nil {
		return err
	}
	defer hold.Free()
	p, err := h.Tree.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		h.Tree.Known.Forget(path)
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	device := false // a device node was mounted there
	for range tree.MaxLayers {
		at, err := p.Stat()
		switch {
		case at.Broken:
			err = p.Unmount(ctx, unix.MNT_DETACH)
		case errors.Is(err, fs.ErrNotExist):
			h.Tree.Known.Forget(path)
			return nil
		case err == nil && at.Mounted:
			err = h.unmountLayer(ctx, p, at, hold)
			device = device || at.Kind() == unix.S_IFBLK
		case err == nil && !remove:
			h.Tree.Known.Forget(path)
			return h.releaseDisk(ctx, p, at)
		}
		if err == nil && remove {
			crashpoint.Reached("remove:unmounted")
			err = h.removeAt(ctx, p, at, device)
			if err == nil {
				h.Tree.Known.Forget(path)
				return nil
			}
			if errors.Is(err, mounter.ErrBusy) { // another layer is mounted there
				continue
			}
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("unmount %s: still a mount point after %d tries", path, tree.MaxLayers)
}

// unmountLayer removes the topmost mount at p.
func (h *Host) unmountLayer(ctx context.Context, p tree.Handle, at tree.State, hold *cifs.PathLock) error {
	share, err := h.Shares.InfoOf(at)
	if err != nil {
		return err
	}
	if share != nil {
		return h.Shares.Unmount(ctx, p, at, share, hold)
	}
	return p.Unmount(ctx, 0)
}

// removeAt removes the mount point at p: a directory with or without the device of a Disk, or the
// target file of a device. device reports whether this call has unmounted a device from p.
func (h *Host) removeAt(ctx context.Context, p tree.Handle, at tree.State, device bool) error {
	err := p.RemoveDirectory()
	switch {
	case errors.Is(err, unix.ENOTDIR):
		err = p.RemoveFile(device)
	case errors.Is(err, mounter.ErrNotEmpty):
		if failed := h.releaseDisk(ctx, p, at); failed != nil {
			// Not wrapped: its class ErrBusy would mean another layer.
			return fmt.Errorf("%w: %v", err, failed) //nolint:errorlint
		}
		err = p.RemoveDirectory()
	}
	return err
}

// Mounted is that of mounter.Mounter.
func (h *Host) Mounted(_ context.Context, m mounter.Mount, path string) (bool, error) {
	if m.Kind == mounter.BlockDevice && m.Source == "" { // the device is not attached
		return false, nil
	}
	if m.Kind == mounter.Share {
		return h.Shares.Mounted(m, path)
	}
	src, err := h.Tree.StatSource(m.Source)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if m.Kind == mounter.BlockDevice && m.IsDevice() {
		return h.Disks.RawMounted(path, src.Device)
	}
	return h.Tree.Shows(path, func(at tree.State) (bool, error) {
		switch m.Kind {
		case mounter.BlockDevice:
			return disk.OnDevice(at, src.Device)
		case mounter.Image, mounter.Disk:
			return h.Loops.Backs(at, src.Backing())
		case mounter.Device:
			return at.Mode&unix.S_IFMT == unix.S_IFBLK && at.Device == src.Device, nil
		}
		return at.ID == src.ID, nil
	})
}

// IsFilesystem is that of mounter.Images. A bind mount of a directory below the root of a
// filesystem is not a root.
func (h *Host) IsFilesystem(path string) (bool, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	name, own, err := tree.Find(resolved)
	if err == nil && own == nil {
		err = fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return err == nil && name == "/", err
}

// IsShared reports whether new mounts below path, which must exist, propagate outside this mount
// namespace. In a container they must propagate (mountPropagation: Bidirectional). Otherwise pods
// would see empty directories.
func IsShared(path string) (bool, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	_, own, err := tree.Find(resolved)
	if err == nil && own == nil {
		err = fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return err == nil && strings.Contains(own.Optional, "shared:"), err
}

// Usage is that of mounter.Mounter.
func (h *Host) Usage(ctx context.Context, path string) (mounter.Usage, error) {
	p, err := h.Tree.Open(path)
	if err != nil {
		return mounter.Usage{}, err
	}
	defer p.Close()
	if n, ok := loop.NumberAt(p); ok {
		return loop.Usage(n)
	}
	if u, ok, err := p.DeviceUsage(); ok || err != nil {
		return u, err
	}
	if at, err := p.Stat(); err == nil {
		if share, err := h.Shares.InfoOf(at); err != nil {
			return mounter.Usage{}, err
		} else if share != nil {
			return h.Shares.Usage(ctx, p, at, share)
		}
	}
	var st unix.Statfs_t
	if err := p.Statfs(&st); err != nil {
		return mounter.Usage{}, err
	}
	return tree.UsageOf(st), nil
}

// Supports returns errors.ErrUnsupported for a filesystem of another operating system.
func (h *Host) Supports(k mounter.Kind, fsType string, options []string) error {
	return mounter.Linux.Supports(k, fsType, options)
}

// Helpers is that of mounter.Images.
func (h *Host) Helpers() []mounter.Helpers {
	freezes, maxFreezes := h.Freezer.Freezers.Busy()
	others, maxOthers := h.Tools.Helpers.Busy()
	shares, maxShares := h.Shares.Helpers.Busy()
	return []mounter.Helpers{
		{Pool: "freeze", Busy: freezes, Limit: maxFreezes},
		{Pool: "mount", Busy: others, Limit: maxOthers},
		{Pool: "share", Busy: shares, Limit: maxShares},
	}
}
