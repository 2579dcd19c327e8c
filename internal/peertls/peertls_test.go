package peertls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/connlimit"
	"github.com/causeway-csi/causeway/internal/guard"
)

func TestBothSidesKnowEachOther(t *testing.T) {
	ca := newTestCA(t, "test CA")
	s := serve(t, grpc.Creds(identity(t, ca.leaf(t, node, forServers)).Server("Causeway-Router")))
	client := identity(t, ca.leaf(t, router, forClients))
	for _, name := range []string{"", node, "NODE-A"} {
		names, err := s.call(client.Client(name))
		if err != nil || !slices.Equal(names, []string{node}) {
			t.Errorf("Client(%q): %q answered, %v", name, names, err)
		}
	}
	s.stop()
	for _, names := range s.peers {
		if !slices.Equal(names, []string{router}) {
			t.Errorf("%q called", names)
		}
	}
	if len(s.peers) != 3 {
		t.Errorf("%d calls came", len(s.peers))
	}
}

// gRPC calls both handshakes in goroutines of its own, in which a panic would end the process.
func TestAPanicInAHandshakeIsAnError(t *testing.T) {
	raw, other := net.Pipe()
	defer other.Close()
	// the server looks at its identity when this begins
	go tls.Client(other, &tls.Config{InsecureSkipVerify: true}).Handshake()
	var reported []error
	s := &server{refused: &refusals{report: func(err error) { reported = append(reported, err) }, now: time.Now}}
	_, _, serverErr := s.ServerHandshake(raw)
	_, _, clientErr := (&client{}).ClientHandshake(t.Context(), "", raw)
	for side, err := range map[string]error{"server": serverErr, "client": clientErr} {
		if p := (*guard.Panic)(nil); !errors.As(err, &p) {
			t.Errorf("the %s's handshake without an identity = %v, want a panic", side, err)
		}
	}
	if len(reported) != 1 {
		t.Errorf("%v is reported, want the server's error", reported)
	}
}

func TestNamesOfStrangersAreNone(t *testing.T) {
	leaf := &x509.Certificate{DNSNames: []string{node}}
	for what, info := range map[string]credentials.AuthInfo{
		"no TLS at all":  nil,
		"another's TLS":  credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}},
		"no certificate": authInfo{},
	} {
		if names := Names(info); names != nil {
			t.Errorf("%s: %q", what, names)
		}
	}
}

// refused is a client that a server refuses.
type refused struct {
	shows content                          // the client's certificate
	dials credentials.TransportCredentials // if it is not a certificate of this CA
	seen  []string                         // words of the client's error
	told  []string                         // words of the server's report
}

