package hostpath

import (
	"testing"
	"testing/synctest"
	"time"
)

// idle waits until the last activity of a call is old.
func (t *traffic) idle() { t.last.Store(time.Now().Add(-time.Hour).UnixNano()) }

func TestCallsThatRunAreTraffic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, callsThatRunAreTraffic)
}

func callsThatRunAreTraffic(t *testing.T) {
	var calls traffic
	if calls.busy() {
		t.Error("busy before the first call")
	}
	end := calls.begin()
	if !calls.busy() {
		t.Error("a call runs: not busy")
	}
	resume := calls.pause()
	if calls.busy() {
		t.Error("busy while the call waits for a copy")
	}
	resume()
	if !calls.busy() {
		t.Error("the call goes on: not busy")
	}
	end()
	if !calls.busy() {
		t.Error("not busy right after a call")
	}
	calls.idle()
	if calls.busy() {
		t.Error("busy long after the call")
	}
	if calls.touch(); !calls.busy() {
		t.Error("not busy after the activity of a call")
	}
}

// TestCopiesMakeProgressUnderCalls: uninterrupted calls delay a copy but do not stop it.
func TestCopiesMakeProgressUnderCalls(t *testing.T) {
	t.Parallel()
	var calls traffic
	defer calls.begin()()
	start := time.Now()
	calls.giveWay()
	if waited := time.Since(start); waited < maxYield {
		t.Errorf("gave way for %s beside a call, want at least %s", waited, maxYield)
	}
}
