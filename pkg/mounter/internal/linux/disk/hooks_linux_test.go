package disk

import (
	"context"
	"os"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// beginFormat begins the format of a device of size bytes.
func (ds *Disks) beginFormat(m mounter.Mount, dev *os.File, size int64) error {
	return ds.begin(m, dev, plan{size: size, formatted: newFormatting(m, size)})
}

// newPrograms returns the programs of a device without a disk. change: mkfs and fsck may run.
func (ds *Disks) newPrograms(fsType string, change bool) *programs {
	return &programs{Disks: ds, ctx: context.Background(), fsType: fsType, format: change, repair: change}
}

// failure returns the first error.
func (p *programs) failure() error { return p.failed }
