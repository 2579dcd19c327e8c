// Package await waits for events in tests.
//
// A test that waits for an event fails at its own deadline (go test -timeout), and at no earlier
// time: how long an event takes depends on the machine. The last part of that time is left to the
// test, to report the failure and to clean up.
//
// A test in a synctest bubble has no deadline that it could ask for (testing.T.Deadline panics
// there): it waits with synctest.Wait.
package await

import (
	"context"
	"errors"
	"testing"
	"time"
)

// reserve is the time between the end of a wait and the deadline of the test binary, whose panic
// would run no cleanup.
const reserve = 20 * time.Second

// The pauses between two polls: a wait begins with the shortest, and doubles it up to the longest.
const (
	shortestPause = time.Millisecond
	longestPause  = 100 * time.Millisecond
)

var errFalse = errors.New("the condition is false")

// Context returns a context that ends shortly before the deadline of t. It ends with t, too, except
// in a cleanup function: the context of t has ended by then. A test without a deadline has no other
// limit.
func Context(t testing.TB) context.Context {
	t.Helper()
	life := t.Context()
	if life.Err() != nil {
		life = context.WithoutCancel(life)
	}
	timed, ok := t.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return life
	}
	deadline, ok := timed.Deadline()
	if !ok {
		return life
	}
	ctx, cancel := context.WithDeadline(life, deadline.Add(-min(reserve, time.Until(deadline)/10)))
	t.Cleanup(cancel)
	return ctx
}

// True waits until condition returns true. event names the awaited event in the failure.
func True(t testing.TB, event string, condition func() bool) {
	t.Helper()
	NoError(t, event, func() error {
		if condition() {
			return nil
		}
		return errFalse
	})
}

// NoError waits until call returns nil. The failure contains the last error of call.
func NoError(t testing.TB, event string, call func() error) {
	t.Helper()
	Value(t, event, func() (struct{}, error) { return struct{}{}, call() })
}

// Value waits until call returns no error, and returns the value. The failure contains the last
// error of call.
func Value[T any](t testing.TB, event string, call func() (T, error)) T {
	t.Helper()
	value, err := poll(Context(t), call)
	if err != nil {
		t.Fatalf("waiting until %s: %v", event, err)
	}
	return value
}

// Happens waits until call returns nil, and reports whether it did. A test with a Deadline method
// of its own, before the deadline of the test binary, continues after the failure.
func Happens(t testing.TB, event string, call func() error) bool {
	t.Helper()
	_, err := poll(Context(t), func() (struct{}, error) { return struct{}{}, call() })
	if err != nil {
		t.Errorf("waiting until %s: %v", event, err)
	}
	return err == nil
}

// poll calls call until it returns no error or ctx has ended, and returns the last result.
func poll[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		value, err := call()
		if err == nil {
			return value, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return value, err
		case <-timer.C:
		}
	}
}

// Receive waits for a value of c, or for its end, and returns the value: the zero value for a
// closed channel.
func Receive[T any](t testing.TB, event string, c <-chan T) T {
	t.Helper()
	select {
	case value := <-c:
		return value
	case <-Context(t).Done():
		t.Fatalf("waiting until %s", event)
		panic("not reached")
	}
}
