package guard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAPanicIsAnErrorWithItsStack(t *testing.T) {
	result, err := Value(func() (int, error) {
		var none *Panic
		return len(none.Stack), nil
	})
	var p *Panic
	if !errors.As(err, &p) || result != 0 {
		t.Fatalf("Value = %d, %v, want a *Panic", result, err)
	}
	if !strings.Contains(string(p.Stack), "guard_test.go") || !strings.Contains(err.Error(), "nil pointer") {
		t.Errorf("the error is %v with the stack %s", err, p.Stack)
	}
}

func TestResultsPassAsTheyAre(t *testing.T) {
	want := errors.New("wrong")
	if got, err := Value(func() (int, error) { return 7, want }); got != 7 || !errors.Is(err, want) {
		t.Errorf("Value = %d, %v", got, err)
	}
	if err := Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do = %v", err)
	}
}

func TestATaskThatPanicsIsRunAgainAfterAGrowingPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var runs []time.Duration
		reported := 0
		Keep(t.Context(), func(error) { reported++ }, func() {
			if runs = append(runs, time.Since(start)); len(runs) < 10 {
				panic("again")
			}
		})
		if len(runs) != 10 || reported != 9 {
			t.Fatalf("%d runs, %d reports, want 10 and 9", len(runs), reported)
		}
		for i := range runs[1:] {
			want := min(firstPause<<i, lastPause)
			if got := runs[i+1] - runs[i]; got != want {
				t.Errorf("the pause after run %d is %s, want %s", i+1, got, want)
			}
		}
	})
}

func TestATaskIsNotRunAgainWhenItsTimeIsOver(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	Keep(ctx, func(error) { cancel() }, func() { runs++; panic("once") })
	if runs != 1 {
		t.Errorf("%d runs, want 1", runs)
	}
}
