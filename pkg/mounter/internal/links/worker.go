package links

import (
	"context"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
)

// Worker makes calls of a library, one at a time: csi-proxy v2.0.0-alpha.2 panics on properties
// that are NULL, takes no context, and is called by one goroutine only.
type Worker struct {
	calls inflight.Group[string, struct{}]
}

// NewWorker returns a Worker that makes a single call at a time.
func NewWorker() *Worker { return &Worker{inflight.Group[string, struct{}]{Limit: 1}} }

// do calls f when no other call runs, and returns its error. name describes the call in errors.
// When ctx ends, do returns its error at once. A call that has begun then continues, and the calls
// after it wait until it really ends.
func (w *Worker) do(ctx context.Context, name string, f func() error) error {
	_, err := w.calls.Queue(ctx, name, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// Run is do for a caller that gives up with its whole flow, so the call needs no ctx: see
// linkDisks.flow.
func (w *Worker) Run(name string, f func() error) error { return w.do(context.Background(), name, f) }
