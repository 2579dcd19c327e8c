package stream

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/causeway-csi/causeway/containercopy/wire"
)

const (
	pingInterval = 30 * time.Second
	pongLimit    = 90 * time.Second // without any message or pong of the peer
	writeLimit   = time.Minute      // of a message
)

// Socket is a WebSocket connection as the messages of a copy. It pings its peer, so that the end of
// a peer is seen that does not close the connection.
type Socket struct {
	conn   *websocket.Conn
	wide   *Wide // below the connection; nil: none
	buffer []byte
	once   sync.Once
	closed chan struct{}
}

// NewSocket returns the messages of a connection. The caller calls Close.
func NewSocket(conn *websocket.Conn) *Socket {
	s := &Socket{conn: conn, wide: wideOf(conn.NetConn()), buffer: make([]byte, wire.MaxMessage+1),
		closed: make(chan struct{})}
	conn.SetReadLimit(wire.MaxMessage)
	conn.SetPongHandler(func(string) error { return conn.SetReadDeadline(time.Now().Add(pongLimit)) })
	go s.ping()
	return s
}

func (s *Socket) ping() {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-tick.C:
			if s.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeLimit)) != nil {
				return // Read or Write has the error
			}
		}
	}
}

// Read returns the next message. Errors: io.EOF after the peer has closed the connection.
func (s *Socket) Read() ([]byte, error) {
	// Pongs are read by Read only: the time of a slow receiver of the last message does not count.
	if err := s.conn.SetReadDeadline(time.Now().Add(pongLimit)); err != nil {
		return nil, err
	}
	kind, r, err := s.conn.NextReader()
	if err != nil {
		var closed *websocket.CloseError
		if errors.As(err, &closed) && closed.Code != websocket.CloseAbnormalClosure {
			return nil, io.EOF
		}
		return nil, err
	}
	if kind != websocket.BinaryMessage {
		return nil, fmt.Errorf("%w: a text", wire.ErrProtocol)
	}
	for n := 0; n <= wire.MaxMessage; {
		more, err := r.Read(s.buffer[n:])
		n += more
		if errors.Is(err, io.EOF) {
			return s.buffer[:n], nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w of more than %d bytes", wire.ErrProtocol, wire.MaxMessage)
}

// Write sends a message. A peer that reads nothing makes it fail after a minute.
func (s *Socket) Write(message []byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	if s.wide == nil {
		return s.conn.WriteMessage(websocket.BinaryMessage, message)
	}
	s.wide.holdWrites()
	err := s.conn.WriteMessage(websocket.BinaryMessage, message)
	return errors.Join(err, s.wide.flush())
}

// Close closes the connection. A Read or Write that waits returns an error.
func (s *Socket) Close() error {
	err := error(nil)
	s.once.Do(func() {
		close(s.closed)
		message := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
		s.conn.WriteControl(websocket.CloseMessage, message, time.Now().Add(time.Second)) // the peer may be gone
		err = s.conn.Close()
	})
	return err
}

var _ wire.Messages = (*Socket)(nil)
