package mounter

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// worker makes calls of a library, one at a time, each in a goroutine that recovers from panics.
// csi-proxy v2.0.0-alpha.2 panics on properties that are NULL, takes no context, and is called by
// one goroutine only.
type worker struct {
	slot    chan struct{} // contains a token while no call runs
	mu      sync.Mutex
	running string // the name of the call that has the slot
}

func newWorker() *worker {
	w := &worker{slot: make(chan struct{}, 1)}
	w.slot <- struct{}{}
	return w
}

// do calls f when no other call runs, and returns its error. name describes the call in errors. A
// panic of f is a *panicError. When ctx ends, do returns its error at once. A call that has begun
// then runs on, and the calls after it wait until it really ends: do returns before them, never
// beside them.
func (w *worker) do(ctx context.Context, name string, f func() error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: not begun: %w", name, err)
	}
	select {
	case <-w.slot:
	case <-ctx.Done():
		return fmt.Errorf("%s: wait for the call that runs (%s): %w", name, w.current(), ctx.Err())
	}
	w.set(name)
	result := make(chan error, 1)
	go func() {
		err := recovered(name, f)
		w.set("")
		w.slot <- struct{}{}
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: has not ended yet, and runs on: %w", name, ctx.Err())
	}
}

func (w *worker) set(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = name
}

// current returns the name of the call that runs.
func (w *worker) current() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running
}

// panicError is the error of a call that panicked.
type panicError struct {
	name  string
	value any
}

func (e *panicError) Error() string { return fmt.Sprintf("%s: panic: %v", e.name, e.value) }

// Unwrap returns the value of the panic if it is an error.
func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// errGoexit is the error of a call that ended its goroutine.
var errGoexit = errors.New("the call ended its goroutine, and returned nothing")

// recovered calls f, and returns its error, or a *panicError.
func recovered(name string, f func() error) (err error) {
	err = fmt.Errorf("%s: %w", name, errGoexit)
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{name, value}
		}
	}()
	return f()
}
