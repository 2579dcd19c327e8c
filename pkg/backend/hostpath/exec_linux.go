package hostpath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/copier"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// HelperTasks are the tasks of this package that run in helper processes. A program that uses a
// Backend passes them to helper.Main.
func HelperTasks() []helper.Task {
	return []helper.Task{openTask, quotaTask, treeTask, fileTask, cloneTask, subvolumeTask, removeTask}
}

// executor runs tasks in helper processes.
type executor struct {
	helpers    helper.Pool
	limit      time.Duration // progressLimit, but in tests
	quotaLimit time.Duration // the constant, but in tests
	giveWay    func()        // waits while calls run, for a while
}

func (e *executor) close() { e.helpers.Close() }

// pools returns the pool of helpers.
func (e *executor) pools() []mounter.Helpers {
	busy, limit := e.helpers.Busy()
	return []mounter.Helpers{{Pool: "copy", Busy: busy, Limit: limit}}
}

// start begins a task. Errors: ErrUnavailable.
func (e *executor) start(task helper.Task, request any, files ...*os.File) (*helper.Session, error) {
	s, err := e.helpers.Start(task, request, files...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return s, nil
}

// finish waits for the end of a task, and passes its messages to each, as long as a message comes
// within limit. Errors: errNoProgress, ErrUnavailable if the helper dies; *givenUp if the helper
// may still run.
func finish(ctx context.Context, s *helper.Session, limit time.Duration, result any,
	each func(json.RawMessage) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(limit, func() { cancel(fmt.Errorf("%w for %s", errNoProgress, limit)) })
	defer silence.Stop()
	err := s.Result(ctx, result, func(message json.RawMessage) error {
		silence.Reset(limit)
		return each(message)
	})
	switch {
	case err == nil || s.Ended():
		return err
	case errors.Is(err, helper.ErrDied):
		err = fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return &givenUp{err, s.Gone()}
}

// openTask opens a directory that is open as a path only, to find out whether the open hangs.
var openTask = helper.Task{Name: "open-dir", Run: func(j *helper.Job) (any, error) {
	dirs, err := helper.OpenDirs(j.Files)
	if err != nil {
		return nil, err
	}
	return nil, dirs[0].Close()
}}

// open opens a directory for reading in a helper. Errors: errNoProgress in *givenUp if the open
// hangs.
func (e *executor) open(ctx context.Context, dir *os.File) error {
	s, err := e.start(openTask, nil, dir)
	if err != nil {
		return err
	}
	defer s.Close()
	return finish(ctx, s, e.quotaLimit, nil, func(json.RawMessage) error { return nil })
}

// quotaRequest is a request of quotaTask.
type quotaRequest struct {
	Mark  quota.Mark `json:"mark"`
	Limit *int64     `json:"limit"` // to be set, in bytes; nil: none
}

// quotaTask sets the limit of a directory that is open as a path only, or returns its usage.
var quotaTask = helper.Task{Name: "quota", Errors: []error{quota.ErrNotEnforced},
	Run: func(j *helper.Job) (any, error) {
		var r quotaRequest
		if err := j.Request(&r); err != nil {
			return nil, err
		}
		dirs, err := helper.OpenDirs(j.Files)
		if err != nil {
			return nil, err
		}
		defer dirs[0].Close()
		if r.Limit != nil {
			return nil, quota.Set(dirs[0], r.Mark, *r.Limit)
		}
		return quota.Look(dirs[0], r.Mark)
	}}

// quotaUsage returns the usage of a directory that is open as a path only. Errors: errNoProgress in
// *givenUp if the directory cannot be opened within seconds.
func (e *executor) quotaUsage(dir *os.File, mark quota.Mark) (u quota.Usage, err error) {
	err = e.quota(dir, quotaRequest{Mark: mark}, &u)
	return u, err
}

// setLimit sets the limit of a directory that is open as a path only. Errors: as look.
func (e *executor) setLimit(dir *os.File, mark quota.Mark, size int64) error {
	return e.quota(dir, quotaRequest{mark, &size}, nil)
}

func (e *executor) quota(dir *os.File, r quotaRequest, result any) error {
	s, err := e.start(quotaTask, r, dir)
	if err != nil {
		return err
	}
	defer s.Close()
	return finish(context.Background(), s, e.quotaLimit, result, func(json.RawMessage) error { return nil })
}

// copyResult is the outcome of a copy.
type copyResult struct {
	How    copier.How `json:"how"`
	Report copyReport `json:"report"` // the last report
}

// copyErrors are found by errors.Is in the error of a helper, too.
var copyErrors = []error{copier.ErrLease, copier.ErrDepth, copier.ErrMoved}

// treeTask copies a directory that is open as a path only to an empty directory. fileTask copies a
// file to an empty file. Their files are source and target.
var (
	treeTask = helper.Task{Name: "copy-tree", Background: true, Errors: copyErrors,
		Run: func(j *helper.Job) (any, error) {
			src, err := helper.OpenDirs(j.Files[:1])
			if err != nil {
				return nil, err
			}
			defer src[0].Close()
			return runCopy(j, func(ctx context.Context, _, dst *os.File, o copier.Options) (copier.How, error) {
				return copier.Tree(ctx, src[0], dst, o)
			})
		}}
	fileTask = helper.Task{Name: "copy-file", Background: true, Errors: copyErrors,
		Run: func(j *helper.Job) (any, error) { return runCopy(j, copier.File) }}
)

func runCopy(
	j *helper.Job, run func(ctx context.Context, src, dst *os.File, o copier.Options) (copier.How, error),
) (any, error) {
	p := &copier.Progress{}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(reportEvery):
				j.Send(reportOf(p))
			}
		}
	}()
	how, err := run(j.Context, j.Files[0], j.Files[1],
		copier.Options{Progress: p, Yield: (&yielder{job: j, progress: p}).yield})
	return copyResult{how, reportOf(p)}, err
}

