// Package client is a client of SMB servers in user space: a pool of sessions, and operations on
// the directories and files of a share. It wraps github.com/cloudsoda/go-smb2 and guards against
// five of its defects (version of 18 September 2026):
//   - Its copy on the server cuts files at 16 MiB without an error. Share.CopyFile uses it for
//     smaller files only, and compares the size.
//   - After the end of a context, its next request overwrites a message that may not be sent yet.
//     The library gets contexts that end only when the connection is closed, by session.until.
//   - A server, or an attacker in its place, can turn off signatures: it answers the log in of a
//     user with the flag of a guest. wire.Write then ends the session.
//   - File.Stat and Readdir need 16 credits, and send a request that the server rejects if the
//     session has fewer: files.size does without, a list is repeated, and a session asks for
//     maxCredits.
//   - A name with "..", or an empty name, leads out of the directory. Each operation checks its
//     path.
package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	smb2 "github.com/cloudsoda/go-smb2"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

const (
	dialLimit    = 5 * time.Second  // of a connection with its log in
	requestLimit = 30 * time.Second // of a single operation on a server
	flushLimit   = 2 * time.Minute  // of an operation that waits for the disk of the server
	idleLimit    = 30 * time.Second // after which an unused session is closed
	trustLimit   = time.Second      // after which an unused session is verified before its next use
	echoLimit    = 2 * time.Second  // of that verification, of a log off, and of a close whose call has ended
)

// smbPort is the port of SMB over TCP.
const smbPort = 445

// Use separates sessions: an operation with another Use never shares a session.
type Use int

// Uses of sessions.
const (
	Calls  Use = iota // short operations of a call
	Jobs              // copies and removals in the background
	Verify            // of a log in: each Open has a session of its own, which Release closes
)

// Pool keeps sessions. Its methods may be called by many goroutines.
type Pool struct {
	// Before is called before each operation on a share. Its error is that of the operation, and
	// ends the connection. For tests; nil: not called.
	Before func(op, path string) error

	// After is called after each operation that the server has executed with success. Its error is
	// that of the operation, and ends the connection: the answer of the server was lost. For tests;
	// nil: not called.
	After func(op, path string) error

	flushEvery int64 // see flushEvery; tests set another number
	digester   digester

	mu       sync.Mutex
	sessions map[key]*session
	numbers  int
	verify   map[string]chan struct{} // by server: has an element for each open Share of the use Verify
	dialects map[string]uint16        // by address: the newest dialect that the server supports
	closed   bool
}

type key struct {
	address string
	server  string
	share   string
	login   [32]byte
	use     Use
	number  int // of a session that is not shared; otherwise 0
}

// session is a session with a tree connection to a share.
type session struct {
	key   key
	ready chan struct{} // closed when the fields below are set

	err   error
	conn  *wire
	smb   *smb2.Session
	share *smb2.Share

	failed atomic.Bool // an operation has broken the session

	// guarded by Pool.mu
	users  int
	broken bool
	used   time.Time
	timer  *time.Timer
}

// NewPool returns an empty pool. The caller calls Close.
func NewPool() *Pool {
	return &Pool{flushEvery: flushEvery, digester: newDigester(), sessions: map[key]*session{},
		dialects: map[string]uint16{}, verify: map[string]chan struct{}{}}
}

// Close closes all sessions.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, s := range p.sessions {
		p.drop(s)
	}
}

// Open returns the share of src, whose path is ignored, with a session for this login. The caller
// calls Release. Errors: backend.ErrUnavailable, ErrUnauthenticated, ErrDenied, ErrPrecondition if
// the server has no such share, and those of ctx.
func (p *Pool) Open(ctx context.Context, src mounter.ShareSource, login Login, use Use) (*Share, error) {
	leave := func() {}
	if use == Verify {
		var err error
		if leave, err = p.enter(ctx, src.Server); err != nil {
			return nil, err
		}
	}
	s, err := p.session(ctx, src, login, use)
	if err != nil {
		leave()
		return nil, err
	}
	return &Share{Source: mounter.ShareSource{Server: src.Server, Port: src.Port, Share: src.Share},
		pool: p, login: login, use: use, session: s, leave: leave}, nil
}