func TestRefusedClients(t *testing.T) {
	ca, other := newTestCA(t, "test CA"), newTestCA(t, "another CA")
	old := newTestCA(t, "test CA") // with another key
	trusting := func(c content) content { c[0] = ca.bundle; return c }
	for what, tc := range map[string]refused{
		"another CA's": {
			shows: trusting(other.leaf(t, router, forClients)),
			seen: []string{"refused our certificate", "unknown certificate authority", "causeway-router",
				"'CN=another CA'"},
			told: []string{"wrong CA", "causeway-router", "issued by 'CN=another CA'", "'CN=test CA'"},
		},
		"another CA's of the same name": {
			shows: trusting(old.leaf(t, router, forClients)),
			seen:  []string{"unknown certificate authority"},
			told:  []string{"wrong CA", "a CA of that name with another key"},
		},
		"another name's": {
			shows: ca.leaf(t, "somebody", forClients),
			seen:  []string{"refused our certificate", "bad certificate", "somebody", "the log of the server has the reason"},
			told:  []string{"wrong name", "that of somebody", "not of causeway-router"},
		},
		"one with a wildcard": {
			shows: ca.leaf(t, "*", forClients,
				func(c *x509.Certificate) { c.DNSNames = []string{"*", "*.x", "causeway-*"} }),
			seen: []string{"bad certificate"},
			told: []string{"wrong name", "'*'"},
		},
		"one that has the name as common name only": {
			shows: ca.leaf(t, "", forClients,
				func(c *x509.Certificate) { c.DNSNames, c.Subject = nil, pkix.Name{CommonName: router} }),
			seen: []string{"bad certificate"},
			told: []string{"wrong name", "'CN=causeway-router' (it has no DNS name)"},
		},
		// Rule 25: a key that is stolen from a node opens no other node.
		"a node's": {
			shows: ca.leaf(t, node, forServers),
			seen:  []string{"refused our certificate", "bad certificate"},
			told:  []string{"is not for clients (clientAuth)", "is servers (serverAuth)", "node-a"},
		},
		"a node's with the router's name": {
			shows: ca.leaf(t, router, forServers),
			seen:  []string{"refused our certificate"},
			told:  []string{"is not for clients (clientAuth)", "is servers (serverAuth)", "causeway-router"},
		},
		"one that says nothing of its use": {
			shows: ca.leaf(t, router, forClients, saysNoUse),
			seen:  []string{"refused our certificate"},
			told:  []string{"is not for clients (clientAuth)", "not set"},
		},
		"one for anything": {
			shows: ca.leaf(t, router, x509.ExtKeyUsageAny),
			seen:  []string{"refused our certificate"},
			told:  []string{"is not for clients (clientAuth)", "is anything"},
		},
		"the CA's": {
			shows: content{ca.bundle, ca.bundle, keyOf(t, ca)},
			seen:  []string{"refused our certificate"},
			told:  []string{"the CA 'CN=test CA'", "is not for clients"},
		},
		"one that has expired": {
			shows: ca.leaf(t, router, forClients, hasExpired),
			seen:  []string{"refused our certificate", "expired certificate", "causeway-router", "until "},
			told:  []string{"causeway-router has expired", "valid until"},
		},
		"one that is not valid yet": {
			shows: ca.leaf(t, router, forClients, isEarly),
			seen:  []string{"refused our certificate", "expired certificate"},
			told:  []string{"causeway-router is not valid before"},
		},
		"none": {
			dials: credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}),
			told:  []string{"didn't provide a certificate"},
		},
		"plain text": {
			dials: insecure.NewCredentials(),
			told:  []string{"plain text, no TLS", "PRI *"},
		},
		"TLS 1.2": {
			dials: credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}),
			seen:  []string{"protocol version not supported"},
			told:  []string{"does not speak TLS 1.3"},
		},
		"a client that wants another server": {
			dials: identity(t, ca.leaf(t, router, forClients)).Client("node-b"),
			seen:  []string{"wrong name", "that of node-a", "not of node-b"},
			told:  []string{"it refused us", "bad certificate", "ours is that of node-a", "until"},
		},
	} {
		t.Run(what, func(t *testing.T) { tc.run(t, ca) })
	}
}

func (tc refused) run(t *testing.T, ca *authority) {
	id, log := open(t, ca.leaf(t, node, forServers).dir(t))
	s := serve(t, grpc.Creds(id.Server(router)))
	dials := tc.dials
	if dials == nil {
		ours, _ := open(t, tc.shows.dir(t)) // it may report that it will be refused
		dials = ours.Client("")
	}
	_, err := s.call(dials)
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the call: %v", err)
	}
	errorSays(t, "the client", err, tc.seen...)
	if tc.dials == nil {
		says(t, "the client", err.Error(), s.addr)
	}
	s.stop()
	// gRPC may have retried, but not four times in a second.
	lines := log.takeLines()
	if len(lines) == 0 {
		t.Fatal("the server reported nothing")
	}
	says(t, "the server", lines[0], append(tc.told, "client 127.0.0.1:", "was refused")...)
	if len(s.peers) != 0 {
		t.Errorf("%q called", s.peers)
	}
}

func keyOf(t *testing.T, ca *authority) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return encode("PRIVATE KEY", der)
}

