package store

import "testing"

func TestAvailableSpace(t *testing.T) {
	const G = 1 << 30
	for name, tc := range map[string]struct {
		disk     Space
		reserved int64
		want     int64
	}{
		"empty and whole":              {Space{Total: 100 * G, Free: 100 * G, Whole: true}, 0, 100 * G},
		"reserved, not used":           {Space{Total: 100 * G, Free: 100 * G, Whole: true}, 40 * G, 60 * G},
		"reserved and used":            {Space{Total: 100 * G, Free: 60 * G, Whole: true}, 40 * G, 60 * G},
		"more used than reserved":      {Space{Total: 100 * G, Free: 10 * G, Whole: true}, 40 * G, 10 * G},
		"shared with others":           {Space{Total: 100 * G, Free: 60 * G}, 40 * G, 20 * G},
		"reserved more than there is":  {Space{Total: 100 * G, Free: 90 * G, Whole: true}, 140 * G, 0},
		"shared and reserved too much": {Space{Total: 100 * G, Free: 30 * G}, 40 * G, 0},
		"read-only":                    {Space{Total: 100 * G, Free: 60 * G, ReadOnly: true, Whole: true}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.disk.Available(tc.reserved); got != tc.want {
				t.Errorf("Available = %d, want %d", got, tc.want)
			}
		})
	}
}
