package mounter

import (
	"context"
	"fmt"
	"sync"
)

// flights makes calls that may hang, each in a goroutine of its own. Callers of a call that runs
// already wait for it, so a server that does not answer holds one goroutine for each path. The zero
// value is usable.
type flights struct {
	mu      sync.Mutex
	running map[string]*flight
}

// flight is a call. usage and err are valid after done is closed.
type flight struct {
	done  chan struct{}
	usage Usage
	err   error
}

// do makes a call, or joins the running call with the same name, until ctx ends.
func (f *flights) do(ctx context.Context, name string, call func() (Usage, error)) (Usage, error) {
	if err := ctx.Err(); err != nil {
		return Usage{}, fmt.Errorf("%s: %w", name, err)
	}
	fl := f.join(name, call)
	select {
	case <-fl.done:
		return fl.usage, fl.err
	case <-ctx.Done():
		return Usage{}, fmt.Errorf("%s: no answer: %w", name, ctx.Err())
	}
}

func (f *flights) join(name string, call func() (Usage, error)) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.running[name]; ok {
		return fl
	}
	fl := &flight{done: make(chan struct{})}
	if f.running == nil {
		f.running = map[string]*flight{}
	}
	f.running[name] = fl
	go func() {
		fl.err = recovered(name, func() (err error) {
			fl.usage, err = call()
			return err
		})
		f.mu.Lock()
		if f.running[name] == fl {
			delete(f.running, name)
		}
		f.mu.Unlock()
		close(fl.done)
	}()
	return fl
}

// forget lets later calls begin anew instead of joining the running ones.
func (f *flights) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = nil
}
