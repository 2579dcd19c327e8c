package stream

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/causeway-csi/causeway/containercopy/wire"
)

// newCaller makes the certificate of a caller.
func newCaller(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// world is a server of streams.
type world struct {
	*testing.T
	*httptest.Server
	tickets *Tickets[string]
	expired expiries
	caller  tls.Certificate
	peer    string
}

func newWorld(t *testing.T, serve func(value string, client *Socket)) *world {
	w := &world{T: t, caller: newCaller(t)}
	w.tickets = NewTickets(w.expired.add)
	w.Server = httptest.NewUnstartedServer(Handler(w.tickets, func(_ *http.Request, value string, client *Socket) {
		serve(value, client)
	}))
	w.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	w.StartTLS()
	leaf, err := x509.ParseCertificate(w.caller.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	w.peer = Peer(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}})
	t.Cleanup(func() { w.Close(); w.tickets.Close() })
	return w
}

// dial opens a stream with a certificate. The status is that of a refusal.
func (w *world) dial(token string, certificate tls.Certificate, protocols ...string) (s *Socket, status int, err error) {
	w.Helper()
	config := &tls.Config{RootCAs: w.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	if certificate.Certificate != nil {
		config.Certificates = []tls.Certificate{certificate}
	}
	d := websocket.Dialer{TLSClientConfig: config, Subprotocols: protocols}
	conn, resp, err := d.Dial(strings.Replace(w.URL, "https", "wss", 1)+Path+token, nil)
	if err != nil {
		if resp != nil {
			status = resp.StatusCode
			resp.Body.Close()
		}
		return nil, status, err
	}
	if got := conn.Subprotocol(); got != wire.Subprotocol {
		w.Errorf("the subprotocol is %q", got)
	}
	s = NewSocket(conn)
	w.Cleanup(func() { s.Close() })
	return s, 0, nil
}

// TestAStreamOfATicket: both directions, messages of each size, and the end.
func TestAStreamOfATicket(t *testing.T) {
	large := bytes.Repeat([]byte("x"), wire.MaxMessage)
	w := newWorld(t, func(value string, client *Socket) {
		for {
			m, err := client.Read()
			if err != nil {
				t.Errorf("Read = %v", err)
				return
			}
			if err := client.Write(m); err != nil {
				t.Errorf("Write = %v", err)
			}
			if string(m) == value {
				return
			}
		}
	})
	token := issue(t, w.tickets, w.peer, "the end")
	s, _, err := w.dial(token, w.caller, wire.Subprotocol)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range [][]byte{[]byte("a"), large, {}, []byte("the end")} {
		if err := s.Write(m); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read(); err != nil || !bytes.Equal(got, m) {
			t.Errorf("%d bytes, %v, want %d", len(got), err, len(m))
		}
	}
	if got, err := s.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %q, %v, want io.EOF", got, err)
	}
	if _, status, err := w.dial(token, w.caller, wire.Subprotocol); err == nil || status != http.StatusForbidden {
		t.Errorf("the second use: %d, %v", status, err)
	}
	w.expired.want(t)
}

// TestRefusedStreams: a request that is no handshake leaves the ticket, a wrong caller ends it.
func TestRefusedStreams(t *testing.T) {
	served := 0
	w := newWorld(t, func(string, *Socket) { served++ })
	token := issue(t, w.tickets, w.peer, "v")
	refused := func(what string, want int, token string, c tls.Certificate, protocols ...string) {
		t.Helper()
		if _, status, err := w.dial(token, c, protocols...); err == nil || status != want {
			t.Errorf("%s: %d, %v, want %d", what, status, err, want)
		}
	}
	refused("without a certificate", http.StatusForbidden, token, tls.Certificate{}, wire.Subprotocol)
	refused("without a subprotocol", http.StatusUpgradeRequired, token, w.caller)
	refused("another subprotocol", http.StatusUpgradeRequired, token, w.caller, "v9.copy")
	refused("an unknown token", http.StatusForbidden, "nonsense", w.caller, wire.Subprotocol)
	resp, err := w.Client().Post(w.URL+Path+token, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", resp.Status)
	}
	w.expired.want(t)
	refused("another caller", http.StatusForbidden, token, newCaller(t), wire.Subprotocol)
	w.expired.want(t, "v")
	refused("the first caller, afterwards", http.StatusForbidden, token, w.caller, wire.Subprotocol)
	if served > 0 {
		t.Errorf("%d streams were served", served)
	}
}

// TestMessagesThatAreNoStream end the connection.
func TestMessagesThatAreNoStream(t *testing.T) {
	for name, send := range map[string]func(s *Socket) error{
		"too large": func(s *Socket) error { return s.Write(make([]byte, wire.MaxMessage+1)) },
		"a text":    func(s *Socket) error { return s.conn.WriteMessage(websocket.TextMessage, []byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			failed := make(chan error, 1)
			w := newWorld(t, func(_ string, client *Socket) {
				_, err := client.Read()
				failed <- err
			})
			s, _, err := w.dial(issue(t, w.tickets, w.peer, "v"), w.caller, wire.Subprotocol)
			if err == nil {
				err = send(s)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := <-failed; err == nil || errors.Is(err, io.EOF) {
				t.Errorf("Read = %v, want an error that is not the end", err)
			}
		})
	}
}
