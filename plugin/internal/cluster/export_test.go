package cluster

import "testing"

// SetMaxAnswers sets maxAnswers during a test.
func SetMaxAnswers(t *testing.T, limit int64) {
	old := maxAnswers
	maxAnswers = limit
	t.Cleanup(func() { maxAnswers = old })
}
