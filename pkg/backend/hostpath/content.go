package hostpath

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// content describes the data of a volume or a snapshot.
type content struct {
	Size   int64  `json:"size"` // bytes
	Kind   kind   `json:"kind"`
	FSType string `json:"fsType,omitempty"` // of an image; "" without a filesystem
	Block  bool   `json:"block,omitempty"`  // an image that is used as a block device
	Sector int    `json:"sector,omitempty"` // of an image, in bytes
}

// fixedParameters are the parameters of a StorageClass that cannot change. A volume does not store
// consistencyKey: it is for the copy that makes the volume. knownMutable has the parameters that
// can change.
var fixedParameters = []string{kindKey, consistencyKey}

// planContent returns the content of a new volume. from is the content of its source, or nil.
func planContent(o backend.CreateOptions, from *content) (content, error) {
	c := content{Kind: directory}
	if from != nil {
		c.Kind = from.Kind
	}
	if value, ok := o.Parameters[kindKey]; ok {
		c.Kind = kind(value)
	}
	for _, key := range slices.Sorted(maps.Keys(o.Parameters)) {
		if _, ok := knownMutable[key]; !ok && !slices.Contains(fixedParameters, key) {
			return c, fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
		}
	}
	if _, err := parseConsistency(o.Parameters); err != nil {
		return c, err
	}
	if from != nil {
		if from.Kind != c.Kind {
			return c, fmt.Errorf("%w: invalid kind %.32q: must be %q, the kind of the source", backend.ErrInvalid,
				c.Kind, from.Kind)
		}
		if (o.Required > 0 && o.Required < from.Size) || (o.Limit > 0 && o.Limit < from.Size) {
			return c, fmt.Errorf("%w: the source has %d bytes: a copy cannot be smaller", backend.ErrOutOfRange,
				from.Size)
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
	return c, fmt.Errorf("%w: invalid kind %.64q: must be %q or %q", backend.ErrInvalid, c.Kind, directory, image)
}

// servable returns ErrInvalid for content of a kind that this backend does not make, and
// ErrExhausted for content that the operating system of this node cannot mount, or not for these
// uses: another node may.
func (b *Backend) servable(c content, uses []backend.Access) error {
	if !slices.Contains(b.kinds, c.Kind) {
		return fmt.Errorf("%w: invalid kind %q: must be one of %q (--kinds)", backend.ErrInvalid, c.Kind, b.kinds)
	}
	kind, fsType := mounter.Directory, ""
	switch {
	case c.Kind == image && c.Block:
		kind = mounter.Disk
	case c.Kind == image:
		kind, fsType = mounter.Image, cmp.Or(c.FSType, defaultFSType)
	}
	var options []string
	for _, a := range uses {
		options = append(options, a.Options...)
	}
	if err := b.cfg.Images.Supports(kind, fsType, options); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrExhausted, err)
	}
	return nil
}

// planImage sets the fields of an image: it has a filesystem, unless it is used as a block device
// only.
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
		if from != nil && from.FSType == "" {
			return fmt.Errorf("%w: the source is a block device, so the new volume can only be one (volumeMode: "+
				"Block): a process with the device can make its filesystem a trap for the kernel that mounts it",
				backend.ErrInvalid)
		}
		fsType := cmp.Or(a.FSType, standard)
		if c.FSType != "" && c.FSType != fsType {
			return fmt.Errorf("%w: an image has a single filesystem: the capabilities ask for %.32q and %.32q",
				backend.ErrInvalid, c.FSType, fsType)
		}
		c.FSType = fsType
		if err := mounter.CheckOptions(mounter.Image, fsType, a.Options); err != nil {
			return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
		}
	}
	if c.Block && c.FSType != "" { // a pod could write below a mounted filesystem
		return fmt.Errorf("%w: an image has a filesystem or is a block device, not both", backend.ErrInvalid)
	}
	if from != nil && c.FSType != "" && c.FSType != from.FSType {
		return fmt.Errorf("%w: invalid fsType %.32q: must be %q, the filesystem of the source", backend.ErrInvalid,
			c.FSType, from.FSType)
	}
	wanted := max(chooseSize(o), c.minSize())
	if wanted > maxImage {
		return fmt.Errorf("%w: an image of %d bytes: must have at most %d", backend.ErrOutOfRange, wanted,
			int64(maxImage))
	}
	c.Size = (wanted + sizeUnit - 1) / sizeUnit * sizeUnit
	if down := wanted / sizeUnit * sizeUnit; o.Required == 0 && down >= c.minSize() {
		c.Size = down // no larger size is required, and there may be a limit
	}
	if o.Limit > 0 && c.Size > o.Limit {
		return fmt.Errorf("%w: the size of an image is a multiple of %d bytes, with this filesystem at least %d: %d "+
			"is above the limit of %d",
			backend.ErrOutOfRange, sizeUnit, c.minSize(), c.Size, o.Limit)
	}
	return nil
}

// minSize returns the least size in bytes.
func (c content) minSize() int64 {
	if c.Kind == directory {
		return 1
	}
	return minSizes[c.FSType]
}

// largest returns the size, in bytes, of the largest volume with this content in available bytes:
// 0 if not even the smallest fits.
func (c content) largest(available int64) int64 {
	if c.Kind == image {
		available = min(available, maxImage) / sizeUnit * sizeUnit
	}
	if available < c.minSize() {
		return 0
	}
	return available
}

// chooseSize returns a size in bytes within the range of o.
func chooseSize(o backend.CreateOptions) int64 {
	switch {
	case o.Required > 0:
		return o.Required
	case o.Limit > 0:
		return min(o.Limit, defaultSize)
	}
	return defaultSize
}

// checkDirectory returns an error for a volume capability that a directory does not support.
func checkDirectory(a backend.Access) error {
	switch {
	case a.Block:
		return fmt.Errorf("%w: a directory cannot be a block device: use a class with kind: image", backend.ErrInvalid)
	case a.FSType != "":
		return fmt.Errorf("%w: a directory has no filesystem of its own: remove fsType %.64q, or use kind: image",
			backend.ErrInvalid, a.FSType)
	}
	if err := mounter.CheckOptions(mounter.Directory, "", a.Options); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return nil
}

// consistencyKey is the parameter for the consistency of a copy whose source image is mounted.
const consistencyKey = "consistency"

// consistency is the value of the parameter.
type consistency string

const (
	// frozen: the filesystem is frozen while it is copied, so the copy is clean. If the freeze is
	// impossible or takes too long, the copy has the state of a power cut. If the disk cannot copy
	// at a point in time, the call fails.
	frozen consistency = "frozen"
	// anyState: if the disk cannot copy at a point in time, the copy is made while pods write, and
	// may be torn.
	anyState consistency = "none"
)

func parseConsistency(parameters map[string]string) (consistency, error) {
	switch c := consistency(parameters[consistencyKey]); c {
	case "":
		return frozen, nil
	case frozen, anyState:
		return c, nil
	default:
		return "", fmt.Errorf("%w: invalid consistency %.64q: must be %q or %q", backend.ErrInvalid, c, frozen,
			anyState)
	}
}
