package freeze

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestProgress: a trim is given up when neither of two figures changes from one tick to the next.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := int64(0)
		changes := func(until int64) func() [2]int64 {
			n = 0
			return func() [2]int64 { n++; return [2]int64{min(n, until), 7} }
		}
		if progresses(t.Context(), time.Minute, changes(5)) || n < 5 {
			t.Errorf("after %d of 5 changes the trim goes on", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if !progresses(ctx, time.Hour, changes(1)) {
			t.Error("a trim that has ended is given up")
		}
	})
}
