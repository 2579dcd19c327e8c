package freeze

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Freezer freezes, thaws and trims.
type Freezer struct {
	Freezers helper.Pool // for freezes, so that they never take a helper from a thaw
	state    string      // directory of the records of frozen filesystems
	loops    *loop.Devices
	locks    *loop.Locks
	tools    *tool.Runner
}

// New returns a Freezer after it has thawed the filesystems that an earlier process has left
// frozen. state is the directory of the records. If a thaw takes longer than a few seconds, New
// retries it in the background.
func New(state string, loops *loop.Devices, locks *loop.Locks, tools *tool.Runner) (*Freezer, error) {
	z := &Freezer{state: state, loops: loops, locks: locks, tools: tools}
	return z, z.thawRecords()
}

// HelperTasks are the tasks of this package that run in helper processes.
func HelperTasks() []helper.Task {
	return []helper.Task{openTask, freezeTask, syncTask, thawTask, trimTask}
}

// A filesystem that is frozen stays frozen when its freezer dies, and a process that writes to it
// cannot be killed. So three parties can thaw: the helper that froze, which thaws when the limit
// has passed or its driver has died (freezer_linux.go); the driver, when the helper has died
// (thawLater); and the next New, by a record that was durable before the freeze (thaw_linux.go).

// FIFREEZE and FITHAW: include/uapi/linux/fs.h of Linux.
const (
	FreezeFS = 0xc0045877
	ThawFS   = 0xc0045878
)

const (
	// syncLimit bounds the time in which a filesystem is written out before it is frozen.
	syncLimit = 5 * time.Minute
	// openLimit bounds the time in which a helper opens the root of a filesystem.
	openLimit = 5 * time.Second
	// grace is the time after the limit of a freeze in which FIFREEZE may still return.
	grace = time.Second
	// answerLimit is the time after the limit of a freeze in which its helper must answer. On a
	// busy machine the helper may report a write that hangs some seconds after grace.
	answerLimit = 5 * grace
	// thawLimit bounds the time of FITHAW: the disk may not answer, and then neither does it.
	thawLimit = 10 * time.Second
)

// Freeze is that of mounter.Images.
func (z *Freezer) Freeze(ctx context.Context, tenant string, images []string, limit time.Duration,
	copyData func(ctx context.Context) error) error {
	files, err := imagesAt(images)
	if err != nil {
		return err
	}
	if err := z.tools.Stalls.Admit(tenant); err != nil {
		return err
	}
	keys := make([]tree.Backing, len(files))
	for i, f := range files {
		keys[i] = f.backing()
		if err := z.tools.Stalls.Check(keys[i]); err != nil {
			return err
		}
	}
	// Without the images' locks, so that calls that wait for a lock wait only for the freeze.
	for _, file := range files {
		if err := z.writeOut(ctx, tool.Disk{Image: file.backing(), Path: file.Path, Tenant: tenant}); err != nil {
			return err
		}
	}
	leave, err := z.locks.FlushLocks.Lock(ctx, keys...) // a trim would compete with copyData
	if err != nil {
		return err
	}
	defer leave()
	release, err := z.locks.ImageLocks.Lock(ctx, keys...)
	if err != nil {
		return err
	}
	defer release()
	f := &freeze{Freezer: z, tenant: tenant, limit: limit}
	defer f.close()
	for _, file := range files {
		if err := z.reach(ctx, f, file); err != nil {
			return fmt.Errorf("freeze %s: %w", file.Path, err)
		}
	}
	if len(f.mounts) == 0 {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return copyData(ctx)
	}
	return f.run(ctx, copyData)
}

// writeOut writes out the filesystem of an image, if possible, without the image's lock. The freeze
// repeats that with the lock, and then takes little time. Filesystems that writeOut cannot reach
// are left to the freeze.
func (z *Freezer) writeOut(ctx context.Context, d tool.Disk) error {
	release, err := z.locks.FlushLocks.Lock(ctx, d.Image) // or an unmount would find the filesystem in use
	if err != nil {
		return err
	}
	defer release()
	n, ok, err := z.loops.DeviceFor(d.Image)
	if err != nil || !ok {
		return ctx.Err()
	}
	filesystems, _, err := loop.MountsOf(n)
	if err != nil || len(filesystems) == 0 {
		return ctx.Err()
	}
	m, err := openMount(filesystems)
	if err != nil {
		return ctx.Err()
	}
	defer m.Close()
	if err := z.tools.Help(ctx, openLimit, openTask, nil, d, m); err != nil {
		return err
	}
	return z.tools.Help(ctx, syncLimit, syncTask, nil, d, m)
}

// frozen is an image whose filesystem is to be frozen, as it is recorded.
type frozen struct {
	Path   string `json:"path"` // for readers of the record
	Dev    uint64 `json:"dev"`  // of the file, as stat(2) tells it
	Ino    uint64 `json:"ino"`
	Loop   int    `json:"loop"` // number of its device
	FSType string `json:"fsType"`
}

