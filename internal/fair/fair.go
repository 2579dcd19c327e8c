// Package fair shares a small number of slots among many claims, so that no tenant, no volume and
// no kind of job holds all of them.
package fair

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Request is a request for a slot.
type Request struct {
	Kind   string // of job, such as "snapshot"
	Tenant string // the namespace; "" is unknown, and the volume counts as the tenant
	Volume string // ID
}

// Limits bound how many slots are held at the same time.
type Limits struct {
	Slots  int // in total
	Tenant int // by one tenant, and by one volume
	Kind   int // by one kind of job
}

// Entry is a claim that holds a slot or waits for a slot.
type Entry struct {
	Request
	Running bool
	Since   time.Time // when it began to run, or to wait
}

// Slots assigns slots. A free slot goes to the waiting claim of the tenant with the fewest slots;
// then to the tenant that was served longest ago; then to the earliest claim. So a tenant with
// 1,000 claims delays the first claim of another tenant by one turn.
type Slots struct {
	limits Limits

	mu      sync.Mutex
	running []*entry
	waiting []*entry // in the order of their arrival
	served  map[string]int64
	turns   int64
}

type entry struct {
	Entry
	admitted chan struct{}
}

// New returns Slots with the given limits, each of which is at least 1.
func New(limits Limits) *Slots {
	return &Slots{limits: limits, served: map[string]int64{}}
}

// Acquire waits for a slot and returns the function that gives it back, which may be called more
// than once. Errors: those of ctx.
func (s *Slots) Acquire(ctx context.Context, c Request) (release func(), err error) {
	e := &entry{Entry: Entry{Request: c, Since: time.Now()}, admitted: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, e)
	s.admit()
	s.mu.Unlock()
	select {
	case <-e.admitted:
	case <-ctx.Done():
		if s.withdraw(e) {
			return nil, fmt.Errorf("wait for a slot for %s of volume %s: %w", c.Kind, c.Volume, ctx.Err())
		}
	}
	return sync.OnceFunc(func() { s.release(e) }), nil
}

// withdraw takes a claim out of the queue. withdraw reports false if the claim holds a slot by now.
func (s *Slots) withdraw(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting, e)
	if i < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return true
}

func (s *Slots) release(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.running, e); i >= 0 {
		s.running = slices.Delete(s.running, i, i+1)
	}
	s.admit()
}

// admit gives free slots to waiting claims.
func (s *Slots) admit() {
	for len(s.running) < s.limits.Slots {
		best := -1
		for i, e := range s.waiting {
			if s.fits(e.Request) && (best < 0 || s.before(e.Request, s.waiting[best].Request)) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		e := s.waiting[best]
		s.waiting = slices.Delete(s.waiting, best, best+1)
		e.Running, e.Since = true, time.Now()
		s.running = append(s.running, e)
		s.turns++
		s.served[e.tenant()] = s.turns
		close(e.admitted)
	}
	if len(s.waiting) == 0 && len(s.running) == 0 {
		clear(s.served)
	}
}

// fits reports whether c may run beside the claims that run.
func (s *Slots) fits(c Request) bool {
	tenant := s.count(func(o Request) bool { return o.tenant() == c.tenant() })
	volume := s.count(func(o Request) bool { return o.Volume == c.Volume })
	kind := s.count(func(o Request) bool { return o.Kind == c.Kind })
	return tenant < s.limits.Tenant && volume < s.limits.Tenant && kind < s.limits.Kind
}

// before reports whether a goes before b, which came earlier.
func (s *Slots) before(a, b Request) bool {
	if a.tenant() == b.tenant() {
		return false
	}
	holdsA := s.count(func(o Request) bool { return o.tenant() == a.tenant() })
	holdsB := s.count(func(o Request) bool { return o.tenant() == b.tenant() })
	if holdsA != holdsB {
		return holdsA < holdsB
	}
	return s.served[a.tenant()] < s.served[b.tenant()]
}

func (s *Slots) count(is func(Request) bool) (n int) {
	for _, e := range s.running {
		if is(e.Request) {
			n++
		}
	}
	return n
}

func (c Request) tenant() string {
	if c.Tenant != "" {
		return "namespace " + c.Tenant
	}
	return "volume " + c.Volume
}

// Entries returns the claims that run and those that wait, each in the order of their arrival.
func (s *Slots) Entries() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Entry, 0, len(s.running)+len(s.waiting))
	for _, e := range slices.Concat(s.running, s.waiting) {
		all = append(all, e.Entry)
	}
	return all
}
