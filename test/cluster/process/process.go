// Package process starts the programs of a test cluster, and ends them.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
)

// Command describes a program to run. A Launcher runs it.
type Command struct {
	Name string   // for errors
	Argv []string // the program's path comes first
	Dir  string   // where it runs
	Log  string   // the file that its standard output and error are appended to
}

// Process is a program that was started.
type Process interface {
	// Kill ends the program at once, as a crash would, and returns when it has ended. Repeating it
	// is fine.
	Kill()
	// Done is closed when the program has ended, for any reason.
	Done() <-chan struct{}
	// Err tells how the program ended, with the end of its log. Nil as long as the program runs.
	Err() error
}

// Launcher starts a program, such as on this machine (Start) or in the namespaces of a node.
type Launcher func(Command) (Process, error)

// child is a process that this process started.
type child struct {
	command Command
	cmd     *exec.Cmd
	done    chan struct{}
	state   error // how it ended; read it after done
}

// Start runs c as a child of this process. On Linux the child dies with this process, even if that
// is killed.
func Start(c Command) (Process, error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer log.Close() // the child has its own
	p := &child{command: c, done: make(chan struct{})}
	p.cmd = exec.Command(c.Argv[0], c.Argv[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = c.Dir, log, log
	p.cmd.SysProcAttr = DieWithThread()
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	return p, nil
}

// run starts the child and waits for its end, on a thread of its own: the child dies with the
// thread that started it. Go ends a thread when the goroutine that was locked to it ends, as other
// goroutines may be. This thread stays until the child has ended.
func (p *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	if p.state = p.cmd.Wait(); p.state == nil {
		p.state = errors.New("exit status 0")
	}
	close(p.done)
}

// Kill is Process's. The process is not reaped before done is closed, and os.Process remembers a
// reaped process: no other process is hit.
func (p *child) Kill() {
	p.cmd.Process.Kill() // an error is that it has ended
	<-p.done
}

// Done is Process's.
func (p *child) Done() <-chan struct{} { return p.done }

// Err is Process's.
func (p *child) Err() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %w; the end of %s:\n%s", p.command.Name, p.state, p.command.Log,
			Tail(p.command.Log, 20))
	default:
		return nil
	}
}

// Tail returns the last n lines of a file, or the error of reading it.
func Tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	data = bytes.TrimRight(data, "\n")
	from := len(data)
	for ; n > 0 && from > 0; n-- {
		from = max(bytes.LastIndexByte(data[:from], '\n'), 0)
	}
	return string(bytes.TrimLeft(data[from:], "\n"))
}
