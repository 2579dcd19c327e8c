package router

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAFIFOInsteadOfTheForgottenNodesChangesNothing(t *testing.T) {
	c := newCluster(t)
	file := filepath.Join(t.TempDir(), "forgotten")
	if err := os.WriteFile(file, []byte("gone\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenForgotten(file, c.report)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if !f.node("gone") {
			t.Error("the node is not forgotten any more")
		}
	}
	c.wantSaid("stay as they were", "a FIFO")
}