func (f frozen) backing() tree.Backing { return tree.Backing{Dev: f.Dev, Ino: f.Ino} }

// imagesAt returns the images at paths, without duplicates, in the order in which they are locked.
func imagesAt(paths []string) ([]frozen, error) {
	var images []frozen
	for _, path := range paths {
		at, err := tree.Stat(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return nil, &fs.PathError{Op: "statx", Path: path, Err: err}
		}
		if at.Mode&unix.S_IFMT != unix.S_IFREG { // a link would look like an image that is not used
			return nil, fmt.Errorf("%w: %s is not a file", mounter.ErrFormat, path)
		}
		b := at.Backing()
		images = append(images, frozen{Path: path, Dev: b.Dev, Ino: b.Ino})
	}
	slices.SortFunc(images, func(a,
		b frozen) int {
		return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Ino, b.Ino))
	})
	return slices.CompactFunc(images, func(a, b frozen) bool { return a.backing() == b.backing() }), nil
}

// freeze is a call of Freeze.
type freeze struct {
	*Freezer
	tenant  string
	limit   time.Duration
	images  []frozen   // that are mounted
	mounts  []*os.File // a descriptor of each, which prevents unmounts
	session *helper.Session
	record  string // path; "" where there is none
	hangs   []int  // indices of images that may be frozen after Freeze has returned
	why     string // they hang
}

// reach opens a mount of the filesystem in an image for f. For a raw block device it flushes the
// device's writes to the image.
func (z *Freezer) reach(ctx context.Context, f *freeze, image frozen) error {
	n, ok, err := z.loops.DeviceFor(image.backing())
	if err != nil || !ok {
		return err
	}
	filesystems, nodes, err := loop.MountsOf(n)
	if err != nil {
		return err
	}
	if len(filesystems) == 0 {
		return z.flush(ctx, n, tool.Disk{Image: image.backing(), Path: image.Path, Tenant: f.tenant}, len(nodes) > 0)
	}
	m, err := openMount(filesystems)
	if err != nil {
		return err
	}
	image.Loop, image.FSType = n, filesystems[0].FSType
	f.images, f.mounts = append(f.images, image), append(f.mounts, m)
	return nil
}

// openMount opens the first of some mounts of a filesystem that is not hidden below another mount,
// as a path only: a helper opens it for reading. Errors: ErrBusy.
func openMount(infos []*mountinfo.Info) (*os.File, error) {
	for _, i := range infos {
		fd, err := unix.Open(i.Mountpoint, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Statx_t
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err == nil &&
			st.Mnt_id == uint64(i.ID) {
			return os.NewFile(uintptr(fd), i.Mountpoint), nil
		}
		unix.Close(fd)
	}
	return nil, fmt.Errorf("%w: it is mounted at %s, and that cannot be opened", mounter.ErrBusy, infos[0].Mountpoint)
}

// flush writes the page cache of a device to its file. known means that the device is mounted as a
// Disk. Errors: ErrBusy if it is not, and a filesystem on it is mounted in a mount namespace that
// is not visible here.
func (z *Freezer) flush(ctx context.Context, n int, d tool.Disk, known bool) error {
	if !known && loop.Released(n, d.Image) {
		return nil
	}
	dev, err := loop.Open(n, true)
	if err != nil {
		return err
	}
	defer dev.Close()
	if !known {
		claimed, err := loop.IsClaimed(n)
		if err == nil && claimed {
			err = fmt.Errorf("%w: %s is used, and not in this mount namespace", mounter.ErrBusy, dev.Name())
		}
		if err != nil {
			return err
		}
	}
	return z.tools.Help(ctx, syncLimit, syncTask, nil, d, dev)
}

// run freezes the filesystems, calls copyData and thaws.
func (f *freeze) run(ctx context.Context, copyData func(ctx context.Context) error) error {
	if err := f.prepare(ctx); err != nil {
		return err
	}
	crashpoint.Reached("freeze:recorded")
	end := time.Now().Add(f.limit)
	if err := f.begin(ctx, end); err != nil {
		return err
	}
	return f.window(ctx, end, copyData)
}

// prepare starts the helper, has it write the filesystems out, and writes the record.
func (f *freeze) prepare(ctx context.Context) (err error) {
	paths := make([]string, len(f.images))
	for i, image := range f.images {
		paths[i] = image.Path
	}
	f.session, err = f.Freezers.Start(freezeTask, freezeRequest{Limit: f.limit, Paths: paths}, f.mounts...)
	if err != nil {
		return fmt.Errorf("%w: %w", mounter.ErrStalled, err)
	}
	limited, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	if err := f.session.Receive(limited, nil); err != nil {
		if limited.Err() != nil && !f.session.Ended() {
			f.allHang("syncfs has not returned")
		}
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("%w: syncfs has not returned for %s", mounter.ErrStalled, syncLimit)
		}
		return err
	}
	record, path, err := f.writeRecord(f.images)
	if err != nil {
		return err
	}
	f.record = path
	defer record.Close() // the helper has it open, and so its lock, until it ends
	return f.session.Send(nil, record)
}

