package router

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/guard"
)

// together is how many nodes are asked at the same time.
const together = 64

// each asks all nodes, at the same time, and returns their answers in the order of nodes, or the error of the first one
// in that order which gave one: of one after which the caller tries again, if there is such a one. A final error would
// say that nothing is anywhere, and of that other node nobody knows.
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

// final reports whether an error says to sidecars that nothing was made: they don't ask again before they forget it.
func final(err error) bool {
	switch status.Code(err) {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		return false
	}
	return true
}
