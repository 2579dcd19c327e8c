package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/test/figures"
)

const (
	treeFiles, treeFile = 64, 8 << 20 // a directory volume of 512 MiB
	imageSize           = 4 << 30     // of an image
	manyFiles           = 100_000
	copyRounds          = 3 // of steps that take seconds
)

// onDisk runs a measurement with a driver whose root is on a filesystem of its own.
func onDisk(ctx context.Context, dir, bin, fsType string, measure func(b *bench) error) (err error) {
	disk, err := figures.Disk(ctx, dir, fsType)
	if err != nil || disk == "" {
		return err
	}
	p, err := startDriver(ctx, disk, bin, "driver", false)
	if err != nil {
		return err
	}
	b := &bench{process: p, ctx: ctx, disk: disk, fsType: fsType, times: figures.Stopwatch{}}
	defer func() {
		err = errors.Join(err, p.stop(), unix.Unmount(disk, 0), os.Remove(disk+".img"))
	}()
	return measure(b)
}

// bench is a driver on a filesystem.
type bench struct {
	*process
	ctx    context.Context
	disk   string
	fsType string
	times  figures.Stopwatch
}

// p50 is the median of the durations under a name, in milliseconds.
func (b *bench) p50(name string) float64 { return b.times.P50(name) / 1000 }

func (b *bench) exec(name string, command ...string) error {
	return b.times.Time(name, func() error {
		out, err := exec.CommandContext(b.ctx, command[0], command[1:]...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %.200s", err, out)
		}
		return err
	})
}

// sync writes all filesystems out, so that no step pays for an earlier one.
func (b *bench) sync() error {
	d, err := os.Open(b.disk)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// create makes a volume: an image, as a block device, if size is not 0.
func (b *bench) create(name string, size int64, source *csi.VolumeContentSource) (id string, err error) {
	c, parameters := use(), map[string]string(nil)
	if size > 0 {
		c.AccessType, parameters = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			map[string]string{"kind": "image"}
	}
	v, err := b.CreateVolume(b.ctx, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: max(size,
			1<<20)}, VolumeCapabilities: []*csi.VolumeCapability{c},
		Parameters: parameters, VolumeContentSource: source,
	})
	return v.GetVolume().GetVolumeId(), err
}

