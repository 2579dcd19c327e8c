// Package stream serves the streams of copies: at URLs that are valid for one use, for one caller
// and for a short time (the pattern of k8s.io/cri-streaming), over WebSocket.
package stream

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Lifetime is the time for which a ticket can be used.
const Lifetime = time.Minute

// maxTickets is the maximum number of unused tickets.
const maxTickets = 1000

// Errors of Tickets.
var (
	// ErrNoTicket: the ticket has been used, is too old, is of another caller, or never was.
	ErrNoTicket = errors.New("no copy has this URL: it is valid once, for a minute, for the caller that asked for it")
	// ErrTooMany: too many tickets are unused.
	ErrTooMany = errors.New("too many copies have not begun")
	// ErrClosed: there are no tickets after Close.
	ErrClosed = errors.New("the agent of the node ends")
)

// Tickets keep values for later calls, each for one use. All methods may be called by many
// goroutines.
type Tickets[T any] struct {
	expired func(T)

	mu     sync.Mutex
	all    map[string]*ticket[T]
	closed bool
}

type ticket[T any] struct {
	value T
	peer  string
	timer *time.Timer
}

// NewTickets returns Tickets that call expired for values that were not used. The caller calls
// Close.
func NewTickets[T any](expired func(T)) *Tickets[T] {
	return &Tickets[T]{expired: expired, all: map[string]*ticket[T]{}}
}

// Issue keeps a value for a peer, and returns the ticket: at least 128 bits of randomness, in
// letters and digits. Errors: ErrTooMany, ErrClosed.
func (t *Tickets[T]) Issue(peer string, value T) (token string, expires time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return "", time.Time{}, ErrClosed
	}
	if len(t.all) >= maxTickets {
		return "", time.Time{}, fmt.Errorf("%w: %d", ErrTooMany, len(t.all))
	}
	token = rand.Text()
	t.all[token] = &ticket[T]{value, peer, time.AfterFunc(Lifetime, func() {
		if lost := t.remove(token); lost != nil {
			t.expired(lost.value)
		}
	})}
	return token, time.Now().Add(Lifetime), nil
}

// remove removes a ticket, and returns it once.
func (t *Tickets[T]) remove(token string) *ticket[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := t.all[token]
	delete(t.all, token)
	return found
}

// Use returns the value of a ticket. The ticket ends with the first use, also by another peer, who
// must have seen it. Errors: ErrNoTicket.
func (t *Tickets[T]) Use(token, peer string) (value T, err error) {
	found := t.remove(token)
	if found == nil {
		return value, ErrNoTicket
	}
	found.timer.Stop()
	if found.peer != peer {
		t.expired(found.value)
		return value, ErrNoTicket
	}
	return found.value, nil
}

// Close ends all tickets, as if they were too old.
func (t *Tickets[T]) Close() {
	t.mu.Lock()
	left := t.all
	t.all, t.closed = map[string]*ticket[T]{}, true
	t.mu.Unlock()
	for _, l := range left {
		l.timer.Stop()
		t.expired(l.value)
	}
}
