package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/gorilla/websocket"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the providers that kubectl has
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// dial begins a copy at kube-apiserver. The end of ctx ends the connection; the caller calls end.
func dial(ctx context.Context, config *rest.Config, path string, query url.Values) (s *wire.Stream, end func(),
	err error) {
	config = rest.CopyConfig(config)
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, nil, err
	}
	target := base.JoinPath(path)
	target.RawQuery = query.Encode()
	// gorilla/websocket does not end a handshake with its context: negotiate does.
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	conn, err := negotiate(ctx, func() (*websocket.Conn, error) { return shake(config, req) })
	if err != nil {
		return nil, nil, err
	}
	socket := stream.NewSocket(conn)
	stop := context.AfterFunc(ctx, func() { socket.Close() })
	return wire.NewStream(socket), func() { stop(); socket.Close() }, nil
}

// negotiate returns the connection of a handshake. After the end of ctx it does not wait for it.
func negotiate(ctx context.Context, handshake func() (*websocket.Conn, error)) (*websocket.Conn, error) {
	type result struct {
		conn *websocket.Conn
		err  error
	}
	results := make(chan result, 1)
	go func() {
		conn, err := handshake()
		results <- result{conn, err}
	}()
	select {
	case r := <-results:
		return r.conn, r.err
	case <-ctx.Done():
	}
	go func() {
		if r := <-results; r.err == nil {
			r.conn.Close()
		}
	}()
	return nil, ctx.Err()
}

// shake makes the handshake of a request, with the credentials of a configuration. That of
// client-go has buffers of its own, which divide the messages of a copy. Errors: those of refusal.
func shake(config *rest.Config, req *http.Request) (*websocket.Conn, error) {
	settings, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	security, err := transport.TLSConfigFor(settings)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return stream.NewWide(c), nil
	}
	h := &handshake{dialer: websocket.Dialer{NetDialContext: dial, TLSClientConfig: security, Proxy: config.Proxy,
		Subprotocols: []string{wire.Subprotocol}, WriteBufferSize: wire.MaxMessage}}
	if h.dialer.Proxy == nil {
		h.dialer.Proxy = utilnet.NewProxierWithNoProxyCIDR(http.ProxyFromEnvironment)
	}
	authorized, err := transport.HTTPWrappersForConfig(settings, h)
	if err != nil {
		return nil, err
	}
	answer, err := authorized.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() // that of 101 is empty
	if answer.StatusCode != http.StatusSwitchingProtocols {
		return nil, refusal(answer)
	}
	if p := h.conn.Subprotocol(); p != wire.Subprotocol {
		return nil, errors.Join(fmt.Errorf("the server chose the subprotocol %q, not %q", p, wire.Subprotocol),
			h.conn.Close())
	}
	return h.conn, nil
}

// handshake is the transport of one request, a WebSocket handshake. It returns the answer of a
// refused handshake without an error.
type handshake struct {
	dialer websocket.Dialer
	conn   *websocket.Conn // after a handshake
}

var schemes = map[string]string{"https": "wss", "http": "ws"}

// RoundTrip implements http.RoundTripper.
func (h *handshake) RoundTrip(req *http.Request) (*http.Response, error) {
	target := *req.URL
	target.Scheme = schemes[target.Scheme]
	conn, answer, err := h.dialer.DialContext(req.Context(), target.String(), req.Header)
	if errors.Is(err, websocket.ErrBadHandshake) && answer.StatusCode != http.StatusSwitchingProtocols {
		err = nil
	}
	h.conn = conn
	return answer, err
}

// body returns the body of the answer of a refused handshake, of which gorilla/websocket keeps 1024
// bytes.
func body(answer *http.Response) []byte {
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil
	}
	return content
}
