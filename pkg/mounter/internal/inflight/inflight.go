// Package inflight makes calls that may hang: calls of the kernel that a tenant or a dead disk can
// leave without an answer, calls of a server, and calls of a library that takes no context.
package inflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/guard"
)

// AnswerTime is how long the kernel may take for an answer that it has at hand.
const AnswerTime = 2 * time.Second

// MaxOpen is the limit of a Group without a Limit. Each open call of the kernel occupies a thread.
const MaxOpen = 32

// NoLimit is the Limit of a Group whose calls occupy a goroutine each, and no thread.
const NoLimit = -1

// ErrNoAnswer is the error of a call that has not ended.
var ErrNoAnswer = errors.New("does not answer")

// errNoResult is the error of a call that ended its goroutine.
var errNoResult = errors.New("the call ended its goroutine, and returned nothing")

// Group makes calls, each in a goroutine of its own that turns a panic into an error. A caller
// gives up when its context ends; its call stays open until it really ends. The zero value is
// ready.
type Group[K comparable, V any] struct {
	Limit int // the largest number of open calls; 0: MaxOpen

	mu      sync.Mutex
	running int
	open    map[K]*Call[V]
	waiting []chan struct{} // callers of Queue, in their order; each gets the place of a call that ended
}

// Call is an open or ended call. Its results are valid when done is closed.
type Call[V any] struct {
	since time.Time
	done  chan struct{}
	value V
	err   error
}

// Start begins a call, or joins the open call with the same key. Errors: ErrNoAnswer if Limit other
// calls are open.
func (g *Group[K, V]) Start(key K, f func() (V, error)) (*Call[V], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if open, ok := g.open[key]; ok {
		return open, nil
	}
	if g.isFull() {
		return nil, fmt.Errorf("%w: the kernel does not answer %d other queries either", ErrNoAnswer, g.running)
	}
	g.running++
	return g.begin(key, f), nil
}

// Do is Start, and waits for the call until ctx ends. An error that is not of the call contains
// key.
func (g *Group[K, V]) Do(ctx context.Context, key K, f func() (V, error)) (none V, err error) {
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("%v: %w", key, err)
	}
	call, err := g.Start(key, f)
	if err != nil {
		return none, fmt.Errorf("%v: %w", key, err)
	}
	select {
	case <-call.done:
		return call.value, named(key, call.err)
	case <-ctx.Done():
		return none, fmt.Errorf("%v: no answer: %w", key, ctx.Err())
	}
}

// Queue makes a call of its own, as soon as fewer than Limit calls are open. Callers begin in the
// order in which they came. key describes the call in errors. When ctx ends, Queue returns its
// error at once. A call that has begun then continues, and the calls after it wait until it really
// ends.
func (g *Group[K, V]) Queue(ctx context.Context, key K, f func() (V, error)) (none V, err error) {
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("%v: not begun: %w", key, err)
	}
	if err := g.enter(ctx); err != nil {
		return none, fmt.Errorf("%v: wait for the call that runs (%s): %w", key, g.describe(), err)
	}
	g.mu.Lock()
	call := g.begin(key, f)
	g.mu.Unlock()
	select {
	case <-call.done:
		return call.value, named(key, call.err)
	case <-ctx.Done():
		return none, fmt.Errorf("%v: has not ended yet, and continues: %w", key, ctx.Err())
	}
}

// named adds key to the error of a call that panicked or ended its goroutine: the call has added
// nothing.
func named[K any](key K, err error) error {
	if p := (*guard.Panic)(nil); errors.As(err, &p) || errors.Is(err, errNoResult) {
		return fmt.Errorf("%v: %w", key, err)
	}
	return err
}

// Forget lets later calls begin instead of joining those that are open.
func (g *Group[K, V]) Forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.open)
}

// Len returns the number of open calls that a caller may join.
func (g *Group[K, V]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.open)
}

// isFull reports whether no further call may begin. The caller holds mu.
func (g *Group[K, V]) isFull() bool {
	limit := g.Limit
	if limit == 0 {
		limit = MaxOpen
	}
	return limit > 0 && g.running >= limit
}

// enter takes a place among the running calls, or waits for one.
func (g *Group[K, V]) enter(ctx context.Context) error {
	g.mu.Lock()
	if !g.isFull() {
		g.running++
		g.mu.Unlock()
		return nil
	}
	place := make(chan struct{})
	g.waiting = append(g.waiting, place)
	g.mu.Unlock()
	select {
	case <-place:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, place)
	if i < 0 { // a call has ended meanwhile, and its place is this caller's
		g.leave()
		return ctx.Err()
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return ctx.Err()
}

// leave passes a place on to the first caller that waits. The caller holds mu.
func (g *Group[K, V]) leave() {
	if len(g.waiting) == 0 {
		g.running--
		return
	}
	close(g.waiting[0])
	g.waiting = g.waiting[1:]
}

// begin begins a call, which has a place among the running calls. The caller holds mu.
func (g *Group[K, V]) begin(key K, f func() (V, error)) *Call[V] {
	if g.open == nil {
		g.open = map[K]*Call[V]{}
	}
	call := &Call[V]{since: time.Now(), done: make(chan struct{}), err: errNoResult}
	g.open[key] = call
	go func() {
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.open[key] == call {
				delete(g.open, key)
			}
			g.leave()
			close(call.done)
		}()
		call.value, call.err = guard.Value(f)
	}()
	return call
}

// describe returns the keys of the open calls.
func (g *Group[K, V]) describe() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var keys []string
	for key := range g.open {
		keys = append(keys, fmt.Sprint(key))
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}

// Since returns when the call began.
func (c *Call[V]) Since() time.Time { return c.since }

// Hangs reports whether the call has been open for so long that a further caller need not wait for
// it.
func (c *Call[V]) Hangs() bool {
	select {
	case <-c.done:
		return false
	default:
		return time.Since(c.since) > AnswerTime
	}
}

// Wait returns the results of the call. Errors: ErrNoAnswer if ctx ends before, or the call hangs.
func (c *Call[V]) Wait(ctx context.Context) (none V, err error) {
	select {
	case <-c.done:
		return c.value, c.err
	default:
	}
	if c.Hangs() {
		return none, ErrNoAnswer
	}
	select {
	case <-c.done:
		return c.value, c.err
	case <-ctx.Done():
		return none, ErrNoAnswer
	}
}
