package sharesim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
)

// ErrDead is the error of all operations of a process that has died.
var ErrDead = errors.New("the process has died")

// requestLimit is that of package client.
const requestLimit = 30 * time.Second

// Faults are the probabilities of faults, for each message, and their limits. The zero value is a
// network that delivers each message within Latency.
type Faults struct {
	Latency time.Duration // the maximum without a stall

	Stall      float64 // the message, and so all later messages of its session, arrive late
	StallLimit time.Duration
	Lose       float64 // the connection ends before the message or before its answer
	Repeat     float64 // the server receives the message twice

	Stop      float64 // the process stops before or after the message
	StopLimit time.Duration

	// Limits are those of the product. Half of the stalls and stops are about as long as one of
	// them.
	Limits []time.Duration

	Freeze float64 // part of the stops in which the clock of the process stops, too
	Die    float64 // the process dies
}

// Process is a process of the driver, with a clock and a connection to the server. Its Context ends
// when the process dies.
type Process struct {
	context.Context

	// Name is for the trace.
	Name string

	// Before is called before each operation. Its error is that of the operation, and ends the
	// session. nil: not called.
	Before func(op, path string) error

	// After is called after each operation that has succeeded. Its error is that of the operation,
	// and ends the session. nil: not called.
	After func(op, path string) error

	server *Server
	faults Faults
	kill   context.CancelFunc

	mu       sync.Mutex
	random   *rand.Rand
	stopped  time.Time     // when the last stop began
	resumed  time.Time     // its end
	wake     chan struct{} // closed at an earlier end; nil before the first stop
	waiting  time.Duration // of the goroutines that have waited for the end
	freezes  bool          // the clock stands still between the two
	behind   time.Duration // of the clock, because of the stops before
	hasFroze bool
	session  *session
}

// NewProcess returns a process whose faults a seed decides. The caller calls Kill.
func NewProcess(s *Server, name string, faults Faults, seed uint64) *Process {
	p := &Process{Name: name, server: s, faults: faults, random: rand.New(rand.NewPCG(seed, 0))}
	p.Context, p.kill = context.WithCancel(context.Background())
	return p
}

// Kill ends the process. The server closes its files.
func (p *Process) Kill() {
	p.kill()
	p.mu.Lock()
	s := p.session
	p.session = nil
	p.mu.Unlock()
	if s != nil {
		s.abandon()
	}
}

// Int64N returns a random number of the process.
func (p *Process) Int64N(n int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.Int64N(n)
}

// chance is true with a probability.
func (p *Process) chance(probability float64) bool {
	if probability == 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.Float64() < probability
}

// upTo returns a random duration. Nanoseconds keep events apart, so that a seed decides their
// order.
func (p *Process) upTo(limit time.Duration) time.Duration {
	return time.Duration(p.Int64N(int64(max(limit, time.Microsecond)))) + 1
}

// delay returns the duration of a stall or stop.
func (p *Process) delay(limit time.Duration) time.Duration {
	if len(p.faults.Limits) == 0 || p.chance(0.5) {
		return p.upTo(limit)
	}
	const about = 3 * time.Second
	return max(p.faults.Limits[p.Int64N(int64(len(p.faults.Limits)))]-about, 0) + p.upTo(2*about)
}

// Now returns the time of the clock of the process.
func (p *Process) Now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	behind := p.behind
	if p.freezes {
		behind += min(now.Sub(p.stopped), p.resumed.Sub(p.stopped))
	}
	return now.Add(-behind)
}

// AfterFunc calls f when d has passed by the clock of the process, unless the process is stopped.
func (p *Process) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	var mu sync.Mutex
	var timer *time.Timer
	ended := false
	end := p.Now().Add(d)
	var fire func()
	fire = func() {
		p.wait()
		mu.Lock()
		if ended {
			mu.Unlock()
			return
		}
		if left := end.Sub(p.Now()); left > 0 && p.Err() == nil {
			timer = time.AfterFunc(left, fire)
			mu.Unlock()
			return
		}
		ended = true
		mu.Unlock()
		f()
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(d, fire)
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		was := !ended
		ended = true
		timer.Stop()
		return was
	}
}

// Stop stops the process for a while from now on.
func (p *Process) Stop(d time.Duration, freeze bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.freezes {
		p.behind += p.resumed.Sub(p.stopped)
	}
	p.stopped, p.freezes = time.Now(), freeze
	p.resumed, p.wake, p.waiting = p.stopped.Add(d), make(chan struct{}), 0
	p.hasFroze = p.hasFroze || freeze
}

// Resume ends a stop.
func (p *Process) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Before(p.resumed) {
		p.resumed = now
		close(p.wake)
	}
}

// HasFrozen reports whether the clock of the process has ever stopped.
func (p *Process) HasFrozen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hasFroze
}

// wait waits until the process is not stopped. Its goroutines continue one after the other, so that
// a seed decides their order.
func (p *Process) wait() {
	for p.Err() == nil {
		p.mu.Lock()
		left, wake := time.Until(p.resumed), p.wake
		if left > 0 {
			p.waiting += time.Microsecond
			left += p.waiting
		}
		p.mu.Unlock()
		if left <= 0 {
			return
		}
		select {
		case <-time.After(left):
		case <-wake:
		case <-p.Done():
		}
	}
}

