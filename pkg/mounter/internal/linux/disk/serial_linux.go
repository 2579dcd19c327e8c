package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Find returns the path and the sequence number of the block device with a serial number. The
// kernel shows the serial numbers of virtio, NVMe and SCSI disks in /sys/block. It shortens some of
// them: to 20 bytes for a virtio disk. The path and the sequence number are the Source and the
// Sequence of a [BlockDevice]. The sequence number is 0 on Linux before 5.15, which has none.
//
// A device that does not answer within seconds, or cannot be read, does not delay the search among
// the others. Errors: those of ctx, and
//   - [fs.ErrNotExist], which is also [ErrDevice]: no device has the serial number, or the node of
//     the device is missing in /dev.
//   - [ErrNoAnswer]: no device is known to have the serial number, and some devices did not answer
//     or could not be read.
//   - [ErrDevice]: several devices have the serial number, such as the paths of a multipath disk.
func Find(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	return finder{"/sys/block", "/dev", &identities}.find(ctx, serial)
}

// identities are the reads of FindDevice that have not returned yet. They outlive the call, so that
// a stalled device occupies only one thread, however often FindDevice is called.
var identities inflight.Group[string, identity]

const (
	// firstWait is the time that FindDevice waits for a device before it also asks the next device.
	firstWait = 50 * time.Millisecond
	// maxIdentityTries bounds how often the attributes of a device that is being replaced are read.
	maxIdentityTries = 5
)

// serialFiles are the files of a device that hold its serial number:
// Documentation/ABI/stable/sysfs-block of Linux (serial), the drivers nvme and sd.
var serialFiles = []string{"serial", "device/serial", "device/vpd_pg80"}

// identity is the serial number and the sequence number of a device, from sysfs.
type identity struct {
	serial   string
	sequence uint64 // diskseq, or 0
}

// finder looks for a device by its serial number.
type finder struct {
	sys, dev string // /sys/block and /dev, or those of a test
	asks     *inflight.Group[string, identity]
}

// find implements [FindDevice].
func (f finder) find(ctx context.Context, serial string) (path string, sequence uint64, err error) {
	if serial == "" {
		return "", 0, fmt.Errorf("%w: the serial number is empty", mounter.ErrDevice)
	}
	found, silent, err := f.all(ctx, serial)
	switch {
	case err != nil:
		return "", 0, err
	case len(found) > 1:
		return "", 0, fmt.Errorf("%w: %d devices have the serial number %.128q: %s",
			mounter.ErrDevice, len(found), serial, strings.Join(found, ", "))
	case len(found) == 1:
		return f.node(ctx, found[0], serial)
	case ctx.Err() != nil:
		return "", 0, ctx.Err()
	case len(silent) > 0:
		return "", 0, fmt.Errorf("%w: no readable device has the serial number %.128q; these devices may have it: %s",
			mounter.ErrNoAnswer, serial, strings.Join(silent, "; "))
	}
	return "", 0, fmt.Errorf("%w: the disk with the serial number %.128q is not attached to this node: %w",
		mounter.ErrDevice, serial, fs.ErrNotExist)
}

