package rig

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/causeway-csi/causeway/internal/gobuild"
	"github.com/causeway-csi/causeway/test/cluster/process"
)

// Product returns the directory of the module of csi-sidecars, with whose versions its commands are
// built.
func Product(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/causeway-csi/causeway/sidecars").Output()
	return strings.TrimSpace(string(out)), err
}

// Build builds a command of the product into dir, as make build does but without symbols, and
// returns its path.
func Build(ctx context.Context, dir, command string) (string, error) {
	product, err := Product(ctx)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, command)
	p := gobuild.Program{Package: "./cmd/" + command, Dir: product,
		Flags: []string{"-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w"}}
	return path, p.Copy(ctx, path)
}

// Process is a program under test. It dies with this process.
type Process struct {
	cmd   *exec.Cmd
	out   tail
	ended chan struct{}
}

// StartProcess starts a program with an environment of its own, beside PATH.
func StartProcess(path string, env []string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(path, args...), ended: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = process.DieWithThread()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the child dies with this thread, which stays until it has ended
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait()
			close(p.ended)
		}
	}()
	return p, <-started
}

// Pid is the process's.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Log returns the log of the process so far.
func (p *Process) Log() string { return p.out.String() }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// ExitCode waits for the end, and returns the code; -1 after a signal.
func (p *Process) ExitCode() int {
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}

// Stop ends the process in peace, and by force after 30 s.
func (p *Process) Stop() int {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		p.Signal(syscall.SIGKILL)
	}
	return p.ExitCode()
}

// tail is a buffer that may be read while it is written.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// Get asks a process's port, and returns the code and the body.
func Get(ctx context.Context, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return r.StatusCode, string(body), err
}

// Until tries until it works, or ctx is done: then it returns the last error.
func Until(ctx context.Context, try func(context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
