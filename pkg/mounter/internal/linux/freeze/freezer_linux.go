package freeze

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
)

// openTask opens directories that are open as paths only, to see whether that hangs.
var openTask = helper.Task{Name: "open", Run: func(j *helper.Job) (any, error) {
	dirs, err := helper.OpenDirs(j.Files)
	tool.CloseFiles(dirs)
	return nil, err
}}

// freezeTask freezes filesystems and thaws them. FIFREEZE waits, uninterruptibly, until each write
// that has begun is complete. So the helper outlives the driver: it thaws as soon as FIFREEZE
// returns.
//
// The files are one directory of each filesystem, open as a path only. The task writes the
// filesystems out and sends a message; receives the file of the freeze's record, whose lock it
// holds until it ends; freezes and sends a freezeState; thaws when it receives a message, when the
// limit has passed, or when the driver has died; and sends thawed. It ends when nothing is frozen.
var freezeTask = helper.Task{Name: "freeze", Run: runFreeze, Errors: []error{mounter.ErrBusy, mounter.ErrThawed},
	Outlives: true}

type freezeRequest struct {
	Limit time.Duration `json:"limit"` // from the first FIFREEZE
	Paths []string      `json:"paths"` // of the images, for messages
}

// freezeState is sent when all filesystems are frozen, or a while after the limit.
type freezeState struct {
	Hangs int `json:"hangs"` // -1, or the index of the filesystem whose FIFREEZE has not returned
}

// thawed is the outcome of a thaw.
type thawed struct {
	Late  bool     `json:"late"`  // the limit had passed
	Early []string `json:"early"` // images that another process had thawed before
	Stuck []string `json:"stuck"` // errors of filesystems that are still frozen
}

func runFreeze(j *helper.Job) (any, error) {
	var req freezeRequest
	if err := j.Request(&req); err != nil {
		return nil, err
	}
	mounts, err := helper.OpenDirs(j.Files)
	if err != nil {
		return nil, err
	}
	defer tool.CloseFiles(mounts)
	if err := syncAll(mounts); err != nil {
		return nil, err
	}
	if err := j.Send(nil); err != nil {
		return nil, err
	}
	record, err := j.Receive(nil)
	if err != nil {
		return nil, err
	}
	defer tool.CloseFiles(record)
	w := &window{paths: req.Paths, mounts: mounts, next: -1}
	limit := time.AfterFunc(req.Limit, w.expire)
	defer limit.Stop()
	hangs := time.AfterFunc(req.Limit+grace, func() {
		if i := w.current(); i >= 0 {
			j.Send(freezeState{i})
		}
	})
	defer hangs.Stop()
	defer context.AfterFunc(j.Context, w.expire)()
	if err := w.freeze(); err != nil {
		w.thawForGood(w.thaw())
		return nil, err
	}
	if err := j.Send(freezeState{-1}); err == nil {
		j.Receive(nil) // the order to thaw; an error is the driver's end
	}
	outcome, left := w.thaw()
	j.Send(outcome)
	w.thawForGood(outcome, left)
	return nil, nil
}

// syncAll writes filesystems out, given a directory of each.
func syncAll(dirs []*os.File) error {
	for _, d := range dirs {
		if err := unix.Syncfs(int(d.Fd())); err != nil { // the kernel reports an error once
			return &fs.PathError{Op: "syncfs", Path: d.Name(), Err: err}
		}
	}
	return nil
}

// window is the time in which filesystems are frozen.
type window struct {
	paths  []string // of the images, for messages
	mounts []*os.File

	mu     sync.Mutex
	next   int   // index of the filesystem that is being frozen, or -1
	frozen []int // indices of the filesystems that are frozen
	over   bool  // nothing more is frozen
	late   bool
	early  []string
}