// maxVerify is the number of sessions of the use Verify with a server at a time: after a start of a
// node all of its volumes are mounted at once, and some servers have few sessions.
const maxVerify = 4

// enter waits until another session of the use Verify may be opened. The caller calls leave.
func (p *Pool) enter(ctx context.Context, server string) (leave func(), err error) {
	p.mu.Lock()
	slots := p.verify[server]
	if slots == nil {
		slots = make(chan struct{}, maxVerify)
		p.verify[server] = slots
	}
	p.mu.Unlock()
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a session with %s: %w", server, ctx.Err())
	}
}

// session returns a connected session and counts a user.
func (p *Pool) session(ctx context.Context, src mounter.ShareSource, login Login, use Use) (*session, error) {
	for {
		s, dial, err := p.acquire(src, login, use)
		if err != nil {
			return nil, err
		}
		if dial {
			p.connect(ctx, s, login)
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			p.giveBack(s)
			return nil, ctx.Err()
		}
		switch {
		case s.err == nil && (dial || p.works(ctx, s)):
			return s, nil
		case s.err == nil, !dial && isContext(s.err): // ended, or the call that dialed has ended
			p.giveBack(s)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		default:
			p.giveBack(s)
			return nil, connectError{fmt.Errorf("connect to //%s/%s: %w", s.key.address, s.key.share,
				convert(ctx, s.err))}
		}
	}
}

// connectError is the error of a session that could not be opened.
type connectError struct{ error }

func (e connectError) Unwrap() error { return e.error }

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// acquire returns a session and counts a user. dial reports that the session is new and that the
// caller has to connect it.
func (p *Pool) acquire(src mounter.ShareSource, login Login, use Use) (s *session, dial bool, err error) {
	port := src.Port
	if port == 0 {
		port = smbPort
	}
	k := key{address: net.JoinHostPort(src.Server, strconv.Itoa(port)), server: src.Server, share: src.Share,
		login: p.digester.digest(login), use: use}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, fmt.Errorf("%w: the driver is shutting down", backend.ErrUnavailable)
	}
	if use == Verify {
		p.numbers++
		k.number = p.numbers
	}
	s = p.sessions[k]
	if s == nil {
		s, dial = &session{key: k, ready: make(chan struct{})}, true
		p.sessions[k] = s
	}
	s.users++
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	return s, dial, nil
}

// giveBack ends a use of s. The last user of a dropped session closes it.
func (p *Pool) giveBack(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.users--
	s.used = time.Now()
	if s.users > 0 {
		return
	}
	if s.broken {
		go s.close()
		return
	}
	if s.key.use == Verify {
		p.drop(s)
		return
	}
	s.timer = time.AfterFunc(idleLimit, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.users == 0 {
			p.drop(s)
		}
	})
}

// drop removes s from the pool, and closes s unless it has users. The caller holds mu.
func (p *Pool) drop(s *session) {
	if p.sessions[s.key] == s {
		delete(p.sessions, s.key)
	}
	if s.broken {
		return
	}
	s.broken = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.users == 0 {
		go s.close()
	}
}

// usable reports whether s was not dropped.
func (p *Pool) usable(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !s.broken
}

// wire is a connection whose Write does not read its argument once Close has returned.
type wire struct {
	net.Conn
	signed bool // Write rejects messages without a signature

	mu       sync.Mutex // held by Write
	closed   bool
	rejected bool
	guards   map[*func() bool]bool // of the requests under a lease: Write asks them
}

// errNoLease is the error of a message that a lease no longer permits.
var errNoLease = fmt.Errorf("%w: another process may have the right to the request now", backend.ErrUnavailable)

