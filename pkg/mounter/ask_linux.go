package mounter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/guard"
)

// answerTime is how long the kernel may take for an answer that it has at hand.
const answerTime = 2 * time.Second

// maxQueries is the largest number of open queries of one kind: each occupies a thread.
const maxQueries = 32

// errNoAnswer: the kernel has not answered a query.
var errNoAnswer = errors.New("does not answer")

// queries are queries of the kernel that a tenant or a dead disk can leave without an answer. Each
// query has a goroutine of its own; a key has at most one open query. The zero value is ready.
type queries[K comparable, V any] struct {
	mu   sync.Mutex
	open map[K]*answer[V]
}

// answer is the answer to a query. Its value is valid when done is closed.
type answer[V any] struct {
	since time.Time
	done  chan struct{}
	value V
	err   error
}

// ask starts a query, or joins the open query of the same key. Errors: errNoAnswer if too many
// others are open.
func (a *queries[K, V]) ask(key K, query func() (V, error)) (*answer[V], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if open, ok := a.open[key]; ok {
		return open, nil
	}
	if len(a.open) >= maxQueries {
		return nil, fmt.Errorf("%w: nor do %d others", errNoAnswer, len(a.open))
	}
	if a.open == nil {
		a.open = map[K]*answer[V]{}
	}
	r := &answer[V]{since: time.Now(), done: make(chan struct{})}
	a.open[key] = r
	go func() {
		defer func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.open, key)
			close(r.done)
		}()
		r.value, r.err = guard.Value(query)
	}()
	return r, nil
}

// hangs reports whether the query has been open for so long that a further call need not wait
// for the answer.
func (r *answer[V]) hangs() bool {
	select {
	case <-r.done:
		return false
	default:
		return time.Since(r.since) > answerTime
	}
}

// wait returns the answer. Errors: errNoAnswer if ctx ends before, or the query hangs.
func (r *answer[V]) wait(ctx context.Context) (value V, err error) {
	select {
	case <-r.done:
		return r.value, r.err
	default:
	}
	if r.hangs() {
		return value, errNoAnswer
	}
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		return value, errNoAnswer
	}
}
