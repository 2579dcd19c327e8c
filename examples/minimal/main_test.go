package main

import (
	"os"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// TestStorageKeepsTheContract opens the storage anew between the calls of each test, as a driver
// that was killed does.
func TestStorageKeepsTheContract(t *testing.T) {
	backendtest.Run(t, backendtest.Kind{}, func(t *testing.T, images mounter.Images) func() backend.Backend {
		path := t.TempDir()
		return func() backend.Backend {
			dir, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { dir.Close() })
			return &storage{dir, "node", images}
		}
	})
}
