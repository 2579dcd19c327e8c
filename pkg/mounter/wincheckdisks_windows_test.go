package mounter

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// trial returns a trial of the disks of this machine in an empty directory.
func trial(t *testing.T) diskTrial {
	return diskTrial{t, newDiskHost(), osFiles{}, t.TempDir()}
}

// checkSize is the size of a virtual disk of the checks, in bytes.
const checkSize = 128 << 20

// newVolume makes a virtual disk with an NTFS.
func (d diskTrial) newVolume(name string) (image, volume string, number uint32) {
	d.Helper()
	image = d.path(name + imageExt)
	d.ok("create", d.h.createVHDX(image, checkSize))
	number = d.attach(image)
	d.ok("partition", d.h.partition(number))
	d.ok("online", d.h.setOnline(number, true))
	volume = d.volume(number)
	d.ok("format", d.h.format(volume))
	return image, volume, number
}

// mount mounts a volume at a new directory. The mount point is removed when the test is over.
func (d diskTrial) mount(volume, name string) (folder string) {
	d.Helper()
	folder = d.path(name)
	d.ok("mkdir", d.files.mkdirAll(folder))
	d.ok("mount", d.h.mountVolume(volume, folder))
	d.Cleanup(func() {
		if err := d.h.unmountVolume(folder); err != nil {
			d.Errorf("%s stays mounted: %v", folder, err)
		}
	})
	return folder
}

// detach flushes and detaches a virtual disk.
func (d diskTrial) detach(image, volume string) {
	d.Helper()
	d.ok("flush", d.h.flush(volume))
	d.ok("detach", d.h.detachVHDX(image))
}

// diskAssumptions are those about virtual disks, and the disks of the machine.
var diskAssumptions = []assumption{
	{"disks", "COM works for this account, and lists the disks of the machine", func(t *testing.T) string {
		all, err := newDiskHost().disks()
		if err != nil || len(all) == 0 {
			return fmt.Sprintf("%d disks, %v", len(all), err)
		}
		for _, disk := range all {
			t.Logf("disk %d: serial number %q, page 83 %q, %d bytes", disk.number, disk.serial, disk.page83, disk.size)
		}
		return asAssumed
	}},
	{"disks", "data flows through a link to a folder at which a volume is mounted", func(t *testing.T) string {
		d := trial(t)
		_, volume, _ := d.newVolume("disk")
		folder, link := d.mount(volume, "folder"), d.path("link")
		d.ok("link", windowsLinks{}.link(folder, link))
		if err := os.WriteFile(filepath.Join(link, "file"), []byte("data"), 0o600); err != nil {
			return err.Error()
		}
		if !exists(filepath.Join(folder, "file")) {
			return "the file is elsewhere"
		}
		return asAssumed
	}},
	{"disks", "a virtual disk grows while it is attached and mounted", func(t *testing.T) string {
		d := trial(t)
		image, volume, _ := d.newVolume("disk")
		d.mount(volume, "folder")
		before, err := d.h.volumeSize(volume)
		d.ok("size", err)
		if err := d.h.resizeVHDX(image, checkSize+64<<20); err != nil {
			return "resize: " + err.Error()
		}
		d.ok("rescan", d.h.rescan())
		part, err := d.h.growVolume(volume)
		after, sizeErr := d.h.volumeSize(volume)
		if err := errors.Join(err, sizeErr); err != nil || after <= before {
			return fmt.Sprintf("from %d to %d bytes, partition %d, %v", before, after, part, err)
		}
		return asAssumed
	}},
	{"disks", "a copy of a virtual disk has the volume of its source, and both do not work at the same time", func(t *testing.T) string {
		d := trial(t)
		image, volume, _ := d.newVolume("disk")
		d.detach(image, volume)
		source, err := os.Open(image)
		d.ok("open", err)
		defer source.Close()
		second := d.path("copy" + imageExt)
		file, err := os.Create(second)
		d.ok("create", err)
		_, err = io.Copy(file, source)
		d.ok("copy", errors.Join(err, file.Close()))
		one := d.attach(image)
		d.ok("attach the copy", d.h.attachVHDX(second))
		defer d.h.detachVHDX(second)
		var two uint32
		d.until("the number of the copy", func() (bool, error) {
			info, err := d.h.vhdx(second)
			two = info.number
			return info.hasNumber, err
		})
		if err := d.h.setOnline(two, true); err != nil {
			t.Log("online: ", err)
			return asAssumed
		}
		first, err := d.h.volumes(one)
		copies, copyErr := d.h.volumes(two)
		d.ok("volumes", errors.Join(err, copyErr))
		if len(copies) == 0 || slices.Equal(first, copies) {
			return asAssumed
		}
		return fmt.Sprintf("both work: %q and %q. --windows-image-clone can be set", first, copies)
	}},
	{"disks", "a disk that was taken offline is offline when it is attached again", func(t *testing.T) string {
		d := trial(t)
		image, volume, number := d.newVolume("disk")
		d.ok("flush", d.h.flush(volume))
		d.ok("offline", d.h.setOnline(number, false))
		d.ok("detach", d.h.detachVHDX(image))
		d.ok("attach", d.h.attachVHDX(image))
		d.until("the number of the disk", func() (bool, error) {
			info, err := d.h.vhdx(image)
			number = info.number
			return info.hasNumber, err
		})
		d.ok("rescan", d.h.rescan())
		if on, err := d.h.isOnline(number); err != nil || on {
			return fmt.Sprintf("online: %v, %v", on, err)
		}
		return asAssumed
	}},
	{"disks", "the guard finds a disk with a partition table, and a new one blank", func(t *testing.T) string {
		d := trial(t)
		disks := newLinkDisks(d.h, callDirectly, d.dir, nil)
		look := func(number uint32) signature.Content {
			all, err := d.h.disks()
			d.ok("disks", err)
			i := slices.IndexFunc(all, func(i diskInfo) bool { return i.number == number })
			if i < 0 {
				t.Fatalf("disk %d is not in the list", number)
			}
			found, err := signature.Examine(diskReader{disks, all[i]}, all[i].size)
			d.ok("examine", err)
			return found
		}
		image := d.path("blank" + imageExt)
		d.ok("create", d.h.createVHDX(image, checkSize))
		blank := look(d.attach(image))
		_, _, number := d.newVolume("used")
		if used := look(number); !blank.Blank || used.Blank {
			return fmt.Sprintf("new: %+v, used: %+v", blank, used)
		}
		return asAssumed
	}},
}