// guard makes Write ask valid until the caller calls end. If the answer is false, Write ends the
// connection: the library may have other messages of the same request.
func (w *wire) guard(valid func() bool) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.guards == nil {
		w.guards = map[*func() bool]bool{}
	}
	w.guards[&valid] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.guards, &valid)
	}
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, net.ErrClosed
	}
	if w.signed && isUnsigned(p) {
		w.rejected = true
		return 0, errors.New("the session has no key for signatures")
	}
	for valid := range w.guards {
		if !(*valid)() {
			w.closed = true
			w.abort()
			return 0, errNoLease
		}
	}
	return w.Conn.Write(p)
}

// hasRejected reports whether Write has rejected a message.
func (w *wire) hasRejected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rejected
}

// isUnsigned reports whether p, which the library writes, is a message that needs a signature and
// has none. The messages before the end of the log in need none. An encrypted message has another
// header. [MS-SMB2] 2.2.1.2, 2.2.41.
func isUnsigned(p []byte) bool {
	const command, flags, signed, sessionSetup = 12, 16, 0x8, 1
	return len(p) >= 64 && string(p[:4]) == "\xfeSMB" && binary.LittleEndian.Uint16(p[command:]) > sessionSetup &&
		binary.LittleEndian.Uint32(p[flags:])&signed == 0
}

// Reset closes the connection at once: the kernel does not send the rest of its buffer, which could
// reach the server much later.
func (w *wire) Reset() {
	w.abort()
	w.Close()
}

func (w *wire) abort() {
	if tcp, ok := w.Conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) // without it, Close only takes longer
	}
	w.Conn.Close()
}

func (w *wire) Close() error {
	err := w.Conn.Close() // ends a Write that hangs
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return err
}

// until returns a context for requests of the library, which ends when s is severed: because ctx
// ends, or after limit. The caller calls stop when the requests have ended.
func (p *Pool) until(ctx context.Context, s *session, limit time.Duration) (requests context.Context, stop func()) {
	limited, cancel := context.WithTimeout(ctx, limit)
	requests, end := context.WithCancel(context.Background())
	unhook := context.AfterFunc(limited, func() {
		p.sever(s)
		end()
	})
	return severed{requests, limited}, func() {
		unhook()
		cancel()
		end()
	}
}

// severed is a context whose error is that of its cause.
type severed struct {
	context.Context
	cause context.Context
}

func (c severed) Err() error {
	if c.Context.Err() == nil {
		return nil
	}
	return c.cause.Err()
}

// fail drops a session that err, an error of the library, has broken, and closes its connection.
func (p *Pool) fail(s *session, err error) {
	if breaks(err) {
		p.sever(s)
	}
}

// sever drops a session and resets its connection.
func (p *Pool) sever(s *session) {
	s.failed.Store(true)
	s.conn.Reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(s)
}

// works verifies a session that was not in use for a while, and drops it if its server does not
// answer.
func (p *Pool) works(ctx context.Context, s *session) bool {
	p.mu.Lock()
	trusted := s.broken || s.users > 1 || time.Since(s.used) < trustLimit
	broken := s.broken
	p.mu.Unlock()
	if trusted {
		return !broken
	}
	requests, stop := p.until(ctx, s, echoLimit)
	defer stop()
	err := s.smb.WithContext(requests).Echo()
	if err != nil {
		p.sever(s)
	}
	return err == nil
}

// connect connects s, and drops it if that fails.
func (p *Pool) connect(caller context.Context, s *session, login Login) {
	defer close(s.ready)
	ctx, cancel := context.WithTimeout(caller, dialLimit)
	defer cancel()
	if s.err = p.dial(ctx, s, login); s.err == nil {
		s.share, s.err = s.smb.WithContext(ctx).Mount(s.key.share)
		if s.conn.hasRejected() {
			s.err = fmt.Errorf("%w: %w", errGuest, s.err)
		}
	}
	if s.err != nil {
		if caller.Err() != nil { // else the error of the closed connection, which other callers would get
			s.err = caller.Err()
		}
		p.mu.Lock()
		p.drop(s)
		p.mu.Unlock()
	}
}