// step is a place at which the process may stop or die.
func (p *Process) step() error {
	p.wait()
	switch {
	case p.chance(p.faults.Die):
		p.Kill()
	case p.chance(p.faults.Stop):
		freeze := p.chance(p.faults.Freeze)
		p.mu.Lock()
		running := !time.Now().Before(p.resumed)
		p.mu.Unlock()
		if d := p.delay(p.faults.StopLimit); running {
			p.Stop(d, freeze)
		}
	}
	p.wait()
	if p.Err() != nil {
		return ErrDead
	}
	return nil
}

// session is a connection with its open files.
type session struct {
	process *Process
	broken  chan struct{} // closed when the client has ended the session or has found its end
	once    sync.Once

	mu        sync.Mutex
	delivered time.Time // when the last message arrives
	lost      bool      // no further message arrives

	// guarded by Server.mu
	handles map[*handle]bool
	ended   bool // at the server
}

// live returns the session of the process, or a new one.
func (p *Process) live() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == nil {
		p.session = &session{process: p, broken: make(chan struct{}), handles: map[*handle]bool{}}
	}
	return p.session
}

// abandon ends the session at the client: the server finds that later. Messages on their way may
// still arrive before.
func (s *session) abandon() {
	s.once.Do(func() {
		p := s.process
		p.mu.Lock()
		if p.session == s {
			p.session = nil
		}
		p.mu.Unlock()
		close(s.broken)
		s.mu.Lock()
		if p.chance(0.5) { // the reset overtakes them
			s.lost = true
		}
		end := max(time.Until(s.delivered), 0) + p.upTo(p.faults.Latency)
		s.mu.Unlock()
		if p.chance(p.faults.Stall) {
			end += p.delay(p.faults.StallLimit)
		}
		time.AfterFunc(end, s.end)
	})
}

// end ends the session at the server.
func (s *session) end() {
	server := s.process.server
	server.mu.Lock()
	defer server.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	server.trace(s.process, "session ends", "", nil)
	for h := range s.handles {
		server.close(h)
	}
}

func (s *Server) trace(p *Process, op, path string, err error) {
	if s.Trace != nil {
		s.Trace(fmt.Sprintf("%s %s: %s %s: %v", time.Now().Format("04:05.000000"), p.Name, op, path, err))
	}
}

// message is the effect of a message on the server, under Server.mu.
type message func(s *session) error

// send sends a message and waits for its answer.
func (s *session) send(ctx context.Context, op, path string, m message) error {
	p := s.process
	if err := p.step(); err != nil {
		return err
	}
	if err := s.permitted(ctx); err != nil {
		s.abandon()
		return err
	}
	if err := p.step(); err != nil { // between the decision to send and the message
		return err
	}
	answer := make(chan error, 2)
	s.deliver(op, path, m, answer)
	select {
	case err := <-answer:
		if e := p.step(); e != nil {
			return e
		}
		return err
	case <-ctx.Done():
		p.wait()
		s.abandon()
		return ctx.Err()
	case <-s.broken:
		return fmt.Errorf("%w: the connection has ended", backend.ErrUnavailable)
	}
}

// permitted is the question of a connection before each message.
func (s *session) permitted(ctx context.Context) error {
	select {
	case <-s.broken:
		return fmt.Errorf("%w: the connection has ended", backend.ErrUnavailable)
	default:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if valid, ok := client.LeaseOf(ctx); ok && !valid() {
		return fmt.Errorf("%w: the lease has ended", backend.ErrUnavailable)
	}
	return nil
}

// deliver lets the network deliver a message, and its answer.
func (s *session) deliver(op, path string, m message, answer chan<- error) {
	p := s.process
	way, back := p.upTo(p.faults.Latency), p.upTo(p.faults.Latency)
	if p.chance(p.faults.Stall) {
		if p.chance(0.5) {
			way += p.delay(p.faults.StallLimit)
		} else {
			back += p.delay(p.faults.StallLimit)
		}
	}
	if p.chance(p.faults.Lose) {
		if p.chance(0.5) {
			s.mu.Lock()
			s.lost = true
			s.mu.Unlock()
		}
		defer time.AfterFunc(back, s.abandon)
	}
	s.mu.Lock()
	s.delivered = later(s.delivered.Add(1), time.Now().Add(way))
	arrives := time.Until(s.delivered)
	s.mu.Unlock()
	executed := false // guarded by Server.mu
	execute := func() {
		s.mu.Lock()
		lost := s.lost
		s.mu.Unlock()
		server := p.server
		server.mu.Lock()
		defer server.mu.Unlock()
		if lost || s.ended || executed {
			return
		}
		executed = true
		err := m(s)
		server.trace(p, op, path, err)
		time.AfterFunc(back, func() { answer <- err })
	}
	// The server executes messages in any order.
	time.AfterFunc(arrives+p.upTo(p.faults.Latency/4), execute)
	if p.chance(p.faults.Repeat) {
		time.AfterFunc(arrives+p.delay(p.faults.StallLimit), execute)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
