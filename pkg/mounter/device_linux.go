package mounter

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
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// A BlockDevice is mounted with mount-utils, which runs blkid, mkfs and fsck, behind a guard of its
// own: see examine. The mount itself is made as all others are, on a descriptor.

// claimTime is how long a device may be in use by a program that only looks at it, such as udev.
const claimTime = 200 * time.Millisecond

// deviceKey is the key of a block device for locks and stalls. No file has inode 0.
func (s state) deviceKey() backing { return backing{unix.Mkdev(s.device.major, s.device.minor), 0} }

// mountBlockDevice mounts the filesystem on a block device, or its node in the directory at p.
func (l *linux) mountBlockDevice(ctx context.Context, m Mount, src source, p pathHandle, attr attributeSet) error {
	if src.kind() != unix.S_IFBLK {
		return fmt.Errorf("%w: %s is %s, must be a block device", ErrDevice, m.Source, typeName(src.kind()))
	}
	dev, err := openDevice(src.fd, 0)
	if err != nil {
		return err
	}
	defer dev.Close() // while it is open, no other device gets its number
	if err := l.checkDevice(m, src, dev); err != nil {
		return err
	}
	if m.IsDevice() {
		return l.mountRaw(ctx, m, src, p)
	}
	o := attr.fresh(m.FSType, m.Options)
	if m.FSType == "xfs" { // a disk that was made from a snapshot has the UUID of its source
		o.text = append(o.text, "nouuid")
	}
	t, done, err := p.prepare(unix.S_IFDIR, func(at state, root int) (bool, error) {
		same, err := onDevice(at, src.device)
		return same, errors.Join(err, verifyFlags(root, o.shown))
	})
	if done || err != nil {
		return err
	}
	defer t.close()
	crashpoint.Reached("device:target-made")
	return t.failed(m, l.mountAttached(ctx, m, src, dev, t, o))
}

// openDevice opens a block device for reading. fd is an O_PATH descriptor of its node.
func openDevice(fd, flags int) (*os.File, error) {
	path := procPath(fd)
	dev, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(dev), path), nil
}

// checkDevice returns an error for a device that cannot be used as m describes. checkDevice does
// not read the device.
func (l *linux) checkDevice(m Mount, src source, dev *os.File) error {
	err := checkSequence(m, dev)
	if err == nil {
		err = largeEnough(m, dev)
	}
	if err != nil || m.IsDevice() { // the mount of a node makes its device read-only or writable
		return err
	}
	readOnly, err := isReadOnly(dev)
	if err == nil && readOnly && !m.ReadOnly {
		err = fmt.Errorf("%w: %s must be writable for this volume: attach the disk for writing; if it is attached "+
			"so, a driver"+
			" died during a read-only mount: run blockdev --setrw %s", ErrReadOnly, m.Source, m.Source)
	}
	return errors.Join(err, CheckFormat(m.FSType, m.Format), l.stalls.check(src.deviceKey()))
}

// checkSequence returns ErrDevice if dev is not the device that the backend found. The kernel tells
// the sequence number of the open device itself (BLKGETDISKSEQ, Linux 5.15). sysfs would tell that
// of the device which has the name or the number at that moment, and nothing of a disk that was
// unplugged.
func checkSequence(m Mount, dev *os.File) error {
	if m.Sequence == 0 {
		return nil
	}
	var now uint64
	if err := ioctl(int(dev.Fd()), unix.BLKGETDISKSEQ, unsafe.Pointer(&now)); err != nil {
		return fmt.Errorf("%w: %w", ErrDevice, &fs.PathError{Op: "BLKGETDISKSEQ", Path: m.Source, Err: err})
	}
	if now != m.Sequence {
		return fmt.Errorf("%w: %s is another disk now: it has the sequence number %d, must have %d, that of the "+
			"volume's disk, which"+
			" was detached: attach it again", ErrDevice, m.Source, now, m.Sequence)
	}
	return nil
}

