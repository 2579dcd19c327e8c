package mounter

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
)

// A filesystem that is frozen stays frozen when its freezer dies, and a process that writes to it
// cannot be killed. So three parties can thaw: the helper that froze, which thaws when the limit
// has passed or its driver has died (freezer_linux.go); the driver, when the helper has died
// (settle); and the next New, by a record that was durable before the freeze (thaw_linux.go).

// FIFREEZE and FITHAW: include/uapi/linux/fs.h of Linux.
const (
	freezeFS = 0xc0045877
	thawFS   = 0xc0045878
)

const (
	// syncLimit bounds the time in which a filesystem is written out before it is frozen.
	syncLimit = 5 * time.Minute
	// openLimit bounds the time in which a helper opens the root of a filesystem.
	openLimit = 5 * time.Second
	// grace is the time after the limit of a freeze in which FIFREEZE may still return.
	grace = time.Second
	// thawLimit bounds the time of FITHAW: the disk may not answer, and then neither does it.
	thawLimit = 10 * time.Second
)

func (l *linux) Freeze(ctx context.Context, tenant string, images []string, limit time.Duration,
	copyData func(ctx context.Context) error) error {
	files, err := imagesAt(images)
	if err != nil {
		return err
	}
	if err := l.stalls.admit(tenant); err != nil {
		return err
	}
	keys := make([]backing, len(files))
	for i, f := range files {
		keys[i] = f.backing()
		if err := l.stalls.check(keys[i]); err != nil {
			return err
		}
	}
	// Without the images' locks, so that calls that wait for a lock wait only for the freeze.
	for _, file := range files {
		if err := l.writeOut(ctx, disk{image: file.backing(), path: file.Path, tenant: tenant}); err != nil {
			return err
		}
	}
	leave, err := l.syncs.Lock(ctx, keys...) // a trim would compete with copyData
	if err != nil {
		return err
	}
	defer leave()
	release, err := l.images.Lock(ctx, keys...)
	if err != nil {
		return err
	}
	defer release()
	f := &freeze{linux: l, tenant: tenant, limit: limit}
	defer f.close()
	for _, file := range files {
		if err := l.reach(ctx, f, file); err != nil {
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
func (l *linux) writeOut(ctx context.Context, d disk) error {
	release, err := l.syncs.Lock(ctx, d.image) // or an unmount would find the filesystem in use
	if err != nil {
		return err
	}
	defer release()
	n, ok, err := l.loops.of(d.image)
	if err != nil || !ok {
		return ctx.Err()
	}
	filesystems, _, err := mountsOf(n)
	if err != nil || len(filesystems) == 0 {
		return ctx.Err()
	}
	m, err := openMount(filesystems)
	if err != nil {
		return ctx.Err()
	}
	defer m.Close()
	if err := l.help(ctx, openLimit, openTask, nil, d, m); err != nil {
		return err
	}
	return l.help(ctx, syncLimit, syncTask, nil, d, m)
}

// help runs a task in a helper, for at most a limit. If the limit passes, the image on which it works
// counts as stalled until the helper has ended. If ctx ends, the image does not count as stalled: the
// task may only wait for the end of a freeze. Errors: those of the task and of ctx; ErrStalled if the
// limit has passed, or if there is no helper.
func (l *linux) help(ctx context.Context, limit time.Duration, task helper.Task, request any, on disk,
	files ...*os.File) error {
	return l.supervise(ctx, limit, false, task, request, on, files...)
}

// helpWriter is help for a task that changes the image: the image also counts as stalled if ctx ends
// before the task.
func (l *linux) helpWriter(ctx context.Context, limit time.Duration, task helper.Task, request any, on disk,
	files ...*os.File) error {
	return l.supervise(ctx, limit, true, task, request, on, files...)
}

func (l *linux) supervise(ctx context.Context, limit time.Duration, writes bool, task helper.Task, request any,
	on disk, files ...*os.File) error {
	s, err := l.helpers.Start(task, request, files...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStalled, err)
	}
	defer s.Close()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = s.Result(limited, nil, nil)
	if errors.Is(err, helper.ErrDied) {
		return fmt.Errorf("%w: %w", ErrStalled, err)
	}
	if limited.Err() == nil || err == nil || s.Ended() {
		return err
	}
	if ctx.Err() != nil && !writes {
		return ctx.Err()
	}
	done := l.stalls.add(on.path, on.image, on.tenant, fmt.Sprintf("%s has not returned", task.Name))
	go func() {
		<-s.Gone()
		done()
	}()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &stuck{fmt.Errorf("%w: %s of %s has not returned for %s", ErrStalled, task.Name, files[0].Name(), limit),
		s.Gone()}
}

// stuck is the error of a task that was given up.
type stuck struct {
	error
	gone <-chan struct{} // closed when the helper has ended
}

func (s *stuck) Unwrap() error {
	return s.error
}

// frozen is an image whose filesystem is to be frozen, as it is recorded.
type frozen struct {
	Path   string `json:"path"` // for readers of the record
	Dev    uint64 `json:"dev"`  // of the file, as stat(2) tells it
	Ino    uint64 `json:"ino"`
	Loop   int    `json:"loop"` // number of its device
	FSType string `json:"fsType"`
}

func (f frozen) backing() backing { return backing{f.Dev, f.Ino} }

// imagesAt returns the images at paths, without duplicates, in the order in which they are locked.
func imagesAt(paths []string) ([]frozen, error) {
	var images []frozen
	for _, path := range paths {
		at, err := stat(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return nil, &fs.PathError{Op: "statx", Path: path, Err: err}
		}
		if at.mode&unix.S_IFMT != unix.S_IFREG { // a link would look like an image that is not used
			return nil, fmt.Errorf("%w: %s is not a file", ErrFormat, path)
		}
		b := at.backing()
		images = append(images, frozen{Path: path, Dev: b.dev, Ino: b.ino})
	}
	slices.SortFunc(images, func(a,
		b frozen) int {
		return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Ino, b.Ino))
	})
	return slices.CompactFunc(images, func(a, b frozen) bool { return a.backing() == b.backing() }), nil
}

