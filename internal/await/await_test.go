package await

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test with a deadline, whose failure is recorded.
type recorder struct {
	testing.TB
	deadline time.Time
	failure  string
}

func (r *recorder) Deadline() (time.Time, bool) { return r.deadline, !r.deadline.IsZero() }

func (r *recorder) Errorf(format string, args ...any) { r.failure = fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	panic(r)
}

// failure runs call with a test whose deadline is in limit, and returns the failure of that test.
func failure(t *testing.T, limit time.Duration, call func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t, deadline: time.Now().Add(limit)}
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(r) {
				panic(p)
			}
		}()
		call(r)
	}()
	return r.failure
}

func TestAnEventEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := &recorder{TB: t, deadline: start.Add(2 * time.Hour)}
		got := Value(r, "an hour has passed", func() (time.Duration, error) {
			if since := time.Since(start); since >= time.Hour {
				return since, nil
			}
			return 0, errors.New("too early")
		})
		if got < time.Hour || got > time.Hour+longestPause {
			t.Errorf("Value returned after %v, want an hour and at most one pause", got)
		}
		True(r, "it is true", func() bool { return true })
		c := make(chan int, 1)
		c <- 3
		if got := Receive(r, "a value is there", c); got != 3 {
			t.Errorf("Receive returned %d, want 3", got)
		}
	})
}

func TestAMissingEventFailsBeforeTheDeadline(t *testing.T) {
	const limit = 10 * time.Minute
	for name, call := range map[string]func(t testing.TB){
		"True":    func(t testing.TB) { True(t, "pigs fly", func() bool { return false }) },
		"NoError": func(t testing.TB) { NoError(t, "pigs fly", func() error { return errors.New("no wings") }) },
		"Happens": func(t testing.TB) {
			if Happens(t, "pigs fly", func() error { return errors.New("no wings") }) {
				panic("pigs fly")
			}
		},
		"Receive": func(t testing.TB) { Receive(t, "pigs fly", make(chan int)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				got := failure(t, limit, call)
				if !strings.HasPrefix(got, "waiting until pigs fly") {
					t.Errorf("the failure is %q, want the name of the event", got)
				}
				if (name == "NoError" || name == "Happens") && !strings.Contains(got, "no wings") {
					t.Errorf("the failure is %q, want the last error", got)
				}
				if left := limit - time.Since(start); left <= 0 || left > reserve {
					t.Errorf("%v before the deadline, want at most %v", left, reserve)
				}
			})
		})
	}
}

func TestAShortDeadlineLeavesMostOfItsTimeToTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		failure(t, time.Minute, func(t testing.TB) { True(t, "pigs fly", func() bool { return false }) })
		if waited := time.Since(start); waited < 50*time.Second || waited >= time.Minute {
			t.Errorf("waited for %v of a minute, want most of it", waited)
		}
	})
}

func TestACleanupWaits(t *testing.T) {
	calls := 0
	t.Run("a test", func(t *testing.T) {
		t.Cleanup(func() { True(t, "it is called three times", func() bool { calls++; return calls == 3 }) })
	})
	if calls != 3 {
		t.Errorf("the cleanup function called it %d times, want 3", calls)
	}
}
