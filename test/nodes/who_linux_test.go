package nodes

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/peertls"
)

func TestTwoWithTheSameIdentityAreBothRefused(t *testing.T) {
	w := newWorld(t, "a", "b")
	a := w.nodes["a"]
	v, vb := w.volume("v", "a").GetVolumeId(), w.volume("vb", "b").GetVolumeId()
	twin := w.newNode("twin", "a", "10.9.0.41")
	twin.start()
	w.dns.say(a.host.address, w.nodes["b"].host.address, twin.host.address)
	w.wantReady("ok: 1 of 3 nodes answer", "several addresses report", a.peer(), twin.peer())
	w.wantMetrics(`causeway_router_peers{state="twice"} 2`, `causeway_router_peers{state="answers"} 1`,
		fmt.Sprintf(`causeway_router_node_up{address=%q,node="a"} 0`,
			a.peer()), fmt.Sprintf(`causeway_router_node_up{address=%q,node="a"} 0`, twin.peer()))
	w.listsFail("several addresses report", a.peer(), twin.peer())
	for _, err := range []error{
		w.reads(w.soon(), v), second(w.DeleteVolume(w.soon(), &csi.DeleteVolumeRequest{VolumeId: v})),
		second(w.CreateVolume(w.soon(), create("w", "a"))), second(w.CreateVolume(w.soon(), create("w"))),
	} {
		wantCode(t, err, codes.Unavailable, "several addresses report")
	}
	w.must(w.reads(w.soon(), vb))
	twin.kill()
	w.wantReady("ok: 2 of 3 nodes answer")
	w.must(w.reads(w.soon(), v))
	w.listsFail(twin.peer())
	w.dns.say(a.host.address, w.nodes["b"].host.address)
	w.settled(2)
	w.holds(v, vb)
}

func TestANodeWithTheIDOfAnotherIsRejected(t *testing.T) {
	w := newWorld(t, "a", "b")
	v := w.volume("v", "b").GetVolumeId()
	w.certify(peertls.MakeOptions{Nodes: []string{"liar"}})
	liar := w.newNode("liar", "b", "10.9.0.41")
	liar.certificates = filepath.Join(w.certs, "nodes", "liar")
	liar.start()
	w.dns.say(w.nodes["a"].host.address, w.nodes["b"].host.address, liar.host.address)
	w.wantReady("ok: 2 of 3 nodes answer", liar.peer(), "node b has a certificate for", "liar")
	await.True(w, "the router reports that",
		func() bool { return w.process.hasSaid("WARN", liar.peer(), "node b has a certificate for") })
	w.must(w.reads(w.soon(), v))
	w.listsFail(liar.peer(), "certificate")
	wb := w.volume("wb", "b").GetVolumeId()
	liar.kill()
	honest := w.newNode("honest", "liar", "10.9.0.42")
	honest.start()
	w.dns.say(w.nodes["a"].host.address, w.nodes["b"].host.address, honest.host.address)
	w.restartB()
	w.settled(3)
	w.holds(v, wb, w.volume("w", "liar").GetVolumeId())
}

// pair reads a certificate with its key.
func (w *world) pair(dir string) tls.Certificate {
	w.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	w.must(err)
	return pair
}

// stranger is a client on the wire that talks to a node's driver.
func (w *world) stranger(n *node, c credentials.TransportCredentials) csi.ControllerClient {
	w.Helper()
	conn, err := grpc.NewClient("passthrough:///"+n.peer(), grpc.WithTransportCredentials(c),
		grpc.WithContextDialer(w.wire.dial))
	w.must(err)
	w.Cleanup(func() { conn.Close() })
	return csi.NewControllerClient(conn)
}

// showing are credentials that believe any server, and show a certificate, whichever CAs the server
// asks for.
func showing(certificate tls.Certificate) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }})
}

