package stream

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// wide is the size of the buffers of a Wide connection: several records of TLS, and a message.
const wide = 64 << 10

// Wide is a connection below TLS with large system calls. Package tls reads and writes a record of
// 16 KiB at a time, and each wakes the other side.
type Wide struct {
	net.Conn
	in *bufio.Reader

	mu   sync.Mutex
	held bool
	out  []byte
}

// NewWide returns a Wide connection over c.
func NewWide(c net.Conn) *Wide { return &Wide{Conn: c, in: bufio.NewReaderSize(c, wide)} }

// wideOf returns the Wide connection below TLS, or nil.
func wideOf(c net.Conn) *Wide {
	if above, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = above.NetConn()
	}
	w, _ := c.(*Wide)
	return w
}

// NetConn returns the connection below.
func (w *Wide) NetConn() net.Conn { return w.Conn }

// Read reads from the buffer, or fills it by one system call.
func (w *Wide) Read(p []byte) (int, error) { return w.in.Read(p) }

// Write writes p, or keeps it after holdWrites, until flush.
func (w *Wide) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.held {
		return w.Conn.Write(p)
	}
	w.out = append(w.out, p...)
	if len(w.out) >= wide {
		return len(p), w.send()
	}
	return len(p), nil
}

// holdWrites makes the next writes wait for flush.
func (w *Wide) holdWrites() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = true
}

// flush writes the bytes that Write has kept, and ends holdWrites.
func (w *Wide) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = false
	return w.send()
}

func (w *Wide) send() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.Conn.Write(w.out)
	w.out = w.out[:0]
	return err
}

// WideListener returns a listener of Wide connections.
func WideListener(l net.Listener) net.Listener { return wideListener{l} }

type wideListener struct{ net.Listener }

func (l wideListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewWide(c), nil
}

// PassLimit is the time after which a peer that reads nothing ends a stream. The limit of the agent
// is shorter.
const PassLimit = 2 * writeLimit

// Pass copies from one connection to another until an error, which is that of the writer if wrote
// is set: a write has a limit, else a client that is suspended would keep the connections of both
// sides. A connection of TLS returns a record at a time: those that have arrived together are sent
// together.
func Pass(to, from net.Conn, limit time.Duration) (wrote bool, err error) {
	const record = 16 << 10
	buffer := make([]byte, 2*record)
	in, out := wideOf(from), wideOf(to)
	for {
		n, err := from.Read(buffer)
		more := err == nil && in != nil && in.in.Buffered() > 0
		if out != nil {
			out.holdWrites()
		}
		if err := to.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return true, err
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return true, err
			}
		}
		if out != nil && !more { // the rest of a record that has begun is on its way
			if err := out.flush(); err != nil {
				return true, err
			}
		}
		if err != nil {
			return false, err
		}
	}
}