// yielder makes the workers of a copy give way to calls after each time slice.
type yielder struct {
	job      *helper.Job
	progress *copier.Progress

	mu   sync.Mutex // locked while the copy gives way
	last time.Time
}

func (y *yielder) yield() {
	y.mu.Lock()
	defer y.mu.Unlock()
	if time.Since(y.last) < slice {
		return
	}
	if !y.last.IsZero() {
		r := reportOf(y.progress)
		r.Yield = true
		if y.job.Send(r) == nil {
			_, _ = y.job.Receive(nil) // fails when the driver has ended, and so ends the copy
		}
	}
	y.last = time.Now()
}

// tree copies a directory, and calls report regularly and at the end.
func (e *executor) tree(ctx context.Context, src, dst *os.File, report func(copyReport)) (copier.How, error) {
	return e.copy(ctx, treeTask, src, dst, report)
}

// file copies an image.
func (e *executor) file(ctx context.Context, src, dst *os.File, report func(copyReport)) (copier.How, error) {
	return e.copy(ctx, fileTask, src, dst, report)
}

func (e *executor) copy(ctx context.Context, task helper.Task, src, dst *os.File,
	report func(copyReport)) (copier.How, error) {
	s, err := e.start(task, nil, src, dst)
	if err != nil {
		return copier.Copied, err
	}
	defer s.Close()
	var result copyResult
	err = finish(ctx, s, progressLimit, &result, func(message json.RawMessage) error {
		var r copyReport
		if err := json.Unmarshal(message, &r); err != nil {
			return err
		}
		report(r)
		if r.Yield {
			e.giveWay()
			return s.Send(nil)
		}
		return r.stalled(e.limit)
	})
	if err != nil {
		return copier.Copied, err
	}
	report(result.Report)
	return result.How, nil
}

// cloneOrder is the order to clone.
type cloneOrder struct {
	// Within is the time for all clones, which are then made in pieces: a point in time only
	// without writes. 0 stands for a single FICLONE for each file.
	Within time.Duration `json:"within"`
}

// cloneTask makes empty files share the blocks of others. Its files are pairs of source and target.
// The task waits for an order, so that a freeze need not wait for the start of a process.
var cloneTask = helper.Task{Name: "clone", Errors: copyErrors, Run: func(j *helper.Job) (any, error) {
	var o cloneOrder
	if _, err := j.Receive(&o); err != nil {
		return nil, err
	}
	ctx, clone := j.Context, func(_ context.Context, src, dst *os.File) error { return copier.Clone(src, dst) }
	if o.Within > 0 {
		limited, cancel := context.WithTimeout(ctx, o.Within)
		defer cancel()
		ctx, clone = limited, copier.CloneWithin
	}
	for i := 0; i+1 < len(j.Files); i += 2 {
		if err := clone(ctx, j.Files[i], j.Files[i+1]); err != nil {
			return nil, err
		}
	}
	return nil, nil
}}

// cloner is a helper that waits for the order to clone.
type cloner struct{ session *helper.Session }