// begin waits until the filesystems are frozen. FIFREEZE waits for each write that has begun, so
// it may not return: then f.hangs tells of which image, and the error is ErrThawed.
func (f *freeze) begin(ctx context.Context, end time.Time) error {
	wait, cancel := context.WithDeadline(ctx, end.Add(answerLimit))
	defer cancel()
	state := freezeState{Hangs: -1}
	err := f.session.Receive(wait, &state)
	switch {
	case err == nil && state.Hangs < 0:
		return nil
	case err == nil:
		f.hangs, f.why = []int{state.Hangs}, hangsInWrite
		return fmt.Errorf("%w: a write to %s that has begun has not ended for %s", mounter.ErrThawed,
			f.images[state.Hangs].Path, f.limit)
	case wait.Err() == nil: // the helper has thawed, or has died
		if errors.Is(err, helper.ErrDied) {
			f.allHang("the helper process has died")
		}
		return err
	case f.session.Ended(): // its error came as ctx ended
		return err
	}
	f.allHang(hangsInWrite)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: the helper process has not answered for %s", mounter.ErrThawed, f.limit+answerLimit)
}

// hangsInWrite is the usual reason why a freeze hangs.
const hangsInWrite = "a freeze waits for a write that does not end: a process in a pod that uses the volume hangs in it"

func (f *freeze) allHang(why string) {
	f.hangs, f.why = f.hangs[:0], why
	for i := range f.images {
		f.hangs = append(f.hangs, i)
	}
}

// window calls copyData while the filesystems are frozen, and then has them thawed, also if
// copyData panics.
func (f *freeze) window(ctx context.Context, end time.Time, copyData func(ctx context.Context) error) (err error) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	defer func() {
		if thawed := f.thaw(time.Now().After(end)); thawed != nil {
			err = errors.Join(err, thawed)
		}
		crashpoint.Reached("freeze:thawed")
	}()
	crashpoint.Reached("freeze:frozen")
	err = copyData(ctx)
	crashpoint.Reached("freeze:cut")
	return err
}

// thaw makes the helper thaw. late means that the limit has passed. Errors: ErrThawed if late, or
// if a filesystem was thawed before; ErrFrozen if a filesystem is still frozen.
func (f *freeze) thaw(late bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), thawLimit)
	defer cancel()
	var outcome thawed
	err := f.session.Send(nil)
	if err == nil {
		err = f.session.Receive(ctx, &outcome)
	}
	if err != nil {
		f.allHang("the helper process does not thaw")
		return fmt.Errorf("%w: the helper process does not thaw %s: %w", mounter.ErrFrozen, f.images[0].Path, err)
	}
	if len(outcome.Stuck) > 0 {
		f.allHang(strings.Join(outcome.Stuck, "; "))
		return fmt.Errorf("%w: %s", mounter.ErrFrozen, strings.Join(outcome.Stuck, "; "))
	}
	if err := f.session.Result(ctx, nil, nil); err != nil {
		f.allHang("the helper process has not ended")
	}
	switch {
	case late, outcome.Late:
		return fmt.Errorf("%w: the freeze took longer than %s", mounter.ErrThawed, f.limit)
	case len(outcome.Early) > 0:
		return fmt.Errorf("%w: another process has thawed %s", mounter.ErrThawed, strings.Join(outcome.Early, ", "))
	}
	return nil
}

// close ends the session. Where a filesystem may still be frozen, or become so, it leaves the rest
// to thawLater.
func (f *freeze) close() {
	if f.session != nil {
		f.session.Close()
	}
	if len(f.hangs) == 0 {
		if f.record != "" {
			os.Remove(f.record) // a record that stays does no harm
		}
		tool.CloseFiles(f.mounts)
		return
	}
	var done []func()
	for _, i := range f.hangs {
		done = append(done, f.tools.Stalls.Add(f.images[i].Path, f.images[i].backing(), f.tenant, f.why))
	}
	go guard.Do(func() error { f.thawLater(done); return nil })
}

// thawLater waits for the end of the helper, makes sure that nothing is frozen, and only then lets
// go of the filesystems.
func (f *freeze) thawLater(done []func()) {
	<-f.session.Gone()
	f.thawUntilDone(f.record, nil)
	tool.CloseFiles(f.mounts)
	for _, d := range done {
		d()
	}
}

// Ioctl is ioctl(2) on a filesystem, through a mount of it.
func Ioctl(mount *os.File, request uintptr) error {
	for {
		var unused int32
		if err := tree.Ioctl(int(mount.Fd()), request, unsafe.Pointer(&unused)); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
