// Package connlimit bounds the connections of a TCP listener. Clients that connect and send nothing
// then take a fixed amount of memory and files, and cannot keep other clients out.
//
// A connection waits until it is admitted: a TLS server admits a client that has authenticated, an
// HTTP server admits none. The listener accepts every connection at once. If more connections wait
// than the limit permits, it drops a connection of the source with the most connections: first
// those that have sent nothing for a while, then those that have sent a part of a message, then new
// ones. So a source never holds more than its share while another source connects, and a client
// that sends a whole message right after it has connected outlasts any number of clients of its
// source that do not.
//
// A source is an IPv4 address or the first 64 bits of an IPv6 address, as a host has all addresses
// below them.
package connlimit

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Limits bound the connections that are open at the same time. Waiting must be at least 1.
type Limits struct {
	Waiting  int // connections that are not admitted yet
	Known    int // more of these, for sources from which a connection has been admitted before
	Admitted int // connections that are admitted; the listener drops none of them
}

// Errors of Admit.
var (
	ErrDropped = errors.New("the connection was dropped for a newer one")
	ErrFull    = errors.New("too many clients are connected")
)

// Listener is a listener whose connections are bounded. Its connections are safe for concurrent use
// as those of any listener.
type Listener struct {
	net.Listener
	limits  Limits
	now     func() time.Time
	dropped atomic.Uint64

	// Warn is called when a connection is dropped, at most once a minute, with a source that has
	// the most connections. It is set before the first Accept, and may be nil.
	Warn func(source netip.Prefix)

	mu       sync.Mutex
	warned   time.Time // when Warn was called last
	waiting  pool
	known    pool
	admitted pool
	sources  map[netip.Prefix]time.Time // when a connection of a source was last admitted; at most maxSources
}

// New returns a listener that accepts the connections of l and bounds their number.
func New(l net.Listener, limits Limits) *Listener {
	return &Listener{
		Listener: l, limits: limits, now: time.Now, sources: map[netip.Prefix]time.Time{},
		waiting: newPool(limits.Waiting), known: newPool(limits.Known), admitted: newPool(limits.Admitted),
	}
}

// Dropped returns the number of connections that were dropped for newer ones.
func (l *Listener) Dropped() uint64 { return l.dropped.Load() }

// Accept waits for the next connection, and drops another if there are too many.
func (l *Listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c, victim := l.enter(raw)
	if victim != nil {
		victim.drop()
		if l.due() {
			l.Warn(victim.source)
		}
		// The file of a dropped connection is closed when its reading goroutine notices. Without
		// this pause a flood of connections opens files faster than dropped connections close
		// theirs, and the listener drops new clients before it has read their messages.
		runtime.Gosched()
	}
	return c, nil
}

// warnEvery is the time between two calls of Warn.
const warnEvery = time.Minute

// due reports whether Warn is to be called.
func (l *Listener) due() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Warn == nil || l.now().Sub(l.warned) < warnEvery {
		return false
	}
	l.warned = l.now()
	return true
}

// enter adds a new connection, and returns the connection that is dropped for it.
func (l *Listener) enter(raw net.Conn) (c, victim *Conn) {
	c = &Conn{Conn: raw, listener: l, source: sourceOf(raw.RemoteAddr())}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.since = l.now()
	pool := &l.waiting
	if l.limits.Known > 0 && l.knows(c.source) {
		pool = &l.known
	}
	if pool.add(c); len(pool.conns) > pool.limit {
		victim = pool.victim(c, l.now())
		victim.dropped = true
		victim.leave()
		l.dropped.Add(1)
	}
	return c, victim
}

const (
	maxSources = 64             // a source is an authenticated client, so these are few
	rememberOf = 24 * time.Hour // a source that was not seen for so long may have another owner
)

// knows reports whether a connection of a source was admitted lately. The caller holds mu.
func (l *Listener) knows(source netip.Prefix) bool {
	last, ok := l.sources[source]
	return ok && l.now().Sub(last) < rememberOf
}

// remember notes that a connection of a source is admitted, and forgets the source that was seen
// the longest time ago if there are too many. The caller holds mu.
func (l *Listener) remember(source netip.Prefix) {
	l.sources[source] = l.now()
	if len(l.sources) <= maxSources {
		return
	}
	oldest := source
	for s, last := range l.sources {
		if last.Before(l.sources[oldest]) {
			oldest = s
		}
	}
	delete(l.sources, oldest)
}

// sourceOf returns the source of an address. All addresses other than TCP's are the same source.
func sourceOf(address net.Addr) netip.Prefix {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	source, _ := ip.Prefix(bits) // fails only for too many bits
	return source
}

