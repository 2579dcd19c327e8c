package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// mountRaw mounts the node of a block device in the directory at p, as MountNode does for a Disk. A
// mounted node does not keep its device, so the kernel may give the number of a removed disk to
// another disk. A backing record beside the node distinguishes the two disks.
func (ds *Disks) mountRaw(ctx context.Context, m mounter.Mount, src tree.Source, p tree.Handle) error {
	d, made, err := p.PrepareNode()
	if err != nil {
		return err
	}
	defer d.Close()
	if err = ds.mountRawAt(ctx, m, src, d); err == nil {
		return nil
	}
	at, look := tree.StatFD(d.Parent)
	return errors.Join(err, look, tree.Target{Handle: p, FD: d.Parent, ID: at.ID, Made: made}.Discard())
}

func (ds *Disks) mountRawAt(ctx context.Context, m mounter.Mount, src tree.Source, d tree.Handle) error {
	if at, err := d.Stat(); err == nil && at.Mounted {
		if is, err := isRaw(d, at, src.Device); is || err != nil {
			return err
		}
		if at.Kind() == unix.S_IFBLK { // the node of a removed device, or of another device
			if err := d.Unmount(ctx, 0); err != nil {
				return err
			}
		}
	}
	if err := ds.checkUnused(m, src); err != nil {
		return err
	}
	if m.Serial != "" { // new data on the device must not count as the remains of an interrupted format
		if err := ds.removeFormatting(m.Serial); err != nil {
			return err
		}
	}
	t, done, err := d.Prepare(unix.S_IFREG, func(tree.State, int) (bool, error) { return false, nil })
	if done || err != nil {
		return err
	}
	defer t.Close()
	readOnly, err := readOnlyFlag(src)
	if err == nil {
		err = d.WriteBacking(rawIdentity(src.Device), readOnly)
	}
	if err == nil {
		r := tree.DeviceNodeRecipe(src.FD, src.Device)
		r.Record = func(root int) error { return errors.Join(tree.MarkTarget(t.FD), ds.tree.RememberAs(t.Path, root)) }
		if err = ds.tree.Attach(t, r); err != nil && t.Made {
			err = errors.Join(err, d.RemoveBacking())
		}
	}
	return t.Failed(m, err)
}

// readOnlyFlag returns 1 for a read-only device, else 0.
func readOnlyFlag(src tree.Source) (int, error) {
	dev, err := tree.OpenDevice(src.FD, 0)
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	readOnly, err := tree.IsReadOnly(dev)
	if readOnly {
		return 1, err
	}
	return 0, err
}

// BecomesWritable returns a function that makes the BlockDevice whose node is mounted at d
// writable. The caller calls the function after the unmount: a target may have made the device
// read-only, and the kernel keeps that setting. A device that was read-only when it was staged
// stays read-only.
func BecomesWritable(p tree.Handle, at tree.State) func() {
	nothing := func() {}
	if !wasWritable(p, at) { // first: to open a disk that does not answer can hang
		return nothing
	}
	dev, err := openNumber(at.Device, 0) // not through the node, which would stay mounted
	if err != nil {
		return nothing
	}
	if !wasWritable(p, at) { // while dev is open, no other device gets its number
		dev.Close()
		return nothing
	}
	return func() {
		defer dev.Close()
		tree.SetDeviceReadOnly(dev, false)
	}
}

// wasWritable reports whether the node that is mounted at d is that of a BlockDevice which was
// writable when it was staged.
func wasWritable(p tree.Handle, at tree.State) bool {
	is, err := isRaw(p, at, at.Device)
	_, wasReadOnly, _, failed := p.ReadBackingFlag()
	return is && err == nil && failed == nil && wasReadOnly == 0
}

// checkUnused returns ErrBusy for a device that another program has open exclusively.
func (ds *Disks) checkUnused(m mounter.Mount, src tree.Source) error {
	dev, err := claim(src.Device)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %s is mounted, or open exclusively by another program%s",
			mounter.ErrBusy, m.Source, mountPointsOfFile(src.Device))
	}
	if err != nil {
		return err
	}
	return dev.Close()
}

// isRaw reports whether the node that is mounted at d is the node of device, and was mounted since
// the disk that now has this number was attached.
func isRaw(p tree.Handle, at tree.State, device tree.FileID) (bool, error) {
	if at.Kind() != unix.S_IFBLK || at.Device != device {
		return false, nil
	}
	b, there, err := p.ReadBacking()
	if errors.Is(err, mounter.ErrNotEmpty) {
		err = nil
	}
	return there && b == rawIdentity(device), err
}

// rawIdentity returns the content of the backing record of a BlockDevice: the number of the device,
// and its sequence number (diskseq, Linux 5.15). The backing file of a loop device never has this
// identity.
func rawIdentity(device tree.FileID) tree.Backing {
	text, _ := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/diskseq", device.Major, device.Minor))
	sequence, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return tree.Backing{Dev: unix.Mkdev(device.Major, device.Minor), Ino: sequence}
}

// RawMounted reports whether the node of a device is mounted at path (a target path) or in the
// directory at path (a staging path).
func (ds *Disks) RawMounted(path string, device tree.FileID) (bool, error) {
	is := false
	_, err := ds.tree.Shows(path, func(at tree.State) (bool, error) {
		is = at.Kind() == unix.S_IFBLK && at.Device == device
		return is, nil
	})
	if err != nil || !is {
		return false, err
	}
	p, err := ds.tree.Open(path)
	if err != nil {
		return false, err
	}
	defer p.Close()
	d, err := p.Node()
	if errors.Is(err, mounter.ErrPath) { // a file: a target
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer d.Close()
	at, err := d.Stat()
	if err != nil {
		return false, err
	}
	return isRaw(d, at, device)
}
