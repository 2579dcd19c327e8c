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

// maxAsks is the largest number of open questions of an asks: each occupies a thread.
const maxAsks = 32

// errNoAnswer says that the kernel has not answered a question.
var errNoAnswer = errors.New("does not answer")

// asks asks the kernel questions that a tenant or a dead disk can leave without an answer. Each
// question has a goroutine of its own; a key has at most one open question. The zero value is
// ready.
type asks[K comparable, V any] struct {
	mu   sync.Mutex
	open map[K]*answer[V]
}

// answer is the answer to a question. Its value is valid when done is closed.
type answer[V any] struct {
	since time.Time
	done  chan struct{}
	value V
	err   error
}

// ask asks a question, or joins the open question of the same key. Errors: errNoAnswer if too many
// others are open.
func (a *asks[K, V]) ask(key K, question func() (V, error)) (*answer[V], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if open, ok := a.open[key]; ok {
		return open, nil
	}
	if len(a.open) >= maxAsks {
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
		r.value, r.err = guard.Value(question)
	}()
	return r, nil
}

// hangs reports whether the question has been open for so long that a further call need not wait
// for the answer.
func (r *answer[V]) hangs() bool {
	select {
	case <-r.done:
		return false
	default:
		return time.Since(r.since) > answerTime
	}
}

// wait returns the answer. Errors: errNoAnswer if ctx ends before, or the question hangs.
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
