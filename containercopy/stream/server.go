package stream

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"slices"

	"github.com/gorilla/websocket"

	"github.com/causeway-csi/causeway/containercopy/wire"
)

// Path is the path of the URLs of copies, before the token.
const Path = "/copy/"

// Peer identifies the caller of a connection by its certificate: for Issue at the call, and at the
// stream. Empty: the connection has no certificate of a client.
func Peer(state *tls.ConnectionState) string {
	if state == nil || len(state.PeerCertificates) == 0 {
		return ""
	}
	return Fingerprint(state.PeerCertificates[0])
}

// Fingerprint identifies a certificate.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// Handler serves the streams of tickets. serve has the value and the connection, and returns when
// the copy has ended. A request that is no WebSocket handshake of the subprotocol leaves the ticket
// as it is: 400 or 426. Without a certificate, or a ticket of it: 403.
func Handler[T any](tickets *Tickets[T], serve func(r *http.Request, value T, client *Socket)) http.Handler {
	upgrader := websocket.Upgrader{Subprotocols: []string{wire.Subprotocol}, ReadBufferSize: 4 << 10,
		WriteBufferSize: wire.MaxMessage}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path+"{token}", func(w http.ResponseWriter, r *http.Request) {
		peer := Peer(r.TLS)
		if peer == "" {
			http.Error(w, "a copy needs the certificate of its caller", http.StatusForbidden)
			return
		}
		if !websocket.IsWebSocketUpgrade(r) || !slices.Contains(websocket.Subprotocols(r), wire.Subprotocol) {
			w.Header().Set("Upgrade", "websocket")
			http.Error(w, "a copy is a WebSocket connection of the subprotocol "+wire.Subprotocol,
				http.StatusUpgradeRequired)
			return
		}
		value, err := tickets.Use(r.PathValue("token"), peer)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil { // it has answered
			tickets.expired(value)
			return
		}
		socket := NewSocket(conn)
		defer socket.Close()
		serve(r, value, socket)
	})
	return mux
}