// dialects are those of SMB 3, the newest first. The library would also accept older ones.
var dialects = []uint16{0x0311, 0x0302, 0x0300}

// dial connects and logs in with the newest dialect that the server supports.
func (p *Pool) dial(ctx context.Context, s *session, login Login) error {
	p.mu.Lock()
	known := p.dialects[s.key.address]
	p.mu.Unlock()
	var err error
	for _, dialect := range dialects {
		if known != 0 && dialect > known {
			continue
		}
		if err = s.logIn(ctx, login, dialect); !isStatus(err, statusNotSupported) {
			if err == nil {
				p.mu.Lock()
				p.dialects[s.key.address] = dialect
				p.mu.Unlock()
			}
			return err
		}
	}
	return fmt.Errorf("%w: the server does not support SMB 3: %w", backend.ErrPrecondition, err)
}

// maxCredits is the number of credits that a session asks for: a read, a write and a list need 16 of
// them, and the copies of the jobs have 32 files open. The library asks for 128 by itself.
const maxCredits = 1024

// logIn connects s and logs in with this dialect.
func (s *session) logIn(ctx context.Context, login Login, dialect uint16) error {
	initiator, end, err := login.initiator(ctx, s.key.server)
	if err != nil {
		return err
	}
	defer end()
	tcp, err := new(net.Dialer).DialContext(ctx, "tcp", s.key.address)
	if err != nil {
		return err
	}
	// A guest has no key for signatures. The library checks the first answer of the server only,
	// and neither signs nor verifies messages if the last answer makes the user a guest.
	conn := &wire{Conn: tcp, signed: !login.Guest}
	d := smb2.Dialer{Initiator: initiator, MaxCreditBalance: maxCredits}
	d.Negotiator.RequireMessageSigning, d.Negotiator.SpecifiedDialect = !login.Guest, dialect
	session, err := d.DialConn(ctx, conn, s.key.server)
	if err == nil && d.Negotiator.SpecifiedDialect != dialect { // the library accepts the offer of SMB 2.1
		err = fmt.Errorf("%w: the server offers a dialect before SMB 3", backend.ErrPrecondition)
	}
	if err != nil {
		conn.Close()
		return login.convert(err)
	}
	s.conn, s.smb = conn, session
	return nil
}

// close logs off and closes the connection.
func (s *session) close() {
	if s.conn == nil {
		return
	}
	if s.share != nil && !s.failed.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), echoLimit)
		defer cancel()
		s.smb.WithContext(ctx).Logoff() // the end of the connection logs off, too
	}
	s.conn.Close()
}

// stopper is an initiator that ends a connection after the negotiation, before any credential is
// sent.
type stopper struct {
	smb2.NTLMInitiator
	negotiated bool
}

func (s *stopper) InitSecContext() ([]byte, error) {
	s.negotiated = true
	return nil, errors.New("no log in")
}

// Answers returns nil if the server of src negotiates a connection within ctx. It sends no
// credentials. A connection alone proves nothing: the kernel of a server accepts it while the
// server hangs. Errors: backend.ErrUnavailable and those of ctx.
func Answers(ctx context.Context, src mounter.ShareSource) error {
	port := src.Port
	if port == 0 {
		port = smbPort
	}
	address := net.JoinHostPort(src.Server, strconv.Itoa(port))
	var s stopper
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		defer conn.Close()
		_, err = (&smb2.Dialer{Initiator: &s}).DialConn(ctx, conn, src.Server)
	}
	var response *smb2.ResponseError
	switch {
	case s.negotiated, errors.As(err, &response):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %s: the server does not answer: %w", backend.ErrUnavailable, address, ctx.Err())
	}
	return fmt.Errorf("%w: %s: %w", backend.ErrUnavailable, address, err)
}
