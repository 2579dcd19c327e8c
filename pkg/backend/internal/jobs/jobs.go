// Package jobs runs jobs that may take longer than the call that asks for them. A job continues
// after its caller's context has ended. A later call for the same object joins the job, and the
// sources of a job cannot be deleted while it runs. The package knows objects by their IDs only.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/causeway-csi/causeway/internal/guard"
)

const (
	// notice is the time before its deadline at which a call that has joined a job returns: its
	// error then reports the progress of the job.
	notice = 500 * time.Millisecond
	// remembered is the time for which the error of a job is kept for a repeated call.
	remembered = 5 * time.Minute
)

// ErrStopped reports a job that ended because of Close.
var ErrStopped = errors.New("the driver is shutting down")

// Reason is the reason for which a call cannot have an object now.
type Reason int

// Reasons of a Conflict.
const (
	Busy    Reason = iota // a job or a call uses the object, and the same call may succeed later
	Differs               // a job makes the object from other sources, or with other properties
	InUse                 // a job makes the object or reads it
)

// Conflict is the error of a call that cannot have an object now.
type Conflict struct {
	Reason  Reason
	Message string
}

func (c *Conflict) Error() string { return c.Message }

func conflict(reason Reason, format string, args ...any) error {
	return &Conflict{reason, fmt.Sprintf(format, args...)}
}

// Jobs runs the jobs of one backend, and grants the exclusive use of objects. Its methods may be
// called by many goroutines.
type Jobs struct {
	ctx  context.Context // of all background tasks; ends with Close
	stop context.CancelFunc
	done sync.WaitGroup

	mu        sync.Mutex
	running   map[string]*Job // by the ID of the object that is made; a failed job stays until a call returns its error
	readers   map[string]int  // number of jobs that read an object, by the object's ID
	exclusive map[string]bool // objects in exclusive use by a call
	blocked   map[string]int  // objects that must not be written to

	copied atomic.Int64 // bytes, of all jobs that have ended
	failed atomic.Int64
}

// New returns Jobs without any job. The caller calls Close.
func New() *Jobs {
	ctx, stop := context.WithCancel(context.Background())
	return &Jobs{
		ctx: ctx, stop: stop,
		running: map[string]*Job{}, readers: map[string]int{}, exclusive: map[string]bool{}, blocked: map[string]int{},
	}
}

// Close cancels all background tasks and waits for their end.
func (j *Jobs) Close() {
	j.stop()
	j.done.Wait()
}

// Context returns a context that ends with Close.
func (j *Jobs) Context() context.Context { return j.ctx }

// Go runs a task in the background. The context of the task ends with Close, which waits for the
// task.
func (j *Jobs) Go(task func(ctx context.Context)) { j.done.Go(func() { task(j.ctx) }) }

// Job makes an object.
type Job struct {
	description string        // sources and properties of the object: a call with another description does not join
	sources     []string      // IDs
	done        chan struct{} // closed when err is set
	err         error
	failed      time.Time
	progress    atomic.Pointer[Progress]
}

// Progress is the progress of a job.
type Progress struct {
	Bytes  int64  // copied so far
	OnDisk int64  // bytes of the disk that the copy takes, shared blocks included
	Stall  string // path and time of the last progress, for messages; "" while there is progress
}

// Report records the progress of the job.
func (job *Job) Report(p Progress) { job.progress.Store(&p) }

// Progress returns the last reported progress.
func (job *Job) Progress() Progress {
	if p := job.progress.Load(); p != nil {
		return *p
	}
	return Progress{}
}

func (p Progress) String() string { return fmt.Sprintf("%d bytes so far%s", p.Bytes, p.Stall) }

