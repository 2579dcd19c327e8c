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

	"github.com/causeway-csi/causeway/internal/guard"
)

// server is what Identity.Server returns.
type server struct {
	protocol
	id      *Identity
	client  string
	refused *refusals
	places  chan struct{} // held by handshakes
}

// maxHandshakes is how many clients may be at the handshake at the same time. Anybody can begin one, say nothing more, and
// so hold a file and memory that the rest of the process needs; whoever is in already keeps its connection.
const maxHandshakes = 64

func (s *server) Clone() credentials.TransportCredentials {
	c := *s
	return &c
}

func (s *server) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

// ServerHandshake runs in a goroutine of gRPC, which catches no panic. It returns io.EOF, and
// reports nothing, where the client went away without a word, as the probe of a load balancer does.
// gRPC bounds the time: grpc.ConnectionTimeout.
func (s *server) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		err := fmt.Errorf("client %s was refused: %d others are at the handshake", raw.RemoteAddr(), maxHandshakes)
		s.refused.add(err)
		return nil, nil, err
	}
	c, err := guard.Value(func() (connection, error) { return s.handshake(raw) })
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

func (s *server) handshake(raw net.Conn) (c connection, err error) {
	ours := s.id.current()
	var versions []uint16
	conn, info, err := credentials.NewTLS(s.config(ours, &versions)).ServerHandshake(raw)
	if err == io.EOF {
		return c, err
	}
	if err != nil {
		return c, s.why(ours, err, versions)
	}
	mine, err := own(info)
	return connection{conn, mine}, err
}

// config is made anew for each handshake, and without tickets: so no client that a changed ca.crt excludes gets in on a
// session of before. The versions that the client speaks are put where versions points.
func (s *server) config(ours *pair, versions *[]uint16) *tls.Config {
	c := base()
	c.Certificates = []tls.Certificate{ours.certificate}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, ours.roots
	c.SessionTicketsDisabled = true
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		*versions = hello.SupportedVersions
		return nil, nil
	}
	// The chain has been verified by now; crypto/tls does it, as its alerts tell the client more than ours could.
	c.VerifyConnection = func(state tls.ConnectionState) error {
		leaf := state.PeerCertificates[0]
		if err := checkUsage(leaf, x509.ExtKeyUsageClientAuth); err != nil {
			return err
		}
		return checkName(leaf, s.client)
	}
	return c
}

// why says why a handshake failed with a client that speaks these versions.
func (s *server) why(ours *pair, err error, versions []uint16) error {
	var bad *tls.CertificateVerificationError
	switch {
	case errors.As(err, &bad):
		return ours.explain(bad.UnverifiedCertificates[0], bad.Err, x509.ExtKeyUsageClientAuth, time.Now())
	case isAlert(err):
		return fmt.Errorf("it refused us: %w (%s)", err, ours.describeOurs())
	case len(versions) > 0 && !slices.Contains(versions, tls.VersionTLS13):
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
