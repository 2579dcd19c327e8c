package figures

import "testing"

func TestAMissedGoalIsSeen(t *testing.T) {
	for _, c := range []struct {
		asked  Goal
		figure float64
		want   bool
	}{
		{AtLeast(5), 5, true},
		{AtLeast(5), 4.99, false},
		{AtMost(1.2), 1.204, true}, // printed as 1.20
		{AtMost(1.2), 1.21, false},
		{AtMost(1.2), -0.3, false},
		{Under(25), 24.99, true},
		{Under(25), 25, false},
		{Under(25), 0, false}, // an unreadable input
	} {
		if got := c.asked.met(c.figure); got != c.want {
			t.Errorf("%s %v, of %v: met is %v", c.asked.word, c.asked.limit, c.figure, got)
		}
	}
}
