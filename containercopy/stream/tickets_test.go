package stream

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// expiries are the values of tickets that were not used.
type expiries struct {
	mu  sync.Mutex
	all []string
}

func (e *expiries) add(v string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, v)
}

func (e *expiries) want(t *testing.T, want ...string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.Sort(e.all)
	if !slices.Equal(e.all, want) {
		t.Errorf("expired: %q, want %q", e.all, want)
	}
	e.all = nil
}

func issue(t *testing.T, tickets *Tickets[string], peer, value string) string {
	t.Helper()
	before := time.Now()
	token, expires, err := tickets.Issue(peer, value)
	if err != nil || len(token) < 26 || expires.Before(before.Add(Lifetime)) || expires.After(time.Now().Add(Lifetime)) {
		t.Fatalf("Issue = %q, %v, %v", token, expires, err)
	}
	return token
}

func TestTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e expiries
		tickets := NewTickets(e.add)
		a, b, c := issue(t, tickets, "p", "a"), issue(t, tickets, "p", "b"), issue(t, tickets, "p", "c")
		time.Sleep(Lifetime - time.Second)
		if v, err := tickets.Use(a, "p"); v != "a" || err != nil {
			t.Errorf("Use = %q, %v", v, err)
		}
		refused := func(token, peer string) {
			t.Helper()
			if v, err := tickets.Use(token, peer); v != "" || !errors.Is(err, ErrNoTicket) {
				t.Errorf("Use = %q, %v, want ErrNoTicket", v, err)
			}
		}
		refused(a, "p") // twice
		refused("", "p")
		e.want(t)
		refused(b, "another caller")
		refused(b, "p") // it is known to another
		e.want(t, "b")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		refused(c, "p")
		e.want(t, "c")
		issue(t, tickets, "p", "d")
		tickets.Close()
		e.want(t, "d")
		if _, _, err := tickets.Issue("p", "e"); !errors.Is(err, ErrClosed) {
			t.Errorf("Issue after Close = %v", err)
		}
		time.Sleep(2 * Lifetime)
		synctest.Wait()
		e.want(t)
	})
}

func TestTooManyTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e expiries
		tickets := NewTickets(e.add)
		defer tickets.Close()
		for range maxTickets {
			issue(t, tickets, "p", "a")
		}
		if _, _, err := tickets.Issue("p", "b"); !errors.Is(err, ErrTooMany) {
			t.Errorf("Issue = %v, want ErrTooMany", err)
		}
	})
}
