package main

import "testing"

func TestAMissedGoalIsSeen(t *testing.T) {
	for _, c := range []struct {
		asked  goal
		figure float64
		want   bool
	}{
		{atLeast(5), 5, true},
		{atLeast(5), 4.99, false},
		{atMost(1.2), 1.204, true}, // printed as 1.20
		{atMost(1.2), 1.21, false},
		{atMost(1.2), -0.3, false},
		{under(25), 24.99, true},
		{under(25), 25, false},
		{under(25), 0, false}, // what can't be read
	} {
		if got := c.asked.met(c.figure); got != c.want {
			t.Errorf("%s %v, of %v: met is %v", c.asked.word, c.asked.limit, c.figure, got)
		}
	}
}
