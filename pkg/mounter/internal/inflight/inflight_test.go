package inflight

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
)

// TestCallsOfAServerThatHangs: a server that does not answer holds one goroutine for each path,
// however often the kubelet calls again.
func TestCallsOfAServerThatHangs(t *testing.T) {
	f := Group[string, int]{Limit: NoLimit}
	var calls atomic.Int32
	ends := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	call := func(n int) func() (int, error) {
		return func() (int, error) {
			calls.Add(1)
			<-ends[n]
			return n, nil
		}
	}
	first, _ := f.Start("probe", call(0))
	for range 10 {
		ctx := &lateContext{Context: context.Background(), done: make(chan struct{})}
		close(ctx.done)
		if _, err := f.Do(ctx, "probe", call(0)); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "probe") {
			t.Errorf("got %v, want the end of the context", err)
		}
	}
	f.Forget() // another mapping: the next call does not join the first
	second, _ := f.Start("probe", call(1))
	close(ends[0])
	<-first.done
	if third, _ := f.Start("probe", call(1)); third != second {
		t.Error("the end of the first call has ended the second one")
	}
	close(ends[1])
	<-second.done
	if n := calls.Load(); n != 2 || second.value != 1 {
		t.Errorf("%d calls, want 2; result %+v", n, second.value)
	}
	if _, err := f.Do(context.Background(), "probe", func() (int, error) { panic("NULL") }); err == nil ||
		!strings.Contains(err.Error(), "NULL") {
		t.Errorf("got %v, want the panic", err)
	}
}

func TestOpenQueriesAreBounded(t *testing.T) {
	var a Group[int, int]
	release := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	asked := make(chan int, 2*MaxOpen)
	question := func() (int, error) { asked <- 1; <-release; return 7, nil }
	var open []*Call[int]
	for key := range MaxOpen {
		for range 3 {
			r, err := a.Start(key, question)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Wait(ctx); !errors.Is(err, ErrNoAnswer) {
				t.Errorf("wait = %v, want ErrNoAnswer", err)
			}
			open = append(open, r)
		}
	}
	if _, err := a.Start(MaxOpen, question); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("a question above the limit: %v, want ErrNoAnswer", err)
	}
	close(release)
	for _, r := range open {
		<-r.done // Wait gives up a question that has been open for long
		if value, err := r.Wait(context.Background()); value != 7 || err != nil {
			t.Errorf("wait = %d, %v", value, err)
		}
	}
	if len(asked) != MaxOpen {
		t.Errorf("%d questions were asked for %d keys", len(asked), MaxOpen)
	}
	if _, err := a.Start(MaxOpen, question); err != nil {
		t.Errorf("a question after the others have ended: %v", err)
	}
}
