package peertls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/causeway-csi/causeway/internal/connlimit"
	"github.com/causeway-csi/causeway/internal/guard"
)

// server is what Identity.Server returns.
type server struct {
	protocol
	id      *Identity
	client  string
	refused *refusals
}

// Limits of the connections of Limit's listener. A handshake of a client that the node does not know
// yet takes a place of its own kind: anyone can begin one and send nothing more. Clients that have
// authenticated before have places that others cannot take, so a router that reconnects does not
// compete with strangers. Routers have one connection each, and a second one while they renew it.
const (
	maxConns      = 256 // of all kinds
	knownShare    = 8   // an eighth of them for handshakes of known sources
	admittedShare = 4   // a quarter for clients that have authenticated
)

// Limit returns a listener for the connections of l whose number is bounded. Identity.Server admits
// those that authenticate. Handshakes that take too many places are dropped for newer ones, by the
// rules of package connlimit.
func Limit(l net.Listener) *connlimit.Listener {
	total := connlimit.Share(maxConns)
	limits := connlimit.Limits{Known: total / knownShare, Admitted: total / admittedShare}
	limits.Waiting = total - limits.Known - limits.Admitted
	return connlimit.New(l, limits)
}

func (s *server) Clone() credentials.TransportCredentials {
	c := *s
	return &c
}

func (s *server) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

// ServerHandshake runs in a goroutine of gRPC, which catches no panic. It returns io.EOF, and
// reports nothing, where the client closes the connection before it has sent anything, as the probe
// of a load balancer does. gRPC bounds the time of a handshake: grpc.ConnectionTimeout.
func (s *server) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, err := guard.Value(func() (connection, error) { return s.admit(raw) })
	switch {
	case err == io.EOF:
	case err != nil:
		err = fmt.Errorf("client %s was refused: %w", raw.RemoteAddr(), err)
		s.refused.add(err)
	default:
		s.refused.catchUp()
	}
	return c.conn, c.info, err
}

// connection is the result of a handshake.
type connection struct {
	conn net.Conn
	info credentials.AuthInfo
}

// admit completes the handshake with a client.
func (s *server) admit(raw net.Conn) (c connection, err error) {
	h := handshake{raw: raw}
	conn, info, err := credentials.NewTLS(s.config(&h)).ServerHandshake(raw)
	if err == io.EOF {
		return c, err
	}
	switch {
	case connlimit.WasDropped(raw):
		err = fmt.Errorf("%w: all places for handshakes are taken, and no address has more of them than this client's", connlimit.ErrDropped)
	case err != nil:
		err = h.why(err)
	default:
		err = connlimit.Admit(raw)
	}
	if err != nil {
		return c, err
	}
	mine, err := own(info)
	return connection{conn, mine}, err
}

// handshake is one with a client, as far as it got.
type handshake struct {
	raw      net.Conn
	ours     *pair    // with which this side answers; nil before the client's first message
	versions []uint16 // of TLS that the client speaks
}

// config returns the configuration of one handshake. It reads our certificate when the client's first
// message has come: the files may have changed, and a client that sends nothing must cost little.
func (s *server) config(h *handshake) *tls.Config {
	first := base()
	first.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		connlimit.Advance(h.raw)
		h.ours, h.versions = s.id.current(), hello.SupportedVersions
		return s.demand(h.ours), nil
	}
	return first
}

// demand returns what the server demands of a client. It allows no session tickets, so that no client
// that a changed ca.crt excludes gets in by an earlier session.
func (s *server) demand(ours *pair) *tls.Config {
	c := base()
	c.NextProtos = []string{"h2"} // of gRPC
	c.Certificates = []tls.Certificate{ours.certificate}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, ours.roots
	c.SessionTicketsDisabled = true
	// crypto/tls has verified the chain by now: its alerts tell the client more than ours could.
	c.VerifyConnection = func(state tls.ConnectionState) error {
		leaf := state.PeerCertificates[0]
		if err := checkUsage(leaf, x509.ExtKeyUsageClientAuth); err != nil {
			return err
		}
		return checkName(leaf, s.client)
	}
	return c
}

// why returns why the handshake failed.
func (h *handshake) why(err error) error {
	var bad *tls.CertificateVerificationError
	switch {
	case errors.As(err, &bad):
		return h.ours.explain(bad.UnverifiedCertificates[0], bad.Err, x509.ExtKeyUsageClientAuth, time.Now())
	case isAlert(err) && h.ours != nil:
		return fmt.Errorf("it refused us: %w (%s)", err, h.ours.describeOurs())
	case len(h.versions) > 0 && !slices.Contains(h.versions, tls.VersionTLS13):
		return fmt.Errorf("it doesn't speak TLS 1.3, and nothing older is spoken here: %w", err)
	}
	return why(err)
}

// maxReports is how many refused handshakes are reported in a second: a port scan mustn't flood the log.
const maxReports = 3

// refusals reports refused handshakes, not too many.
type refusals struct {
	report func(error)
	now    func() time.Time

	mu           sync.Mutex
	since        time.Time // when the second began
	told, missed int       // in this second
}

// add reports err, or counts it.
func (r *refusals) add(err error) {
	r.mu.Lock()
	missed := r.next()
	tell := r.told < maxReports
	if tell {
		r.told++
	} else {
		r.missed++
	}
	r.mu.Unlock()
	r.tellMissed(missed)
	if tell {
		r.report(err)
	}
}

// catchUp says how many weren't reported, if the second in which that was is over.
func (r *refusals) catchUp() {
	r.mu.Lock()
	missed := r.next()
	r.mu.Unlock()
	r.tellMissed(missed)
}

// next begins a new second if it is time to, and returns how many weren't reported in the last.
func (r *refusals) next() (missed int) {
	now := r.now()
	if passed := now.Sub(r.since); passed >= 0 && passed < time.Second {
		return 0
	}
	missed = r.missed
	r.since, r.told, r.missed = now, 0, 0
	return missed
}

func (r *refusals) tellMissed(missed int) {
	if missed > 0 {
		r.report(fmt.Errorf("%d more clients were refused and not reported, as only %d a second are", missed, maxReports))
	}
}
