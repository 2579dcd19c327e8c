package hang

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// TestAWriteHoldsTheInodeLock: a second write to the file waits until the first is released.
func TestAWriteHoldsTheInodeLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	p := Write(t, path)
	var released atomic.Bool
	thread, wrote := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		thread <- syscall.Gettid()
		err := os.WriteFile(path, []byte("x"), 0o600)
		if !released.Load() {
			err = errors.Join(err, errors.New("it did not wait"))
		}
		wrote <- err
	}()
	stat := fmt.Sprintf("/proc/self/task/%d/stat", <-thread)
	await.True(t, "the second write waits in the kernel, or has ended", func() bool {
		text, err := os.ReadFile(stat)
		_, state, _ := strings.Cut(string(text), ") ")
		return err != nil || len(wrote) > 0 || strings.HasPrefix(state, "D") // uninterruptible: for a lock
	})
	released.Store(true)
	p.Release()
	if err := <-wrote; err != nil {
		t.Errorf("the second write: %v", err)
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
