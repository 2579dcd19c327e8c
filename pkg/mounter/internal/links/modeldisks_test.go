package links

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// modelFolders is the directory with the folders of volumes on a model.
const modelFolders = `C:\state\volumes`

// modelDisks are the disks of a model, as a DiskHost. At a reboot attachments of virtual disks are
// lost, numbers change, disks appear late, and the offline state persists.
type modelDisks struct {
	m        *model
	attached []*modelDisk // of a storage system
	last     uint32       // number of a disk
	ids      int          // of volumes
	store    *modelStore
	formats  int // calls of format
	// late is how many looks at a disk, or at its volumes, find nothing yet.
	late int
	// Faults.
	unformatted bool // no volume has a filesystem, to the system
	wrongDisk   bool // DiskOf returns another disk
	skipsGrowth bool // GrowVolume does nothing, and returns no error
	fixedOnline bool // no attached virtual disk can be resized
	fail        func(call string) error
}

type modelDisk struct {
	image                      *modelNode // nil: of a storage system
	serial, page83             string
	number                     uint32
	size                       int64
	attached, online, readOnly bool
	lateDisk, lateVolume       int
	parts                      []signature.Region
	volumes                    []*modelVolume
	data                       map[int64]string // at offsets
	unreadable                 bool
}

type modelVolume struct {
	id, fs string
	disk   *modelDisk
	size   int64
	root   *modelNode
	// flags
	dirty, readOnly bool
	permitted       bool // users may change it
}

// records is the store of the records of formats.
func (d *modelDisks) records() recordStore {
	if d.store == nil {
		d.store = &modelStore{m: d.m, files: map[string][]byte{}}
	}
	return d.store
}

// plug attaches a disk of a storage system.
func (d *modelDisks) plug(serial string, size int64) *modelDisk {
	d.last++
	disk := &modelDisk{serial: serial, size: size, number: d.last, attached: true, data: map[int64]string{}}
	d.attached = append(d.attached, disk)
	return disk
}

// all returns all disks that are attached, by number.
func (d *modelDisks) all() []*modelDisk {
	all := slices.DeleteFunc(slices.Clone(d.attached), func(k *modelDisk) bool { return !k.attached })
	var walk func(n *modelNode)
	walk = func(n *modelNode) {
		if n.disk != nil && n.disk.attached {
			all = append(all, n.disk)
		}
		for _, child := range n.children {
			walk(child)
		}
	}
	for _, drive := range d.m.drives {
		walk(drive)
	}
	slices.SortFunc(all, func(a, b *modelDisk) int { return cmp.Compare(a.number, b.number) })
	return all
}

// reboot reboots the node.
func (d *modelDisks) reboot() {
	d.m.locked(func() error {
		all := d.all()
		slices.Reverse(all)
		d.last = 0
		for _, disk := range all {
			disk.attached = disk.image == nil
			disk.number = 0
			if disk.attached {
				d.last++
				disk.number, disk.lateDisk, disk.lateVolume = d.last, d.late, d.late
			}
		}
		return nil
	})
}

func (d *modelDisks) volume(id string) *modelVolume {
	for _, disk := range d.all() {
		for _, v := range disk.volumes {
			if v.id == id && disk.online {
				return v
			}
		}
	}
	return nil
}

// call makes a call that changes nothing.
func (d *modelDisks) call(name string, f func() error) error {
	if d.fail != nil {
		if err := d.fail(name); err != nil {
			return err
		}
	}
	return d.m.locked(f)
}

// change makes a call that changes something.
func (d *modelDisks) change(name string, f func() error) error {
	if d.m.before != nil {
		if err := d.m.before(name, ""); err != nil {
			return err
		}
	}
	err := d.call(name, f)
	if err == nil && d.m.after != nil {
		err = d.m.after(name, "")
	}
	return err
}

func (d *modelDisks) file(path string) (*modelNode, error) {
	_, node, err := d.m.find(path)
	switch {
	case err != nil:
		return nil, err
	case node == nil:
		return nil, NotExist("open", path)
	case node.disk == nil:
		return nil, fmt.Errorf("%w: %s", mounter.ErrFormat, path)
	}
	return node, nil
}

func (d *modelDisks) numbered(number uint32) (*modelDisk, error) {
	for _, disk := range d.all() {
		if disk.number == number {
			return disk, nil
		}
	}
	return nil, fmt.Errorf("no disk %d", number)
}

func (d *modelDisks) identified(volume string) (*modelVolume, error) {
	if v := d.volume(volume); v != nil {
		return v, nil
	}
	return nil, fmt.Errorf("no volume %s", volume)
}