// cloner starts a helper for pairs of source and target. The caller closes it.
func (e *executor) cloner(pairs ...*os.File) (*cloner, error) {
	s, err := e.start(cloneTask, nil, pairs...)
	return &cloner{s}, err
}

func (c *cloner) close() {
	if c.session != nil {
		c.session.Close()
	}
}

// cloneGrace is the time in which a helper must notice the end of its time.
const cloneGrace = 30 * time.Second

// within clones in pieces until ctx ends, and may return a moment later.
func (c *cloner) within(ctx context.Context) error {
	end, ok := ctx.Deadline()
	if !ok {
		return errors.New("a clone within a freeze has no deadline")
	}
	left := time.Until(end)
	if left <= 0 {
		return context.DeadlineExceeded
	}
	return c.order(context.WithoutCancel(ctx), cloneOrder{left}, left+cloneGrace)
}

// whole clones each file by a single call, at a point in time.
func (c *cloner) whole(ctx context.Context) error { return c.order(ctx, cloneOrder{}, cloneLimit) }

func (c *cloner) order(ctx context.Context, o cloneOrder, limit time.Duration) error {
	if err := c.session.Send(o); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return finish(ctx, c.session, limit, nil, func(json.RawMessage) error { return nil })
}

// subvolumeRequest is a request of subvolumeTask.
type subvolumeRequest struct {
	Name     string `json:"name"`
	ReadOnly bool   `json:"readOnly"`
}

// subvolumeTask makes a snapshot of a subvolume. Its files are the subvolume, open as a path only,
// and the directory in which the snapshot is made.
var subvolumeTask = helper.Task{Name: "subvolume", Run: func(j *helper.Job) (any, error) {
	var r subvolumeRequest
	if err := j.Request(&r); err != nil {
		return nil, err
	}
	src, err := helper.OpenDirs(j.Files[:1])
	if err != nil {
		return nil, err
	}
	defer src[0].Close()
	_, err = quota.Snapshot(src[0], j.Files[1], r.Name, 0, r.ReadOnly)
	return nil, err
}}

// subvolume makes the snapshot name of the subvolume src in parent.
// Errors: errors.ErrUnsupported if src is not a subvolume.
func (e *executor) subvolume(ctx context.Context, src, parent *os.File, name string, readOnly bool) error {
	s, err := e.start(subvolumeTask, subvolumeRequest{name, readOnly}, src, parent)
	if err != nil {
		return err
	}
	defer s.Close()
	return finish(ctx, s, cloneLimit, nil, func(json.RawMessage) error { return nil })
}

// removal is a message of removeTask. The driver answers each, before the task goes on.
type removal struct {
	Files   int     `json:"files,omitempty"`   // removed since the last message
	Project *uint32 `json:"project,omitempty"` // asks whether a volume has this project
}

// removeTask removes an entry of the trash. Its file is the trash.
var removeTask = helper.Task{Name: "remove", Background: true, Run: func(j *helper.Job) (any, error) {
	var name string
	if err := j.Request(&name); err != nil {
		return nil, err
	}
	trash := beneath.Of(j.Files[0])
	taken := func(project uint32) (taken bool) {
		err := j.Send(removal{Project: &project})
		if err == nil {
			_, err = j.Receive(&taken)
		}
		return taken || err != nil
	}
	if err := store.DiscardData(trash, name, taken); err != nil {
		return nil, err
	}
	files := 0
	err := removeTree(j.Files[0], name, func() error {
		if files++; files%burst != 0 {
			return nil
		}
		if err := j.Send(removal{Files: burst}); err != nil {
			return err
		}
		_, err := j.Receive(nil)
		return err
	})
	return removal{Files: files % burst}, err
}}

// remove removes an entry of the trash. taken reports whether a volume has a project. removed
// receives the number of files that were removed since its last call.
func (e *executor) remove(ctx context.Context, trash *os.File, name string, taken func(uint32) bool,
	removed func(files int) error) error {
	s, err := e.start(removeTask, name, trash)
	if err != nil {
		return err
	}
	defer s.Close()
	var last removal
	err = finish(ctx, s, e.limit, &last, func(message json.RawMessage) error {
		var r removal
		if err := json.Unmarshal(message, &r); err != nil {
			return err
		}
		if r.Project != nil {
			return s.Send(taken(*r.Project))
		}
		if err := removed(r.Files); err != nil {
			return err
		}
		return s.Send(nil)
	})
	if err != nil {
		return err
	}
	return removed(last.Files)
}
