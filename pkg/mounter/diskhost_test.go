package mounter

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// diskTrial is a trial of a diskHost in a directory.
type diskTrial struct {
	*testing.T
	h     diskHost
	files benchFiles
	dir   string
}

func (d diskTrial) path(name string) string { return d.files.join(d.dir, name) }

// ok ends the test unless a call succeeded: the next calls need its effect.
func (d diskTrial) ok(call string, err error) {
	d.Helper()
	if err != nil {
		d.Fatalf("%s: %v", call, err)
	}
}

// refused checks that a call returned an error: want, or any if want is nil.
func (d diskTrial) refused(call string, err, want error) {
	d.Helper()
	switch {
	case err == nil:
		d.Errorf("%s: no error", call)
	case want != nil && !errors.Is(err, want):
		d.Errorf("%s: got %v, want %v", call, err, want)
	}
}

// until repeats a look until it finds something: disks and volumes appear late.
func (d diskTrial) until(what string, look func() (bool, error)) {
	d.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		found, err := look()
		d.ok(what, err)
		if found {
			return
		}
		if time.Now().After(deadline) {
			d.Fatalf("%s: nothing after a minute", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// attach attaches a virtual disk, brings it online, and returns its number. The disk is detached
// when the test is over, if it is still attached.
func (d diskTrial) attach(path string) (number uint32) {
	d.Helper()
	d.ok("attach", d.h.attachVHDX(path))
	d.Cleanup(func() {
		if info, err := d.h.vhdx(path); err == nil && info.attached {
			if err := d.h.detachVHDX(path); err != nil {
				d.Errorf("%s stays attached: %v", path, err)
			}
		}
	})
	d.until("the number of the disk", func() (bool, error) {
		info, err := d.h.vhdx(path)
		number = info.number
		return info.attached && info.hasNumber, err
	})
	d.ok("rescan", d.h.rescan())
	d.until("the disk in the list", func() (bool, error) {
		all, err := d.h.disks()
		return slices.ContainsFunc(all, func(i diskInfo) bool { return i.number == number }), err
	})
	d.ok("online", d.h.setOnline(number, true))
	d.online(number, true)
	return number
}

func (d diskTrial) online(number uint32, want bool) {
	d.Helper()
	if on, err := d.h.isOnline(number); err != nil || on != want {
		d.Fatalf("disk %d is online: %v, %v, want %v", number, on, err, want)
	}
}

// volume returns the only volume of a disk, which is on that disk.
func (d diskTrial) volume(number uint32) (volume string) {
	d.Helper()
	d.until("the volume", func() (bool, error) {
		all, err := d.h.volumes(number)
		if len(all) == 1 {
			volume = all[0]
		}
		return len(all) == 1, err
	})
	if disk, err := d.h.diskOf(volume); err != nil || disk != number {
		d.Fatalf("%s is on disk %d, %v, want %d", volume, disk, err, number)
	}
	return volume
}

// shows checks the mount point at a directory.
func (d diskTrial) shows(dir, volume string, present bool) {
	d.Helper()
	if at, is, err := d.h.volumeAt(dir); err != nil || at != volume || is != present {
		d.Errorf("%s shows %q, present: %v, %v, want %q, %v", dir, at, is, err, volume, present)
	}
}

// used checks that a volume has an NTFS without failures, and returns the size of its filesystem.
func (d diskTrial) used(volume string, disk int64) int64 {
	d.Helper()
	if name, err := d.h.filesystem(volume); err != nil || name != options.NTFS {
		d.Errorf("the filesystem is %q, %v", name, err)
	}
	if dirty, readOnly, err := d.h.flags(volume); err != nil || dirty || readOnly {
		d.Errorf("dirty: %v, read-only: %v, %v", dirty, readOnly, err)
	}
	size, err := d.h.volumeSize(volume)
	if err != nil || size > disk || size < disk-volumeReserve {
		d.Errorf("the filesystem has %d bytes, %v, of %d", size, err, disk)
	}
	return size
}

// volumeReserve is the limit for the part of a disk that is not in its filesystem, in bytes: the
// tables at both ends, and the partition that Windows reserves for itself.
const volumeReserve = 64 << 20

// testDiskHost tests the operations of a diskHost, with a virtual disk in an empty directory. All
// hosts pass it.
func testDiskHost(t *testing.T, h diskHost, files benchFiles, dir string) {
	d := diskTrial{t, h, files, dir}
	const size, grown = 128 << 20, 192 << 20 // the smallest image, and growth by less than 100 MiB
	image, folder := d.path("disk"+imageExt), d.path("folder")
	d.ok("a file", errors.Join(files.writeFile(d.path("file"+imageExt), "content"), files.mkdirAll(folder)))
	_, err := h.vhdx(image)
	d.refused("a missing disk", err, fs.ErrNotExist)
	_, err = h.vhdx(d.path("file" + imageExt))
	d.refused("a file that is no disk", err, ErrFormat)
	d.ok("create", h.createVHDX(image, size))
	d.refused("create again", h.createVHDX(image, size), fs.ErrExist)
	if info, err := h.vhdx(image); err != nil || info != (vhdxInfo{size: size}) {
		t.Errorf("a new disk: %+v, %v", info, err)
	}

	number := d.attach(image)
	d.refused("attach again", h.attachVHDX(image), nil)
	head := make([]byte, readUnit)
	if err := h.readDisk(number, head, 0); err != nil || string(head[512:520]) == "EFI PART" {
		t.Errorf("a new disk has a partition table, %v", err)
	}
	if parts, err := h.partitions(number); err != nil || len(parts) != 0 {
		t.Errorf("a new disk has the partitions %v, %v", parts, err)
	}
	d.ok("partition", h.partition(number))
	d.ok("online", h.setOnline(number, true))
	volume := d.volume(number)
	d.ok("partition again", h.partition(number))
	if parts, err := h.partitions(number); err != nil || len(parts) != 1 || parts[0].Offset <= 0 ||
		parts[0].Length < size-volumeReserve || parts[0].Offset+parts[0].Length > size {
		t.Errorf("the partitions are %v, %v", parts, err)
	}
	if err := h.readDisk(number, head, 0); err != nil || string(head[512:520]) != "EFI PART" {
		t.Errorf("no partition table, %v", err)
	}
	if name, err := h.filesystem(volume); err != nil || name != "" {
		t.Errorf("a new volume has the filesystem %q, %v", name, err)
	}
	d.ok("format", h.format(volume))
	d.ok("permit", h.permit(volume))
	before := d.used(volume, size)

	_, _, err = h.volumeAt(d.path("missing"))
	d.refused("the mount point of a missing directory", err, fs.ErrNotExist)
	d.shows(folder, "", false)
	d.ok("mount", h.mountVolume(volume, folder))
	d.shows(folder, volume, true)
	d.ok("a file of the volume", files.writeFile(files.join(folder, "file"), "content"))
	d.ok("flush", h.flush(volume))
	d.ok("unmount", h.unmountVolume(folder))
	d.shows(folder, "", false)
	if files.exists(files.join(folder, "file")) {
		t.Error("the file is in the folder without the volume")
	}
	d.refused("unmount again", h.unmountVolume(folder), nil)

	d.ok("offline", h.setOnline(number, false))
	d.online(number, false)
	d.ok("detach", h.detachVHDX(image))
	d.refused("detach again", h.detachVHDX(image), nil)
	d.ok("resize", h.resizeVHDX(image, grown))
	if info, err := h.vhdx(image); err != nil || info != (vhdxInfo{size: grown}) {
		t.Errorf("after growth: %+v, %v", info, err)
	}
	number = d.attach(image)
	if again := d.volume(number); again != volume {
		t.Errorf("attached again, the volume is %s, was %s", again, volume)
	}
	part, err := h.growVolume(volume)
	if err != nil || part < grown-volumeReserve {
		t.Errorf("the partition grew to %d bytes, %v", part, err)
	}
	if after := d.used(volume, grown); after <= before || after < part-volumeSlack {
		t.Errorf("the filesystem grew from %d to %d bytes, its partition has %d", before, after, part)
	}
	d.ok("mount", h.mountVolume(volume, folder))
	if !files.exists(files.join(folder, "file")) {
		t.Error("the file is gone")
	}
	d.ok("offline while mounted", h.setOnline(number, false))
	d.shows(folder, volume, false)
	d.ok("detach", h.detachVHDX(image))
	d.shows(folder, volume, false)
	d.ok("unmount what is gone", h.unmountVolume(folder))
	d.ok("remove", h.removeVHDX(image))
	d.refused("remove again", h.removeVHDX(image), fs.ErrNotExist)
}

func TestTheModelIsAHostOfDisks(t *testing.T) {
	m := newModel()
	m.disks.late = 3
	files := modelFiles{m}
	if err := files.mkdirAll(`C:\test`); err != nil {
		t.Fatal(err)
	}
	testDiskHost(t, m.disks, files, `C:\test`)
}
