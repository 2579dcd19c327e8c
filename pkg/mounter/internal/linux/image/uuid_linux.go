package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// renew holds, for each filesystem type, the function that gives a filesystem a new UUID.
var renew = map[string]func(ctx context.Context, l *Images, d tool.Disk, sector int) error{
	"ext4":     renewExt4,
	"xfs":      renewXFS,
	tree.Btrfs: renewBtrfs,
}

// NewUUID is that of mounter.Images.
func (im *Images) NewUUID(ctx context.Context, image *os.File, fsType string, sector int) error {
	change, ok := renew[fsType]
	if !ok {
		return fmt.Errorf("%w: invalid filesystem type %.32q: must be one of %s",
			mounter.ErrFormat, fsType, strings.Join(mounter.FSTypes(), ", "))
	}
	b, err := tree.BackingOf(image)
	if err != nil {
		return err
	}
	release, err := im.locks.ImageLocks.Lock(ctx, b)
	if err != nil {
		return err
	}
	defer release()
	if n, used, err := im.loops.DeviceForFile(image, b); err != nil {
		return err
	} else if used && !loop.Released(n, b) {
		return fmt.Errorf("%w: %s is attached to %s", mounter.ErrBusy, image.Name(), loop.Path(n))
	}
	before, err := filesystem.ReadUUID(image, fsType)
	if err != nil {
		return err
	}
	if err := change(ctx, im, tool.Disk{File: image, Image: b, Path: image.Name()}, sector); err != nil {
		return fmt.Errorf("change the UUID of the %s in %s: %w", fsType, image.Name(), err)
	}
	after, err := filesystem.ReadUUID(image, fsType)
	if err == nil && (after == before || after == filesystem.UUID{}) {
		err = fmt.Errorf("the %s in %s still has the UUID %x", fsType, image.Name(), after)
	}
	return err
}

// renewExt4 first replays the journal, as a mount would. The UUID is the seed of the checksums of
// all metadata, which a new UUID would make invalid. So tune2fs first stores the old UUID as a
// separate seed (metadata_csum_seed, Linux 4.4).
func renewExt4(ctx context.Context, l *Images, d tool.Disk, _ int) error {
	if err := l.filesystems.Check(ctx, d); err != nil {
		return err
	}
	super, err := filesystem.ReadExt4(d.File)
	if err != nil {
		return err
	}
	args := []string{"-U", "random"}
	if super.Sums {
		args = append(args, "-O", "metadata_csum_seed")
	}
	return l.tools.Run(ctx, d, tool.Kill, "tune2fs", args...)
}

// renewXFS first mounts the filesystem, as only the kernel replays its log. renewXFS then runs
// xfs_db directly, as the shell script xfs_admin does.
func renewXFS(ctx context.Context, l *Images, d tool.Disk, sector int) error {
	if err := l.replay(ctx, d.File, "xfs", sector, "nouuid"); err != nil {
		return err
	}
	return l.tools.Run(ctx, d, tool.Kill, "xfs_db", "-f", "-x", "-c", "uuid generate")
}

// renewBtrfs first mounts a filesystem that has a log. Without the mount, btrfstune would make the
// log unreadable and report success.
func renewBtrfs(ctx context.Context, l *Images, d tool.Disk, sector int) error {
	super, err := filesystem.ReadBtrfs(d.File)
	if err == nil && super.Log != 0 {
		if err = l.replay(ctx, d.File, tree.Btrfs, sector); errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%w: Linux before 6.7 cannot mount a copy while its source is mounted: %w",
				errors.ErrUnsupported, err)
		}
		if err == nil {
			super, err = filesystem.ReadBtrfs(d.File)
		}
	}
	if err == nil && super.Log != 0 {
		err = fmt.Errorf("%w: the log of the btrfs is not empty after a mount", mounter.ErrFormat)
	}
	if err != nil {
		return err
	}
	return l.tools.Run(ctx, d, tool.Kill, "btrfstune", "-f", "-m")
}

// maxReleaseTries bounds the number of calls of released, which take about 60 ms each.
const maxReleaseTries = 100

// replay mounts a filesystem so that the kernel replays its log. No device stays attached, even if
// the driver dies.
func (im *Images) replay(ctx context.Context, image *os.File, fsType string, sector int, flags ...string) error {
	b, err := tree.BackingOf(image)
	if err != nil {
		return err
	}
	dev, was, err := im.loops.Attach(image, loop.Options{Sector: sector, Autoclear: true})
	if err != nil {
		return err
	}
	defer dev.Close()
	if was {
		return fmt.Errorf("%w: another process has attached %s to %s", mounter.ErrBusy, image.Name(), dev.Name())
	}
	mount, err := tree.MountDetached(dev.Name(), fsType, flags...)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EUCLEAN) {
		err = fmt.Errorf("%w: %w", mounter.ErrFormat, err)
	}
	if err == nil {
		err = errors.Join(unix.Syncfs(int(mount.Fd())), mount.Close(), dev.Sync())
	}
	if err != nil {
		return err
	}
	// The device has its own page cache: no program may write to the file while the device exists.
	n, _ := loop.Number(dev.Name())
	dev.Close()
	for range maxReleaseTries {
		if loop.Released(n, b) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %s is still attached to %s", mounter.ErrBusy, image.Name(), dev.Name())
}