func (b *bench) delete(id string) error {
	_, err := b.DeleteVolume(b.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (b *bench) snapshot(name, volume string) (id string, err error) {
	n, err := b.CreateSnapshot(b.ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
	return n.GetSnapshot().GetSnapshotId(), err
}

func (b *bench) deleteSnapshot(id string) error {
	_, err := b.DeleteSnapshot(b.ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

// data is where the driver keeps a volume or snapshot.
func (b *bench) data(dir, id, name string) string { return filepath.Join(b.root, dir, id, name) }

// copying compares snapshot and restore of a directory with tar and cp.
func copying(ctx context.Context, dir, bin string, _ int) error {
	for _, fsType := range []string{"xfs", "btrfs", "ext4"} {
		if err := onDisk(ctx, dir, bin, fsType, (*bench).copying); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) copying() error {
	v, err := b.create("tree", 0, nil)
	if err != nil {
		return err
	}
	tree := b.data("volumes", v, "data")
	for i := range treeFiles {
		if err := writeRandom(filepath.Join(tree, fmt.Sprint(i)), treeFile); err != nil {
			return err
		}
	}
	for round := range copyRounds {
		if err := b.copyRound(round, v, tree); err != nil {
			return err
		}
	}
	figures.Row(fmt.Sprintf("%s: snapshot of 512 MiB in %d files", b.fsType, treeFiles), b.p50("snapshot"), "ms")
	figures.Row(b.fsType+": restore of it", b.p50("restore"), "ms")
	if b.fsType == "ext4" {
		figures.Row("ext4: cp -a --sparse=auto, and sync", b.p50("cp"), "ms")
		figures.Row("ext4: snapshot to cp", b.p50("snapshot")/b.p50("cp"), "", figures.AtMost(1))
		figures.Row("ext4: restore to cp", b.p50("restore")/b.p50("cp"), "", figures.AtMost(1))
		return nil
	}
	figures.Row(b.fsType+": tar czf", b.p50("tar czf"), "ms")
	figures.Row(b.fsType+": tar xzf", b.p50("tar xzf"), "ms")
	figures.Row(b.fsType+": snapshot, times faster than tar czf", b.p50("tar czf")/b.p50("snapshot"), "",
		figures.AtLeast(50))
	figures.Row(b.fsType+": restore, times faster than tar xzf", b.p50("tar xzf")/b.p50("restore"), "",
		figures.AtLeast(50))
	return nil
}

// copyRound makes each copy once, of files that are in the page cache and on the disk.
func (b *bench) copyRound(round int, v, tree string) (err error) {
	if err := b.sync(); err != nil {
		return err
	}
	var n, restored string
	err = b.times.Time("snapshot", func() (err error) { n, err = b.snapshot(fmt.Sprint("n", round), v); return err })
	if err != nil {
		return err
	}
	err = b.times.Time("restore", func() (err error) {
		restored, err = b.create(fmt.Sprint("restored", round), 0, fromSnapshot(n))
		return err
	})
	if err != nil {
		return err
	}
	if err := same(filepath.Join(tree, "1"), filepath.Join(b.data("volumes", restored, "data"), "1")); err != nil {
		return err
	}
	aside := filepath.Join(b.disk, "aside")
	if err := errors.Join(os.RemoveAll(aside), os.Mkdir(aside, 0o755), b.sync()); err != nil {
		return err
	}
	if b.fsType == "ext4" {
		err = b.exec("cp", "sh", "-c", `cp -a --sparse=auto "$1" "$2/copy" && sync -f "$2"`, "sh", tree, aside)
	} else {
		err = errors.Join(b.exec("tar czf", "tar", "czf", filepath.Join(aside, "tree.tgz"), "-C", tree, "."),
			b.exec("tar xzf", "tar", "xzf", filepath.Join(aside, "tree.tgz"), "-C", aside))
	}
	return errors.Join(err, os.RemoveAll(aside), b.delete(restored), b.deleteSnapshot(n))
}

// writeRandom makes a file that nothing can compress.
func writeRandom(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.Reader, size)
	return errors.Join(err, f.Close())
}

// same verifies that two files have the same content: a copy that copies nothing is fast.
func same(a, b string) error { return exec.Command("cmp", a, b).Run() }

// cloning compares the clone of an image with cp, and measures the search for changes.
func cloning(ctx context.Context, dir, bin string, _ int) error {
	return onDisk(ctx, dir, bin, "xfs", func(b *bench) error {
		v, err := b.create("image", imageSize, nil)
		if err != nil {
			return err
		}
		image := b.data("volumes", v, "image.raw")
		if err := fillImage(image); err != nil {
			return err
		}
		for round := range copyRounds {
			if err := b.cloneRound(round, v, image); err != nil {
				return err
			}
		}
		figures.Row("xfs: clone of an image of 4 GiB", b.p50("clone"), "ms")
		figures.Row("xfs: cp --reflink=never, and sync", b.p50("cp"), "ms")
		figures.Row("xfs: clone, times faster than cp", b.p50("cp")/b.p50("clone"), "", figures.AtLeast(50))
		return b.deltas(v, image)
	})
}

// fillImage writes all of an image.
func fillImage(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.Reader, imageSize)
	return errors.Join(err, f.Sync(), f.Close())
}

func (b *bench) cloneRound(round int, v, image string) error {
	var clone string
	err := b.times.Time("clone", func() (err error) {
		clone, err = b.create(fmt.Sprint("clone", round), imageSize, fromVolume(v))
		return err
	})
	if err != nil {
		return err
	}
	aside := filepath.Join(b.disk, "copy")
	return errors.Join(b.exec("cp", "sh", "-c", `cp --reflink=never "$1" "$2" && sync "$2"`, "sh", image, aside),
		os.Remove(aside), b.delete(clone))
}

// deltas compares GetMetadataDelta with reading both images, from the disk and from the page cache.
func (b *bench) deltas(v, image string) error {
	old, err := b.snapshot("old", v)
	if err != nil {
		return err
	}
	if err := scatter(image); err != nil {
		return err
	}
	young, err := b.snapshot("young", v)
	if err != nil {
		return err
	}
	var files []string
	for _, id := range []string{old, young} {
		files = append(files, b.data("snapshots", id, "image.raw"))
	}
	if err := b.sync(); err != nil {
		return err
	}
	cold := append([]string{b.disk + ".img"}, files...) // otherwise the layer below the loop device still has it
	var changed int64
	for range copyRounds {
		err := errors.Join(
			drop(cold), b.times.Time("delta, cold",
				func() (err error) { changed, err = b.delta(old, young); return err }),
			drop(cold), b.exec("cmp, cold", "sh", "-c", `cat "$1" "$2" >/dev/null`, "sh", files[0], files[1]),
			b.exec("cmp, warm", "sh", "-c", `cat "$1" "$2" >/dev/null`, "sh", files[0], files[1]),
			b.times.Time("delta, warm", func() (err error) { changed, err = b.delta(old, young); return err }))
		if err != nil {
			return err
		}
	}
	figures.Row("xfs: 1 % changed in 4 KiB pieces: bytes reported to bytes written", float64(changed)/(imageSize/100),
		"", figures.AtLeast(0.9), figures.AtMost(1.1))
	figures.Row("xfs: delta of the two snapshots, cold", b.p50("delta, cold"), "ms")
	figures.Row("xfs: reading both, cold", b.p50("cmp, cold"), "ms")
	figures.Row("xfs: delta, times faster than reading both, cold", b.p50("cmp, cold")/b.p50("delta, cold"), "",
		figures.AtLeast(20))
	figures.Row("xfs: reading both, warm", b.p50("cmp, warm"), "ms")
	figures.Row("xfs: delta, times faster than reading both, warm", b.p50("cmp, warm")/b.p50("delta, warm"), "",
		figures.AtLeast(4))
	return nil
}

// scatter changes 1 % of an image in pieces of 4 KiB.
func scatter(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	piece := make([]byte, 4096)
	for range imageSize / 100 / len(piece) {
		rand.Read(piece)
		if _, err := f.WriteAt(piece, mathrand.Int64N(imageSize/4096)*4096); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// drop takes files out of the page cache.
func drop(files []string) error {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

// delta returns how many bytes have changed.
func (b *bench) delta(old, young string) (changed int64, err error) {
	stream, err := csi.NewSnapshotMetadataClient(b.conn).GetMetadataDelta(b.ctx,
		&csi.GetMetadataDeltaRequest{BaseSnapshotId: old, TargetSnapshotId: young})
	if err != nil {
		return 0, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return changed, nil
		}
		if err != nil {
			return 0, err
		}
		for _, r := range resp.GetBlockMetadata() {
			changed += r.GetSizeBytes()
		}
	}
}

// meanwhile compares publishes while nothing goes on with publishes while 4 GiB are copied.
func meanwhile(ctx context.Context, dir, bin string, _ int) error {
	return onDisk(ctx, dir, bin, "ext4", func(b *bench) error {
		v, err := b.create("image", imageSize, nil)
		if err != nil {
			return err
		}
		if err := fillImage(b.data("volumes", v, "image.raw")); err != nil {
			return err
		}
		vs, err := b.made(ctx, perRound, "m", true)
		if err != nil {
			return err
		}
		defer func() {
			each(context.WithoutCancel(ctx), len(vs), 1,
				func(ctx context.Context, i int) error { return errors.Join(vs[i].unpublish(ctx), vs[i].unstage(ctx)) })
		}()
		for round := range copyRounds {
			if err := b.publishes("idle", vs, func() bool { return false }); err != nil {
				return err
			}
			over, failed := make(chan struct{}), error(nil)
			go func() {
				defer close(over)
				n, err := b.snapshot(fmt.Sprint("n", round), v)
				failed = errors.Join(err, b.deleteSnapshot(n))
			}()
			time.Sleep(50 * time.Millisecond) // it has begun
			err := b.publishes("copying", vs, func() bool {
				select {
				case <-over:
					return true
				default:
					return false
				}
			})
			<-over
			if err := errors.Join(err, failed); err != nil {
				return err
			}
		}
		figures.Row("ext4: NodePublishVolume while nothing goes on", b.p50("idle")*1000, "µs")
		figures.Row("ext4: NodePublishVolume while 4 GiB are copied", b.p50("copying")*1000, "µs")
		figures.Row("ext4: while 4 GiB are copied, to while nothing goes on", b.p50("copying")/b.p50("idle"), "",
			figures.AtMost(2))
		return nil
	})
}

// publishes times a publish of each volume, until it is enough.
func (b *bench) publishes(name string, vs []*volume, enough func() bool) error {
	for _, v := range vs {
		if enough() {
			return fmt.Errorf("%s was over too early", name)
		}
		if err := errors.Join(b.times.Time(name, func() error { return v.publish(b.ctx) }),
			v.unpublish(b.ctx)); err != nil {
			return err
		}
	}
	return nil
}

// deleting compares DeleteVolume of many files with that of none.
func deleting(ctx context.Context, dir, bin string, _ int) error {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		if err := onDisk(ctx, dir, bin, fsType, (*bench).deleting); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) deleting() error {
	for round := range copyRounds {
		for _, name := range []string{"empty", "full"} {
			v, err := b.create(fmt.Sprint(name, round), 0, nil)
			if err != nil {
				return err
			}
			for i := range manyFiles {
				if name == "empty" {
					break
				}
				if err := os.WriteFile(filepath.Join(b.data("volumes", v, "data"), fmt.Sprint(i)), nil,
					0o600); err != nil {
					return err
				}
			}
			if err := b.sync(); err != nil {
				return err
			}
			if err := b.times.Time(name, func() error { return b.delete(v) }); err != nil {
				return err
			}
			// or it disturbs the next
			for trash := filepath.Join(b.root, "trash"); ; time.Sleep(10 * time.Millisecond) {
				if left, err := os.ReadDir(trash); err != nil || len(left) == 0 {
					break
				}
			}
		}
	}
	figures.Row(b.fsType+": DeleteVolume of an empty volume", b.p50("empty"), "ms")
	figures.Row(b.fsType+": DeleteVolume of 100,000 files", b.p50("full"), "ms")
	figures.Row(b.fsType+": of 100,000 files to of none", b.p50("full")/b.p50("empty"), "", figures.AtMost(10))
	return nil
}
