package hostpath

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// works are the copies that are being made. A copy may take longer than any caller waits: it goes on by itself, and a
// later call joins it. What it reads is not deleted meanwhile.
type works struct {
	mu      sync.Mutex
	running map[string]*work // by the ID of what is being made; a failed one stays until somebody was told
	readers map[string]int   // of a volume or snapshot, by its ID; -1: one call has it for itself, to delete it
	still   map[string]int   // images that must not be written to, by the volume's ID

	copied atomic.Int64 // bytes, by all that have ended
	failed atomic.Int64
}

// work is one of them.
type work struct {
	what   string        // asked for: another call with the same ID that asks for something else doesn't join
	done   chan struct{} // closed when err is set
	err    error
	copied atomic.Int64           // bytes so far
	held   atomic.Int64           // bytes of the disk that the copy takes, as if none of them were shared
	stalls atomic.Pointer[string] // where and since when the copy makes no progress; nil while it does
	cut    time.Time              // from when the copy is, or since when it is made; run's own
	failed time.Time
}

// report notes how far a copy is.
func (me *work) report(r copyReport) {
	me.copied.Store(r.Bytes)
	me.held.Store(r.Held)
	if r.Idle < stallAfter {
		me.stalls.Store(nil)
		return
	}
	stalls := fmt.Sprintf(", no progress at %q since %s", r.Entry, time.Now().Add(-r.Idle).UTC().Format(time.RFC3339))
	me.stalls.Store(&stalls)
}

// progress says how far a copy is.
func (me *work) progress() string {
	text := fmt.Sprintf("%d bytes so far", me.copied.Load())
	if stalls := me.stalls.Load(); stalls != nil {
		text += *stalls
	}
	return text
}

func newWorks() *works {
	return &works{running: map[string]*work{}, readers: map[string]int{}, still: map[string]int{}}
}

// notice is how long before its deadline a call that has joined a work answers: the caller then learns how far it is.
const notice = 500 * time.Millisecond

// do runs run, which makes what the ID is of from the things with the IDs from, or joins the call that does already.
// It returns what came of it; if ctx ends first, ctx's error to whom has begun it, and ErrBusy to whom has joined.
// run's own context ends with life, which must wait until background work is done.
func (w *works) do(ctx, life context.Context, background *sync.WaitGroup, id, what string, from []string, run func(ctx context.Context, me *work) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	me, joined, err := w.begin(id, what, from)
	if err != nil {
		return err
	}
	if !joined {
		background.Go(func() {
			err := guard.Do(func() error { return run(life, me) })
			if life.Err() != nil && err != nil {
				err = fmt.Errorf("%w: the driver is shutting down", backend.ErrUnavailable)
			}
			w.end(id, me, from, err)
		})
		select {
		case <-me.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		return w.told(id, me)
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait, cancel := context.WithDeadline(ctx, deadline.Add(-min(notice, time.Until(deadline)/2)))
		defer cancel()
		ctx = wait
	}
	select {
	case <-me.done:
		return w.told(id, me)
	case <-ctx.Done():
		return fmt.Errorf("%w: it is being made from %s, %s", backend.ErrBusy, me.what, me.progress())
	}
}

// own runs run as do does, but with its caller, and for that one alone: run's context ends with ctx too, and nobody joins
// it. Errors: run's, and ErrBusy while what the ID is of is being made, from whatever.
func (w *works) own(ctx, life context.Context, background *sync.WaitGroup, id, what string, from []string, run func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	me, joined, err := w.begin(id, what, from)
	switch {
	case joined, errors.Is(err, backend.ErrExists):
		return fmt.Errorf("%w: it is being made by another call", backend.ErrBusy)
	case err != nil:
		return err
	}
	background.Add(1)
	defer background.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	err = guard.Do(func() error { return run(ctx) })
	if life.Err() != nil && err != nil {
		err = fmt.Errorf("%w: the driver is shutting down: %w", backend.ErrUnavailable, err)
	}
	w.end(id, me, from, err)
	return w.told(id, me)
}

// begin returns the work on id: a new one, or the one that has been begun. Errors: ErrExists if that is another, ErrBusy.
func (w *works) begin(id, what string, from []string) (me *work, joined bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other, me := range w.running {
		if me.ended() && time.Since(me.failed) > remembered {
			delete(w.running, other)
		}
	}
	if me := w.running[id]; me != nil {
		if me.what == what {
			return me, true, nil
		}
		if !me.ended() {
			return nil, false, fmt.Errorf("%w: it is being made from %s", backend.ErrExists, me.what)
		}
	}
	for _, source := range from {
		if w.readers[source] < 0 {
			return nil, false, fmt.Errorf("%w: %s is being deleted", backend.ErrBusy, source)
		}
	}
	for _, source := range from {
		w.readers[source]++
	}
	me = &work{what: what, done: make(chan struct{})}
	w.running[id] = me
	return me, false, nil
}

// end says what came of a work.
func (w *works) end(id string, me *work, from []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, source := range from {
		if w.readers[source]--; w.readers[source] == 0 {
			delete(w.readers, source)
		}
	}
	w.copied.Add(me.copied.Load())
	if err != nil {
		w.failed.Add(1)
		me.failed = time.Now()
	} else {
		delete(w.running, id) // what was made is in the index
	}
	me.err = err
	close(me.done)
}

// told returns what came of a work that has ended. If it failed, the next call begins anew.
func (w *works) told(id string, me *work) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[id] == me {
		delete(w.running, id)
	}
	return me.err
}

func (me *work) ended() bool {
	select {
	case <-me.done:
		return true
	default:
		return false
	}
}

// exists returns ErrExists if what the ID is of is being made from something.
func (w *works) exists(id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	me := w.running[id]
	if me == nil || me.ended() {
		delete(w.running, id)
		return nil
	}
	return fmt.Errorf("%w: it is being made from %s", backend.ErrExists, me.what)
}

// alone keeps works away from the things with these IDs until release is called. Errors: ErrInUse if one of them is
// being made, or being copied from.
func (w *works) alone(ids ...string) (release func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		me := w.running[id]
		switch {
		case me != nil && !me.ended():
			return nil, fmt.Errorf("%w: %.128s is being made from %s", backend.ErrInUse, id, me.what)
		case w.readers[id] > 0:
			return nil, fmt.Errorf("%w: %.128s is being copied", backend.ErrInUse, id)
		case w.readers[id] < 0:
			return nil, fmt.Errorf("%w: another call is deleting %.128s, or settling it", backend.ErrBusy, id)
		}
	}
	for _, id := range ids {
		delete(w.running, id)
		w.readers[id] = -1
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, id := range ids {
			delete(w.readers, id)
		}
	}, nil
}

// leaving returns ErrBusy while somebody is alone with the thing with this ID.
func (w *works) leaving(id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.readers[id] < 0 {
		return backend.ErrBusy
	}
	return nil
}

// hold keeps the volume with this ID from being mounted until release is called.
func (w *works) hold(id string) (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still[id]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.still[id]--; w.still[id] == 0 {
			delete(w.still, id)
		}
	}
}

// mayMount returns ErrBusy for a volume that must not be written to.
func (w *works) mayMount(id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.still[id] > 0 {
		return fmt.Errorf("%w: volume %s is being copied, and its disk can't be written to meanwhile", backend.ErrBusy, id)
	}
	return nil
}

// progress returns how many copies run, and how many bytes were ever copied.
func (w *works) progress() (running int, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	bytes = w.copied.Load()
	for _, me := range w.running {
		if !me.ended() {
			running++
			bytes += me.copied.Load()
		}
	}
	return running, bytes
}
