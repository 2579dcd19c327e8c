package mounter

import (
	"context"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
)

// worker makes calls of a library, one at a time: csi-proxy v2.0.0-alpha.2 panics on properties that
// are NULL, takes no context, and is called by one goroutine only.
type worker struct {
	calls inflight.Group[string, struct{}]
}

func newWorker() *worker { return &worker{inflight.Group[string, struct{}]{Limit: 1}} }

// do calls f when no other call runs, and returns its error. name describes the call in errors. When
// ctx ends, do returns its error at once. A call that has begun then continues, and the calls after
// it wait until it really ends.
func (w *worker) do(ctx context.Context, name string, f func() error) error {
	_, err := w.calls.Queue(ctx, name, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// callDirectly makes a call of a library that needs no worker.
func callDirectly(_ string, call func() error) error { return guard.Do(call) }
