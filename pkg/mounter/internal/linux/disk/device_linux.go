package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// Disks mounts block devices.
type Disks struct {
	state       string                                     // directory with the directory of the records of formats
	looks       inflight.Group[tree.FileID, deviceContent] // reads of devices, by device number
	rescans     inflight.Group[string, struct{}]           // of the sizes of SCSI disks, by the file in sysfs
	tree        *tree.Tree
	locks       *loop.Locks
	tools       *tool.Runner
	filesystems *filesystem.Programs
}

// New returns the Disks of a Host of these parts, with its records below the directory state.
func New(state string, tr *tree.Tree, locks *loop.Locks, tools *tool.Runner, filesystems *filesystem.Programs) *Disks {
	return &Disks{state: state, tree: tr, locks: locks, tools: tools, filesystems: filesystems}
}

// A BlockDevice is mounted with mount-utils, which runs blkid, mkfs and fsck, behind a guard of its
// own: see examine. The mount itself is made as all others are, on a descriptor.

// claimTime is how long a device may be in use by a program that only looks at it, such as udev.
const claimTime = 200 * time.Millisecond

// Mount mounts the filesystem on a block device, or its node in the directory at p.
func (ds *Disks) Mount(ctx context.Context, m mounter.Mount, src tree.Source, p tree.Handle,
	attr tree.AttributeSet) error {
	if src.Kind() != unix.S_IFBLK {
		return fmt.Errorf("%w: %s is %s, must be a block device", mounter.ErrDevice, m.Source,
			tree.TypeName(src.Kind()))
	}
	dev, err := tree.OpenDevice(src.FD, 0)
	if err != nil {
		return err
	}
	defer dev.Close() // while it is open, no other device gets its number
	if err := ds.checkDevice(m, src, dev); err != nil {
		return err
	}
	if m.IsDevice() {
		return ds.mountRaw(ctx, m, src, p)
	}
	o := attr.Fresh(m.FSType, m.Options)
	if m.FSType == "xfs" { // a disk that was made from a snapshot has the UUID of its source
		o.Text = append(o.Text, "nouuid")
	}
	t, done, err := p.Prepare(unix.S_IFDIR, func(at tree.State, root int) (bool, error) {
		same, err := OnDevice(at, src.Device)
		return same, errors.Join(err, tree.VerifyFlags(root, o.Shown))
	})
	if done || err != nil {
		return err
	}
	defer t.Close()
	crashpoint.Reached("device:target-made")
	return t.Failed(m, ds.mountAttached(ctx, m, src, dev, t, o))
}

// checkDevice returns an error for a device that cannot be used as m describes. checkDevice does
// not read the device.
func (ds *Disks) checkDevice(m mounter.Mount, src tree.Source, dev *os.File) error {
	err := checkSequence(m, dev)
	if err == nil {
		err = largeEnough(m, dev)
	}
	if err != nil || m.IsDevice() { // the mount of a node makes its device read-only or writable
		return err
	}
	readOnly, err := tree.IsReadOnly(dev)
	if err == nil && readOnly && !m.ReadOnly {
		err = fmt.Errorf("%w: %s must be writable for this volume: attach the disk for writing; if it is attached "+
			"so, a driver"+
			" died during a read-only mount: run blockdev --setrw %s", mounter.ErrReadOnly, m.Source, m.Source)
	}
	return errors.Join(err, mounter.CheckFormat(m.FSType, m.Format), ds.tools.Stalls.Check(src.DeviceKey()))
}

// checkSequence returns ErrDevice if dev is not the device that the backend found. The kernel tells
// the sequence number of the open device itself (BLKGETDISKSEQ, Linux 5.15). sysfs would tell that
// of the device which has the name or the number at that moment, and nothing of a disk that was
// unplugged.
func checkSequence(m mounter.Mount, dev *os.File) error {
	if m.Sequence == 0 {
		return nil
	}
	var now uint64
	if err := tree.Ioctl(int(dev.Fd()), unix.BLKGETDISKSEQ, unsafe.Pointer(&now)); err != nil {
		return fmt.Errorf("%w: %w", mounter.ErrDevice, &fs.PathError{Op: "BLKGETDISKSEQ", Path: m.Source, Err: err})
	}
	if now != m.Sequence {
		return fmt.Errorf("%w: %s is another disk now: it has the sequence number %d, must have %d, that of the "+
			"volume's disk, which"+
			" was detached: attach it again", mounter.ErrDevice, m.Source, now, m.Sequence)
	}
	return nil
}

