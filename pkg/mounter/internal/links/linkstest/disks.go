package linkstest

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// DiskTrial is a trial of a DiskHost in a directory.
type DiskTrial struct {
	*testing.T
	Host  links.DiskHost
	Files mountercontract.Files
	Dir   string
}

// Path returns the path of a name in the directory of the trial.
func (d DiskTrial) Path(name string) string { return d.Files.Join(d.Dir, name) }

// OK ends the test unless a call succeeded: the next calls need its effect.
func (d DiskTrial) OK(call string, err error) {
	d.Helper()
	if err != nil {
		d.Fatalf("%s: %v", call, err)
	}
}

// refused checks that a call returned an error: want, or any if want is nil.
func (d DiskTrial) refused(call string, err, want error) {
	d.Helper()
	switch {
	case err == nil:
		d.Errorf("%s: no error", call)
	case want != nil && !errors.Is(err, want):
		d.Errorf("%s: got %v, want %v", call, err, want)
	}
}

// Until repeats a look until it finds something: disks and volumes appear late. event names the
// awaited event.
func (d DiskTrial) Until(event string, look func() (bool, error)) {
	d.Helper()
	await.True(d.T, event, func() bool {
		found, err := look()
		d.OK(event, err)
		return found
	})
}

// Attach attaches a virtual disk, brings it online, and returns its number. The disk is detached
// when the test is over, if it is still attached.
func (d DiskTrial) Attach(path string) (number uint32) {
	d.Helper()
	d.OK("attach", d.Host.AttachVHDX(path))
	d.Cleanup(func() {
		if info, err := d.Host.VHDX(path); err == nil && info.Attached {
			if err := d.Host.DetachVHDX(path); err != nil {
				d.Errorf("%s stays attached: %v", path, err)
			}
		}
	})
	d.Until("the disk has a number", func() (bool, error) {
		info, err := d.Host.VHDX(path)
		number = info.Number
		return info.Attached && info.HasNumber, err
	})
	d.OK("rescan", d.Host.Rescan())
	d.Until("the disk is in the list", func() (bool, error) {
		all, err := d.Host.Disks()
		return slices.ContainsFunc(all, func(i links.DiskInfo) bool { return i.Number == number }), err
	})
	d.OK("online", d.Host.SetOnline(number, true))
	d.online(number, true)
	return number
}

func (d DiskTrial) online(number uint32, want bool) {
	d.Helper()
	if on, err := d.Host.IsOnline(number); err != nil || on != want {
		d.Fatalf("disk %d is online: %v, %v, want %v", number, on, err, want)
	}
}

// Volume returns the only volume of a disk, which is on that disk.
func (d DiskTrial) Volume(number uint32) (volume string) {
	d.Helper()
	d.Until("the volume appears", func() (bool, error) {
		all, err := d.Host.Volumes(number)
		if len(all) == 1 {
			volume = all[0]
		}
		return len(all) == 1, err
	})
	if disk, err := d.Host.DiskOf(volume); err != nil || disk != number {
		d.Fatalf("%s is on disk %d, %v, want %d", volume, disk, err, number)
	}
	return volume
}

// shows checks the mount point at a directory.
func (d DiskTrial) shows(dir, volume string, present bool) {
	d.Helper()
	if at, is, err := d.Host.VolumeAt(dir); err != nil || at != volume || is != present {
		d.Errorf("%s shows %q, present: %v, %v, want %q, %v", dir, at, is, err, volume, present)
	}
}

// used checks that a volume has an NTFS without failures, and returns the size of its filesystem.
func (d DiskTrial) used(volume string, disk int64) int64 {
	d.Helper()
	if name, err := d.Host.Filesystem(volume); err != nil || name != options.NTFS {
		d.Errorf("the filesystem is %q, %v", name, err)
	}
	if dirty, readOnly, err := d.Host.Flags(volume); err != nil || dirty || readOnly {
		d.Errorf("dirty: %v, read-only: %v, %v", dirty, readOnly, err)
	}
	size, err := d.Host.VolumeSize(volume)
	if err != nil || size > disk || size < disk-volumeReserve {
		d.Errorf("the filesystem has %d bytes, %v, of %d", size, err, disk)
	}
	return size
}

// volumeReserve is the limit for the part of a disk that is not in its filesystem, in bytes: the
// tables at both ends, and the partition that Windows reserves for itself.
const volumeReserve = 64 << 20

