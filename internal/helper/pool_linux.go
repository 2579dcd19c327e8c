package helper

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	maxProcesses = 64 // of a Pool, by default
	maxIdle      = 2
	idleFor      = time.Minute
	maxLastWords = 1 << 10 // bytes of a helper's standard error in an error
)

// raceExits is for programs with the race detector, whose processes sleep for a second at exit
// otherwise.
const raceExits = "GORACE=atexit_sleep_ms=0"

// Pool starts helpers and keeps idle ones for a while. Its zero value is empty and ready.
type Pool struct {
	// Max bounds the helpers, with those that were given up and hang. 0 is 64.
	Max int

	mu    sync.Mutex
	idle  []*process // the last was used last
	alive int
}

// process is a helper, as the driver sees it.
type process struct {
	cmd       *exec.Cmd
	link      *link
	gone      chan struct{} // closed when the process has ended and was reaped
	lastWords *tail
	expire    *time.Timer // while it is idle
}

// Session is a run of a task. Its methods are for a single goroutine. Close must be called.
type Session struct {
	pool    *Pool
	process *process
	task    Task
	ended   bool // the task has reported its end
	closed  bool
}

// Start begins a task in a helper and passes it the request, as JSON, and the files, which stay
// the caller's to close. Errors: ErrDied, ErrTooMany.
func (p *Pool) Start(task Task, request any, files ...*os.File) (*Session, error) {
	if !mainCalled.Load() {
		return nil, fmt.Errorf("%w: the program must call helper.Main first", ErrDied)
	}
	for {
		h, fresh, err := p.takeProcess()
		if err != nil {
			return nil, fmt.Errorf("helper for %s: %w", task.Name, err)
		}
		err = h.link.send(frame{Kind: kindRun, Task: task.Name}, request, files)
		if err == nil {
			return &Session{pool: p, process: h, task: task}, nil
		}
		h.kill()
		if fresh || !errors.Is(err, syscall.EPIPE) { // an idle helper may have been killed
			return nil, fmt.Errorf("helper for %s: %w: %w", task.Name, ErrDied, err)
		}
	}
}

// takeProcess returns an idle helper or starts a new helper.
func (p *Pool) takeProcess() (h *process, fresh bool, err error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		h = p.idle[n-1]
		p.idle = p.idle[:n-1]
		h.expire.Stop()
		p.mu.Unlock()
		return h, false, nil
	}
	if limit := cmp.Or(p.Max, maxProcesses); p.alive >= limit {
		p.mu.Unlock()
		return nil, false, fmt.Errorf("%w: %d are busy or hang", ErrTooMany, limit)
	}
	p.alive++
	p.mu.Unlock()
	if h, err = p.start(); err != nil {
		p.ended()
		return nil, false, err
	}
	return h, true, nil
}

func (p *Pool) start() (*process, error) {
	ours, theirs, err := newPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	h := &process{link: ours, gone: make(chan struct{}), lastWords: &tail{}}
	h.cmd = exec.Command("/proc/self/exe") // the running program, even if its file was replaced
	h.cmd.Args = []string{processName}
	h.cmd.Env, h.cmd.Dir = []string{raceExits}, "/"
	h.cmd.Stderr = h.lastWords
	h.cmd.ExtraFiles = []*os.File{theirs}
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to the driver's session must not reach it
	if err := h.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: start: %w", ErrDied, err), ours.socket.Close())
	}
	go func() {
		h.cmd.Wait() // the error reports a kill, or is in lastWords
		close(h.gone)
		p.ended()
	}()
	return h, nil
}

func (p *Pool) ended() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alive--
}

// put keeps a helper for the next task.
func (p *Pool) put(h *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) >= maxIdle {
		h.link.socket.Close() // it exits then
		return
	}
	h.expire = time.AfterFunc(idleFor, func() { p.drop(h) })
	p.idle = append(p.idle, h)
}

// drop ends an idle helper.
func (p *Pool) drop(h *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.idle {
		if other == h {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			h.link.socket.Close()
			return
		}
	}
}