func TestRefusedServers(t *testing.T) {
	ca, other := newTestCA(t, "test CA"), newTestCA(t, "another CA")
	gone := newTestCA(t, "gone CA", hasExpired)
	trusting := func(c content) content { c[0] = slices.Concat(ca.bundle, gone.bundle); return c }
	for what, tc := range map[string]struct {
		shows content
		seen  []string
	}{
		"another CA's": {trusting(other.leaf(t, node, forServers)),
			[]string{"wrong CA", "node-a", "issued by 'CN=another CA'", "'CN=test CA'"}},
		"one that expired": {ca.leaf(t, node, forServers, hasExpired),
			[]string{"node-a has expired: it was valid until "}},
		"one of the future": {ca.leaf(t, node, forServers, isEarly), []string{"node-a is not valid before "}},
		"an expired CA's":   {trusting(gone.leaf(t, node, forServers)), []string{"the CA 'CN=gone CA' has expired"}},
		"the router's": {ca.leaf(t, node, forClients),
			[]string{"node-a is not for servers (serverAuth)", "is clients (clientAuth)"}},
		"one of no known use": {ca.leaf(t, node, forServers, saysNoUse), []string{"is not for servers", "not set"}},
		"one without a name": {ca.leaf(t, node, forServers, func(c *x509.Certificate) { c.DNSNames = nil }),
			[]string{"wrong name", "no DNS name"}},
	} {
		t.Run(what, func(t *testing.T) {
			id, _ := open(t, tc.shows.dir(t))
			s := serve(t, grpc.Creds(id.Server(router)))
			client, _ := open(t, trusting(ca.leaf(t, router, forClients)).dir(t))
			_, err := s.call(client.Client(""))
			if status.Code(err) != codes.Unavailable {
				t.Errorf("the call: %v", err)
			}
			errorSays(t, "the client", err, append(tc.seen, "server "+s.addr)...)
		})
	}
}

func TestServersThatSpeakSomethingElse(t *testing.T) {
	ca := newTestCA(t, "test CA")
	client := identity(t, ca.leaf(t, router, forClients))
	_, err := serve(t).call(client.Client(""))
	errorSays(t, "plain text", err, "plain text, no TLS")

	leaf := ca.leaf(t, node, forServers)
	cert, err := tls.X509KeyPair(leaf[1], leaf[2])
	if err != nil {
		t.Fatal(err)
	}
	_, err = serve(t, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert},
		MaxVersion: tls.VersionTLS12}))).call(client.Client(""))
	errorSays(t, "TLS 1.2", err, "protocol version not supported", "only TLS 1.3 is spoken here")
}

// TestAServerWithoutANameAcceptsNoClient: an empty flag opens no door.
func TestAServerWithoutANameAcceptsNoClient(t *testing.T) {
	ca := newTestCA(t, "test CA")
	id, log := open(t, ca.leaf(t, node, forServers).dir(t))
	s := serve(t, grpc.Creds(id.Server("")))
	for _, name := range []string{router, ""} {
		_, err := s.call(identity(t, ca.leaf(t, name, forClients)).Client(""))
		errorSays(t, "the client", err, "refused our certificate")
	}
	s.stop()
	says(t, "the server", strings.Join(log.takeLines(), "\n"), "wrong name")
}

func TestIntermediateCAs(t *testing.T) {
	root := newTestCA(t, "root CA")
	template := &x509.Certificate{
		SerialNumber: root.cert.SerialNumber, Subject: pkix.Name{CommonName: "between"},
		NotBefore: root.cert.NotBefore, NotAfter: root.cert.NotAfter,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	cert, key, err := issue(template, root)
	if err != nil {
		t.Fatal(err)
	}
	between, err := readCA(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	chained := func(name string, usage x509.ExtKeyUsage) content {
		c := between.leaf(t, name, usage)
		return content{root.bundle, slices.Concat(c[1], between.bundle), c[2]}
	}
	s := serve(t, grpc.Creds(identity(t, chained(node, forServers)).Server(router)))
	if _, err := s.call(identity(t, chained(router, forClients)).Client(node)); err != nil {
		t.Error(err)
	}
}

// TestAProbeIsNotReported: a connection that ends at once, as the probe of a load balancer, is not
// reported.
func TestAProbeIsNotReported(t *testing.T) {
	s := serve(t, grpc.Creds(identity(t, newTestCA(t, "test CA").leaf(t, node, forServers)).Server(router)))
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil { // the server has closed it
		t.Errorf("Read = %d, %v", n, err)
	}
	conn.Close()
	s.stop()
}

// TestSilentClientsTakeLittle: each holds a file until the handshake has taken too long, and anyone
// can connect. When there are too many, the server closes those that came first.
func TestSilentClientsTakeLittle(t *testing.T) {
	ca := newTestCA(t, "test CA")
	id, log := open(t, ca.leaf(t, node, forServers).dir(t))
	s := serve(t, grpc.Creds(id.Server(router)))
	total := connlimit.Share(maxConns)
	clients, held := 3*total, total-total/knownShare-total/admittedShare
	closed := make(chan error, clients)
	for range clients {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(longest))
		go func() {
			_, err := conn.Read(make([]byte, 1))
			closed <- err
		}()
	}
	for range clients - held {
		if err := <-closed; errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the server holds too many silent clients")
		}
	}
	says(t, "log", strings.Join(log.takeLines(), "\n"), "too many handshakes are in progress")
	if _, err := s.call(identity(t, ca.leaf(t, router, forClients)).Client(node)); err != nil {
		t.Errorf("a router beside the clients that are left: %v", err)
	}
	if n := s.listener.Dropped(); n != uint64(clients-held+1) {
		t.Errorf("%d clients were dropped, want %d, and one for the router", n, clients-held)
	}
}

