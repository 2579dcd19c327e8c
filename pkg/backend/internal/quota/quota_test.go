package quota

import (
	"math"
	"testing"
)

func TestCandidatesAreStableAndInRange(t *testing.T) {
	seen := map[uint32]bool{}
	for n := range candidates {
		id := candidate("volume", n)
		if id != candidate("volume", n) || id < firstProject || id > lastProject || seen[id] {
			t.Errorf("candidate %d is %#x", n, id)
		}
		seen[id] = true
	}
	if candidate("volume", 0) == candidate("other", 0) {
		t.Error("two volumes have the same first candidate")
	}
}

func TestHoldsAllowsForRounding(t *testing.T) {
	for _, c := range []struct {
		limit, size int64
		want        bool
	}{
		{1 << 20, 1 << 20, true},
		{1 << 20, 1<<20 - 1, true},
		{1 << 16, 1, true},
		{1<<16 + 1, 1, false},
		{1 << 20, 1<<20 + 1, false},
		{2 << 20, 1 << 20, false},
		{0, 1, false},
		{0, 0, false},
		{1, 0, false},
		{math.MaxInt64, math.MaxInt64, true},
	} {
		if got := (Usage{Limit: c.limit}).Holds(c.size); got != c.want {
			t.Errorf("Holds(%d) with a limit of %d: %v", c.size, c.limit, got)
		}
	}
}