// freeze is a call of Freeze.
type freeze struct {
	*linux
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
func (l *linux) reach(ctx context.Context, f *freeze, image frozen) error {
	n, ok, err := l.loops.of(image.backing())
	if err != nil || !ok {
		return err
	}
	filesystems, nodes, err := mountsOf(n)
	if err != nil {
		return err
	}
	if len(filesystems) == 0 {
		return l.flush(ctx, n, disk{image: image.backing(), path: image.Path, tenant: f.tenant}, len(nodes) > 0)
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
	return nil, fmt.Errorf("%w: it is mounted at %s, and that cannot be opened", ErrBusy, infos[0].Mountpoint)
}

// flush writes the page cache of a device to its file. known means that the device is mounted as a
// Disk. Errors: ErrBusy if it is not, and a filesystem on it is mounted in a mount namespace that
// is not visible here.
func (l *linux) flush(ctx context.Context, n int, d disk, known bool) error {
	if !known && released(n, d.image) {
		return nil
	}
	dev, err := openLoop(n, true)
	if err != nil {
		return err
	}
	defer dev.Close()
	if !known {
		claimed, err := isClaimed(n)
		if err == nil && claimed {
			err = fmt.Errorf("%w: %s is used, and not in this mount namespace", ErrBusy, dev.Name())
		}
		if err != nil {
			return err
		}
	}
	return l.help(ctx, syncLimit, syncTask, nil, d, dev)
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
	f.session, err = f.freezers.Start(freezeTask, freezeRequest{Limit: f.limit, Paths: paths}, f.mounts...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStalled, err)
	}
	limited, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	if err := f.session.Receive(limited, nil); err != nil {
		if limited.Err() != nil && !f.session.Ended() {
			f.allHang("syncfs has not returned")
		}
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("%w: syncfs has not returned for %s", ErrStalled, syncLimit)
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
	wait, cancel := context.WithDeadline(ctx, end.Add(2*grace))
	defer cancel()
	state := freezeState{Hangs: -1}
	err := f.session.Receive(wait, &state)
	switch {
	case err == nil && state.Hangs < 0:
		return nil
	case err == nil:
		f.hangs, f.why = []int{state.Hangs}, hangsInWrite
		return fmt.Errorf("%w: a write to %s that has begun has not ended for %s", ErrThawed,
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
	return fmt.Errorf("%w: the helper process has not answered for %s", ErrThawed, f.limit+2*grace)
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
		return fmt.Errorf("%w: the helper process does not thaw %s: %w", ErrFrozen, f.images[0].Path, err)
	}
	if len(outcome.Stuck) > 0 {
		f.allHang(strings.Join(outcome.Stuck, "; "))
		return fmt.Errorf("%w: %s", ErrFrozen, strings.Join(outcome.Stuck, "; "))
	}
	if err := f.session.Result(ctx, nil, nil); err != nil {
		f.allHang("the helper process has not ended")
	}
	switch {
	case late, outcome.Late:
		return fmt.Errorf("%w: the freeze took longer than %s", ErrThawed, f.limit)
	case len(outcome.Early) > 0:
		return fmt.Errorf("%w: another process has thawed %s", ErrThawed, strings.Join(outcome.Early, ", "))
	}
	return nil
}

// close ends the session. Where a filesystem may still be frozen, or become so, it leaves the rest
// to settle.
func (f *freeze) close() {
	if f.session != nil {
		f.session.Close()
	}
	if len(f.hangs) == 0 {
		if f.record != "" {
			os.Remove(f.record) // a record that stays does no harm
		}
		closeFiles(f.mounts)
		return
	}
	var done []func()
	for _, i := range f.hangs {
		done = append(done, f.stalls.add(f.images[i].Path, f.images[i].backing(), f.tenant, f.why))
	}
	go guard.Do(func() error { f.settle(done); return nil })
}

// settle waits for the end of the helper, makes sure that nothing is frozen, and only then lets go
// of the filesystems.
func (f *freeze) settle(done []func()) {
	<-f.session.Gone()
	f.thawUntilDone(f.record, nil)
	closeFiles(f.mounts)
	for _, d := range done {
		d()
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// fsIoctl is ioctl(2) on a filesystem, through a mount of it.
func fsIoctl(mount *os.File, request uintptr) error {
	for {
		var unused int32
		if err := ioctl(int(mount.Fd()), request, unsafe.Pointer(&unused)); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
