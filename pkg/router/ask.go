package router

import (
	"context"
	"sync"
)

// together is how many nodes are asked at the same time.
const together = 64

// each asks all nodes, at the same time, and returns their answers in the order of nodes, or the error of the first one
// in that order which gave one.
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
			answers[i], errs[i] = ask(ctx, n)
		})
	}
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			return answers, err
		}
	}
	return answers, nil
}
