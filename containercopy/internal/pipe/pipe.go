// Package pipe is a connection of messages in memory, for tests.
package pipe

import (
	"bytes"
	"io"
	"sync"
)

// End is an end of a connection. Its messages are those of wire.Messages.
type End struct {
	in, out     chan []byte
	closed, far chan struct{}
	once        *sync.Once
}

// New returns the two ends of a connection, which holds one message in each direction.
func New() (a, b End) {
	x, y, closedA, closedB := make(chan []byte, 1), make(chan []byte, 1), make(chan struct{}), make(chan struct{})
	return End{x, y, closedA, closedB, new(sync.Once)}, End{y, x, closedB, closedA, new(sync.Once)}
}

// Close closes this end. The far end reads the message that is on its way, and then io.EOF.
func (p End) Close() { p.once.Do(func() { close(p.closed) }) }

// Read returns the next message.
func (p End) Read() ([]byte, error) {
	select {
	case m := <-p.in:
		return m, nil
	default:
	}
	select {
	case m := <-p.in:
		return m, nil
	case <-p.closed:
		return nil, io.ErrClosedPipe
	case <-p.far:
		select {
		case m := <-p.in:
			return m, nil
		default:
			return nil, io.EOF
		}
	}
}

// Write sends a message. It waits while another one is on its way.
func (p End) Write(m []byte) error {
	select {
	case p.out <- bytes.Clone(m):
		return nil
	case <-p.closed:
		return io.ErrClosedPipe
	case <-p.far:
		return io.ErrClosedPipe
	}
}