// largeEnough returns ErrDevice for a device with fewer bytes than m.Size.
func largeEnough(m Mount, dev *os.File) error {
	size, err := sizeOf(dev)
	if err == nil && int64(size) < m.Size {
		err = TooSmall(m, int64(size))
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
func (l *linux) mountAttached(ctx context.Context, m Mount, src source, dev *os.File, t target, o fresh) error {
	leave, err := l.checks.Acquire(ctx, fair.Request{Kind: "check", Tenant: m.Tenant, Volume: m.Source})
	if err != nil {
		return err
	}
	defer leave()
	what, err := l.inspect(ctx, m, src)
	if err != nil {
		return err
	}
	p := &programs{
		linux: l, ctx: ctx, fsType: m.FSType, format: what.formatted != nil, repair: what.formatted == nil,
		disk: disk{file: dev, image: src.deviceKey(), path: m.Source, tenant: m.Tenant},
	}
	if err := l.agree(m, p, what); err != nil {
		return err
	}
	err = l.carryOut(m, src, p, what, t, o)
	if err != nil && what.formatted != nil {
		err = errors.Join(err, l.forgetFormat(ctx, m, src, err))
	}
	return err
}

// carryOut formats the device if that is the plan, and mounts its filesystem on t.
func (l *linux) carryOut(m Mount, src source, p *programs, what plan, t target, o fresh) error {
	dev := p.disk.file
	if err := l.begin(m, dev, what); err != nil {
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
		if err := l.finish(m, dev, what); err != nil {
			return err
		}
		r := filesystemRecipe(m.Source, m.FSType, o)
		if m.ReadOnly {
			r = unwritten(m, dev, o)
		}
		r.record = func(root int) error { return l.confirmDevice(t, src, root) }
		return l.attach(t, r)
	}}
	safe := mount.NewSafeFormatAndMount(last, p)
	err := safe.FormatAndMountSensitiveWithFormatOptions(diskPath, t.path, m.FSType, options, nil, what.arguments(m))
	switch {
	case last.err != nil:
		return last.err
	case p.failed != nil:
		return p.failed
	case err != nil:
		return fmt.Errorf("%w: %w", ErrFormat, err)
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
func (l *linux) inspect(ctx context.Context, m Mount, src source) (plan, error) {
	if m.Serial == "" {
		return plan{}, fmt.Errorf("%w: the storage gives no serial number of %s", ErrDevice, m.Source)
	}
	a, err := l.looks.Start(src.device, func() (looked, error) { return lookAt(src.device) })
	if err != nil {
		return plan{}, fmt.Errorf("%w: %s: %w", ErrNoAnswer, m.Source, err)
	}
	found, err := a.Wait(ctx)
	switch {
	case errors.Is(err, inflight.ErrNoAnswer):
		return plan{}, fmt.Errorf("%w: %s: %w", ErrNoAnswer, m.Source, err)
	case errors.Is(err, unix.EBUSY):
		return plan{}, fmt.Errorf("%w: %s is mounted, or open exclusively by another program%s", ErrBusy, m.Source,
			mountPointsOfFile(src.device))
	case err != nil:
		return plan{}, fmt.Errorf("%w: %s: %w", ErrDevice, m.Source, err)
	}
	record, err := l.readFormatting(m.Serial)
	if err != nil {
		return plan{}, err
	}
	if err := aloneOfItsKind(m, found.Content); err != nil {
		return plan{}, err
	}
	what := plan{size: found.size}
	switch again := found.unfinished(record); {
	case (found.Blank || again) && m.ReadOnly:
		return plan{}, fmt.Errorf("%w: %s has no filesystem yet: it must be mounted for writing first", ErrDevice,
			m.Source)
	case found.Blank || again:
		what.formatted, what.wipe, what.own = newFormatting(m, found.size), again, again && found.Name != signature.Unknown
		if again { // the remains of the earlier format must not look like another volume's
			what.formatted.UUID = record.UUID
		}
	case found.Name != m.FSType:
		return plan{}, fmt.Errorf("%w: %s has %s%s, not %s: it is not formatted, as the data may be needed. If they "+
			"are"+
			" not, wipe the device: wipefs --all", ErrDevice, m.Source, found.Name, found.DescribeCopies(), m.FSType)
	case record != nil: // of a format that ended, or that the volume has seen on another node since
		return what, l.removeFormatting(m.Serial)
	}
	return what, nil
}

// aloneOfItsKind returns ErrBusy for a btrfs while another device with the same UUID is mounted,
// such as the source of a snapshot. The kernel treats both as the same filesystem:
// fs/btrfs/volumes.c of Linux, device_list_add. Linux 6.7 and newer distinguishes them, with a
// temporary UUID.
func aloneOfItsKind(m Mount, c signature.Content) error {
	if c.Name != btrfs {
		return nil
	}
	id := (&formatting{UUID: c.ID}).uuid()
	switch _, err := os.Stat("/sys/fs/btrfs/" + id); {
	case err == nil:
		return fmt.Errorf("%w: %s has the UUID %s of a btrfs that is mounted here: use it on another node", ErrBusy,
			m.Source, id)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// looked is the result of lookAt for a device.
type looked struct {
	signature.Content
	size int64
}

// lookAt reads the content of a device. lookAt opens the device exclusively: for a device with a
// mounted filesystem, in any mount namespace, or of an array, the result is unix.EBUSY.
func lookAt(device fileID) (looked, error) {
	dev, err := claim(device)
	if err != nil {
		return looked{}, err
	}
	defer dev.Close()
	size, err := sizeOf(dev)
	if err != nil {
		return looked{}, err
	}
	c, err := signature.Examine(dev, int64(size))
	return looked{c, int64(size)}, errors.Join(err, sameSize(dev, int64(size)))
}

// claim opens a device exclusively. claim waits for a program that has claimed the device for a
// moment.
func claim(device fileID) (*os.File, error) {
	for end := time.Now().Add(claimTime); ; time.Sleep(claimTime / 20) {
		dev, err := openNumber(device, unix.O_EXCL)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return dev, err
		}
	}
}

// openNumber opens a device for reading, by the kernel's own name for it.
func openNumber(device fileID, flags int) (*os.File, error) {
	link, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", device.major, device.minor))
	if err != nil {
		return nil, err
	}
	path := filepath.Join("/dev", strings.ReplaceAll(filepath.Base(link), "!", "/"))
	dev, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	at, err := statFD(int(dev.Fd()))
	if err == nil && (at.kind() != unix.S_IFBLK || at.device != device) {
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
	now, err := sizeOf(dev)
	if err == nil && int64(now) != size {
		err = fmt.Errorf("%w: its size changed from %d to %d bytes meanwhile", ErrDevice, size, now)
	}
	return err
}

// mountPointsOfFile returns where a device is mounted here, for an error.
func mountPointsOfFile(device fileID) string {
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return uint32(i.Major) != device.major || uint32(i.Minor) != device.minor, false
	})
	if err != nil || len(infos) == 0 {
		return ""
	}
	return ", at " + infos[0].Mountpoint
}

// agree asks blkid for the content of the device, too. Errors: ErrDevice if blkid and examine
// differ.
func (l *linux) agree(m Mount, p *programs, what plan) error {
	if what.own { // a filesystem that blkid may find, too
		return nil
	}
	found, err := (&mount.SafeFormatAndMount{Exec: p}).GetDiskFormat(diskPath)
	if p.failed != nil { // blkid has not run, or does not answer
		return p.failed
	}
	if err != nil {
		return fmt.Errorf("%w: %s: blkid: %w", ErrDevice, m.Source, err)
	}
	want := m.FSType
	if what.formatted != nil {
		want = ""
	}
	if found != want {
		return fmt.Errorf("%w: %s: blkid found %q on it, must be %q", ErrDevice, m.Source, found, want)
	}
	return nil
}

// begin writes the record of a format. Then it makes a device blank on which an earlier format
// died.
func (l *linux) begin(m Mount, dev *os.File, what plan) error {
	if what.formatted == nil {
		return nil
	}
	if err := canFormat(m.FSType); err != nil {
		return err
	}
	if err := sameSize(dev, what.size); err != nil {
		return err
	}
	if err := l.writeFormatting(what.formatted); err != nil {
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
func (w plan) arguments(m Mount) []string {
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
func (l *linux) finish(m Mount, dev *os.File, what plan) error {
	if what.formatted == nil {
		return nil
	}
	crashpoint.Reached("device:formatted")
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", m.Source, err)
	}
	crashpoint.Reached("device:synced")
	if err := l.removeFormatting(m.Serial); err != nil {
		return fmt.Errorf("remove the record that %s is being formatted: %w", m.Source, err)
	}
	crashpoint.Reached("device:unrecorded")
	return nil
}

// confirmDevice returns an error unless the filesystem that was mounted is on the device, and
// remembers its path.
func (l *linux) confirmDevice(t target, src source, root int) error {
	crashpoint.Reached("device:mounted")
	at, err := statFD(root)
	if err != nil {
		return err
	}
	same, err := onDevice(at, src.device)
	if err == nil && !same {
		err = fmt.Errorf("%w: another device was mounted", ErrDevice)
	}
	return errors.Join(err, l.rememberAs(t.path, root))
}

// onDevice reports whether the filesystem that is mounted at a path is on a block device. The
// device number of a btrfs is its own, so the mount table tells its device.
func onDevice(at state, device fileID) (bool, error) {
	switch {
	case at.kind() != unix.S_IFDIR:
		return false, nil
	case at.id.major != 0:
		return at.id.major == device.major && at.id.minor == device.minor, nil
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == at.mount
		return !found, found
	})
	if err != nil || len(infos) == 0 {
		return false, err
	}
	if !filepath.IsAbs(infos[0].Source) { // a filesystem without a device
		return false, nil
	}
	named, err := stat(unix.AT_FDCWD, infos[0].Source, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil && named.kind() == unix.S_IFBLK && named.device == device, err
}
