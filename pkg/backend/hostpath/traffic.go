package hostpath

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Copies and the emptying of the trash can wait; calls cannot. So background jobs give way: after
// each time slice they wait until no call has run for a while, but not much longer than maxYield.
// Under calls without pause they still make progress.
const (
	slice    = 5 * time.Millisecond
	quiet    = 20 * time.Millisecond
	maxYield = 50 * time.Millisecond
)

// traffic counts the calls that run. Its zero value is ready for use.
type traffic struct {
	calls atomic.Int64
	last  atomic.Int64 // time of the last activity of a call, in nanoseconds since 1970
}

// begin counts a call until end is called.
func (t *traffic) begin() (end func()) {
	t.calls.Add(1)
	return func() {
		t.touch()
		t.calls.Add(-1)
	}
}

// pause leaves a call out of the count until resume is called, while the call waits for a copy.
func (t *traffic) pause() (resume func()) {
	t.calls.Add(-1)
	return func() { t.calls.Add(1) }
}

// touch records the activity of a call that runs elsewhere, such as in the Mounter.
func (t *traffic) touch() { t.last.Store(time.Now().UnixNano()) }

// busy reports whether calls run, or have run a moment ago.
func (t *traffic) busy() bool {
	return t.calls.Load() > 0 || time.Now().UnixNano()-t.last.Load() < int64(quiet)
}

// giveWay waits while calls run, for up to twice maxYield. The time is random, so that the same
// call of a sequence is not disturbed each time.
func (t *traffic) giveWay() {
	limit := maxYield + rand.N(maxYield)
	for start := time.Now(); t.busy() && time.Since(start) < limit; {
		time.Sleep(time.Millisecond)
	}
}