func TestOnlyTheRouterMayTalkToANode(t *testing.T) {
	w := newWorld(t, "a", "b")
	a := w.nodes["a"]
	v := w.volume("v", "a").GetVolumeId()
	other, same := filepath.Join(w.dir, "other"), filepath.Join(w.dir, "same") // CAs
	w.must(second(peertls.Make(other, peertls.MakeOptions{Client: routerName})))
	w.must(os.Mkdir(same, 0o700))
	for _, file := range []string{"ca.crt", "ca.key"} {
		w.copyFile(filepath.Join(same, file), filepath.Join(w.certs, file))
	}
	w.must(second(peertls.Make(same, peertls.MakeOptions{Client: "somebody"})))
	for _, tc := range []struct {
		name        string
		credentials credentials.TransportCredentials
		says        string
	}{
		{"without a certificate", showing(tls.Certificate{}), "client didn't provide a certificate"},
		{"with another CA's certificate", showing(w.pair(filepath.Join(other, "router"))), "wrong CA"},
		{"with the node's own certificate", showing(w.pair(a.certificates)), "is not for clients (clientAuth)"},
		{"with another name", showing(w.pair(filepath.Join(same, "router"))),
			"wrong name: the certificate is that of somebody"},
		{"with plain text", insecure.NewCredentials(), "it speaks plain text, no TLS"},
	} {
		client := w.stranger(a, tc.credentials)
		// three in a second at most
		await.True(w, fmt.Sprintf("the node reports %q of a client %s", tc.says, tc.name), func() bool {
			wantCode(t, second(client.DeleteVolume(w.soon(), &csi.DeleteVolumeRequest{VolumeId: v})), codes.Unavailable)
			return a.hasSaid("WARN", wireAddress, tc.says)
		})
	}
	router := w.stranger(a, showing(w.pair(filepath.Join(w.certs, "router"))))
	w.must(second(router.ControllerGetVolume(w.soon(), &csi.ControllerGetVolumeRequest{VolumeId: v})))
	w.holds(v)
}

func (w *world) copyFile(to string, from ...string) {
	w.Helper()
	var all []byte
	for _, f := range from {
		data, err := os.ReadFile(f)
		w.must(err)
		all = append(all, data...)
	}
	w.must(os.WriteFile(to+".new", all, 0o600))
	w.must(os.Rename(to+".new", to))
}

// shows fails the test unless a node shows the certificate that is in its directory now.
func (n *node) shows() {
	n.Helper()
	raw, err := n.wire.dial(n.soon(), n.peer())
	n.must(err)
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true,
		Certificates: []tls.Certificate{n.pair(filepath.Join(n.certs, "router"))}})
	n.must(conn.HandshakeContext(n.soon()))
	if !conn.ConnectionState().PeerCertificates[0].Equal(n.pair(n.certificates).Leaf) {
		n.Errorf("%s does not show the certificate that it has", n.name)
	}
}

// reconnect makes all nodes and the router meet again, with the files in their directories: a node
// that is started again meets a running router, and a router that is started again meets running
// nodes.
func (w *world) reconnect() {
	w.Helper()
	w.nodes["a"].kill()
	w.nodes["a"].start()
	w.settled(2)
	w.process.kill()
	w.router.start()
	w.settled(2)
	for _, n := range w.nodes {
		n.shows()
	}
}

func TestCertificatesAreReplacedWhileEverythingRuns(t *testing.T) {
	w := newWorld(t, "a", "b")
	v, b := w.volume("v", "b").GetVolumeId(), w.nodes["b"]
	pid := b.cmd.Process.Pid
	all := peertls.MakeOptions{Client: routerName, Nodes: []string{"a", "b"}}
	renewed := all
	renewed.Renew = true
	old := w.pair(filepath.Join(w.certs, "router"))

	w.certify(renewed)
	w.reconnect()

	// Another CA, by the steps of docs/how-to/certificates.md: accepted by all, then used by all,
	// then the only CA.
	first, next := filepath.Join(w.dir, "first.crt"), filepath.Join(w.dir, "next")
	w.copyFile(first, filepath.Join(w.certs, "ca.crt"))
	w.must(second(peertls.Make(next, peertls.MakeOptions{})))
	w.copyFile(filepath.Join(w.certs, "ca.crt"), first, filepath.Join(next, "ca.crt"))
	w.certify(all)
	w.reconnect()
	w.copyFile(filepath.Join(w.certs, "ca.key"), filepath.Join(next, "ca.key"))
	w.copyFile(filepath.Join(w.certs, "ca.crt"), filepath.Join(next, "ca.crt"), first)
	w.certify(renewed)
	w.reconnect()
	w.must(second(w.stranger(b, showing(old)).ControllerGetVolume(w.soon(),
		&csi.ControllerGetVolumeRequest{VolumeId: v})))
	w.copyFile(filepath.Join(w.certs, "ca.crt"), filepath.Join(next, "ca.crt"))
	w.certify(all)
	w.reconnect()
	client := w.stranger(b, showing(old))
	await.True(w, "the old CA is refused", func() bool {
		wantCode(t, second(client.ControllerGetVolume(w.soon(), &csi.ControllerGetVolumeRequest{VolumeId: v})),
			codes.Unavailable)
		return b.hasSaid("WARN", "wrong CA")
	})
	if b.cmd.Process.Pid != pid {
		t.Error("b was started anew")
	}
	w.holds(v)

	// Certificates that do not match are not used.
	w.must(os.WriteFile(filepath.Join(b.certificates, "tls.key"), nil, 0o600))
	w.process.kill()
	w.router.start()
	w.settled(2)
	await.True(w, "b reports that", func() bool { return b.hasSaid("WARN", "the old ones stay in use") })
}
