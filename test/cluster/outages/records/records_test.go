package records

import (
	"slices"
	"testing"
)

// TestCheck: a record that is missing, cut or different is found.
func TestCheck(t *testing.T) {
	good := slices.Concat(Record(0), Record(1), Record(2))
	changed := slices.Clone(good)
	changed[Size+30]++
	for name, tc := range map[string]struct {
		content []byte
		last    int64
		good    bool
	}{
		"nothing is durable":    {nil, -1, true},
		"all":                   {good, 2, true},
		"more than the durable": {good, 1, true},
		"one is missing":        {good, 3, false},
		"one is cut":            {good[:len(good)-1], 2, false},
		"one differs":           {changed, 2, false},
		"zeros":                 {make([]byte, len(good)), 2, false},
	} {
		if err := Check(tc.content, tc.last); (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(Record(1<<62)) != Size {
		t.Errorf("a large number makes a record of %d bytes", len(Record(1<<62)))
	}
}
