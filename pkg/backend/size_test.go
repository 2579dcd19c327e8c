package backend

import (
	"errors"
	"testing"
)

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"1": 1, "1024": 1024, "10Gi": 10 << 30, "5k": 5000, "3M": 3e6, "7Pi": 7 << 50,
		"9223372036854775": 9223372036854775,
		"":                 0, "0": 0, "0Gi": 0, "-1": 0, "+1": 0, "1.5Gi": 0, "Gi": 0, "1gi": 0, "1 Gi": 0, "1GiB": 0,
		"9223372036854775808": 0, "9999999Pi": 0, "1e3": 0, "٣": 0,
	} {
		got, err := ParseSize(s)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"1", "10Gi", "-1", "99999999999999999999", "1.5Gi", "0", "Ki"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseSize(s); (err == nil) != (n > 0) || n < 0 || (err != nil && !errors.Is(err, ErrInvalid)) {
			t.Errorf("ParseSize(%q) = %d, %v", s, n, err)
		}
	})
}
