package linuxtest

import (
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
)

// Returns fails the test if call does not return.
func Returns(t *testing.T, what string, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	return await.Receive(t, what+" returns", done)
}