// all returns the names of the devices with the serial number, and in silent an error text for each
// device that did not answer or could not be read.
func (f finder) all(ctx context.Context, serial string) (found, silent []string, err error) {
	devices, err := os.ReadDir(f.sys)
	if err != nil {
		return nil, nil, err
	}
	note := func(name string, id identity, err error) {
		switch {
		case err != nil:
			silent = append(silent, fmt.Sprintf("%s: %v", name, err))
		case id.serial == serial:
			found = append(found, name)
		}
	}
	late := map[string]*inflight.Call[identity]{}
	for _, d := range devices {
		a, err := f.query(d.Name())
		var id identity
		if err == nil {
			id, err = waitFor(ctx, a, firstWait)
		}
		if a != nil && errors.Is(err, inflight.ErrNoAnswer) {
			late[d.Name()] = a
			continue
		}
		note(d.Name(), id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, inflight.AnswerTime) // for all late devices together
	defer cancel()
	for name, a := range late {
		id, err := a.Wait(ctx)
		note(name, id, err)
	}
	slices.Sort(found)
	slices.Sort(silent)
	return found, silent, nil
}

// query starts to read the identity of a device.
func (f finder) query(name string) (*inflight.Call[identity], error) {
	dir := filepath.Join(f.sys, name)
	return f.asks.Start(dir, func() (identity, error) { return identityOf(dir) })
}

// waitFor waits for an answer. Errors: inflight.ErrNoAnswer if the wait takes longer than limit.
func waitFor[V any](ctx context.Context, a *inflight.Call[V], limit time.Duration) (V, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return a.Wait(ctx)
}

// identityOf reads the identity of the device with the sysfs directory dir. A device without a
// serial number, or without a node, has an empty serial number. Between two reads, the kernel can
// give the name of a removed disk to another disk. So identityOf reads the sequence number before
// and after the serial number, and both must be the same.
func identityOf(dir string) (identity, error) {
	// A single path of a multipath NVMe disk has no node: Documentation/ABI/stable/sysfs-block.
	if hidden, _ := os.ReadFile(filepath.Join(dir, "hidden")); strings.TrimSpace(string(hidden)) == "1" {
		return identity{}, nil
	}
	for range maxIdentityTries {
		before, err := sequenceIn(dir)
		if err != nil {
			return identity{}, err
		}
		serial, err := serialOf(dir)
		if err != nil {
			return identity{}, err
		}
		after, err := sequenceIn(dir)
		if err != nil {
			return identity{}, err
		}
		if before == after {
			return identity{serial, after}, nil
		}
	}
	return identity{}, fmt.Errorf("the device was replaced %d times while its identity was read", maxIdentityTries)
}

// sequenceIn returns the sequence number of the device with the sysfs directory dir: diskseq, which
// is unique among the disks of a boot. sequenceIn returns 0 on Linux before 5.15, which has no
// diskseq.
func sequenceIn(dir string) (uint64, error) {
	data, err := os.ReadFile(filepath.Join(dir, "diskseq"))
	switch {
	case isGone(err):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
}

// isGone reports whether a file of sysfs does not exist, or belongs to a device that is being
// removed.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTDIR)
}

// serialOf returns the serial number of the device with the sysfs directory dir, or "".
func serialOf(dir string) (string, error) {
	for _, name := range serialFiles {
		data, err := os.ReadFile(filepath.Join(dir, name))
		switch {
		case isGone(err):
			continue
		case err != nil: // reported, as this may be the wanted device
			return "", err
		}
		const header = 4 // of the vital product data page 80h: SPC-4, 7.8.15
		if strings.HasSuffix(name, "vpd_pg80") {
			data = data[min(header, len(data)):]
		}
		if text := strings.Trim(string(data), " \n\x00"); text != "" {
			return text, nil
		}
	}
	return "", nil
}

// node returns the path of the node of a device, and the sequence number of the device. Another
// disk may have taken the name since the search, so node reads the serial number once more after it
// has checked the path.
func (f finder) node(ctx context.Context, name, serial string) (string, uint64, error) {
	path := filepath.Join(f.dev, strings.ReplaceAll(name, "!", "/"))
	number, err := os.ReadFile(filepath.Join(f.sys, name, "dev"))
	if err != nil {
		return "", 0, fmt.Errorf("%w: the disk with the serial number %.128q is not attached to this node any more: %w",
			mounter.ErrDevice, serial, err)
	}
	at, err := tree.Stat(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", 0, fmt.Errorf("%w: the disk with the serial number %.128q is attached,"+
			" but its node %s is missing: %w", mounter.ErrDevice, serial, path, err)
	case err != nil:
		return "", 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	want := strings.TrimSpace(string(number))
	if at.Kind() != unix.S_IFBLK || fmt.Sprintf("%d:%d", at.Device.Major, at.Device.Minor) != want {
		return "", 0, fmt.Errorf("%w: %s is not the block device %s", mounter.ErrDevice, path, want)
	}
	a, err := f.query(name)
	var id identity
	if err == nil {
		id, err = waitFor(ctx, a, inflight.AnswerTime)
	}
	if err != nil {
		return "", 0, fmt.Errorf("%w: %s: %w", mounter.ErrNoAnswer, name, err)
	}
	if id.serial != serial {
		return "", 0, fmt.Errorf("%w: the disk with the serial number %.128q was replaced during the look-up: %w",
			mounter.ErrDevice, serial, fs.ErrNotExist)
	}
	return path, id.sequence, nil
}
