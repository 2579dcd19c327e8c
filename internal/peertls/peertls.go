// Package peertls is how the router and the drivers on nodes know each other: mutual TLS 1.3, with certificates in
// files that may change while the process runs.
//
// The router is a client with one name that every node knows; it may do anything. A node is a server whose name the
// router compares with who the node says it is. No certificate serves as both: a key that is stolen from a node opens
// no other node. docs/certificates.md tells operators about it.
package peertls

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/causeway-csi/causeway/internal/guard"
)

// Identity is who this process is, and whose certificates it believes. It is safe for concurrent use.
type Identity struct {
	dir    string
	report func(error)

	mu      sync.Mutex
	seen    stamps // of the files when they were last read
	settled bool   // if the files are as seen, they are what was read
	sum     digest // of what was last read, good or not
	ours    *pair  // the last good one
}

// Open reads ca.crt, tls.crt and tls.key in dir, the keys of a Kubernetes TLS secret as cert-manager writes it. ca.crt
// may hold several CAs, tls.crt intermediate ones. It fails if one is missing, damaged or doesn't go with the others.
//
// A certificate of our own that peers will refuse, as it has expired or isn't valid yet, is reported and used all the same:
// it may be replaced at any moment, a clock may be set, and a driver that doesn't start can't even unmount. It may be of
// another CA than those in ca.crt, which are for peers. The files are looked at again at every handshake and read again
// when they have changed. Where they then can't be used, that is reported once and the old ones stay in use. report may be
// called by several goroutines at a time.
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

// current returns what to use for a handshake that begins now.
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
		id.report(fmt.Errorf("certificates in %s have changed and can't be used, the old ones stay in use: %w", id.dir, err))
	}
	if note != nil {
		id.report(fmt.Errorf("certificates in %s: %w", id.dir, note))
	}
	return ours
}

// refresh reads the files if they have changed since they were last read. The error says why they can't be used, the note
// what will be wrong if they are. Each is returned once for what was read.
func (id *Identity) refresh() (note, err error) {
	if id.settled && id.seen.same(stat(id.dir)) {
		return nil, nil
	}
	now := time.Now()
	content, seen, err := read(id.dir)
	if errors.Is(err, errChanging) && id.ours != nil {
		return nil, nil // the next handshake may find them whole
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

// Server returns what a server shows and demands: TLS 1.3 with a certificate for clients that one of our CAs has signed
// and that has client among its DNS names. Case doesn't matter, wildcards and the common name don't count. A handshake
// that is refused is reported with its reason, up to maxReports a second. Limit bounds the connections.
func (id *Identity) Server(client string) credentials.TransportCredentials {
	return &server{id: id, client: client, refused: &refusals{report: id.report, now: time.Now}}
}

// Client returns what a client shows and demands: TLS 1.3 with a certificate for servers that one of our CAs has signed
// and that has server among its DNS names; any name will do if server is "", and Names then tells which it was.
//
// In TLS 1.3 a server may refuse a client's certificate when the handshake is over for the client. The first read of the
// connection then says so, and with gRPC so does the call that the connection was made for.
func (id *Identity) Client(server string) credentials.TransportCredentials {
	return &client{id: id, server: server}
}

// Until returns when our own certificate expires, as the files are now.
func (id *Identity) Until() time.Time { return id.current().certificate.Leaf.NotAfter }

// Names returns the DNS names in the certificate of the peer at the other end of a connection: nil unless Server or
// Client made it.
func Names(info credentials.AuthInfo) []string {
	ours, ok := info.(authInfo)
	if !ok || len(ours.State.PeerCertificates) == 0 {
		return nil
	}
	return slices.Clone(ours.State.PeerCertificates[0].DNSNames)
}

// authInfo is that of a connection which this package made: a type of its own, so that no other can be taken for it.
type authInfo struct{ credentials.TLSInfo }

// own makes info ours.
func own(info credentials.AuthInfo) (authInfo, error) {
	t, ok := info.(credentials.TLSInfo)
	if !ok {
		return authInfo{}, fmt.Errorf("a TLS connection has %T", info)
	}
	return authInfo{t}, nil
}

// protocol is what both sides tell gRPC about themselves.
type protocol struct{}

// Info is for gRPC.
func (protocol) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// OverrideServerName is for gRPC's tests. The name of a peer is given to Server or Client.
func (protocol) OverrideServerName(string) error { return errors.ErrUnsupported }

// base is what both sides have in common. credentials.NewTLS adds h2, without which gRPC makes no connection.
func base() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13} }
