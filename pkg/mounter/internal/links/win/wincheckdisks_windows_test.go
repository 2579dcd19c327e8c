package win

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links/linkstest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// diskTrial is a trial of the disks of this machine.
type diskTrial struct{ linkstest.DiskTrial }

// trial returns a trial in an empty directory.
func trial(t *testing.T) diskTrial {
	return diskTrial{linkstest.DiskTrial{T: t, Host: newDiskHost(), Files: mountercontract.OSFiles{}, Dir: t.TempDir()}}
}

// checkSize is the size of a virtual disk of the checks, in bytes.
const checkSize = 128 << 20

// newVolume makes a virtual disk with an NTFS.
func (d diskTrial) newVolume(name string) (image, volume string, number uint32) {
	d.Helper()
	image = d.Path(name + links.ImageExt)
	d.OK("create", d.Host.CreateVHDX(image, checkSize))
	number = d.Attach(image)
	d.OK("partition", d.Host.Partition(number))
	d.OK("online", d.Host.SetOnline(number, true))
	volume = d.Volume(number)
	d.OK("format", d.Host.Format(volume))
	return image, volume, number
}

// mount mounts a volume at a new directory. The mount point is removed when the test is over.
func (d diskTrial) mount(volume, name string) (folder string) {
	d.Helper()
	folder = d.Path(name)
	d.OK("mkdir", d.Files.MkdirAll(folder))
	d.OK("mount", d.Host.MountVolume(volume, folder))
	d.Cleanup(func() {
		if err := d.Host.UnmountVolume(folder); err != nil {
			d.Errorf("%s stays mounted: %v", folder, err)
		}
	})
	return folder
}

// detach flushes and detaches a virtual disk.
func (d diskTrial) detach(image, volume string) {
	d.Helper()
	d.OK("flush", d.Host.Flush(volume))
	d.OK("detach", d.Host.DetachVHDX(image))
}

// diskAssumptions are those about virtual disks, and the disks of the machine.
var diskAssumptions = []assumption{
	{"disks", "COM works for this account, and lists the disks of the machine", func(t *testing.T) string {
		all, err := newDiskHost().Disks()
		if err != nil || len(all) == 0 {
			return fmt.Sprintf("%d disks, %v", len(all), err)
		}
		for _, disk := range all {
			t.Logf("disk %d: serial number %q, page 83 %q, %d bytes", disk.Number, disk.Serial, disk.Page83, disk.Size)
		}
		return asAssumed
	}},
	{"disks", "data flows through a link to a folder at which a volume is mounted", func(t *testing.T) string {
		d := trial(t)
		_, volume, _ := d.newVolume("disk")
		folder, link := d.mount(volume, "folder"), d.Path("link")
		d.OK("link", windowsLinks{}.Link(folder, link))
		if err := os.WriteFile(filepath.Join(link, "file"), []byte("data"), 0o600); err != nil {
			return err.Error()
		}
		if !mountercontract.Exists(filepath.Join(folder, "file")) {
			return "the file is elsewhere"
		}
		return asAssumed
	}},
	{"disks", "a virtual disk grows while it is attached and mounted", func(t *testing.T) string {
		d := trial(t)
		image, volume, _ := d.newVolume("disk")
		d.mount(volume, "folder")
		before, err := d.Host.VolumeSize(volume)
		d.OK("size", err)
		if err := d.Host.ResizeVHDX(image, checkSize+64<<20); err != nil {
			return "resize: " + err.Error()
		}
		d.OK("rescan", d.Host.Rescan())
		part, err := d.Host.GrowVolume(volume)
		after, sizeErr := d.Host.VolumeSize(volume)
		if err := errors.Join(err, sizeErr); err != nil || after <= before {
			return fmt.Sprintf("from %d to %d bytes, partition %d, %v", before, after, part, err)
		}
		return asAssumed
	}},
	{"disks", "a copy of a virtual disk has the volume of its source, and both do not work at the same time",
		func(t *testing.T) string {
			d := trial(t)
			image, volume, _ := d.newVolume("disk")
			d.detach(image, volume)
			source, err := os.Open(image)
			d.OK("open", err)
			defer source.Close()
			second := d.Path("copy" + links.ImageExt)
			file, err := os.Create(second)
			d.OK("create", err)
			_, err = io.Copy(file, source)
			d.OK("copy", errors.Join(err, file.Close()))
			one := d.Attach(image)
			d.OK("attach the copy", d.Host.AttachVHDX(second))
			defer d.Host.DetachVHDX(second)
			var two uint32
			d.Until("the copy has a number", func() (bool, error) {
				info, err := d.Host.VHDX(second)
				two = info.Number
				return info.HasNumber, err
			})
			if err := d.Host.SetOnline(two, true); err != nil {
				t.Log("online: ", err)
				return asAssumed
			}
			first, err := d.Host.Volumes(one)
			copies, copyErr := d.Host.Volumes(two)
			d.OK("volumes", errors.Join(err, copyErr))
			if len(copies) == 0 || slices.Equal(first, copies) {
				return asAssumed
			}
			return fmt.Sprintf("both work: %q and %q. --windows-image-clone can be set", first, copies)
		}},
	{"disks", "a disk that was taken offline is offline when it is attached again", func(t *testing.T) string {
		d := trial(t)
		image, volume, number := d.newVolume("disk")
		d.OK("flush", d.Host.Flush(volume))
		d.OK("offline", d.Host.SetOnline(number, false))
		d.OK("detach", d.Host.DetachVHDX(image))
		d.OK("attach", d.Host.AttachVHDX(image))
		d.Until("the disk has a number", func() (bool, error) {
			info, err := d.Host.VHDX(image)
			number = info.Number
			return info.HasNumber, err
		})
		d.OK("rescan", d.Host.Rescan())
		if on, err := d.Host.IsOnline(number); err != nil || on {
			return fmt.Sprintf("online: %v, %v", on, err)
		}
		return asAssumed
	}},
	{"disks", "the guard finds a disk with a partition table, and a new one blank", func(t *testing.T) string {
		d := trial(t)
		look := func(number uint32) signature.Content {
			all, err := d.Host.Disks()
			d.OK("disks", err)
			i := slices.IndexFunc(all, func(i links.DiskInfo) bool { return i.Number == number })
			if i < 0 {
				t.Fatalf("disk %d is not in the list", number)
			}
			found, err := links.ExamineDisk(d.Host, links.NewWorker(), all[i])
			d.OK("examine", err)
			return found
		}
		image := d.Path("blank" + links.ImageExt)
		d.OK("create", d.Host.CreateVHDX(image, checkSize))
		blank := look(d.Attach(image))
		_, _, number := d.newVolume("used")
		if used := look(number); !blank.Blank || used.Blank {
			return fmt.Sprintf("new: %+v, used: %+v", blank, used)
		}
		return asAssumed
	}},
}
