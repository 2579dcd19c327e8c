package router

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/guard"
)

// together is the number of nodes that are asked at the same time.
const together = 64

// each asks all nodes at the same time and returns their answers in the order of nodes. If several
// return an error, each returns the first error that is not final, or else the first error: a final
// error would tell the caller that no node has the object, which is unknown for a node with another
// error.
func each[T any](ctx context.Context, nodes []*node, ask func(context.Context, *node) (T, error)) ([]T, error) {
	answers, errs := make([]T, len(nodes)), make([]error, len(nodes))
	if len(nodes) == 1 {
		answers[0], errs[0] = ask(ctx, nodes[0])
		return answers, errs[0]
	}
	var asking sync.WaitGroup
	slots := make(chan struct{}, together)
	for i, n := range nodes {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			answers[i], errs[i] = guard.Value(func() (T, error) { return ask(ctx, n) })
		})
	}
	asking.Wait()
	var first error
	for _, err := range errs {
		switch {
		case err == nil:
		case !final(err):
			return answers, err
		case first == nil:
			first = err
		}
	}
	return answers, first
}

// final reports whether sidecars take an error to mean that nothing was made, and do not repeat the
// call.
func final(err error) bool {
	switch status.Code(err) {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		return false
	}
	return true
}
