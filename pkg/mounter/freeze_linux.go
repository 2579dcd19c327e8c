package mounter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/crashpoint"
)

// What is frozen stays frozen when its freezer dies, and whoever writes to it can't even be killed. So there are three
// to thaw it: Freeze itself, whatever happens in it; its watchdog, a process that was ready before (watchdog_linux.go);
// and, if that died with it, the next New, by a record that was durable before (thaw_linux.go).

// FIFREEZE and FITHAW: include/uapi/linux/fs.h of Linux.
const (
	freezeFS = 0xc0045877
	thawFS   = 0xc0045878
)

// maxFreezes bounds how many freezes there are at a time, as each costs a process.
const maxFreezes = 4

func (l *linux) Freeze(ctx context.Context, images []string, limit time.Duration, cut func(ctx context.Context) error) error {
	files, err := imagesAt(images)
	if err != nil {
		return err
	}
	keys := make([]backing, len(files))
	for i, f := range files {
		keys[i] = f.backing()
	}
	// Whoever waits for the images' locks waits for this freeze only, and not while what is written now is written out.
	select {
	case l.freezes <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for other freezes: %w", ctx.Err())
	}
	leave := sync.OnceFunc(func() { <-l.freezes })
	defer leave()
	for _, key := range keys {
		if err := l.writeOut(ctx, key); err != nil {
			return err
		}
	}
	release, err := l.images.lock(ctx, keys...)
	if err != nil {
		return err
	}
	defer release()
	f := freeze{limit: limit}
	defer f.close()
	for _, file := range files {
		if err := l.reach(&f, file); err != nil {
			return fmt.Errorf("freeze %s: %w", file.Path, err)
		}
	}
	if len(f.mounts) == 0 {
		leave()
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return cut(ctx)
	}
	return l.freeze(ctx, &f, cut)
}

// writeOut writes out what is mounted of an image, if it can, and without the image's lock: whoever has that does it
// again, which is short then. What can't be reached is left to that, too.
func (l *linux) writeOut(ctx context.Context, b backing) error {
	release, err := l.syncs.lock(ctx, b) // or whoever unmounts would find it in use
	if err != nil {
		return err
	}
	defer release()
	n, ok, err := l.loops.of(b)
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
	if err := unix.Syncfs(int(m.Fd())); err != nil { // the kernel says it once
		return &fs.PathError{Op: "syncfs", Path: m.Name(), Err: err}
	}
	return ctx.Err()
}

// frozen is an image whose filesystem is to be frozen, as it is recorded.
type frozen struct {
	Path   string `json:"path"` // for who reads the record
	Dev    uint64 `json:"dev"`  // of the file, as stat(2) tells it
	Ino    uint64 `json:"ino"`
	Loop   int    `json:"loop"` // number of its device
	FSType string `json:"fsType"`
}

func (f frozen) backing() backing { return backing{f.Dev, f.Ino} }

// imagesAt returns the images at paths, each once, in the order in which they must be locked.
func imagesAt(paths []string) ([]frozen, error) {
	var images []frozen
	for _, path := range paths {
		at, err := stat(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return nil, &fs.PathError{Op: "statx", Path: path, Err: err}
		}
		if at.mode&unix.S_IFMT != unix.S_IFREG { // a link would be taken for an image that nobody uses
			return nil, fmt.Errorf("%w: %s is not a file", ErrFormat, path)
		}
		b := at.backing()
		images = append(images, frozen{Path: path, Dev: b.dev, Ino: b.ino})
	}
	slices.SortFunc(images, func(a, b frozen) int { return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Ino, b.Ino)) })
	return slices.CompactFunc(images, func(a, b frozen) bool { return a.backing() == b.backing() }), nil
}

// freeze is one call of Freeze.
type freeze struct {
	limit  time.Duration
	images []frozen   // that are mounted
	mounts []*os.File // one of each, open: it keeps the filesystem from being unmounted
	stuck  bool       // one could not be thawed
}

func (f *freeze) close() {
	for _, m := range f.mounts {
		m.Close()
	}
}

// reach opens a mount of what is in an image for f. What is attached as a device only is handed on to the image.
func (l *linux) reach(f *freeze, image frozen) error {
	n, ok, err := l.loops.of(image.backing())
	if err != nil || !ok {
		return err
	}
	filesystems, nodes, err := mountsOf(n)
	if err != nil {
		return err
	}
	if len(filesystems) == 0 {
		return flush(n, image.backing(), len(nodes) > 0)
	}
	m, err := openMount(filesystems)
	if err != nil {
		return err
	}
	image.Loop, image.FSType = n, filesystems[0].FSType
	f.images, f.mounts = append(f.images, image), append(f.mounts, m)
	return nil
}