// largeEnough returns ErrDevice for a device with fewer bytes than m.Size.
func largeEnough(m mounter.Mount, dev *os.File) error {
	size, err := tree.SizeOf(dev)
	if err == nil && int64(size) < m.Size {
		err = mounter.TooSmall(m, int64(size))
	}
	return err
}

// plan holds the decision of inspect: mount, format, or wipe and format.
type plan struct {
	size      int64
	formatted *formatting // the record of the format that is to be made; nil: it has its filesystem
	wipe      bool        // remains of an interrupted format
	own       bool        // the remains have the UUID of the record
}

// mountAttached formats the device if that may be done, and mounts the filesystem on t.
func (ds *Disks) mountAttached(ctx context.Context, m mounter.Mount, src tree.Source, dev *os.File, t tree.Target,
	o tree.Fresh) error {
	leave, err := ds.filesystems.CheckSlots.Acquire(ctx,
		fair.Request{Kind: "check", Tenant: m.Tenant, Volume: m.Source})
	if err != nil {
		return err
	}
	defer leave()
	what, err := ds.inspect(ctx, m, src)
	if err != nil {
		return err
	}
	p := &programs{
		Disks: ds, ctx: ctx, fsType: m.FSType, format: what.formatted != nil, repair: what.formatted == nil,
		disk: tool.Disk{File: dev, Image: src.DeviceKey(), Path: m.Source, Tenant: m.Tenant},
	}
	if err := ds.agree(m, p, what); err != nil {
		return err
	}
	err = ds.carryOut(m, src, p, what, t, o)
	if err != nil && what.formatted != nil {
		err = errors.Join(err, ds.forgetFormat(ctx, m, src, err))
	}
	return err
}

// carryOut formats the device if that is the plan, and mounts its filesystem on t.
func (ds *Disks) carryOut(m mounter.Mount, src tree.Source, p *programs, what plan, t tree.Target, o tree.Fresh) error {
	dev := p.disk.File
	if err := ds.begin(m, dev, what); err != nil {
		return err
	}
	options := m.Options
	if m.ReadOnly { // mount-utils then neither formats nor repairs
		options = append([]string{"ro"}, options...)
	}
	last := &lastStep{step: func() error {
		if p.failed != nil {
			return p.failed
		}
		if err := ds.finish(m, dev, what); err != nil {
			return err
		}
		r := tree.FilesystemRecipe(m.Source, m.FSType, o)
		if m.ReadOnly {
			r = unwritten(m, dev, o)
		}
		r.Record = func(root int) error { return ds.confirmDevice(t, src, root) }
		return ds.tree.Attach(t, r)
	}}
	safe := mount.NewSafeFormatAndMount(last, p)
	err := safe.FormatAndMountSensitiveWithFormatOptions(tool.DiskPath, t.Path, m.FSType, options, nil,
		what.arguments(m))
	switch {
	case last.err != nil:
		return last.err
	case p.failed != nil:
		return p.failed
	case err != nil:
		return fmt.Errorf("%w: %w", mounter.ErrFormat, err)
	}
	return nil
}

// lastStep is the mount.Interface that mount-utils gets: mount-utils calls MountSensitive alone,
// when the device has its filesystem.
type lastStep struct {
	mount.Interface // nil
	step            func() error
	err             error
}

// MountSensitive runs the last step.
func (s *lastStep) MountSensitive(string, string, string, []string, []string) error {
	s.err = s.step()
	return s.err
}

