package figures

import (
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// CleanUp removes a directory in which a benchmark worked, with the mounts that an interruption left: in a namespace of
// its own nobody else sees them.
func CleanUp(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for i := range mounts {
		if err := unix.Unmount(mounts[len(mounts)-1-i].Mountpoint, unix.MNT_DETACH); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}