func (d *modelDisks) CreateVHDX(path string, size int64) error {
	return d.change("create", func() error {
		parent, node, err := d.m.find(path)
		if err != nil {
			return err
		}
		entry := &modelNode{LinkEntry: LinkEntry{Kind: PlainFile}}
		entry.disk = &modelDisk{image: entry, size: size, data: map[int64]string{}}
		return add(parent, node, entry, path)
	})
}

func (d *modelDisks) ResizeVHDX(path string, size int64) error {
	return d.change("resize", func() error {
		n, err := d.file(path)
		if err == nil && n.disk.attached && d.fixedOnline {
			err = errors.New("error 32")
		}
		if err == nil {
			n.disk.size = max(n.disk.size, size)
		}
		return err
	})
}

func (d *modelDisks) VHDX(path string) (info VHDXInfo, err error) {
	err = d.call("vhdx", func() error {
		n, err := d.file(path)
		if err != nil {
			return err
		}
		info = VHDXInfo{Size: n.disk.size, Attached: n.disk.attached}
		if info.Attached {
			info.HasNumber, info.Number = n.disk.lateDisk <= 0, n.disk.number
			n.disk.lateDisk--
		}
		return nil
	})
	return info, err
}

func (d *modelDisks) AttachVHDX(path string) error {
	return d.change("attach", func() error {
		n, err := d.file(path)
		if err == nil && n.disk.attached {
			err = errors.New("error 32: attached already")
		}
		if err == nil {
			d.last++
			n.disk.attached, n.disk.number, n.disk.lateDisk, n.disk.lateVolume = true, d.last, d.late, d.late
		}
		return err
	})
}

func (d *modelDisks) DetachVHDX(path string) error {
	return d.change("detach", func() error {
		n, err := d.file(path)
		if err == nil && !n.disk.attached {
			err = errors.New("not attached")
		}
		if err == nil {
			n.disk.attached = false
		}
		return err
	})
}

func (d *modelDisks) RemoveVHDX(path string) error {
	return d.change("remove", func() error {
		parent, node, err := d.m.find(path)
		if err == nil && node == nil {
			err = fs.ErrNotExist
		}
		if err == nil {
			err = cut(parent, node)
		}
		return err
	})
}

func (d *modelDisks) Rescan() error { return d.call("rescan", func() error { return nil }) }

func (d *modelDisks) Disks() (infos []DiskInfo, err error) {
	err = d.call("disks", func() error {
		for _, disk := range d.all() {
			if disk.lateDisk--; disk.lateDisk < 0 {
				infos = append(infos, DiskInfo{disk.number, " " + disk.serial, disk.page83, disk.size, disk.readOnly})
			}
		}
		return nil
	})
	return infos, err
}

func (d *modelDisks) IsOnline(number uint32) (online bool, err error) {
	online = true // as alpha.2 does with an error
	err = d.call("isOnline", func() error {
		disk, err := d.numbered(number)
		if err == nil {
			online = disk.online
		}
		return err
	})
	return online, err
}

func (d *modelDisks) SetOnline(number uint32, online bool) error {
	return d.change(fmt.Sprintf("online %t", online), func() error {
		disk, err := d.numbered(number)
		if err == nil {
			disk.online = online
		}
		return err
	})
}

// Of partitions on a model: the offset, and the size of the table at the end, in bytes.
const partStart, partTail = 16 << 20, 1 << 20

func (d *modelDisks) Partition(number uint32) error {
	return d.change("partition", func() error {
		disk, err := d.numbered(number)
		if err != nil || !disk.online {
			return errors.Join(err, errors.New("offline"))
		}
		if len(disk.parts) > 0 {
			return nil
		}
		disk.addPart(partStart, disk.size-partStart-partTail)
		d.addVolume(disk, "")
		return nil
	})
}

// addPart makes a partition.
func (k *modelDisk) addPart(offset, length int64) {
	k.data[510], k.data[512], k.data[k.size-512] = "\x55\xaa", "EFI PART", "EFI PART"
	k.parts = append(k.parts, signature.Region{Offset: offset, Length: length})
}

