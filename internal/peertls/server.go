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

// server is the result of Identity.Server.
type server struct {
	protocol
	id      *Identity
	client  string
	refused *refusals
}

// Limits of the connections of Limit's listener. Handshakes of unknown clients have a limit of
// their own: any client can begin a handshake and send nothing more. Sources of authenticated
// clients have connections that others cannot take, so a router that reconnects does not compete
// with unknown clients. A router has a single connection, and a second one while it renews it.
const (
	maxConns      = 256 // of all kinds
	knownShare    = 8   // an eighth of them for handshakes of known sources
	admittedShare = 4   // a quarter for clients that have authenticated
)

// Limit returns a listener that bounds the number of connections of l. Identity.Server admits
// authenticated connections. Above the limit, handshakes are dropped for newer ones, by the rules
// of package connlimit.
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

// ServerHandshake runs in a goroutine of gRPC, which recovers no panic. ServerHandshake returns
// io.EOF and reports nothing if the client closes the connection before it has sent data, as the
// probe of a load balancer does. gRPC bounds the time of a handshake: grpc.ConnectionTimeout.
func (s *server) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, err := guard.Value(func() (connection, error) { return s.admit(raw) })
	switch {
	case errors.Is(err, io.EOF):
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
	if errors.Is(err, io.EOF) {
		return c, err
	}
	switch {
	case connlimit.WasDropped(raw):
		err = fmt.Errorf("%w: too many handshakes are in progress, and no address has more of them than this client's",
			connlimit.ErrDropped)
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

// handshake is the state of a handshake with a client.
type handshake struct {
	raw      net.Conn
	ours     *pair    // of this side; nil before the first message of the client
	versions []uint16 // TLS versions of the client
}

// config returns the configuration of a handshake. The certificate is read after the first message
// of the client: the files may have changed, and a client that sends nothing must cost little.
func (s *server) config(h *handshake) *tls.Config {
	first := base()
	first.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		connlimit.Advance(h.raw)
		h.ours, h.versions = s.id.current(), hello.SupportedVersions
		return s.demand(h.ours), nil
	}
	return first
}

// demand returns the requirements for a client. It permits no session tickets: a client that a
// changed ca.crt excludes must not resume an earlier session.
func (s *server) demand(ours *pair) *tls.Config {
	c := base()
	c.NextProtos = []string{"h2"} // of gRPC
	c.Certificates = []tls.Certificate{ours.certificate}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, ours.roots
	c.SessionTicketsDisabled = true
	// crypto/tls has verified the chain before: its alerts give the client more detail.
	c.VerifyConnection = func(state tls.ConnectionState) error {
		leaf := state.PeerCertificates[0]
		if err := checkUsage(leaf, x509.ExtKeyUsageClientAuth); err != nil {
			return err
		}
		return checkName(leaf, s.client)
	}
	return c
}

// why returns the cause of a failed handshake.
func (h *handshake) why(err error) error {
	var bad *tls.CertificateVerificationError
	switch {
	case errors.As(err, &bad):
		return h.ours.explain(bad.UnverifiedCertificates[0], bad.Err, x509.ExtKeyUsageClientAuth, time.Now())
	case isAlert(err) && h.ours != nil:
		return fmt.Errorf("it refused us: %w (%s)", err, h.ours.describeOurs())
	case len(h.versions) > 0 && !slices.Contains(h.versions, tls.VersionTLS13):
		return fmt.Errorf("it does not speak TLS 1.3, and nothing older is spoken here: %w", err)
	}
	return why(err)
}

// maxReports is the largest number of reports a second: a port scan must not flood the log.
const maxReports = 3

// refusals reports rejected handshakes, up to maxReports a second.
type refusals struct {
	report func(error)
	now    func() time.Time

	mu           sync.Mutex
	since        time.Time // when the second began
	told, missed int       // reported and not reported in this second
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

// catchUp reports the number of missed reports when their second has ended.
func (r *refusals) catchUp() {
	r.mu.Lock()
	missed := r.next()
	r.mu.Unlock()
	r.tellMissed(missed)
}

// next begins a new second if the last has ended, and returns its number of missed reports.
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
		r.report(fmt.Errorf("%d more clients were refused and not reported, as only %d a second are", missed,
			maxReports))
	}
}