// Close ends the idle helpers, and waits a moment for their end. Sessions end the busy helpers.
// Helpers that hang are left.
func (p *Pool) Close() {
	p.mu.Lock()
	for _, h := range p.idle {
		h.expire.Stop()
		h.link.socket.Close()
	}
	p.idle = nil
	p.mu.Unlock()
	for wait := time.Millisecond; wait < time.Second && p.Alive() > 0; wait *= 2 {
		time.Sleep(wait)
	}
}

// Alive returns the number of helpers that have not ended, including idle helpers.
func (p *Pool) Alive() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive
}

// Busy returns the number of helpers that are busy or hang, and their limit.
func (p *Pool) Busy() (busy, limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive - len(p.idle), cmp.Or(p.Max, maxProcesses)
}

// Send sends a message to the task.
func (s *Session) Send(message any, files ...*os.File) error {
	if err := s.process.link.send(frame{Kind: kindMessage}, message, files); err != nil {
		return s.died(err)
	}
	return nil
}

// Receive waits for the next message of the task and decodes it into message. If the task ends
// instead, it returns the task's error, or io.EOF. Errors: ErrDied; those of ctx, after which the
// session can only be closed.
func (s *Session) Receive(ctx context.Context, message any) error {
	body, err := s.next(ctx)
	if err == nil && s.ended {
		err = io.EOF
	}
	if err != nil || message == nil {
		return err
	}
	return json.Unmarshal(body, message)
}

// Result waits for the end of the task and decodes its result into result, which may be nil. Each
// message before that goes to each, which may be nil; an error of each ends the wait. Errors: as
// Receive.
func (s *Session) Result(ctx context.Context, result any, each func(message json.RawMessage) error) error {
	for {
		body, err := s.next(ctx)
		switch {
		case err != nil:
			return err
		case s.ended && (result == nil || len(body) == 0):
			return nil
		case s.ended:
			return json.Unmarshal(body, result)
		case each != nil:
			if err := each(body); err != nil {
				return err
			}
		}
	}
}

func (s *Session) next(ctx context.Context) (json.RawMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	socket, interrupted := s.process.link.socket, make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		socket.SetReadDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	f, err := s.process.link.receive()
	if !stop() {
		<-interrupted
		socket.SetReadDeadline(time.Time{})
		if err != nil {
			return nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, s.died(err)
	}
	closeAll(f.files)
	if f.Kind != kindEnd {
		return f.Body, nil
	}
	s.ended = true
	if f.Err != nil {
		return nil, f.Err.decode(s.task.Errors)
	}
	return f.Body, nil
}

// died returns the reason for which the helper's end of the link is closed.
func (s *Session) died(err error) error {
	select { // its exit follows at once, or its last words are not worth a wait
	case <-s.process.gone:
	case <-time.After(time.Second):
	}
	return fmt.Errorf("helper for %s: %w: %w %s", s.task.Name, ErrDied, err, s.process.lastWords)
}

// Close gives the helper back if the task has ended, or else gives the task up: the helper is
// killed, or with Outlives left to complete the task. Close never waits. Later calls do nothing.
func (s *Session) Close() {
	switch {
	case s.closed:
	case s.ended:
		s.pool.put(s.process)
	case s.task.Outlives:
		s.process.link.socket.Close()
	default:
		s.process.kill()
	}
	s.closed = true
}

// Ended reports whether the task has ended, well or with an error.
func (s *Session) Ended() bool { return s.ended }

// Gone is closed when the helper process has ended. After Close of a task that was given up, this
// marks the end of the task's last system call.
func (s *Session) Gone() <-chan struct{} { return s.process.gone }

// kill sends SIGKILL. The process ends as soon as its system calls return.
func (h *process) kill() {
	h.cmd.Process.Kill()
	h.link.socket.Close()
}

// tail keeps the first bytes that are written to it.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text.Write(data[:min(len(data), maxLastWords-t.text.Len())])
	return len(data), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text.Bytes()))
}