func (d *modelDisks) addVolume(disk *modelDisk, fsType string) *modelVolume {
	d.ids++
	v := &modelVolume{id: fmt.Sprintf(`\\?\Volume{%08d}\`, d.ids), fs: fsType, disk: disk, root: newModelDir("")}
	disk.volumes = append(disk.volumes, v)
	if fsType != "" {
		v.fill(fsType)
	}
	return v
}

// fill makes a filesystem.
func (v *modelVolume) fill(fsType string) {
	part := v.disk.parts[slices.Index(v.disk.volumes, v)]
	v.fs, v.root, v.size = fsType, newModelDir(""), part.Length-512
	v.disk.data[part.Offset+3], v.disk.data[part.Offset+part.Length-512+3] = "NTFS    ", "NTFS    "
}

func (d *modelDisks) Partitions(number uint32) (parts []signature.Region, err error) {
	err = d.call("partitions", func() error {
		disk, err := d.numbered(number)
		if err == nil {
			parts = slices.Clone(disk.parts)
		}
		return err
	})
	return parts, err
}

func (d *modelDisks) Volumes(number uint32) (ids []string, err error) {
	err = d.call("volumes", func() error {
		disk, err := d.numbered(number)
		if err != nil || !disk.online {
			return err
		}
		if disk.lateVolume--; disk.lateVolume >= 0 {
			return nil
		}
		for _, v := range disk.volumes {
			ids = append(ids, v.id)
		}
		return nil
	})
	return ids, err
}

func (d *modelDisks) ReadDisk(number uint32, data []byte, offset int64) error {
	return d.call("read", func() error {
		disk, err := d.numbered(number)
		if err == nil && (disk.unreadable || offset%4096 != 0 || offset+int64(len(data)) > disk.size) {
			err = errors.New("error 23")
		}
		if err != nil {
			return err
		}
		clear(data)
		for at, text := range disk.data {
			for i := range len(text) {
				if k := at + int64(i) - offset; k >= 0 && k < int64(len(data)) {
					data[k] = text[i]
				}
			}
		}
		return nil
	})
}

func (d *modelDisks) DiskOf(volume string) (number uint32, err error) {
	err = d.call("diskOf", func() error {
		v, err := d.identified(volume)
		if err == nil {
			number = v.disk.number
		}
		if d.wrongDisk {
			number += 7
		}
		return err
	})
	return number, err
}

func (d *modelDisks) Filesystem(volume string) (fsType string, err error) {
	err = d.call("filesystem", func() error {
		v, err := d.identified(volume)
		if err == nil && !d.unformatted {
			fsType = v.fs
		}
		return err
	})
	return fsType, err
}

func (d *modelDisks) Format(volume string) error {
	return d.change("format", func() error {
		v, err := d.identified(volume)
		if err == nil {
			d.formats++
			v.fill(options.NTFS)
		}
		return err
	})
}

func (d *modelDisks) Permit(volume string) error {
	return d.change("permit", func() error {
		v, err := d.identified(volume)
		if err == nil {
			v.permitted = true
		}
		return err
	})
}

func (d *modelDisks) MountVolume(volume, dir string) error {
	return d.change("mountVolume", func() error {
		_, err := d.identified(volume)
		if err != nil {
			return err
		}
		_, node, err := d.m.find(dir)
		if err != nil || node == nil || node.Kind != PlainDir || len(node.children) > 0 || node.volume != "" {
			return errors.Join(err, errors.New("error 145: not an empty directory"))
		}
		node.volume = volume
		return nil
	})
}

func (d *modelDisks) UnmountVolume(dir string) error {
	return d.change("unmountVolume", func() error {
		_, node, err := d.m.find(dir)
		if err != nil || node == nil || node.volume == "" {
			return errors.Join(err, errors.New("error 4390: no mount point"))
		}
		node.volume = ""
		return nil
	})
}

func (d *modelDisks) VolumeAt(dir string) (volume string, present bool, err error) {
	err = d.call("volumeAt", func() error {
		_, node, err := d.m.find(dir)
		if err == nil && node == nil {
			err = NotExist("open", dir)
		}
		if err == nil {
			volume, present = node.volume, d.volume(node.volume) != nil
		}
		return err
	})
	return volume, present, err
}

func (d *modelDisks) Flush(volume string) error {
	return d.change("flush", func() error { _, err := d.identified(volume); return err })
}

func (d *modelDisks) GrowVolume(volume string) (size int64, err error) {
	err = d.change("growVolume", func() error {
		v, err := d.identified(volume)
		if err != nil {
			return err
		}
		part := &v.disk.parts[0]
		size = v.disk.size - part.Offset - partTail
		if !d.skipsGrowth {
			part.Length, v.size = size, size-512
		}
		return nil
	})
	return size, err
}

func (d *modelDisks) VolumeSize(volume string) (size int64, err error) {
	err = d.call("volumeSize", func() error {
		v, err := d.identified(volume)
		if err == nil {
			size = v.size
		}
		return err
	})
	return size, err
}

func (d *modelDisks) Flags(volume string) (dirty, readOnly bool, err error) {
	err = d.call("flags", func() error {
		v, err := d.identified(volume)
		if err == nil {
			dirty, readOnly = v.dirty, v.readOnly
		}
		return err
	})
	return dirty, readOnly, err
}
