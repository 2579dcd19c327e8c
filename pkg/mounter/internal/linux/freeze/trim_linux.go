package freeze

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

const (
	// trimPart is the number of bytes of an ext4 or xfs that one FITRIM trims. Before Linux 6.7,
	// xfs blocks the allocations of an allocation group until FITRIM returns.
	trimPart = 1 << 30
	// trimLeast is the number of bytes that a run of free blocks must have. Each hole is an extent
	// of the image.
	trimLeast = 64 << 10
	// trimLimit bounds the time without progress: no part is complete, and the image does not get
	// smaller.
	trimLimit = 10 * time.Minute
	// trimEnd bounds the time in which a killed helper leaves FITRIM.
	trimEnd = 10 * time.Second
)

// trimFS is FITRIM, and trimRange its struct fstrim_range, in bytes: include/uapi/linux/fs.h of
// Linux.
const trimFS = 0xc0185879

type trimRange struct{ start, length, least uint64 }

// trimTask trims a mounted filesystem. Its file is the root of the filesystem, open as a path only.
// It sends a message after each part. A helper that is killed leaves FITRIM at the next run of free
// blocks.
var trimTask = helper.Task{Name: "trim", Background: true, Run: func(j *helper.Job) (any, error) {
	var fsType string
	if err := j.Request(&fsType); err != nil {
		return nil, err
	}
	dirs, err := helper.OpenDirs(j.Files)
	if err != nil {
		return nil, err
	}
	defer tool.CloseFiles(dirs)
	return nil, trimFilesystem(dirs[0], fsType, func() error { return j.Send(nil) })
}}

// trimFilesystem trims the filesystem of a directory, and calls progress after each part.
func trimFilesystem(dir *os.File, fsType string, progress func() error) error {
	part := uint64(trimPart)
	if fsType == tree.Btrfs { // it trims all of its unallocated space in each call
		part = ^uint64(0)
	}
	for start := uint64(0); ; start += part {
		r := trimRange{start, part, trimLeast}
		err := tree.Ioctl(int(dir.Fd()), trimFS, unsafe.Pointer(&r))
		if errors.Is(err, unix.EINVAL) && start > 0 { // the end of the filesystem
			return nil
		}
		if err != nil {
			return fmt.Errorf("FITRIM: %w", err)
		}
		if fsType == tree.Btrfs {
			return nil
		}
		if err := progress(); err != nil {
			return err
		}
	}
}

// ErrWanted is the error of a trim that gives way.
var ErrWanted = fmt.Errorf("%w: another call works on the same volume", mounter.ErrBusy)

// Trim is that of mounter.Images.
func (z *Freezer) Trim(ctx context.Context, tenant, image string) (freed int64, err error) {
	files, err := imagesAt([]string{image})
	if err != nil {
		return 0, err
	}
	d := tool.Disk{Image: files[0].backing(), Path: image, Tenant: tenant}
	if err := errors.Join(z.tools.Stalls.Check(d.Image), z.tools.Stalls.Admit(tenant)); err != nil {
		return 0, err
	}
	ctx, release, ok := z.locks.FlushLocks.LockUntilWanted(ctx, d.Image, ErrWanted)
	if !ok {
		return 0, ErrWanted
	}
	defer release()
	n, attached, err := z.loops.DeviceFor(d.Image)
	if err != nil || !attached {
		return 0, err
	}
	filesystems, _, err := loop.MountsOf(n)
	if err != nil || len(filesystems) == 0 {
		return 0, err
	}
	m, err := openMount(filesystems)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	before, err := allocated(image)
	if err != nil {
		return 0, err
	}
	if err := z.trim(ctx, d, m, filesystems[0].FSType); err != nil {
		return 0, fmt.Errorf("trim the %s in %s: %w", filesystems[0].FSType, image, err)
	}
	awaitDiscards(ctx, n)
	after, err := allocated(image)
	if err != nil {
		return 0, err
	}
	return max(before-after, 0), nil
}

// awaitDiscards waits for the discards of loop device n: xfs makes them in the background since
// Linux 6.7. It waits for a second at most, as other requests count, too: then Trim returns fewer
// bytes.
func awaitDiscards(ctx context.Context, n int) {
	file := fmt.Sprintf("/sys/block/loop%d/inflight", n)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		// Requests that read, and requests that write: Documentation/ABI/stable/sysfs-block of
		// Linux.
		text, err := os.ReadFile(file)
		if counts := strings.Fields(string(text)); err != nil || len(counts) < 2 || counts[1] == "0" {
			return
		}
	}
}

// trim runs trimTask on a mount of the filesystem. When it returns, the helper does not use the
// mount any more, unless the image is stalled.
func (z *Freezer) trim(ctx context.Context, d tool.Disk, m *os.File, fsType string) error {
	s, err := z.tools.Helpers.Start(trimTask, fsType, m)
	if err != nil {
		return fmt.Errorf("%w: %w", mounter.ErrStalled, err)
	}
	defer s.Close()
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var parts atomic.Int64
	go func() { // which a disk that does not answer can delay
		if !progresses(limited, trimLimit, func() [2]int64 {
			n, _ := allocated(d.Path)
			return [2]int64{parts.Load(), n}
		}) {
			cancel(fmt.Errorf("%w: FITRIM has made no progress for %s", mounter.ErrStalled, trimLimit))
		}
	}()
	err = s.Result(limited, nil, func(json.RawMessage) error { parts.Add(1); return nil })
	if errors.Is(err, helper.ErrDied) {
		return fmt.Errorf("%w: %w", mounter.ErrStalled, err)
	}
	if s.Ended() || limited.Err() == nil {
		return err
	}
	s.Close()
	select {
	case <-s.Gone():
	case <-time.After(trimEnd):
		done := z.tools.Stalls.Add(d.Path, d.Image, d.Tenant, "trim has not returned")
		go func() {
			<-s.Gone()
			done()
		}()
	}
	return context.Cause(limited)
}

// progresses returns true when ctx is done, and false when state has not changed from one tick to
// the next.
func progresses(ctx context.Context, limit time.Duration, state func() [2]int64) bool {
	tick := time.NewTicker(limit)
	defer tick.Stop()
	for last := state(); ; {
		select {
		case <-ctx.Done():
			return true
		case <-tick.C:
		}
		now := state()
		if now == last {
			return false
		}
		last = now
	}
}

// allocated returns the bytes of the disk that a file takes.
func allocated(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return st.Blocks * 512, nil
}
