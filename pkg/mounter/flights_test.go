package mounter

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
	var f flights
	var calls atomic.Int32
	ends := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	call := func(n int) func() (Usage, error) {
		return func() (Usage, error) {
			calls.Add(1)
			<-ends[n]
			return Usage{TotalBytes: int64(n)}, nil
		}
	}
	first := f.join("probe", call(0))
	for range 10 {
		ctx := &lateContext{Context: context.Background(), done: make(chan struct{})}
		close(ctx.done)
		if _, err := f.do(ctx, "probe", call(0)); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "probe") {
			t.Errorf("got %v, want the end of the context", err)
		}
	}
	f.forget() // another mapping: the next call asks anew
	second := f.join("probe", call(1))
	close(ends[0])
	<-first.done
	if f.join("probe", call(1)) != second {
		t.Error("the end of the first call has ended the second one")
	}
	close(ends[1])
	<-second.done
	if n := calls.Load(); n != 2 || second.usage.TotalBytes != 1 {
		t.Errorf("%d calls, want 2; result %+v", n, second.usage)
	}
	if _, err := f.do(context.Background(), "probe", func() (Usage, error) { panic("NULL") }); err == nil ||
		!strings.Contains(err.Error(), "NULL") {
		t.Errorf("got %v, want the panic", err)
	}
}
