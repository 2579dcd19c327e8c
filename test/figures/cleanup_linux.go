package figures

import (
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// CleanUp removes the directory of a benchmark, with the mounts that an interruption left: in a
// mount namespace of its own, other processes do not see them.
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
