package stream

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestActive: Wait returns after the last stream, for each of its callers, and can be repeated.
func TestActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Active
		if err := a.Wait(t.Context()); err != nil {
			t.Errorf("without a stream: %v", err)
		}
		for range 2 {
			first, second := a.Begin(), a.Begin()
			limited, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := a.Wait(limited); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with two streams: %v", err)
			}
			cancel()
			waits := make(chan error, 2)
			for range 2 {
				go func() { waits <- a.Wait(t.Context()) }()
			}
			first()
			synctest.Wait()
			if len(waits) > 0 {
				t.Error("Wait has returned before the last stream")
			}
			second()
			for range 2 {
				if err := <-waits; err != nil {
					t.Error(err)
				}
			}
		}
	})
}