// inspect reads a device that no other program uses, and returns the plan for it. Errors: ErrBusy,
// ErrDevice, ErrNoAnswer.
func (ds *Disks) inspect(ctx context.Context, m mounter.Mount, src tree.Source) (plan, error) {
	if m.Serial == "" {
		return plan{}, fmt.Errorf("%w: the storage gives no serial number of %s", mounter.ErrDevice, m.Source)
	}
	a, err := ds.looks.Start(src.Device, func() (deviceContent, error) { return readDevice(src.Device) })
	if err != nil {
		return plan{}, fmt.Errorf("%w: %s: %w", mounter.ErrNoAnswer, m.Source, err)
	}
	found, err := a.Wait(ctx)
	switch {
	case errors.Is(err, inflight.ErrNoAnswer):
		return plan{}, fmt.Errorf("%w: %s: %w", mounter.ErrNoAnswer, m.Source, err)
	case errors.Is(err, unix.EBUSY):
		return plan{}, fmt.Errorf("%w: %s is mounted, or open exclusively by another program%s", mounter.ErrBusy,
			m.Source, mountPointsOfFile(src.Device))
	case err != nil:
		return plan{}, fmt.Errorf("%w: %s: %w", mounter.ErrDevice, m.Source, err)
	}
	record, err := ds.readFormatting(m.Serial)
	if err != nil {
		return plan{}, err
	}
	if err := aloneOfItsKind(m, found.Content); err != nil {
		return plan{}, err
	}
	what := plan{size: found.size}
	switch again := found.unfinished(record); {
	case (found.Blank || again) && m.ReadOnly:
		return plan{}, fmt.Errorf("%w: %s has no filesystem yet: it must be mounted for writing first",
			mounter.ErrDevice, m.Source)
	case found.Blank || again:
		what.formatted, what.wipe, what.own = newFormatting(m, found.size), again,
			again && found.Name != signature.Unknown
		if again { // the remains of the earlier format must not look like another volume's
			what.formatted.UUID = record.UUID
		}
	case found.Name != m.FSType:
		return plan{}, fmt.Errorf("%w: %s has %s%s, not %s: it is not formatted, as the data may be needed. If they "+
			"are"+
			" not, wipe the device: wipefs --all", mounter.ErrDevice, m.Source, found.Name, found.DescribeCopies(),
			m.FSType)
	case record != nil: // of a format that ended, or that the volume has seen on another node since
		return what, ds.removeFormatting(m.Serial)
	}
	return what, nil
}

// aloneOfItsKind returns ErrBusy for a btrfs while another device with the same UUID is mounted,
// such as the source of a snapshot. The kernel treats both as the same filesystem:
// fs/btrfs/volumes.c of Linux, device_list_add. Linux 6.7 and newer distinguishes them, with a
// temporary UUID.
func aloneOfItsKind(m mounter.Mount, c signature.Content) error {
	if c.Name != tree.Btrfs {
		return nil
	}
	id := (&formatting{UUID: c.ID}).uuid()
	switch _, err := os.Stat("/sys/fs/btrfs/" + id); {
	case err == nil:
		return fmt.Errorf("%w: %s has the UUID %s of a btrfs that is mounted here: use it on another node",
			mounter.ErrBusy, m.Source, id)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// deviceContent is the result of readDevice for a device.
type deviceContent struct {
	signature.Content
	size int64
}

// readDevice reads the content of a device. readDevice opens the device exclusively: for a device
// with a mounted filesystem, in any mount namespace, or of an array, the result is unix.EBUSY.
func readDevice(device tree.FileID) (deviceContent, error) {
	dev, err := claim(device)
	if err != nil {
		return deviceContent{}, err
	}
	defer dev.Close()
	size, err := tree.SizeOf(dev)
	if err != nil {
		return deviceContent{}, err
	}
	c, err := signature.Examine(dev, int64(size))
	return deviceContent{c, int64(size)}, errors.Join(err, sameSize(dev, int64(size)))
}

// claim opens a device exclusively. claim waits for a program that has claimed the device for a
// moment.
func claim(device tree.FileID) (*os.File, error) {
	for end := time.Now().Add(claimTime); ; time.Sleep(claimTime / 20) {
		dev, err := openNumber(device, unix.O_EXCL)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return dev, err
		}
	}
}

// openNumber opens a device for reading, by the kernel's own name for it.
func openNumber(device tree.FileID, flags int) (*os.File, error) {
	link, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", device.Major, device.Minor))
	if err != nil {
		return nil, err
	}
	path := filepath.Join("/dev", strings.ReplaceAll(filepath.Base(link), "!", "/"))
	dev, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	at, err := tree.StatFD(int(dev.Fd()))
	if err == nil && (at.Kind() != unix.S_IFBLK || at.Device != device) {
		err = fmt.Errorf("%s is another device now", path)
	}
	if err != nil {
		dev.Close()
		return nil, err
	}
	return dev, nil
}

// sameSize returns an error if the size of a device has changed: reads relative to its end are then
// invalid.
func sameSize(dev *os.File, size int64) error {
	now, err := tree.SizeOf(dev)
	if err == nil && int64(now) != size {
		err = fmt.Errorf("%w: its size changed from %d to %d bytes meanwhile", mounter.ErrDevice, size, now)
	}
	return err
}

// MountPointsOfFile returns where a device is mounted here, for an error.
func mountPointsOfFile(device tree.FileID) string {
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return uint32(i.Major) != device.Major || uint32(i.Minor) != device.Minor, false
	})
	if err != nil || len(infos) == 0 {
		return ""
	}
	return ", at " + infos[0].Mountpoint
}

