package linuxtest

import (
	"testing"
	"time"
)

// Returns fails the test if call does not return.
func Returns(t *testing.T, what string, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patient):
		t.Fatalf("%s has not returned in %s", what, patient)
		return nil
	}
}
