package connlimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// endless is a listener whose connections a test makes.
type endless struct {
	net.Listener
	next chan net.Conn
}

func (e *endless) Accept() (net.Conn, error) { return <-e.next, nil }

// client is the raw connection of a client, from an address.
type client struct {
	net.Conn
	from   string
	closed bool
	reads  int // how many more reads return a byte
}

func (c *client) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.from), 1))
}

func (c *client) Read(p []byte) (int, error) {
	if c.reads == 0 {
		return 0, io.EOF
	}
	c.reads--
	return 1, nil
}

func (c *client) Close() error { c.closed = true; return nil }

// world is a listener and its clients.
type world struct {
	*testing.T
	*Listener
	now time.Time
}

func newWorld(t *testing.T, limits Limits) *world {
	w := &world{T: t, Listener: New(&endless{next: make(chan net.Conn, 1)}, limits), now: time.Unix(1e9, 0)}
	w.Listener.now = func() time.Time { return w.now }
	return w
}

// connect returns a connection from an address, later than the connections before it. It is silent.
func (w *world) connect(from string) *Conn {
	w.Helper()
	w.now = w.now.Add(1)
	w.Listener.Listener.(*endless).next <- &client{from: from, reads: 1}
	conn, err := w.Accept()
	if err != nil {
		w.Fatal(err)
	}
	return conn.(*Conn)
}

// connects returns n silent connections from an address.
func (w *world) connects(n int, from string) (all []*Conn) {
	w.Helper()
	for range n {
		all = append(all, w.connect(from))
	}
	return all
}

// speak has the client of c send something.
func (w *world) speak(c *Conn) *Conn {
	w.Helper()
	if _, err := c.Read(make([]byte, 1)); err != nil {
		w.Fatal(err)
	}
	return c
}

// lost returns the numbers of those that were dropped.
func lost(all []*Conn) (dropped []int) {
	for i, c := range all {
		if WasDropped(c) != c.Conn.(*client).closed {
			panic("a connection is dropped and open, or closed and not dropped")
		}
		if WasDropped(c) {
			dropped = append(dropped, i)
		}
	}
	return dropped
}

func (w *world) wantLost(what string, all []*Conn, want ...int) {
	w.Helper()
	if got := lost(all); !slices.Equal(got, want) {
		w.Errorf("%s: dropped are %d, want %d", what, got, want)
	}
}

func TestTheLongestSilenceIsDroppedFirst(t *testing.T) {
	for name, pause := range map[string]time.Duration{"silent ones": grace, "new ones": 0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Limits{Waiting: 4})
			all := w.connects(4, "10.0.0.1")
			all[0].wait() // as when an HTTP request has ended: all[1] is silent for longer
			w.now = w.now.Add(pause)
			w.wantLost("up to the limit", all)
			w.connect("10.0.0.1")
			w.wantLost("one too many", all, 1)
			w.connect("10.0.0.1")
			w.wantLost("two too many", all, 1, 2)
			w.connects(2, "10.0.0.1")
			w.wantLost("four too many", all, 0, 1, 2, 3)
			if n := w.Dropped(); n != 4 {
				t.Errorf("Dropped = %d, want 4", n)
			}
		})
	}
}

func TestAFloodIsReportedOnceAMinute(t *testing.T) {
	w := newWorld(t, Limits{Waiting: 4})
	var sources []string
	w.Warn = func(source netip.Prefix) { sources = append(sources, source.String()) }
	w.connect("10.0.0.1")
	w.connects(3, "10.0.0.2")
	if len(sources) > 0 {
		t.Errorf("reported before a connection was dropped: %v", sources)
	}
	for _, want := range []int{1, 2} {
		w.connects(10, "10.0.0.2")
		if len(sources) != want || sources[want-1] != "10.0.0.2/32" {
			t.Errorf("reported are %v, want %d, each the source with the most connections", sources, want)
		}
		w.now = w.now.Add(warnEvery)
	}
}