// DiskHost tests the operations of a DiskHost, with a virtual disk in an empty directory. All
// hosts pass it.
func DiskHost(t *testing.T, h links.DiskHost, files mountercontract.Files, dir string) {
	d := DiskTrial{t, h, files, dir}
	image, folder := d.Path("disk"+links.ImageExt), d.Path("folder")
	number, volume := d.makeVolume(image, folder)
	before := d.used(volume, trialSize)
	_, _, err := h.VolumeAt(d.Path("missing"))
	d.refused("the mount point of a missing directory", err, fs.ErrNotExist)
	d.shows(folder, "", false)
	d.OK("mount", h.MountVolume(volume, folder))
	d.shows(folder, volume, true)
	d.OK("a file of the volume", files.WriteFile(files.Join(folder, "file"), "content"))
	d.OK("flush", h.Flush(volume))
	d.OK("unmount", h.UnmountVolume(folder))
	d.shows(folder, "", false)
	if files.Exists(files.Join(folder, "file")) {
		t.Error("the file is in the folder without the volume")
	}
	d.refused("unmount again", h.UnmountVolume(folder), nil)

	d.OK("offline", h.SetOnline(number, false))
	d.online(number, false)
	d.OK("detach", h.DetachVHDX(image))
	d.refused("detach again", h.DetachVHDX(image), nil)
	d.OK("resize", h.ResizeVHDX(image, grownSize))
	if info, err := h.VHDX(image); err != nil || info != (links.VHDXInfo{Size: grownSize}) {
		t.Errorf("after growth: %+v, %v", info, err)
	}
	number = d.Attach(image)
	if again := d.Volume(number); again != volume {
		t.Errorf("attached again, the volume is %s, was %s", again, volume)
	}
	part, err := h.GrowVolume(volume)
	if err != nil || part < grownSize-volumeReserve {
		t.Errorf("the partition grew to %d bytes, %v", part, err)
	}
	if after := d.used(volume, grownSize); after <= before || after < part-links.VolumeSlack {
		t.Errorf("the filesystem grew from %d to %d bytes, its partition has %d", before, after, part)
	}
	d.OK("mount", h.MountVolume(volume, folder))
	if !files.Exists(files.Join(folder, "file")) {
		t.Error("the file is gone")
	}
	d.OK("offline while mounted", h.SetOnline(number, false))
	d.shows(folder, volume, false)
	d.OK("detach", h.DetachVHDX(image))
	d.shows(folder, volume, false)
	d.OK("unmount what is gone", h.UnmountVolume(folder))
	d.OK("remove", h.RemoveVHDX(image))
	d.refused("remove again", h.RemoveVHDX(image), fs.ErrNotExist)
}

// Sizes of the disk of a trial in bytes: the smallest image, and growth by less than 100 MiB.
const trialSize, grownSize = 128 << 20, 192 << 20

// makeVolume tests the calls that make a virtual disk, and its volume. It also makes folder.
func (d DiskTrial) makeVolume(image, folder string) (number uint32, volume string) {
	d.OK("a file", errors.Join(d.Files.WriteFile(d.Path("file"+links.ImageExt), "content"), d.Files.MkdirAll(folder)))
	_, err := d.Host.VHDX(image)
	d.refused("a missing disk", err, fs.ErrNotExist)
	_, err = d.Host.VHDX(d.Path("file" + links.ImageExt))
	d.refused("a file that is no disk", err, mounter.ErrFormat)
	d.OK("create", d.Host.CreateVHDX(image, trialSize))
	d.refused("create again", d.Host.CreateVHDX(image, trialSize), fs.ErrExist)
	if info, err := d.Host.VHDX(image); err != nil || info != (links.VHDXInfo{Size: trialSize}) {
		d.Errorf("a new disk: %+v, %v", info, err)
	}

	number = d.Attach(image)
	d.refused("attach again", d.Host.AttachVHDX(image), nil)
	head := make([]byte, links.ReadUnit)
	if err := d.Host.ReadDisk(number, head, 0); err != nil || string(head[512:520]) == "EFI PART" {
		d.Errorf("a new disk has a partition table, %v", err)
	}
	if parts, err := d.Host.Partitions(number); err != nil || len(parts) != 0 {
		d.Errorf("a new disk has the partitions %v, %v", parts, err)
	}
	d.OK("partition", d.Host.Partition(number))
	d.OK("online", d.Host.SetOnline(number, true))
	volume = d.Volume(number)
	d.OK("partition again", d.Host.Partition(number))
	if parts, err := d.Host.Partitions(number); err != nil || len(parts) != 1 || parts[0].Offset <= 0 ||
		parts[0].Length < trialSize-volumeReserve || parts[0].Offset+parts[0].Length > trialSize {
		d.Errorf("the partitions are %v, %v", parts, err)
	}
	if err := d.Host.ReadDisk(number, head, 0); err != nil || string(head[512:520]) != "EFI PART" {
		d.Errorf("no partition table, %v", err)
	}
	if name, err := d.Host.Filesystem(volume); err != nil || name != "" {
		d.Errorf("a new volume has the filesystem %q, %v", name, err)
	}
	d.OK("format", d.Host.Format(volume))
	d.OK("permit", d.Host.Permit(volume))
	return number, volume
}
