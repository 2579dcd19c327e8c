package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	copystream "github.com/causeway-csi/causeway/containercopy/stream"
)

// handshake are the headers of a WebSocket handshake (RFC 6455, 4.1). All others, such as those
// with the identity of the user, are for this server only.
var handshake = []string{"Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version",
	"Sec-Websocket-Protocol"}

// relay joins the connection of a client to that of an agent.
type relay struct {
	agent    net.Conn
	received *bufio.Reader  // from the agent
	answer   *http.Response // to the handshake
	client   net.Conn
	sent     *bufio.Reader // by the client
}

// checkURL returns an error unless a URL is that of a stream of an agent at this address: an agent
// must not direct this server elsewhere.
func checkURL(text, address string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("invalid URL of a stream") // the text has its token
	}
	ip := net.ParseIP(u.Hostname())
	if ip == nil || !ip.Equal(net.ParseIP(address)) || u.Scheme != "https" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" || !strings.HasPrefix(u.Path, copystream.Path) {
		return nil, errors.New("invalid URL of a stream")
	}
	return u, nil
}

// open makes the WebSocket handshake of a client with the agent at an address.
func (a Agents) open(ctx context.Context, text, address string, header http.Header) (r *relay, err error) {
	u, err := checkURL(text, address)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(limited, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(copystream.NewWide(raw), a.Identity.ClientConfig(a.Name, "http/1.1"))
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	r = &relay{agent: conn, received: bufio.NewReader(conn)}
	if err := conn.SetDeadline(time.Now().Add(dialLimit)); err != nil {
		return nil, err
	}
	req := &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{"User-Agent": nil}}
	for _, name := range handshake {
		req.Header[name] = header[name]
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(r.received, req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() // that of 101 is empty
	if answer.StatusCode != http.StatusSwitchingProtocols {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10)) // as much as there is
		return nil, fmt.Errorf("it refuses the stream: %s: %q", answer.Status, said)
	}
	r.answer = answer
	return r, conn.SetDeadline(time.Time{})
}

// join takes the connection of the client, and sends it the answer of the agent. After an error the
// connection to the agent is closed.
func (r *relay) join(w http.ResponseWriter) error {
	conn, buffers, err := http.NewResponseController(w).Hijack()
	if err != nil {
		r.agent.Close()
		return fmt.Errorf("take the connection of the client: %w", err)
	}
	r.client, r.sent = conn, buffers.Reader
	return nil
}

// endLimit is the time in which the last messages of an agent that has ended its reading arrive.
const endLimit = 5 * time.Second

// run passes data in both directions until the copy ends, and closes both connections.
func (r *relay) run() {
	defer r.agent.Close()
	defer r.client.Close()
	if r.client.SetDeadline(time.Time{}) != nil || r.answer.Write(r.client) != nil {
		return
	}
	if n := r.received.Buffered(); n > 0 {
		if _, err := io.CopyN(r.client, r.received, int64(n)); err != nil {
			return
		}
	}
	if n := r.sent.Buffered(); n > 0 {
		if _, err := io.CopyN(r.agent, r.sent, int64(n)); err != nil {
			return
		}
	}
	up, down := make(chan bool, 1), make(chan bool, 1)
	pass := func(to, from net.Conn, ended chan<- bool) {
		wrote, _ := copystream.Pass(to, from, copystream.PassLimit) // any error is the end of the stream
		ended <- wrote
	}
	go pass(r.agent, r.client, up)
	go pass(r.client, r.agent, down)
	select {
	case <-down:
	case wrote := <-up:
		if wrote { // the result of the agent may be on its way
			select {
			case <-down:
			case <-time.After(endLimit):
			}
		}
	}
}
