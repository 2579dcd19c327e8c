package peertls

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
)

// TestConnectionsOfAnotherProtocol: ServerConfig has the requirements of Server, for the protocol
// of its name only.
func TestConnectionsOfAnotherProtocol(t *testing.T) {
	ca, other := newTestCA(t, "ours"), newTestCA(t, "other")
	config := identity(t, ca.leaf(t, node, forServers)).ServerConfig(router, "http/1.1")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.bundle)
	for name, tc := range map[string]struct {
		client   content
		protocol string
		accepted bool
	}{
		"the client":                {ca.leaf(t, router, forClients), "http/1.1", true},
		"gRPC":                      {ca.leaf(t, router, forClients), "h2", false},
		"another name":              {ca.leaf(t, "someone", forClients), "http/1.1", false},
		"another CA":                {other.leaf(t, router, forClients), "http/1.1", false},
		"the certificate of a node": {ca.leaf(t, router, forServers), "http/1.1", false},
	} {
		t.Run(name, func(t *testing.T) {
			certificate, err := tls.X509KeyPair(tc.client[1], tc.client[2])
			if err != nil {
				t.Fatal(err)
			}
			near, far := net.Pipe()
			defer near.Close()
			result := make(chan error, 1)
			go func() {
				defer far.Close()
				result <- tls.Server(far, config).Handshake()
			}()
			client := tls.Client(near, &tls.Config{RootCAs: roots, ServerName: node,
				Certificates: []tls.Certificate{certificate}, NextProtos: []string{tc.protocol}})
			if err := client.Handshake(); err == nil {
				go client.Read(make([]byte, 1)) // the answer of the server to the certificate
			}
			if err := <-result; (err == nil) != tc.accepted {
				t.Errorf("the server: %v, want it accepted: %t", err, tc.accepted)
			}
		})
	}
}

// TestClientsOfAnotherProtocol: ClientConfig has the requirements of Client.
func TestClientsOfAnotherProtocol(t *testing.T) {
	ca, other := newTestCA(t, "ours"), newTestCA(t, "other")
	id := identity(t, ca.leaf(t, router, forClients))
	for name, tc := range map[string]struct {
		server   content
		accepted bool
	}{
		"the server":                  {ca.leaf(t, node, forServers), true},
		"another name":                {ca.leaf(t, "someone", forServers), false},
		"another CA":                  {other.leaf(t, node, forServers), false},
		"the certificate of a client": {ca.leaf(t, node, forClients), false},
	} {
		t.Run(name, func(t *testing.T) {
			certificate, err := tls.X509KeyPair(tc.server[1], tc.server[2])
			if err != nil {
				t.Fatal(err)
			}
			// A pipe has no buffer: the alert of the client and the messages of the server would
			// wait for each other.
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			result := make(chan error, 1)
			go func() {
				far, err := listener.Accept()
				if err != nil {
					result <- err
					return
				}
				defer far.Close()
				result <- tls.Server(far, &tls.Config{Certificates: []tls.Certificate{certificate},
					ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"http/1.1"}}).Handshake()
			}()
			conn, err := tls.Dial("tcp", listener.Addr().String(), id.ClientConfig(node, "http/1.1"))
			if (err == nil) != tc.accepted {
				t.Errorf("the client: %v, want the server accepted: %t", err, tc.accepted)
			}
			if err == nil {
				defer conn.Close()
			}
			if err := <-result; tc.accepted && err != nil {
				t.Error(err)
			}
		})
	}
}
