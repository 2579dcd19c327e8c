package peertls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/causeway-csi/causeway/internal/guard"
)

// client is the result of Identity.Client.
type client struct {
	protocol
	id     *Identity
	server string
}

func (c *client) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}

func (c *client) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

// ClientHandshake runs in a goroutine of gRPC, which catches no panic.
func (c *client) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	made, err := guard.Value(func() (connection, error) { return c.handshake(ctx, authority, raw) })
	return made.conn, made.info, err
}

func (c *client) handshake(ctx context.Context, authority string, raw net.Conn) (connection, error) {
	ours := c.id.current()
	conn, info, err := credentials.NewTLS(c.config(ours)).ClientHandshake(ctx, authority, raw)
	if isAlert(err) {
		err = fmt.Errorf("it refused us: %w (only TLS 1.3 is spoken here)", err)
	}
	if err != nil {
		return connection{}, fmt.Errorf("server %s: %w", raw.RemoteAddr(), why(err))
	}
	mine, err := own(info)
	return connection{&firstRead{Conn: conn, ours: ours}, mine}, err
}

// config verifies the server in VerifyConnection instead of crypto/tls, which requires a host name
// and matches wildcards. Here every name may be accepted, and names are compared as they are.
func (c *client) config(ours *pair) *tls.Config {
	config := base()
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if err := ours.check(state.PeerCertificates, x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
			return err
		}
		leaf := state.PeerCertificates[0]
		switch {
		case c.server != "":
			return checkName(leaf, c.server)
		case len(leaf.DNSNames) == 0:
			return fmt.Errorf("wrong name: the certificate is that of %s and could be anyone's", describe(leaf))
		}
		return nil
	}
	// The client sends its certificate even if the server names other CAs. crypto/tls would send
	// none, and the error of the server would be a missing certificate instead of an unknown CA.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &ours.certificate, nil
	}
	return config
}

// drainTime is the time in which the reason is read from a connection whose Write failed.
const drainTime = time.Second

// firstRead is a connection on which the server may still reject the client's certificate, until
// the first bytes from the server.
type firstRead struct {
	net.Conn
	ours  *pair
	heard atomic.Bool // the server has sent data, so it has accepted the certificate
}

func (c *firstRead) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, c.explain(err)
}

// Write reads the reason of its error: a server that rejects the certificate also closes the
// connection, and either event can be seen first.
func (c *firstRead) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err == nil || c.heard.Load() {
		return n, err
	}
	// The connection is lost after a failed Write, so its data are dropped.
	c.Conn.SetReadDeadline(time.Now().Add(drainTime))
	if _, alert := c.Conn.Read(make([]byte, 1)); isAlert(alert) {
		err = alert
	}
	return n, c.explain(err)
}

// explain adds to err that the server rejected the certificate, if err is an alert.
func (c *firstRead) explain(err error) error {
	if !isAlert(err) || c.heard.Load() {
		return err
	}
	return fmt.Errorf("server %s refused our certificate: %w (%s; the log of the server has the reason)",
		c.RemoteAddr(), err,
		c.ours.describeOurs())
}
