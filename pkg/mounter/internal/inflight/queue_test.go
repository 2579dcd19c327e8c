package inflight

import (
	"context"
	"errors"
	"io/fs"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/causeway-csi/causeway/internal/guard"
)

// queueCall makes a call without a result.
func queueCall(ctx context.Context, g *Group[string, int], key string, f func() error) error {
	_, err := g.Queue(ctx, key, func() (int, error) { return 0, f() })
	return err
}

func TestAQueueMakesOneCallAtATime(t *testing.T) {
	w := Group[string, int]{Limit: 1}
	var running, overlaps, calls atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if err := queueCall(context.Background(), &w, "call", func() error {
				if running.Add(1) > 1 {
					overlaps.Add(1)
				}
				calls.Add(1)
				running.Add(-1)
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if overlaps.Load() > 0 || calls.Load() != 50 {
		t.Errorf("%d calls, %d of them beside another, want 50 and 0", calls.Load(), overlaps.Load())
	}
}

// TestAQueueOutlivesPanics: the library dereferences NULL properties.
func TestAQueueOutlivesPanics(t *testing.T) {
	w := Group[string, int]{Limit: 1}
	ctx := context.Background()
	var property *int
	err := queueCall(ctx, &w, "query", func() error { *property = 1; return nil })
	var p *guard.Panic
	if !errors.As(err, &p) || !strings.Contains(err.Error(), "query: ") || !strings.Contains(err.Error(),
		"nil pointer") {
		t.Errorf("got %v, want the name and the value of the panic", err)
	}
	if err := queueCall(ctx, &w, "query", func() error { runtime.Goexit(); return nil }); !errors.Is(err, errNoResult) {
		t.Errorf("a call that ends its goroutine: %v, want %v", err, errNoResult)
	}
	if err := queueCall(ctx, &w, "query", func() error { return fs.ErrExist }); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the next call: %v", err)
	}
}

// TestAQueueIsBounded: a call that hangs delays its caller and the next one until their contexts
// end, and keeps the slot until it really ends.
func TestAQueueIsBounded(t *testing.T) {
	w := Group[string, int]{Limit: 1}
	ctx, cancel := context.WithCancel(context.Background())
	begun, end := make(chan struct{}), make(chan struct{})
	result := make(chan error)
	go func() {
		result <- queueCall(ctx, &w, "first call", func() error { close(begun); <-end; return nil })
	}()
	<-begun
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "first call") {
		t.Errorf("the call that hangs: %v", err)
	}
	waiting, stop := context.WithCancel(context.Background())
	go func() {
		result <- queueCall(waiting, &w, "second call",
			func() error { t.Error("it runs beside the first"); return nil })
	}()
	stop()
	if err := <-result; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "second call") {
		t.Errorf("the call that waits: %v", err)
	}
	go func() { result <- queueCall(context.Background(), &w, "third call", func() error { return nil }) }()
	close(end)
	if err := <-result; err != nil {
		t.Errorf("after the end of the first call: %v", err)
	}
}

// TestAQueueNamesTheCallThatHangs, also to a caller whose context ends while it waits.
func TestAQueueNamesTheCallThatHangs(t *testing.T) {
	w := Group[string, int]{Limit: 1}
	begun, end := make(chan struct{}), make(chan struct{})
	result := make(chan error)
	go func() {
		result <- queueCall(context.Background(), &w, "first call", func() error { close(begun); <-end; return nil })
	}()
	<-begun
	ctx := &lateContext{Context: context.Background(), done: make(chan struct{})}
	close(ctx.done)
	if err := queueCall(ctx, &w, "second call", func() error { return nil }); !errors.Is(err,
		context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "first call") {
		t.Errorf("got %v, want the call that hangs", err)
	}
	close(end)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// lateContext is a context that ends between the first look at it and the wait for it.
type lateContext struct {
	context.Context
	done  chan struct{}
	looks int
}

func (c *lateContext) Done() <-chan struct{} { return c.done }

func (c *lateContext) Err() error {
	if c.looks++; c.looks == 1 {
		return nil
	}
	return context.DeadlineExceeded
}
