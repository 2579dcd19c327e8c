package mounter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountRaw mounts the node of a block device in the directory at p, as mountDisk does for a Disk. A
// mounted node does not keep its device, so the kernel may give the number of a removed disk to
// another disk. A backing record beside the node distinguishes the two disks.
func (l *linux) mountRaw(ctx context.Context, m Mount, src source, p pathHandle) error {
	d, made, err := p.prepareDisk()
	if err != nil {
		return err
	}
	defer d.close()
	if err = l.mountRawAt(ctx, m, src, d); err == nil {
		return nil
	}
	at, look := statFD(d.parent)
	return errors.Join(err, look, target{pathHandle: p, fd: d.parent, id: at.id, made: made}.discard())
}

func (l *linux) mountRawAt(ctx context.Context, m Mount, src source, d pathHandle) error {
	if at, err := d.stat(); err == nil && at.mounted {
		if is, err := d.isRaw(at, src.device); is || err != nil {
			return err
		}
		if at.kind() == unix.S_IFBLK { // the node of a removed device, or of another device
			if err := d.unmount(ctx, 0); err != nil {
				return err
			}
		}
	}
	if err := l.checkUnused(m, src); err != nil {
		return err
	}
	if m.Serial != "" { // new data on the device must not count as the remains of an interrupted format
		if err := l.removeFormatting(m.Serial); err != nil {
			return err
		}
	}
	t, done, err := d.prepare(unix.S_IFREG, func(state, int) (bool, error) { return false, nil })
	if done || err != nil {
		return err
	}
	defer t.close()
	readOnly, err := readOnlyFlag(src)
	if err == nil {
		err = d.writeBacking(rawIdentity(src.device), readOnly)
	}
	if err == nil {
		r := deviceNodeRecipe(src.fd, src.device)
		r.record = func(root int) error { return errors.Join(mark(t.fd), l.rememberAs(t.path, root)) }
		if err = l.attach(t, r); err != nil && t.made {
			err = errors.Join(err, d.removeBacking())
		}
	}
	return t.failed(m, err)
}

// readOnlyFlag returns 1 for a read-only device, else 0.
func readOnlyFlag(src source) (int, error) {
	dev, err := openDevice(src.fd, 0)
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	readOnly, err := isReadOnly(dev)
	if readOnly {
		return 1, err
	}
	return 0, err
}

// becomesWritable returns a function that makes the BlockDevice whose node is mounted at d
// writable. The caller calls the function after the unmount: a target may have made the device
// read-only, and the kernel keeps that setting. A device that was read-only when it was staged
// stays read-only.
func (p pathHandle) becomesWritable(at state) func() {
	nothing := func() {}
	dev, err := openNumber(at.device, 0) // not through the node, which would stay mounted
	if err != nil {
		return nothing
	}
	// While dev is open, no other device gets its number.
	is, err := p.isRaw(at, at.device)
	_, wasReadOnly, _, failed := p.readBackingFlag()
	if !is || err != nil || failed != nil || wasReadOnly != 0 {
		dev.Close()
		return nothing
	}
	return func() {
		defer dev.Close()
		setDeviceReadOnly(dev, false)
	}
}

// checkUnused returns ErrBusy for a device that another program has open exclusively.
func (l *linux) checkUnused(m Mount, src source) error {
	dev, err := claim(src.device)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %s is mounted, or open exclusively by another program%s",
			ErrBusy, m.Source, mountPointsOfFile(src.device))
	}
	if err != nil {
		return err
	}
	return dev.Close()
}

// isRaw reports whether the node that is mounted at d is the node of device, and was mounted since
// the disk that now has this number was attached.
func (p pathHandle) isRaw(at state, device fileID) (bool, error) {
	if at.kind() != unix.S_IFBLK || at.device != device {
		return false, nil
	}
	b, there, err := p.readBacking()
	if errors.Is(err, ErrNotEmpty) {
		err = nil
	}
	return there && b == rawIdentity(device), err
}

// rawIdentity returns the content of the backing record of a BlockDevice: the number of the device,
// and its sequence number (diskseq, Linux 5.15). The backing file of a loop device never has this
// identity.
func rawIdentity(device fileID) backing {
	text, _ := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/diskseq", device.major, device.minor))
	sequence, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return backing{unix.Mkdev(device.major, device.minor), sequence}
}

// rawMounted reports whether the node of a device is mounted at path (a target path) or in the
// directory at path (a staging path).
func (l *linux) rawMounted(path string, device fileID) (bool, error) {
	is := false
	_, err := l.shows(path, func(at state) (bool, error) {
		is = at.kind() == unix.S_IFBLK && at.device == device
		return is, nil
	})
	if err != nil || !is {
		return false, err
	}
	p, err := l.open(path)
	if err != nil {
		return false, err
	}
	defer p.close()
	d, err := p.disk()
	if errors.Is(err, ErrPath) { // a file: a target
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer d.close()
	at, err := d.stat()
	if err != nil {
		return false, err
	}
	return d.isRaw(at, device)
}
