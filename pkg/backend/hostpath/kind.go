package hostpath

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// kind is what a volume is made of.
type kind string

const (
	kindKey        = "kind" // the parameter
	directory kind = "directory"
	image     kind = "image"
)

const (
	defaultSize   = 1 << 30 // bytes of a volume for which no size is asked
	defaultFSType = "ext4"

	// sector is the logical block size of images, in bytes. A filesystem made on smaller sectors can't be mounted on
	// larger ones, so it is kept in the record and never left to the machine.
	sector = 512

	// sizeUnit is what the sizes of images are multiples of, in bytes: a loop device cuts off what is no whole block.
	sizeUnit = 4096
)

// minSizes are the smallest images in which mkfs makes a filesystem that is of use, in bytes.
var minSizes = map[string]int64{"": sizeUnit, "ext4": 4 << 20, "xfs": 300 << 20, "btrfs": 128 << 20}

// plan returns the volume that o asks for, without its name. Errors: ErrInvalid, ErrOutOfRange.
func plan(o backend.CreateOptions) (*volume, error) {
	v := &volume{Kind: directory}
	if value, ok := o.Parameters[kindKey]; ok {
		v.Kind = kind(value)
	}
	for _, key := range slices.Sorted(maps.Keys(o.Parameters)) {
		if key != kindKey {
			return nil, fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
		}
	}
	switch v.Kind {
	case directory:
		v.Size = chooseSize(o)
		for _, a := range o.Access {
			if err := checkDirectory(a); err != nil {
				return nil, err
			}
		}
		return v, nil
	case image:
		return v, v.planImage(o)
	}
	return nil, fmt.Errorf("%w: parameter kind is %.64q, and there are %s and %s", backend.ErrInvalid, v.Kind, directory, image)
}

// planImage says what is in the image: a filesystem, unless it is used as a block device only.
func (v *volume) planImage(o backend.CreateOptions) error {
	v.Sector = sector
	for _, a := range o.Access {
		if a.Block {
			v.Block = true
			continue
		}
		fsType := cmp.Or(a.FSType, defaultFSType)
		if v.FSType != "" && v.FSType != fsType {
			return fmt.Errorf("%w: an image has one filesystem, not %.32q and %.32q", backend.ErrInvalid, v.FSType, fsType)
		}
		v.FSType = fsType
		if err := mounter.CheckOptions(mounter.Image, fsType, a.Options); err != nil {
			return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
		}
	}
	if v.Block && v.FSType != "" { // a pod could write under a mounted filesystem
		return fmt.Errorf("%w: an image has a filesystem or is a block device, not both", backend.ErrInvalid)
	}
	wanted := max(chooseSize(o), minSizes[v.FSType])
	if wanted > 1<<62 {
		return fmt.Errorf("%w: %d bytes", backend.ErrOutOfRange, wanted)
	}
	v.Size = (wanted + sizeUnit - 1) / sizeUnit * sizeUnit
	if down := wanted / sizeUnit * sizeUnit; o.Required == 0 && down >= minSizes[v.FSType] {
		v.Size = down // nobody asked for more, and there may be a limit
	}
	if o.Limit > 0 && v.Size > o.Limit {
		return fmt.Errorf("%w: an image has a multiple of %d bytes, with this filesystem at least %d: %d is over the limit of %d",
			backend.ErrOutOfRange, sizeUnit, minSizes[v.FSType], v.Size, o.Limit)
	}
	return nil
}

// chooseSize returns a size in bytes within what o asks for.
func chooseSize(o backend.CreateOptions) int64 {
	switch {
	case o.Required > 0:
		return o.Required
	case o.Limit > 0:
		return min(o.Limit, defaultSize)
	}
	return defaultSize
}

// checkDirectory returns an error for a use that a directory doesn't have.
func checkDirectory(a backend.Access) error {
	switch {
	case a.Block:
		return fmt.Errorf("%w: a directory can't be used as a block device: take kind: image", backend.ErrInvalid)
	case a.FSType != "":
		return fmt.Errorf("%w: a directory has no filesystem of its own: leave fsType %.64q out, or take kind: image", backend.ErrInvalid, a.FSType)
	}
	if err := mounter.CheckOptions(mounter.Directory, "", a.Options); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return nil
}

// fits returns ErrExists unless the volume is what o asks for, of which want is the plan.
func (v *volume) fits(want *volume, o backend.CreateOptions) error {
	if v.Kind == want.Kind && v.FSType == want.FSType && v.Block == want.Block &&
		v.Size >= o.Required && (o.Limit == 0 || v.Size <= o.Limit) {
		return nil
	}
	return fmt.Errorf("%w: it has %d bytes and is of kind %s, filesystem %q, block device: %v", backend.ErrExists, v.Size, v.Kind, v.FSType, v.Block)
}

// mount returns what to mount for a use. data is the path of what pods see.
func (v *volume) mount(data string, a backend.Access) (mounter.Mount, error) {
	m := mounter.Mount{Kind: mounter.Directory, Source: data, Options: a.Options, ReadOnly: a.ReadOnly}
	if v.Kind == directory {
		return m, checkDirectory(a)
	}
	m.Sector = v.Sector
	switch {
	case a.Block && !v.Block:
		return m, fmt.Errorf("%w: volume %s was made for its filesystem, not as a block device", backend.ErrInvalid, v.ID)
	case a.Block:
		m.Kind, m.Options = mounter.Disk, nil
		return m, nil
	case v.FSType == "":
		return m, fmt.Errorf("%w: volume %s was made as a block device, without a filesystem", backend.ErrInvalid, v.ID)
	case a.FSType != "" && a.FSType != v.FSType:
		return m, fmt.Errorf("%w: volume %s has the filesystem %s, not %.32q", backend.ErrInvalid, v.ID, v.FSType, a.FSType)
	}
	m.Kind, m.FSType = mounter.Image, v.FSType
	if err := mounter.CheckOptions(m.Kind, m.FSType, a.Options); err != nil {
		return m, fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return m, nil
}
