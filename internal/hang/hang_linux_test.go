package hang

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// TestAWriteHoldsTheInodeLock: a second write to the file waits until the first is released.
func TestAWriteHoldsTheInodeLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	p := Write(t, path)
	wrote := make(chan error, 1)
	go func() { wrote <- os.WriteFile(path, []byte("x"), 0o600) }()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	select {
	case err := <-wrote:
		t.Fatalf("a second write did not wait: %v", err)
	case <-ctx.Done():
	}
	p.Release()
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

func TestAReaddirHangsAndEnds(t *testing.T) {
	p := Readdir(t, t.TempDir())
	if err := p.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process has ended: %v", err)
	}
	p.Kill()
	p.Kill()
}