// openMount opens the first of some mounts of a filesystem that isn't hidden below another mount. Errors: ErrBusy.
func openMount(infos []*mountinfo.Info) (*os.File, error) {
	for _, i := range infos {
		fd, err := unix.Open(i.Mountpoint, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Statx_t
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err == nil && st.Mnt_id == uint64(i.ID) {
			return os.NewFile(uintptr(fd), i.Mountpoint), nil
		}
		unix.Close(fd)
	}
	return nil, fmt.Errorf("%w: it is mounted at %s, and that can't be opened", ErrBusy, infos[0].Mountpoint)
}

// flush hands what was written to a device on to its file. Errors: ErrBusy if it isn't known as a device that is
// mounted, and has a filesystem that is mounted where it isn't seen from here.
func flush(n int, b backing, known bool) error {
	if !known && released(n, b) {
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
	return dev.Sync()
}

// freeze does the work of Freeze on mounts that are open.
func (l *linux) freeze(ctx context.Context, f *freeze, cut func(ctx context.Context) error) error {
	// What is written now need not be written while everybody waits.
	for _, m := range f.mounts {
		if err := unix.Syncfs(int(m.Fd())); err != nil {
			return &fs.PathError{Op: "syncfs", Path: m.Name(), Err: err}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	record, err := l.record(f.images)
	if err != nil {
		return err
	}
	defer func() {
		if !f.stuck { // else the next New shall try
			os.Remove(record) // one that stays does no harm
		}
	}()
	crashpoint.Reached("freeze:recorded")
	dog, err := newWatchdog(ctx, f.limit, f.mounts)
	if err != nil {
		return err
	}
	defer func() {
		if f.stuck {
			dog.leave()
		} else {
			dog.end()
		}
	}()
	return f.window(ctx, dog, cut)
}

// window freezes, calls cut, and thaws, whatever becomes of that. In between nothing may wait for what is frozen.
func (f *freeze) window(ctx context.Context, dog *watchdog, cut func(ctx context.Context) error) (err error) {
	end := time.Now().Add(f.limit)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if err := dog.begin(); err != nil { // its limit ends after ours
		return fmt.Errorf("the watchdog of a freeze died: %w", err)
	}
	count := 0
	defer func() {
		late := time.Now().After(end)
		thawed := f.thaw(f.mounts[:count])
		if thawed == nil && late {
			thawed = fmt.Errorf("%w: it took longer than %s", ErrThawed, f.limit)
		}
		if thawed != nil {
			err = errors.Join(err, thawed)
		}
		crashpoint.Reached("freeze:thawed")
	}()
	for i, m := range f.mounts {
		if err := fsIoctl(m, freezeFS); errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%w: somebody else has frozen %s at %s", ErrBusy, f.images[i].Path, m.Name())
		} else if err != nil {
			return &fs.PathError{Op: "FIFREEZE", Path: m.Name(), Err: err}
		}
		count++
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	crashpoint.Reached("freeze:frozen")
	err = cut(ctx)
	crashpoint.Reached("freeze:cut")
	return err
}

// thaw thaws what was frozen. Errors: ErrThawed if it was no longer, ErrFrozen if it still is.
func (f *freeze) thaw(mounts []*os.File) error {
	var all []error
	for i, err := range thawAll(mounts) {
		switch {
		case errors.Is(err, unix.EINVAL):
			all = append(all, fmt.Errorf("%w: %s was thawed in the middle", ErrThawed, f.images[i].Path))
		case err != nil:
			f.stuck = true
			all = append(all, fmt.Errorf("%s at %s is %w, and hangs: FITHAW: %w", f.images[i].Path, mounts[i].Name(), ErrFrozen, err))
		}
	}
	return errors.Join(all...)
}

// thawAll thaws mounts, and returns an error for each: unix.EINVAL if it isn't frozen. It thaws all at once, as the
// image of one may be in another.
func thawAll(mounts []*os.File) []error {
	errs := make([]error, len(mounts))
	var wg sync.WaitGroup
	for i, m := range mounts {
		wg.Go(func() { errs[i] = fsIoctl(m, thawFS) })
	}
	wg.Wait()
	return errs
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