// RunOrJoin makes the object with this ID by run, in the background, or waits for the job that is
// already making it. run reads the sources, which are IDs; its context ends with Close. description
// names the sources and the properties of the object: a running job with another description is a
// Conflict.
//
// RunOrJoin returns the error of run. If ctx ends first, the call that started the job gets the
// error of ctx, and a call that joined it a Conflict.
func (j *Jobs) RunOrJoin(ctx context.Context, id, description string, sources []string,
	run func(ctx context.Context, job *Job) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	job, joined, err := j.begin(id, description, sources)
	if err != nil {
		return err
	}
	if joined {
		return j.join(ctx, id, job)
	}
	j.Go(func(life context.Context) {
		err := guard.Do(func() error { return run(life, job) })
		if life.Err() != nil && err != nil {
			err = ErrStopped
		}
		j.end(id, job, err)
	})
	select {
	case <-job.done:
		return j.result(id, job)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join waits for a job that another call has started.
func (j *Jobs) join(ctx context.Context, id string, job *Job) error {
	if deadline, ok := ctx.Deadline(); ok {
		wait, cancel := context.WithDeadline(ctx, deadline.Add(-min(notice, time.Until(deadline)/2)))
		defer cancel()
		ctx = wait
	}
	select {
	case <-job.done:
		return j.result(id, job)
	case <-ctx.Done():
		return conflict(Busy, "the object is being made from %s, %s", job.description, job.Progress())
	}
}

// Run makes the object with this ID by run, as part of the call: the context of run ends with ctx
// and with Close, and no call joins. Errors: that of run, Conflict while a job makes the object.
func (j *Jobs) Run(ctx context.Context, id, description string, sources []string,
	run func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	job, joined, err := j.begin(id, description, sources)
	c := (*Conflict)(nil)
	switch {
	case joined, errors.As(err, &c) && c.Reason == Differs:
		return conflict(Busy, "another call is making the object")
	case err != nil:
		return err
	}
	j.done.Add(1)
	defer j.done.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(j.ctx, cancel)()
	err = guard.Do(func() error { return run(ctx) })
	if j.ctx.Err() != nil && err != nil {
		err = fmt.Errorf("%w: %w", ErrStopped, err)
	}
	j.end(id, job, err)
	return j.result(id, job)
}

// begin returns the job that makes the object: a new job, or a job that is running or has just
// failed.
func (j *Jobs) begin(id, description string, sources []string) (job *Job, joined bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for other, job := range j.running {
		if job.ended() && time.Since(job.failed) > remembered {
			delete(j.running, other)
		}
	}
	if job := j.running[id]; job != nil {
		if job.description == description {
			return job, true, nil
		}
		if !job.ended() {
			return nil, false, conflict(Differs, "the object is being made from %s", job.description)
		}
	}
	for _, source := range sources {
		if j.exclusive[source] {
			return nil, false, conflict(Busy, "%s is being deleted", source)
		}
	}
	for _, source := range sources {
		j.readers[source]++
	}
	job = &Job{description: description, sources: sources, done: make(chan struct{})}
	j.running[id] = job
	return job, false, nil
}

// end releases the sources of a job and records its result.
func (j *Jobs) end(id string, job *Job, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, source := range job.sources {
		decrement(j.readers, source)
	}
	j.copied.Add(job.Progress().Bytes)
	if err != nil {
		if job.copies() {
			j.failed.Add(1)
		}
		job.failed = time.Now()
	} else {
		delete(j.running, id) // the object exists now
	}
	job.err = err
	close(job.done)
}

// result returns the result of a job that has ended. After a failure the next call starts another
// job.
func (j *Jobs) result(id string, job *Job) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.running[id] == job {
		delete(j.running, id)
	}
	return job.err
}

// copies reports whether the job copies objects: an empty volume has no source.
func (job *Job) copies() bool { return len(job.sources) > 0 }

func (job *Job) ended() bool {
	select {
	case <-job.done:
		return true
	default:
		return false
	}
}

// Free returns a Conflict while a job makes the object with this ID, and forgets a failed job for
// this ID.
func (j *Jobs) Free(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	job := j.running[id]
	if job == nil || job.ended() {
		delete(j.running, id)
		return nil
	}
	return conflict(Differs, "the object is being made from %s", job.description)
}

// Makes reports whether a job makes the object with this ID, or has failed and its error was not
// returned yet.
func (j *Jobs) Makes(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.running[id] != nil
}

// Exclusive gives the caller exclusive use of objects until it calls release: no job reads or makes
// them. Errors: Conflict.
func (j *Jobs) Exclusive(ids ...string) (release func(), err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, id := range ids {
		job := j.running[id]
		switch {
		case job != nil && !job.ended():
			return nil, conflict(InUse, "%.128s is being made from %s", id, job.description)
		case j.readers[id] > 0:
			return nil, conflict(InUse, "%.128s is being copied", id)
		case j.exclusive[id]:
			return nil, conflict(Busy, "another call is deleting %.128s, or committing it", id)
		}
	}
	for _, id := range ids {
		delete(j.running, id)
		j.exclusive[id] = true
	}
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, id := range ids {
			delete(j.exclusive, id)
		}
	}, nil
}

// InExclusiveUse reports whether a call has exclusive use of the object with this ID.
func (j *Jobs) InExclusiveUse(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.exclusive[id]
}

// BlockWrites marks an object whose data must not be written, until the caller calls release.
func (j *Jobs) BlockWrites(id string) (release func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.blocked[id]++
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		decrement(j.blocked, id)
	}
}

// WritesBlocked reports whether the data of the object with this ID must not be written.
func (j *Jobs) WritesBlocked(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.blocked[id] > 0
}

// Stats are figures of the jobs that copy.
type Stats struct {
	Running int
	Bytes   int64 // ended jobs included
	Failed  int64
}

// Stats returns the current figures.
func (j *Jobs) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := Stats{Bytes: j.copied.Load(), Failed: j.failed.Load()}
	for _, job := range j.running {
		if !job.ended() && job.copies() {
			s.Running++
			s.Bytes += job.Progress().Bytes
		}
	}
	return s
}

// decrement lowers a count, and deletes it at 0.
func decrement(counts map[string]int, id string) {
	if counts[id]--; counts[id] == 0 {
		delete(counts, id)
	}
}
