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

// renew says how a filesystem of each type gets another UUID.
var renew = map[string]func(ctx context.Context, l *linux, d disk, sector int) error{
	"ext4": renewExt4,
	"xfs":  renewXFS,
	btrfs:  renewBtrfs,
}

func (l *linux) NewUUID(ctx context.Context, image *os.File, fsType string, sector int) error {
	change, ok := renew[fsType]
	if !ok {
		return fmt.Errorf("%w: %.32q is none of %s", ErrFormat, fsType, strings.Join(FSTypes(), ", "))
	}
	b, err := backingOf(image)
	if err != nil {
		return err
	}
	release, err := l.images.lock(ctx, b)
	if err != nil {
		return err
	}
	defer release()
	if n, used, err := l.loops.of(b); err != nil {
		return err
	} else if used && !released(n, b) {
		return fmt.Errorf("%w: %s has %s", ErrBusy, loopPath(n), image.Name())
	}
	before, err := readUUID(image, fsType)
	if err != nil {
		return err
	}
	if err := change(ctx, l, disk{file: image, image: b, path: image.Name()}, sector); err != nil {
		return fmt.Errorf("a new UUID for the %s in %s: %w", fsType, image.Name(), err)
	}
	after, err := readUUID(image, fsType)
	if err == nil && (after == before || after == uuid{}) {
		err = fmt.Errorf("the %s in %s has the UUID %x still", fsType, image.Name(), after)
	}
	return err
}

// renewExt4 replays the journal as mounting it would. Metadata is summed up with the UUID, and all of it would have to
// be written anew; so the old one is kept as the seed of the sums first, which Linux knows since 4.4.
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

// renewXFS mounts it first, as only the kernel replays its log. What xfs_admin does is done without its shell.
func renewXFS(ctx context.Context, l *linux, d disk, sector int) error {
	if err := l.replay(ctx, d.file, "xfs", sector, "nouuid"); err != nil {
		return err
	}
	return l.tool(ctx, d, killed, "xfs_db", "-f", "-x", "-c", "uuid generate")
}

// renewBtrfs mounts it first if it has a log: btrfstune would make that unreadable, and report success.
func renewBtrfs(ctx context.Context, l *linux, d disk, sector int) error {
	super, err := readBtrfs(d.file)
	if err == nil && super.log != 0 {
		if err = l.replay(ctx, d.file, btrfs, sector); errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%w: Linux before 6.7 can't mount a copy beside its source: %w", errors.ErrUnsupported, err)
		}
		if err == nil {
			super, err = readBtrfs(d.file)
		}
	}
	if err == nil && super.log != 0 {
		err = fmt.Errorf("%w: its log isn't empty after it was mounted", ErrFormat)
	}
	if err != nil {
		return err
	}
	return l.tool(ctx, d, killed, "btrfstune", "-f", "-m")
}

// maxReleaseTries bounds how often is looked whether a device has let go, some 60 ms each.
const maxReleaseTries = 100

// replay lets the kernel replay the log of a filesystem by mounting it. No device is left, even after a death.
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
		return fmt.Errorf("%w: %s has got %s", ErrBusy, dev.Name(), image.Name())
	}
	mount, err := mountNowhere(dev.Name(), fsType, flags...)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EUCLEAN) {
		err = fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if err == nil {
		err = errors.Join(unix.Syncfs(int(mount.Fd())), mount.Close(), dev.Sync())
	}
	if err != nil {
		return err
	}
	// The device has a cache of its own: as long as it is there the file must not be written to.
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
	return fmt.Errorf("%w: %s has %s still", ErrBusy, dev.Name(), image.Name())
}

type uuid [16]byte

// readUUID reads by what a filesystem is known, where it is mounted. Errors: ErrFormat if it is of another type.
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

// readXFS reads it from the first superblock: fs/xfs/libxfs/xfs_format.h of Linux.
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

// btrfsSuper is what is read of a btrfs's superblock: include/uapi/linux/btrfs_tree.h of Linux.
type btrfsSuper struct {
	uuid uuid
	log  uint64 // where the tree is that was written by fsync since the last commit, 0 if there is none
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