// TestClientsBeyondTheLimitAreRefused: those that have authenticated have a limit, too.
func TestClientsBeyondTheLimitAreRefused(t *testing.T) {
	ca := newTestCA(t, "test CA")
	id, log := open(t, ca.leaf(t, node, forServers).dir(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serveAt(t, connlimit.New(l, connlimit.Limits{Waiting: 4, Admitted: 2}), grpc.Creds(id.Server(router)))
	creds := identity(t, ca.leaf(t, router, forClients)).Client(node)
	var conns []*grpc.ClientConn
	for range 2 {
		conn, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(),
			&grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	if _, err := s.call(creds); status.Code(err) != codes.Unavailable {
		t.Errorf("a third client: %v", err)
	}
	says(t, "log", strings.Join(log.takeLines(), "\n"), "too many clients are connected")
	conns[0].Close()
	await.NoError(t, "the place of a client that has gone is free", func() error {
		_, err := s.call(creds)
		return err
	})
}

func TestAPortScanDoesNotFloodTheLog(t *testing.T) {
	var log reports
	now := time.Unix(1000, 0)
	r := &refusals{report: log.add, now: func() time.Time { return now }}
	for i := range 100 {
		r.add(fmt.Errorf("refused %d", i))
	}
	r.catchUp()
	if got := log.takeLines(); !slices.Equal(got, []string{"refused 0", "refused 1", "refused 2"}) {
		t.Errorf("in the first second: %q", got)
	}
	now = now.Add(time.Second)
	r.add(errors.New("refused once more"))
	if got := log.takeLines(); len(got) != 2 || !strings.Contains(got[0], "97 more clients were refused") ||
		got[1] != "refused once more" {
		t.Errorf("in the next: %q", got)
	}
	for range 5 {
		r.add(errors.New("refused"))
	}
	log.takeLines()
	now = now.Add(time.Hour)
	r.catchUp() // a client that is let in
	r.catchUp()
	oneSays(t, "later", log.takeLines(), "3 more clients")
	now = now.Add(-24 * time.Hour) // a clock that is set back stops no report
	for range 4 {
		r.add(errors.New("refused"))
	}
	if got := log.takeLines(); len(got) != maxReports {
		t.Errorf("after the clock was set back: %q", got)
	}
}

// deadConn cannot be written to, as its peer has closed it; the reason can still be read.
type deadConn struct {
	net.Conn
	reason error
	until  time.Time
}

func (c *deadConn) Write([]byte) (int, error)         { return 0, errors.New("broken pipe") }
func (c *deadConn) Read([]byte) (int, error)          { return 0, c.reason }
func (c *deadConn) SetReadDeadline(t time.Time) error { c.until = t; return nil }
func (c *deadConn) RemoteAddr() net.Addr              { return &net.TCPAddr{Port: 1} }

// TestARefusalIsSeenByAWriteToo: the connection may be closed before the client's first write.
func TestARefusalIsSeenByAWriteToo(t *testing.T) {
	ours, err := parse(newTestCA(t, "test CA").leaf(t, router, forClients))
	if err != nil {
		t.Fatal(err)
	}
	dead := &deadConn{reason: &net.OpError{Op: "remote error", Err: errors.New("tls: expired certificate")}}
	_, err = (&firstRead{Conn: dead, ours: ours}).Write(nil)
	errorSays(t, "an alert", err, "server :1 refused our certificate", "expired certificate", router)
	if dead.until.IsZero() {
		t.Error("it could wait for ever")
	}
	dead.reason = errors.New("closed")
	if _, err = (&firstRead{Conn: dead, ours: ours}).Write(nil); err == nil || err.Error() != "broken pipe" {
		t.Errorf("without an alert: %v", err)
	}
}

func TestFlagsOfTheOtherSide(t *testing.T) {
	id := identity(t, newTestCA(t, "test CA").leaf(t, node, forServers))
	if _, _, err := id.Server(router).ClientHandshake(t.Context(), "", nil); err == nil {
		t.Error("a server's credentials dialed")
	}
	if _, _, err := id.Client("").ServerHandshake(nil); err == nil {
		t.Error("a client's credentials served")
	}
	for _, c := range []credentials.TransportCredentials{id.Server(router), id.Client("")} {
		if got := c.Clone().Info().SecurityProtocol; got != "tls" { // for which gRPC says https
			t.Errorf("%T: %q", c, got)
		}
	}
}

// TestOpenRefuses: each error names the file and the reason.
func TestOpenRefuses(t *testing.T) {
	ca := newTestCA(t, "test CA")
	good, another := ca.leaf(t, node, forServers), ca.leaf(t, "node-b", forServers)
	for what, tc := range map[string]struct {
		files content
		words []string
	}{
		"no CA file":     {content{nil, good[1], good[2]}, []string{"ca.crt", syscall.ENOENT.Error()}},
		"no certificate": {content{good[0], nil, good[2]}, []string{"tls.crt", syscall.ENOENT.Error()}},
		"no key":         {content{good[0], good[1], nil}, []string{"tls.key", syscall.ENOENT.Error()}},
		"an empty CA": {content{{}, good[1], good[2]},
			[]string{"ca.crt: no certificate in PEM form", "0 bytes"}},
		"a CA that is no PEM": {content{[]byte("hello"), good[1], good[2]},
			[]string{"ca.crt: no certificate in PEM form", "5 bytes"}},
		"a CA that is DER": {content{ca.cert.Raw, good[1], good[2]},
			[]string{"ca.crt: no certificate in PEM form"}},
		"a key as CA": {content{good[2], good[1], good[2]},
			[]string{"ca.crt: no certificate", "1 PEM blocks of another kind"}},
		"a leaf as CA": {content{good[1], good[1], good[2]},
			[]string{"ca.crt", "node-a is not that of a CA"}},
		"a CA that is cut off": {content{slices.Concat(ca.bundle, ca.bundle[:100]), good[1], good[2]},
			[]string{"ca.crt: 1 of 2 PEM blocks", "cut off or damaged"}},
		"a CA of garbage": {content{encode("CERTIFICATE", []byte("x")), good[1], good[2]},
			[]string{"ca.crt: certificate 1 in it cannot be read"}},
		"a certificate that is no PEM": {content{good[0], []byte("x"), good[2]},
			[]string{"tls.crt: no certificate in PEM form"}},
		"a certificate cut off": {content{good[0], good[1][:200], good[2]},
			[]string{"tls.crt: 1 of 1 PEM blocks"}},
		"a key that is no PEM": {content{good[0], good[1], []byte("x")},
			[]string{"tls.key cannot be used with tls.crt", "PEM"}},
		"a certificate as key": {content{good[0], good[1], good[1]},
			[]string{"tls.key cannot be used", "certificate rather than a key"}},
		"another's key": {content{good[0], good[1], another[2]},
			[]string{"tls.key cannot be used with tls.crt, the certificate of node-a", "does not match"}},
		"a key of garbage": {content{good[0], good[1], encode("PRIVATE KEY", []byte("x"))},
			[]string{"tls.key cannot be used"}},
		"a file without end": {content{make([]byte, maxFile+1), good[1], good[2]},
			[]string{"ca.crt: file too large"}},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			for i, name := range names() {
				if tc.files[i] == nil {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, name), tc.files[i], 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Open(dir, func(err error) { t.Errorf("reported: %v", err) })
			errorSays(t, "Open", err, append(tc.words, dir)...)
		})
	}
	dir := good.dir(t)
	if err := errors.Join(os.Remove(filepath.Join(dir, keyFile)),
		os.Mkdir(filepath.Join(dir, keyFile), 0o700)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, func(error) {})
	errorSays(t, "a directory as key", err, "tls.key: unexpected file type: it is a directory")
}

// TestOpenReportsCertificatesThatPeersReject: it does not stop, as the file may be replaced.
func TestOpenReportsCertificatesThatPeersReject(t *testing.T) {
	ca, peers := newTestCA(t, "test CA"), newTestCA(t, "the peers' CA")
	of := func(ca, believed *authority, change ...func(*x509.Certificate)) content {
		c := ca.leaf(t, node, forServers, change...)
		c[0] = believed.bundle
		return c
	}
	if _, log := open(t, of(ca, peers).dir(t)); len(log.takeLines()) > 0 {
		t.Error("each side has a CA of its own, and that was reported")
	}
	for what, tc := range map[string]struct {
		files content
		words []string
	}{
		"expired":                     {of(ca, ca, hasExpired), []string{"node-a has expired"}},
		"not valid yet":               {of(ca, ca, isEarly), []string{"node-a is not valid before"}},
		"expired, of a CA of its own": {of(ca, peers, hasExpired), []string{"node-a has expired"}},
	} {
		t.Run(what, func(t *testing.T) {
			id, log := open(t, tc.files.dir(t))
			id.current()
			id.current()
			oneSays(t, "Open", log.takeLines(), append(tc.words, id.dir, "peers will refuse tls.crt")...)
		})
	}
}

// TestRotation replaces a server's certificate, then its CA, while it runs.
func TestRotation(t *testing.T) {
	first, second := newTestCA(t, "first CA"), newTestCA(t, "second CA")
	dir := first.leaf(t, node, forServers).dir(t)
	id, log := open(t, dir)
	s := serve(t, grpc.Creds(everySecond(id.Server(router))))
	old := identity(t, first.leaf(t, router, forClients))
	both := second.leaf(t, router, forClients)
	both[0] = slices.Concat(first.bundle, second.bundle)
	young := identity(t, both)
	expect := func(what string, id *Identity, want string) {
		t.Helper()
		if names, err := s.call(id.Client("")); err != nil || !slices.Equal(names, []string{want}) {
			t.Errorf("%s: %q answered, %v", what, names, err)
		}
	}
	expect("at first", old, node)

	first.leaf(t, "node-new", forServers).put(t, dir)
	expect("with another leaf", old, "node-new")
	_, err := s.call(young.Client(""))
	errorSays(t, "the next CA's, before the server believes it", err, "unknown certificate authority")

	mixed := first.leaf(t, node, forServers)
	mixed[0] = both[0]
	mixed.put(t, dir)
	expect("the old, with both CAs", old, node)
	expect("the new, with both CAs", young, node)

	second.leaf(t, "node-last", forServers).put(t, dir)
	expect("the new, with the new CA", young, "node-last")
	_, err = s.call(old.Client(""))
	errorSays(t, "the old, with the new CA", err, "wrong CA")
	blind := identity(t, first.leaf(t, router, forClients)).Client("").(*client)
	_, err = s.call(anyServer{blind})
	errorSays(t, "the old that believes anyone", err, "refused our certificate", "unknown certificate authority")
	s.stop()
	for _, line := range log.takeLines() {
		if strings.Contains(line, "cannot be used") {
			t.Errorf("reported: %s", line)
		}
	}
}

// anyServer is a client that believes any server.
type anyServer struct{ *client }

func (a anyServer) Clone() credentials.TransportCredentials { return a }

func (a anyServer) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	ours := a.id.current()
	config := a.config(ours)
	config.VerifyConnection = nil
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return &firstRead{Conn: conn, ours: ours}, info, nil
}

// TestAHalfWrittenPairKeepsTheOld: it is reported once, however many clients come.
func TestAHalfWrittenPairKeepsTheOld(t *testing.T) {
	ca := newTestCA(t, "test CA")
	dir := ca.leaf(t, node, forServers).dir(t)
	id, log := open(t, dir)
	s := serve(t, grpc.Creds(id.Server(router)))
	client := identity(t, ca.leaf(t, router, forClients))
	expect := func(want string) {
		t.Helper()
		for range 3 {
			if names, err := s.call(client.Client("")); err != nil || !slices.Equal(names, []string{want}) {
				t.Errorf("%q answered, %v, want %s", names, err, want)
			}
		}
	}
	next := ca.leaf(t, "node-new", forServers)
	steps := []struct {
		name  string
		data  []byte
		words []string // of the only report
	}{
		{certFile, next[1][:50], []string{"tls.crt: 1 of 1 PEM blocks", dir, "the old ones stay in use"}},
		{certFile, next[1], []string{"tls.key cannot be used with tls.crt", "the old ones stay in use"}},
		{caFile, nil, []string{"ca.crt: no certificate", "the old ones stay in use"}},
		{caFile, ca.bundle, []string{"tls.key cannot be used with tls.crt"}},
	}
	for _, step := range steps {
		if err := os.WriteFile(filepath.Join(dir, step.name), step.data, 0o600); err != nil {
			t.Fatal(err)
		}
		expect(node)
		oneSays(t, step.name, log.takeLines(), step.words...)
	}
	if err := os.Remove(filepath.Join(dir, keyFile)); err != nil {
		t.Fatal(err)
	}
	expect(node)
	oneSays(t, "no key", log.takeLines(), "tls.key", syscall.ENOENT.Error(), "the old ones stay in use")
	next.put(t, dir)
	expect("node-new")
	s.stop()
	if lines := log.takeLines(); lines != nil {
		t.Errorf("reported: %q", lines)
	}
}

// TestAChangeThatTheClockMissesIsSeen: a file that is written twice in a tick of the filesystem's
// clock keeps its time, and may keep its size.
func TestAChangeThatTheClockMissesIsSeen(t *testing.T) {
	ca := newTestCA(t, "test CA")
	a := ca.leaf(t, "node-1", forServers)
	b := ca.leaf(t, "node-2", forServers)
	for len(a[1]) != len(b[1]) || len(a[2]) != len(b[2]) {
		b = ca.leaf(t, "node-2", forServers)
	}
	dir := t.TempDir()
	put := func(c content, at time.Time) {
		t.Helper()
		c.put(t, dir)
		for _, name := range names() {
			if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	soon := time.Now().Add(time.Hour)
	put(a, soon)
	id, _ := open(t, dir)
	put(b, soon)
	if got := id.current().certificate.Leaf.DNSNames[0]; got != "node-2" {
		t.Errorf("%s is in use", got)
	}
	put(b, time.Now().Add(-time.Hour))
	id.current()
	if !id.settled {
		t.Error("files that have been there for an hour are read at every handshake")
	}
}

func TestHandshakesDuringRotation(t *testing.T) {
	ca := newTestCA(t, "test CA")
	dir := ca.leaf(t, node, forServers).dir(t)
	id, log := open(t, dir)
	s := serve(t, grpc.Creds(id.Server(router)))
	client := identity(t, ca.leaf(t, router, forClients))
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range 25 {
				if names, err := s.call(client.Client("")); err != nil || len(names) != 1 {
					t.Errorf("%q answered, %v", names, err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { callers.Wait(); close(done) }()
	for i := 0; ; i++ {
		select {
		case <-done:
			s.stop()
			for _, line := range log.takeLines() {
				says(t, "reported", line, "the old ones stay in use")
			}
			return
		default:
			ca.leaf(t, fmt.Sprintf("node-%d", i), forServers).put(t, dir)
		}
	}
}

func TestTheExpiryIsThatOfTheFiles(t *testing.T) {
	ca := newTestCA(t, "CA")
	end := time.Now().Add(48 * time.Hour).Truncate(time.Second)
	until := func(t time.Time) func(*x509.Certificate) { return func(c *x509.Certificate) { c.NotAfter = t } }
	dir := ca.leaf(t, "node", x509.ExtKeyUsageServerAuth, until(end)).dir(t)
	id, _ := open(t, dir)
	if got := id.Until(); !got.Equal(end) {
		t.Errorf("until %s, want %s", got, end)
	}
	end = end.Add(24 * time.Hour)
	ca.leaf(t, "node", x509.ExtKeyUsageServerAuth, until(end)).put(t, dir)
	if got := id.Until(); !got.Equal(end) {
		t.Errorf("when it was renewed: until %s, want %s", got, end)
	}
}
