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

// minSizes are the smallest images in which mkfs makes a filesystem that is of use, and that can grow, in bytes: btrfs
// takes no size below 256 MiB for a device that it is to be resized to.
var minSizes = map[string]int64{"": sizeUnit, "ext4": 4 << 20, "xfs": 300 << 20, "btrfs": 256 << 20}

// content is what a volume or a snapshot is made of.
type content struct {
	Size   int64  `json:"size"` // bytes
	Kind   kind   `json:"kind"`
	FSType string `json:"fsType,omitempty"` // in an image; "" if there is none
	Block  bool   `json:"block,omitempty"`  // an image may be used as a block device
	Sector int    `json:"sector,omitempty"` // of an image, in bytes
}

// plan makes v what o asks for; if from isn't nil, a copy of that. Errors: ErrInvalid, ErrOutOfRange.
func (v *volume) plan(o backend.CreateOptions, from *content) (err error) {
	if v.content, err = planContent(o, from); err != nil {
		return err
	}
	if err := onlySettings(o.Mutable); err != nil {
		return err
	}
	if v.Class, err = readSettings(o.Parameters, v.Kind); err != nil {
		return err
	}
	v.Mutable, err = readSettings(o.Mutable, v.Kind)
	return err
}

// planContent returns what the volume is to be made of.
func planContent(o backend.CreateOptions, from *content) (content, error) {
	c := content{Kind: directory}
	if from != nil {
		c.Kind = from.Kind
	}
	if value, ok := o.Parameters[kindKey]; ok {
		c.Kind = kind(value)
	}
	for _, key := range slices.Sorted(maps.Keys(o.Parameters)) {
		if _, ok := knownSettings[key]; !ok && key != kindKey && key != consistencyKey {
			return c, fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
		}
	}
	if _, err := parseConsistency(o.Parameters); err != nil {
		return c, err
	}
	if from != nil {
		if from.Kind != c.Kind {
			return c, fmt.Errorf("%w: the source is of kind %s, which can't become %.32q: take a class with kind: %[2]s", backend.ErrInvalid, from.Kind, c.Kind)
		}
		if (o.Required > 0 && o.Required < from.Size) || (o.Limit > 0 && o.Limit < from.Size) {
			return c, fmt.Errorf("%w: the source has %d bytes, and a copy no less", backend.ErrOutOfRange, from.Size)
		}
		o.Required = max(o.Required, from.Size)
	}
	switch c.Kind {
	case directory:
		c.Size = chooseSize(o)
		for _, a := range o.Access {
			if err := checkDirectory(a); err != nil {
				return c, err
			}
		}
		return c, nil
	case image:
		return c, c.planImage(o, from)
	}
	return c, fmt.Errorf("%w: parameter kind is %.64q, and there are %s and %s", backend.ErrInvalid, c.Kind, directory, image)
}

// planImage says what is in the image: a filesystem, unless it is used as a block device only.
func (c *content) planImage(o backend.CreateOptions, from *content) error {
	c.Sector = sector
	standard := defaultFSType
	if from != nil {
		c.Sector, standard = from.Sector, from.FSType
	}
	for _, a := range o.Access {
		if a.Block {
			c.Block = true
			continue
		}
		fsType := cmp.Or(a.FSType, standard)
		if c.FSType != "" && c.FSType != fsType {
			return fmt.Errorf("%w: an image has one filesystem, not %.32q and %.32q", backend.ErrInvalid, c.FSType, fsType)
		}
		c.FSType = fsType
		if err := mounter.CheckOptions(mounter.Image, fsType, a.Options); err != nil {
			return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
		}
	}
	if c.Block && c.FSType != "" { // a pod could write under a mounted filesystem
		return fmt.Errorf("%w: an image has a filesystem or is a block device, not both", backend.ErrInvalid)
	}
	if from != nil && c.FSType != "" && c.FSType != from.FSType {
		return fmt.Errorf("%w: the source has the filesystem %q, which can't become %.32q", backend.ErrInvalid, from.FSType, c.FSType)
	}
	wanted := max(chooseSize(o), minSizes[c.FSType])
	if wanted > maxImage {
		return fmt.Errorf("%w: %d bytes", backend.ErrOutOfRange, wanted)
	}
	c.Size = (wanted + sizeUnit - 1) / sizeUnit * sizeUnit
	if down := wanted / sizeUnit * sizeUnit; o.Required == 0 && down >= minSizes[c.FSType] {
		c.Size = down // nobody asked for more, and there may be a limit
	}
	if o.Limit > 0 && c.Size > o.Limit {
		return fmt.Errorf("%w: an image has a multiple of %d bytes, with this filesystem at least %d: %d is over the limit of %d",
			backend.ErrOutOfRange, sizeUnit, minSizes[c.FSType], c.Size, o.Limit)
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

// fits returns ErrExists unless v is what o asks for, of which want is the plan.
func (v *volume) fits(want *volume, o backend.CreateOptions) error {
	if v.origin() != want.origin() {
		return fmt.Errorf("%w: it was made from %s, not from %s", backend.ErrExists, v.origin(), want.origin())
	}
	if v.Kind != want.Kind || v.FSType != want.FSType || v.Block != want.Block || v.Size < o.Required || (o.Limit > 0 && v.Size > o.Limit) {
		return fmt.Errorf("%w: it has %d bytes and is of kind %s, filesystem %q, block device: %v", backend.ErrExists, v.Size, v.Kind, v.FSType, v.Block)
	}
	if !maps.Equal(v.Class, want.Class) {
		return fmt.Errorf("%w: it was made with %v", backend.ErrExists, v.Class)
	}
	for key, value := range want.Mutable { // what isn't named may have been changed since
		if v.set(key) != value {
			return fmt.Errorf("%w: its %s is %q", backend.ErrExists, key, v.set(key))
		}
	}
	return nil
}

// mount returns what to mount for a use. data is the path of what pods see.
func (v *volume) mount(data string, a backend.Access) (mounter.Mount, error) {
	m := mounter.Mount{Kind: mounter.Directory, Source: data, Options: a.Options, ReadOnly: a.ReadOnly}
	if v.Kind == directory {
		return m, checkDirectory(a)
	}
	m.Sector, m.Buffered, m.ReadAhead = v.Sector, v.set(directIOKey) == "false", int(v.bytes(readAheadKey))
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
