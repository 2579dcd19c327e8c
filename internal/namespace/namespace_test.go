package namespace

import "testing"

// recorder is a test that notes how it would have ended.
type recorder struct {
	testing.TB
	ends []string
}

func (r *recorder) Helper()               {}
func (r *recorder) Skip(...any)           { r.ends = append(r.ends, "skipped") }
func (r *recorder) Fatalf(string, ...any) { r.ends = append(r.ends, "failed") }

func TestSkipFailsWhereMountingIsAMust(t *testing.T) {
	for value, want := range map[string]string{"": "skipped", "1": "failed"} {
		t.Setenv(mustMount, value)
		r := &recorder{TB: t}
		Skip(r, "no namespace")
		if r.ends[0] != want {
			t.Errorf("%s=%q: %s, want %s", mustMount, value, r.ends[0], want)
		}
	}
}
