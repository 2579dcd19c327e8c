package mounter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// renew holds, for each filesystem type, the function that gives a filesystem a new UUID.
var renew = map[string]func(ctx context.Context, l *linux, d disk, sector int) error{
	"ext4": renewExt4,
	"xfs":  renewXFS,
	btrfs:  renewBtrfs,
}

func (l *linux) NewUUID(ctx context.Context, image *os.File, fsType string, sector int) error {
	change, ok := renew[fsType]
	if !ok {
		return fmt.Errorf("%w: invalid filesystem type %.32q: must be one of %s",
			ErrFormat, fsType, strings.Join(FSTypes(), ", "))
	}
	b, err := backingOf(image)
	if err != nil {
		return err
	}
	release, err := l.images.Lock(ctx, b)
	if err != nil {
		return err
	}
	defer release()
	if n, used, err := l.loops.ofFile(image, b); err != nil {
		return err
	} else if used && !released(n, b) {
		return fmt.Errorf("%w: %s is attached to %s", ErrBusy, image.Name(), loopPath(n))
	}
	before, err := readUUID(image, fsType)
	if err != nil {
		return err
	}
	if err := change(ctx, l, disk{file: image, image: b, path: image.Name()}, sector); err != nil {
		return fmt.Errorf("change the UUID of the %s in %s: %w", fsType, image.Name(), err)
	}
	after, err := readUUID(image, fsType)
	if err == nil && (after == before || after == uuid{}) {
		err = fmt.Errorf("the %s in %s still has the UUID %x", fsType, image.Name(), after)
	}
	return err
}

// renewExt4 first replays the journal, as a mount would. The UUID is the seed of the checksums of
// all metadata, which a new UUID would make invalid. So tune2fs first stores the old UUID as a
// separate seed (metadata_csum_seed, Linux 4.4).
func renewExt4(ctx context.Context, l *linux, d disk, _ int) error {
	if err := l.check(ctx, d); err != nil {
		return err
	}
	super, err := readExt4(d.file)
	if err != nil {
		return err
	}
	args := []string{"-U", "random"}
	if super.sums {
		args = append(args, "-O", "metadata_csum_seed")
	}
	return l.tool(ctx, d, killed, "tune2fs", args...)
}

// renewXFS first mounts the filesystem, as only the kernel replays its log. renewXFS then runs
// xfs_db directly, as the shell script xfs_admin does.
func renewXFS(ctx context.Context, l *linux, d disk, sector int) error {
	if err := l.replay(ctx, d.file, "xfs", sector, "nouuid"); err != nil {
		return err
	}
	return l.tool(ctx, d, killed, "xfs_db", "-f", "-x", "-c", "uuid generate")
}

// renewBtrfs first mounts a filesystem that has a log. Without the mount, btrfstune would make the
// log unreadable and report success.
func renewBtrfs(ctx context.Context, l *linux, d disk, sector int) error {
	super, err := readBtrfs(d.file)
	if err == nil && super.log != 0 {
		if err = l.replay(ctx, d.file, btrfs, sector); errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%w: Linux before 6.7 cannot mount a copy while its source is mounted: %w",
				errors.ErrUnsupported, err)
		}
		if err == nil {
			super, err = readBtrfs(d.file)
		}
	}
	if err == nil && super.log != 0 {
		err = fmt.Errorf("%w: the log of the btrfs is not empty after a mount", ErrFormat)
	}
	if err != nil {
		return err
	}
	return l.tool(ctx, d, killed, "btrfstune", "-f", "-m")
}

// maxReleaseTries bounds the number of calls of released, which take about 60 ms each.
const maxReleaseTries = 100

// replay mounts a filesystem so that the kernel replays its log. No device stays attached, even if
// the driver dies.
func (l *linux) replay(ctx context.Context, image *os.File, fsType string, sector int, flags ...string) error {
	b, err := backingOf(image)
	if err != nil {
		return err
	}
	dev, was, err := l.loops.attach(image, loopOptions{sector: sector, autoclear: true})
	if err != nil {
		return err
	}
	defer dev.Close()
	if was {
		return fmt.Errorf("%w: another process has attached %s to %s", ErrBusy, image.Name(), dev.Name())
	}
	mount, err := mountDetached(dev.Name(), fsType, flags...)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EUCLEAN) {
		err = fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if err == nil {
		err = errors.Join(unix.Syncfs(int(mount.Fd())), mount.Close(), dev.Sync())
	}
	if err != nil {
		return err
	}
	// The device has its own page cache: no program may write to the file while the device exists.
	n, _ := loopNumber(dev.Name())
	dev.Close()
	for range maxReleaseTries {
		if released(n, b) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %s is still attached to %s", ErrBusy, image.Name(), dev.Name())
}

type uuid [16]byte

// readUUID reads the UUID by which the kernel identifies a mounted filesystem. Errors: ErrFormat if
// the filesystem has another type.
func readUUID(image *os.File, fsType string) (uuid, error) {
	switch fsType {
	case "ext4":
		super, err := readExt4(image)
		return super.uuid, err
	case btrfs:
		super, err := readBtrfs(image)
		return super.uuid, err
	}
	return readXFS(image)
}

// readXFS reads the UUID from the first superblock: fs/xfs/libxfs/xfs_format.h of Linux.
func readXFS(image *os.File) (id uuid, err error) {
	var raw [64]byte
	if _, err := image.ReadAt(raw[:], 0); err != nil {
		return id, err
	}
	if string(raw[:4]) != "XFSB" {
		return id, fmt.Errorf("%w: no xfs superblock", ErrFormat)
	}
	return uuid(raw[32:48]), nil
}

// btrfsSuper holds the fields that readBtrfs reads from the superblock of a btrfs:
// include/uapi/linux/btrfs_tree.h of Linux.
type btrfsSuper struct {
	uuid uuid
	log  uint64 // address of the log tree, which holds the fsyncs since the last commit; 0 if empty
}

func readBtrfs(image *os.File) (btrfsSuper, error) {
	const offset = 64 << 10
	var raw [0x68]byte
	if _, err := image.ReadAt(raw[:], offset); err != nil {
		return btrfsSuper{}, err
	}
	if string(raw[0x40:0x48]) != "_BHRfS_M" {
		return btrfsSuper{}, fmt.Errorf("%w: no btrfs superblock", ErrFormat)
	}
	return btrfsSuper{uuid: uuid(raw[0x20:0x30]), log: binary.LittleEndian.Uint64(raw[0x60:])}, nil
}