// agree asks blkid for the content of the device, too. Errors: ErrDevice if blkid and examine
// differ.
func (ds *Disks) agree(m mounter.Mount, p *programs, what plan) error {
	if what.own { // a filesystem that blkid may find, too
		return nil
	}
	found, err := (&mount.SafeFormatAndMount{Exec: p}).GetDiskFormat(tool.DiskPath)
	if p.failed != nil { // blkid has not run, or does not answer
		return p.failed
	}
	if err != nil {
		return fmt.Errorf("%w: %s: blkid: %w", mounter.ErrDevice, m.Source, err)
	}
	want := m.FSType
	if what.formatted != nil {
		want = ""
	}
	if found != want {
		return fmt.Errorf("%w: %s: blkid found %q on it, must be %q", mounter.ErrDevice, m.Source, found, want)
	}
	return nil
}

// begin writes the record of a format. Then it makes a device blank on which an earlier format
// died.
func (ds *Disks) begin(m mounter.Mount, dev *os.File, what plan) error {
	if what.formatted == nil {
		return nil
	}
	if err := filesystem.CanFormat(m.FSType); err != nil {
		return err
	}
	if err := sameSize(dev, what.size); err != nil {
		return err
	}
	if err := ds.writeFormatting(what.formatted); err != nil {
		return fmt.Errorf("record that %s is being formatted: %w", m.Source, err)
	}
	crashpoint.Reached("device:recorded")
	if !what.wipe {
		return nil
	}
	if err := wipe(dev, what.size); err != nil {
		return fmt.Errorf("wipe %s: %w", m.Source, err)
	}
	return nil
}

// arguments are the arguments of mkfs beside those of mount-utils.
func (w plan) arguments(m mounter.Mount) []string {
	if w.formatted == nil {
		return nil
	}
	if m.FSType == "xfs" {
		return append([]string{"-m", "uuid=" + w.formatted.uuid()}, m.Format...)
	}
	return append([]string{"-U", w.formatted.uuid()}, m.Format...)
}

// finish makes a new filesystem durable, and then removes its record: with a record that outlives
// the first mount, a later mount would destroy data.
func (ds *Disks) finish(m mounter.Mount, dev *os.File, what plan) error {
	if what.formatted == nil {
		return nil
	}
	crashpoint.Reached("device:formatted")
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", m.Source, err)
	}
	crashpoint.Reached("device:synced")
	if err := ds.removeFormatting(m.Serial); err != nil {
		return fmt.Errorf("remove the record that %s is being formatted: %w", m.Source, err)
	}
	crashpoint.Reached("device:unrecorded")
	return nil
}

// confirmDevice returns an error unless the filesystem that was mounted is on the device, and
// remembers its path.
func (ds *Disks) confirmDevice(t tree.Target, src tree.Source, root int) error {
	crashpoint.Reached("device:mounted")
	at, err := tree.StatFD(root)
	if err != nil {
		return err
	}
	same, err := OnDevice(at, src.Device)
	if err == nil && !same {
		err = fmt.Errorf("%w: another device was mounted", mounter.ErrDevice)
	}
	return errors.Join(err, ds.tree.RememberAs(t.Path, root))
}

// OnDevice reports whether the filesystem that is mounted at a path is on a block device. The
// device number of a btrfs is its own, so the mount table tells its device.
func OnDevice(at tree.State, device tree.FileID) (bool, error) {
	switch {
	case at.Kind() != unix.S_IFDIR:
		return false, nil
	case at.ID.Major != 0:
		return at.ID.Major == device.Major && at.ID.Minor == device.Minor, nil
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == at.Mount
		return !found, found
	})
	if err != nil || len(infos) == 0 {
		return false, err
	}
	if !filepath.IsAbs(infos[0].Source) { // a filesystem without a device
		return false, nil
	}
	named, err := tree.Stat(unix.AT_FDCWD, infos[0].Source, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil && named.Kind() == unix.S_IFBLK && named.Device == device, err
}
