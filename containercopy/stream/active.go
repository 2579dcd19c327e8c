package stream

import (
	"context"
	"sync"
)

// Active counts the streams of a server. All methods may be called by many goroutines. Unlike that
// of a sync.WaitGroup, its Wait may be called while a first stream begins.
type Active struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n is 0 again; nil: no Wait
}

// Begin counts a stream until end is called, once.
func (a *Active) Begin() (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.n--; a.n == 0 && a.idle != nil {
			close(a.idle)
			a.idle = nil
		}
	}
}

// Wait returns when no stream is left, or with the error of ctx.
func (a *Active) Wait(ctx context.Context) error {
	a.mu.Lock()
	if a.n == 0 {
		a.mu.Unlock()
		return nil
	}
	if a.idle == nil {
		a.idle = make(chan struct{})
	}
	idle := a.idle
	a.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