// Progress of a connection since it began to wait.
const (
	nothing = iota
	something
	message // Advance was called
)

// grace is the time in which a client must send its first message. Until then its connection is
// new.
const grace = 100 * time.Millisecond

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn
	listener *Listener
	source   netip.Prefix
	came     atomic.Int32 // nothing, something or a message

	// The listener's mu guards these.
	pool    *pool // nil once the connection is closed or dropped
	since   time.Time
	dropped bool
}

// Read is net.Conn's.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.came.CompareAndSwap(nothing, something)
	}
	return n, err
}

// Close is net.Conn's.
func (c *Conn) Close() error {
	c.listener.mu.Lock()
	c.leave()
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// wait makes c a connection that waits for its client again.
func (c *Conn) wait() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.since = c.listener.now()
	c.came.Store(nothing)
}

// leave removes c from the counts, if it is counted. The caller holds the listener's mu.
func (c *Conn) leave() {
	if c.pool != nil {
		c.pool.remove(c)
	}
}

// drop closes a connection that was chosen to go. A reset leaves no state in the kernel; a normal
// close would wait for the client.
func (c *Conn) drop() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Conn.Close()
}

// Advance records that the client of a waiting connection has sent a whole message. The listener
// first drops connections without such a message. Advance does nothing with the connection of
// another listener.
func Advance(conn net.Conn) {
	if c, ok := conn.(*Conn); ok {
		c.came.Store(message)
	}
}

// Admit admits a connection that its Listener accepted, and remembers its source: the listener does
// not drop it any more. Admit does nothing with the connection of another listener. Errors:
// ErrDropped, ErrFull; the caller then closes the connection.
func Admit(conn net.Conn) error {
	c, ok := conn.(*Conn)
	if !ok {
		return nil
	}
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.pool == nil:
		return ErrDropped
	case c.pool == &l.admitted:
		return nil
	case len(l.admitted.conns) >= l.admitted.limit:
		return ErrFull
	}
	c.leave()
	l.admitted.add(c)
	l.remember(c.source)
	return nil
}

// WasDropped reports whether a Listener has dropped a connection for a newer connection.
func WasDropped(conn net.Conn) bool {
	c, ok := conn.(*Conn)
	if !ok {
		return false
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	return c.dropped
}

// pool holds the connections of a common limit. The listener's mu guards it.
type pool struct {
	limit   int
	conns   map[*Conn]struct{}
	sources map[netip.Prefix]int // number of conns by source
}

func newPool(limit int) pool {
	return pool{limit: limit, conns: map[*Conn]struct{}{}, sources: map[netip.Prefix]int{}}
}

func (p *pool) add(c *Conn) {
	c.pool = p
	p.conns[c] = struct{}{}
	p.sources[c.source]++
}

func (p *pool) remove(c *Conn) {
	c.pool = nil
	delete(p.conns, c)
	if p.sources[c.source]--; p.sources[c.source] == 0 {
		delete(p.sources, c.source)
	}
}

// victim returns the connection to drop for a new one, which is in the pool already.
//
// Of connections that have sent something, the oldest would be the wrong choice: an attacker that
// reconnects fast enough would drop every client before its handshake is done. A random choice
// leaves a client some chance at any speed, and it retries.
func (p *pool) victim(newcomer *Conn, now time.Time) *Conn {
	var chosen *Conn
	ties := 0
	for c := range p.conns {
		if c == newcomer {
			continue
		}
		order := -1
		if chosen != nil {
			order = p.compare(c, chosen, now)
		}
		switch {
		case order < 0:
			chosen, ties = c, 1
		case order == 0:
			if ties++; rand.IntN(ties) == 0 {
				chosen = c
			}
		}
	}
	return chosen
}

// compare returns a negative number if a is to be dropped rather than b, and 0 if either will do.
func (p *pool) compare(a, b *Conn, now time.Time) int {
	if more := p.sources[b.source] - p.sources[a.source]; more != 0 {
		return more
	}
	rankA, rankB := a.rank(now), b.rank(now)
	if rankA == rankB && (rankA == silentRank || rankA == newRank) {
		return a.since.Compare(b.since)
	}
	return rankA - rankB
}

// Ranks of connections, in the order in which they are dropped.
const (
	silentRank  = iota // the longest silence first
	partialRank        // random
	newRank            // the oldest first
	messageRank        // random
)

// rank returns how soon c is dropped. The caller holds the listener's mu.
func (c *Conn) rank(now time.Time) int {
	switch came := c.came.Load(); {
	case came == message:
		return messageRank
	case now.Sub(c.since) < grace:
		return newRank
	case came == something:
		return partialRank
	}
	return silentRank
}