// TestTheOrderInWhichConnectionsOfASourceAreDropped: each kind outlasts any number of the kinds
// before it.
func TestTheOrderInWhichConnectionsOfASourceAreDropped(t *testing.T) {
	for name, tc := range map[string]struct {
		kept, flood func(w *world) *Conn
		pause       time.Duration // after the connections that are kept
	}{
		"a part of a message, beside silent ones": {kept: (*world).partial, flood: (*world).silent, pause: grace},
		"a new one, beside silent ones":           {kept: (*world).fresh, flood: (*world).silent},
		"a new one, beside parts of messages":     {kept: (*world).fresh, flood: (*world).partial},
		"a new one that has sent a part":          {kept: (*world).begun, flood: (*world).partial},
		"a message, beside silent ones":           {kept: (*world).message, flood: (*world).silent, pause: time.Hour},
		"a message, beside parts of messages":     {kept: (*world).message, flood: (*world).partial, pause: time.Hour},
		"a message, beside new ones":              {kept: (*world).message, flood: (*world).fresh, pause: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Limits{Waiting: 16})
			for range 16 {
				tc.flood(w)
			}
			kept := tc.kept(w)
			w.now = w.now.Add(tc.pause)
			for range 50 { // in less than the grace of those that are new
				tc.flood(w)
			}
			w.wantLost("after the flood", []*Conn{kept})
		})
	}
	Advance(&client{}) // the connection of another listener
}

func (w *world) fresh() *Conn  { return w.connect("10.0.0.1") }
func (w *world) silent() *Conn { return old(w.fresh()) }
func (w *world) begun() *Conn  { return w.speak(w.fresh()) }

func (w *world) partial() *Conn { return old(w.begun()) }

func (w *world) message() *Conn {
	c := w.begun()
	Advance(c)
	return c
}

// old makes a connection old: no longer counted as new.
func old(c *Conn) *Conn {
	c.since = c.since.Add(-grace)
	return c
}

func TestThoseThatSpokeGiveWayToEachOther(t *testing.T) {
	w := newWorld(t, Limits{Waiting: 10})
	for _, kind := range []func(*world) *Conn{(*world).partial, (*world).message} {
		var old []*Conn
		for range 10 {
			old = append(old, kind(w))
		}
		for range 100 {
			kind(w)
		}
		if n := len(lost(old)); n == 0 {
			t.Error("none of them gave way to newer ones that got as far")
		}
	}
}

// TestARandomOneOfThoseThatSpokeIsDropped: neither the oldest nor the newest, always.
func TestARandomOneOfThoseThatSpokeIsDropped(t *testing.T) {
	first := map[int]int{}
	for range 400 {
		w := newWorld(t, Limits{Waiting: 4})
		all := []*Conn{w.message(), w.message(), w.message(), w.message()}
		w.connect("10.0.0.1")
		first[lost(all)[0]]++
	}
	for i := range 4 {
		if first[i] < 40 { // 100 on average, with a deviation of 9
			t.Errorf("number %d was dropped %d times of 400", i, first[i])
		}
	}
}

func TestNoSourceTakesTheConnectionsOfAnother(t *testing.T) {
	w := newWorld(t, Limits{Waiting: 12})
	spoke := w.connects(12, "10.0.0.1")
	for _, c := range spoke {
		w.speak(c)
	}
	quiet := w.connects(4, "10.0.0.2")
	if n := len(lost(spoke)); n != 4 {
		t.Errorf("the source with the most lost %d, want 4", n)
	}
	w.connects(1000, "10.0.0.1")
	w.wantLost("silent ones beside a busy source", quiet)
	third := w.connects(4, "10.0.0.3")
	w.wantLost("up to its share", third)
	w.wantLost("up to their share", quiet)
	more := w.connects(1, "10.0.0.3")
	if n := len(lost(third)); n != 1 {
		t.Errorf("a source with more than its share lost %d, want its own oldest", n)
	}
	w.wantLost("beyond its share", more)
}

// TestManySourcesKeepNoNewOneOut: an attacker may have as many addresses as there are places.
func TestManySourcesKeepNoNewOneOut(t *testing.T) {
	w := newWorld(t, Limits{Waiting: 16})
	for i := range 100 {
		w.connect(fmt.Sprintf("10.0.1.%d", i))
	}
	router := w.message()
	for i := range 100 {
		w.connect(fmt.Sprintf("10.0.2.%d", i))
	}
	w.wantLost("a new source that sends a message", []*Conn{router})
}

