package peertls

import (
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/causeway-csi/causeway/internal/connlimit"
)

const (
	router = "causeway-router"
	node   = "node-a"

	forServers = x509.ExtKeyUsageServerAuth
	forClients = x509.ExtKeyUsageClientAuth
)

// longest ends a test that hangs. Nothing is decided by it.
const longest = time.Minute

// newTestCA makes a CA with a name.
func newTestCA(t *testing.T, name string, edit ...func(*x509.Certificate)) *authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	for _, e := range edit {
		e(template)
	}
	cert, key, err := issue(template, nil)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := readCA(cert, key)
	if err != nil {
		// An expired certificate, which a test needs.
		p, err := parse(content{cert, cert, key})
		if err != nil {
			t.Fatal(err)
		}
		return &authority{bundle: cert, cert: p.cas[0], key: p.certificate.PrivateKey.(crypto.Signer)}
	}
	return ca
}

// leaf makes a certificate with its key, valid for a day unless it is edited.
func (ca *authority) leaf(t *testing.T, name string, usage x509.ExtKeyUsage, edit ...func(*x509.Certificate)) content {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	for _, e := range edit {
		e(template)
	}
	cert, key, err := issue(template, ca)
	if err != nil {
		t.Fatal(err)
	}
	return content{ca.bundle, cert, key}
}

func hasExpired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }
func isEarly(c *x509.Certificate)    { c.NotBefore = time.Now().Add(time.Hour) }
func saysNoUse(c *x509.Certificate)  { c.ExtKeyUsage = nil }

// put writes the files of an identity to dir, in their order.
func (c content) put(t *testing.T, dir string) {
	t.Helper()
	for i, name := range names() {
		if err := os.WriteFile(filepath.Join(dir, name), c[i], 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// dir writes the files to a new directory.
func (c content) dir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	c.put(t, dir)
	return dir
}

// reports collects the reports.
type reports struct {
	mu    sync.Mutex
	lines []string
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, err.Error())
}

// takeLines returns the reports since the last call.
func (r *reports) takeLines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

// open opens an identity whose reports are collected.
func open(t *testing.T, dir string) (*Identity, *reports) {
	t.Helper()
	r := &reports{}
	id, err := Open(dir, r.add)
	if err != nil {
		t.Fatal(err)
	}
	return id, r
}

// identity opens an identity with these files, and fails if anything is reported.
func identity(t *testing.T, c content) *Identity {
	t.Helper()
	id, err := Open(c.dir(t), func(err error) { t.Errorf("reported: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// everySecond makes a server's clock advance by a second at each look, so that nothing is kept
// back.
func everySecond(creds credentials.TransportCredentials) credentials.TransportCredentials {
	var looks atomic.Int64
	creds.(*server).refused.now = func() time.Time { return time.Unix(looks.Add(1), 0) }
	return creds
}

// running is a gRPC server with the health service.
type running struct {
	addr     string
	listener *connlimit.Listener
	server   *grpc.Server

	mu    sync.Mutex
	peers [][]string // the Names of each caller
}

func serve(t *testing.T, options ...grpc.ServerOption) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveAt(t, Limit(l), options...)
}

// serveAt is serve at a listener whose limits a test chooses.
func serveAt(t *testing.T, l *connlimit.Listener, options ...grpc.ServerOption) *running {
	t.Helper()
	r := &running{addr: l.Addr().String(), listener: l}
	r.server = grpc.NewServer(append(options, grpc.UnaryInterceptor(r.note))...)
	grpc_health_v1.RegisterHealthServer(r.server, health.NewServer())
	go r.server.Serve(l)
	t.Cleanup(r.server.Stop)
	return r
}

func (r *running) note(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	p, _ := peer.FromContext(ctx)
	r.mu.Lock()
	r.peers = append(r.peers, Names(p.AuthInfo))
	r.mu.Unlock()
	return next(ctx, req)
}

// stop returns when all handshakes have ended and been reported.
func (r *running) stop() { r.server.Stop() }

// call makes a connection and a call, and returns who answered.
func (r *running) call(creds credentials.TransportCredentials) (names []string, err error) {
	conn, err := grpc.NewClient("passthrough:///"+r.addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	var p peer.Peer
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&p))
	return Names(p.AuthInfo), err
}

// says fails the test unless text has all the words.
func says(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: %q is not in %q", what, w, text)
		}
	}
}

// errorSays is says for an error, which must be there.
func errorSays(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, words)
		return
	}
	says(t, what, err.Error(), words...)
}

// oneSays is says for a single report.
func oneSays(t *testing.T, what string, lines []string, words ...string) {
	t.Helper()
	if len(lines) != 1 {
		t.Errorf("%s: reported %d times, want once: %q", what, len(lines), lines)
		return
	}
	says(t, what, lines[0], words...)
}

// encode returns PEM.
func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
