package hostpath

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

// Logical block sizes of a loop device, in bytes.
const (
	minSector = 512
	maxSector = 4096
)

// maxImage is the largest image, in bytes.
const maxImage = 1 << 62
