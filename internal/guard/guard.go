// Package guard keeps a panic in one call, or in one background task, from ending the process: a
// panic becomes an error. A fatal error of the Go runtime, such as a concurrent write to a map,
// ends the process all the same.
package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Panic is the error of a function that panicked.
type Panic struct {
	Value any
	Stack []byte // for the log, not for a caller
}

func (p *Panic) Error() string { return fmt.Sprintf("the driver panicked: %v", p.Value) }

// Attributes returns err as attributes of a log line. That of a panic comes with its stack.
func Attributes(err error) []any {
	attributes := []any{"error", err}
	if p := (*Panic)(nil); errors.As(err, &p) {
		attributes = append(attributes, "stack", string(p.Stack))
	}
	return attributes
}

// Do calls f. Errors: that of f, *Panic.
func Do(f func() error) error {
	_, err := Value(func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// Value calls f and returns its results, or no result and a *Panic.
func Value[T any](f func() (T, error)) (result T, err error) {
	defer func() {
		if v := recover(); v != nil {
			var none T
			result, err = none, &Panic{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

// Pauses after a panic, before the task is run again.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// Keep runs a background task until it returns. If it panics, Keep calls report and runs the task
// again after a pause, which grows with each panic. Keep returns at the latest when ctx is done and
// the task has returned.
func Keep(ctx context.Context, report func(error), task func()) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := Do(func() error { task(); return nil })
		if err == nil {
			return
		}
		report(err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