func TestKnownSourcesHaveConnectionsOfTheirOwn(t *testing.T) {
	w := newWorld(t, Limits{Waiting: 4, Known: 2, Admitted: 2})
	first := w.connect("10.0.0.1")
	if err := Admit(first); err != nil {
		t.Fatal(err)
	}
	again := w.connects(2, "10.0.0.1")
	for i := range 100 {
		w.speak(w.connect(fmt.Sprintf("10.0.1.%d", i)))
	}
	w.wantLost("silent ones of a known source", append(again, first))
	w.connect("10.0.0.1")
	w.wantLost("beyond the places of known sources", again, 0)
	w.now = w.now.Add(rememberOf)
	late := w.connect("10.0.0.1")
	for range 4 {
		w.connect("10.0.0.1")
	}
	w.wantLost("a source that was forgotten", []*Conn{late}, 0)
}

func TestOnlyTheLastKnownSourcesAreRemembered(t *testing.T) {
	w := newWorld(t, Limits{Waiting: 1, Known: 1, Admitted: 1})
	address := func(i int) string { return fmt.Sprintf("10.0.%d.1", i) }
	for i := range maxSources + 10 {
		w.now = w.now.Add(time.Second)
		c := w.connect(address(i))
		if err := Admit(c); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if len(w.sources) != maxSources {
		t.Errorf("%d sources are remembered, want %d", len(w.sources), maxSources)
	}
	for i, want := range map[int]bool{0: false, 9: false, 10: true, maxSources + 9: true} {
		if got := w.knows(sourceOf((&client{from: address(i)}).RemoteAddr())); got != want {
			t.Errorf("source %d is known: %v, want %v", i, got, want)
		}
	}
}

func TestAdmission(t *testing.T) {
	w := newWorld(t, Limits{Waiting: 2, Admitted: 2})
	gone := w.connect("10.0.0.1")
	all := w.connects(2, "10.0.0.1")
	if err := Admit(gone); !errors.Is(err, ErrDropped) {
		t.Errorf("Admit of one that was dropped = %v", err)
	}
	for range 2 { // again is fine
		for _, c := range all {
			if err := Admit(c); err != nil {
				t.Errorf("Admit = %v", err)
			}
		}
	}
	waiting := w.connect("10.0.0.1")
	if err := Admit(waiting); !errors.Is(err, ErrFull) {
		t.Errorf("Admit beyond the limit = %v", err)
	}
	w.connects(10, "10.0.0.1")
	w.wantLost("admitted ones", all)
	for range 2 {
		if err := all[0].Close(); err != nil {
			t.Error(err)
		}
	}
	if err := Admit(all[0]); !errors.Is(err, ErrDropped) {
		t.Errorf("Admit of a closed one = %v", err)
	}
	next := w.connect("10.0.0.1")
	if err := Admit(next); err != nil {
		t.Errorf("Admit when another one is closed = %v", err)
	}
	if foreign := (&client{}); Admit(foreign) != nil || WasDropped(foreign) {
		t.Error("the connection of another listener has limits")
	}
}

func TestAClosedConnectionIsNoLongerCounted(t *testing.T) {
	w := newWorld(t, Limits{Waiting: 2, Known: 1, Admitted: 1})
	for range 100 {
		a, b := w.connect("10.0.0.1"), w.connect("10.0.0.2")
		if err := Admit(b); err != nil {
			t.Fatal(err)
		}
		a.Close()
		b.Close()
	}
	if n := w.Dropped(); n != 0 {
		t.Errorf("%d connections were dropped", n)
	}
	for name, p := range map[string]*pool{"waiting": &w.waiting, "known": &w.known, "admitted": &w.admitted} {
		if len(p.conns) != 0 || len(p.sources) != 0 {
			t.Errorf("%s holds %v of %v", name, p.conns, p.sources)
		}
	}
}

func TestSources(t *testing.T) {
	for from, want := range map[string]string{
		"10.0.0.1": "10.0.0.1/32", "::ffff:10.0.0.1": "10.0.0.1/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
		"fe80::1%eth0": "fe80::/64", "::1": "::/64",
	} {
		if got := sourceOf((&client{from: from}).RemoteAddr()); got.String() != want {
			t.Errorf("the source of %s is %s, want %s", from, got, want)
		}
	}
	if got := sourceOf(&net.UnixAddr{}); got != (netip.Prefix{}) {
		t.Errorf("the source of a Unix socket is %s", got)
	}
}

func TestShare(t *testing.T) {
	for files, want := range map[int]int{1 << 20: 256, 1024: 256, 256: 64, 16: minConns} {
		if got := shareOf(files, 256); got != want {
			t.Errorf("of %d files it is %d, want %d", files, got, want)
		}
	}
	if got := Share(1); got != minConns {
		t.Errorf("Share(1) = %d, want %d", got, minConns)
	}
}
