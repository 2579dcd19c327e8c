// Package peertls authenticates the router and the drivers on nodes: mutual TLS 1.3, with
// certificates in files that may change while the process runs.
//
// The router is a client with a name that every node knows; it may call everything. A node is a
// server, and the router compares its name with the reported node ID. No certificate serves as
// both, so a key from one node does not open other nodes. docs/how-to/certificates.md is for
// operators.
package peertls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/causeway-csi/causeway/internal/guard"
)

// Identity is the certificate of this process and the CAs that it accepts. It is safe for
// concurrent use.
type Identity struct {
	dir    string
	report func(error)

	mu      sync.Mutex
	seen    stamps // of the files when they were last read
	settled bool   // equal stamps prove equal content
	sum     digest // of the content that was last read, valid or not
	ours    *pair  // the last valid pair
}

// Open reads ca.crt, tls.crt and tls.key in dir, the keys of a TLS Secret of Kubernetes as
// cert-manager writes it. ca.crt may have several CAs, and tls.crt intermediate CAs. A missing or
// damaged file, or a key of another certificate, is an error.
//
// A certificate that has expired or is not valid yet is reported and used: it may be replaced at
// any moment, the clock may be set, and a driver that does not start cannot unmount. Its CA need
// not be in ca.crt, which is for peers. Each handshake checks the files and reads changed ones.
// Invalid new files are reported once, and the old ones stay in use. report may be called by
// several goroutines at the same time.
func Open(dir string, report func(error)) (*Identity, error) {
	id := &Identity{dir: dir, report: report}
	note, err := id.refresh()
	if err != nil {
		return nil, fmt.Errorf("certificates in %s: %w", dir, err)
	}
	if note != nil {
		report(fmt.Errorf("certificates in %s: %w", dir, note))
	}
	return id, nil
}

// current returns the pair for a handshake that begins now.
func (id *Identity) current() *pair {
	var note error
	var ours *pair
	err := guard.Do(func() (err error) {
		id.mu.Lock()
		defer id.mu.Unlock()
		ours = id.ours // stays if the new files make refresh panic
		note, err = id.refresh()
		ours = id.ours
		return err
	})
	if err != nil {
		id.report(fmt.Errorf("certificates in %s have changed and cannot be used, the old ones stay in use: %w", id.dir,
			err))
	}
	if note != nil {
		id.report(fmt.Errorf("certificates in %s: %w", id.dir, note))
	}
	return ours
}

// refresh reads the files if they have changed. The error is the reason why they cannot be used,
// the note a warning if they are. Each is returned once for the same content.
func (id *Identity) refresh() (note, err error) {
	if id.settled && id.seen.same(stat(id.dir)) {
		return nil, nil
	}
	now := time.Now()
	content, seen, err := read(id.dir)
	if errors.Is(err, errChanging) && id.ours != nil {
		return nil, nil // the next handshake may find complete files
	}
	id.seen, id.settled = seen, err == nil && seen.before(now.Add(-settleTime))
	sum := content.sum(err)
	if sum == id.sum {
		return nil, nil
	}
	id.sum = sum
	if err != nil {
		return nil, err
	}
	ours, err := parse(content)
	if err != nil {
		return nil, err
	}
	id.ours = ours
	return ours.checkOurs(now), nil
}

// Server returns credentials of a server: TLS 1.3 with a client certificate that an accepted CA has
// signed and that has client among its DNS names. Case does not matter; wildcards and the common
// name do not count. A rejected handshake is reported with its reason, up to maxReports a second.
// Limit bounds the connections.
func (id *Identity) Server(client string) credentials.TransportCredentials {
	return &server{id: id, client: client, refused: &refusals{report: id.report, now: time.Now}}
}

// Client returns credentials of a client: TLS 1.3 with a server certificate that an accepted CA has
// signed and that has server among its DNS names. If server is "", every name is accepted, and
// Names returns the names.
//
// In TLS 1.3 a server may reject the certificate of a client after the client's end of the
// handshake. The first Read of the connection then returns the reason, and with gRPC the call that
// made the connection.
func (id *Identity) Client(server string) credentials.TransportCredentials {
	return &client{id: id, server: server}
}

// Until returns the end of the validity of the present certificate.
func (id *Identity) Until() time.Time { return id.current().certificate.Leaf.NotAfter }

// Names returns the DNS names in the certificate of the peer on a connection. Names returns nil for
// a connection that neither Server nor Client made.
func Names(info credentials.AuthInfo) []string {
	ours, ok := info.(authInfo)
	if !ok || len(ours.State.PeerCertificates) == 0 {
		return nil
	}
	return slices.Clone(ours.State.PeerCertificates[0].DNSNames)
}

// Certificate returns the certificate of the peer on a connection, or nil where Names returns nil.
func Certificate(info credentials.AuthInfo) *x509.Certificate {
	ours, ok := info.(authInfo)
	if !ok || len(ours.State.PeerCertificates) == 0 {
		return nil
	}
	return ours.State.PeerCertificates[0]
}

// ServerConfig returns the requirements of Server for connections of another protocol than gRPC, by
// its name in ALPN, such as http/1.1. Rejected handshakes are not reported.
func (id *Identity) ServerConfig(client, protocol string) *tls.Config {
	c := base()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		demanded := (&server{id: id, client: client}).demand(id.current())
		demanded.NextProtos = []string{protocol}
		return demanded, nil
	}
	return c
}

// ClientConfig returns the requirements of Client for a connection of another protocol than gRPC,
// by its name in ALPN. It has the certificate at the time of the call.
func (id *Identity) ClientConfig(server, protocol string) *tls.Config {
	c := (&client{id: id, server: server}).config(id.current())
	c.NextProtos = []string{protocol}
	return c
}

// authInfo is the AuthInfo of a connection of this package. No other package has the type.
type authInfo struct{ credentials.TLSInfo }

// own returns info as an authInfo.
func own(info credentials.AuthInfo) (authInfo, error) {
	t, ok := info.(credentials.TLSInfo)
	if !ok {
		return authInfo{}, fmt.Errorf("a TLS connection has %T", info)
	}
	return authInfo{t}, nil
}

// protocol has the methods of credentials.TransportCredentials that both sides share.
type protocol struct{}

// Info implements credentials.TransportCredentials.
func (protocol) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// OverrideServerName implements credentials.TransportCredentials. Server and Client get the name of
// the peer instead.
func (protocol) OverrideServerName(string) error { return errors.ErrUnsupported }

// base is the configuration that both sides share. credentials.NewTLS adds h2, without which gRPC
// makes no connection.
func base() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13} }