// freeze freezes the filesystems in sequence. After an error the caller thaws.
func (w *window) freeze() error {
	for i, m := range w.mounts {
		if !w.begin(i) {
			return fmt.Errorf("%w: the limit has passed before %s was frozen", mounter.ErrThawed, w.paths[i])
		}
		err := Ioctl(m, FreezeFS)
		w.end(i, err == nil)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%w: another process has frozen %s, or is about to", mounter.ErrBusy, w.paths[i])
		}
		if err != nil {
			return fmt.Errorf("FIFREEZE of %s: %w", w.paths[i], err)
		}
	}
	return nil
}

// begin notes which filesystem is being frozen. begin reports false if the window is over.
func (w *window) begin(i int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	w.next = i
	return true
}

// end notes that FIFREEZE has returned. If the window is over, end thaws at once.
func (w *window) end(i int, frozen bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = -1
	if !frozen {
		return
	}
	w.frozen = append(w.frozen, i)
	if w.over {
		w.thawLocked()
	}
}

// expire ends the window because the limit has passed, or the driver has died.
func (w *window) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.over, w.late = true, true
		w.thawLocked()
	}
}

// current returns the index of the filesystem that is being frozen, or -1.
func (w *window) current() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

// thaw ends the window. left are the indices of filesystems that could not be thawed.
func (w *window) thaw() (outcome thawed, left []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	stuck := w.thawLocked()
	return thawed{Late: w.late, Early: w.early, Stuck: stuck}, w.frozen
}

// thawLocked thaws all frozen filesystems concurrently, because the image of a filesystem can be in
// another. thawLocked returns the errors of those that it could not thaw, which stay in frozen.
func (w *window) thawLocked() (stuck []string) {
	var left []int
	mounts := make([]*os.File, len(w.frozen))
	for i, n := range w.frozen {
		mounts[i] = w.mounts[n]
	}
	for i, err := range thawAll(mounts) {
		n := w.frozen[i]
		switch {
		case errors.Is(err, unix.EINVAL):
			w.early = append(w.early, w.paths[n])
		case err != nil:
			left = append(left, n)
			stuck = append(stuck, fmt.Sprintf("%s: FITHAW: %v", w.paths[n], err))
		}
	}
	w.frozen = left
	return stuck
}

// retryThaw is the time between two attempts to thaw.
const retryThaw = 100 * time.Millisecond

// thawForGood repeats thaw until nothing is frozen.
func (w *window) thawForGood(_ thawed, left []int) {
	for len(left) > 0 {
		time.Sleep(retryThaw)
		_, left = w.thaw()
	}
}

// thawAll thaws filesystems, and returns an error for each: unix.EINVAL if it is not frozen.
func thawAll(mounts []*os.File) []error {
	errs := make([]error, len(mounts))
	var wg sync.WaitGroup
	for i, m := range mounts {
		wg.Go(func() { errs[i] = Ioctl(m, ThawFS) })
	}
	wg.Wait()
	return errs
}

// syncTask writes a filesystem, or a device, out. The kernel lets no signal end that.
var syncTask = helper.Task{Name: "sync", Run: func(j *helper.Job) (any, error) {
	for _, f := range j.Files {
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			err = syncDir(f)
		} else {
			err = f.Sync()
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}}

// syncDir writes out the filesystem of a directory that is open as a path only.
func syncDir(dir *os.File) error {
	dirs, err := helper.OpenDirs([]*os.File{dir})
	if err != nil {
		return err
	}
	defer tool.CloseFiles(dirs)
	return syncAll(dirs)
}

// thawTask thaws the filesystems of its files, which are open as paths only, until none is frozen.
var thawTask = helper.Task{Name: "thaw", Outlives: true, Run: func(j *helper.Job) (any, error) {
	mounts, err := helper.OpenDirs(j.Files)
	if err != nil {
		return nil, err
	}
	defer tool.CloseFiles(mounts)
	for i, err := range thawAll(mounts) {
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return nil, &fs.PathError{Op: "FITHAW", Path: j.Files[i].Name(), Err: err}
		}
	}
	return nil, nil
}}
