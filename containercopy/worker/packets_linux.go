package worker

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/containercopy/wire"
)

// packets are the messages of a socket whose calls block: a worker has one copy, and needs no poller.
type packets struct {
	fd     int
	buffer []byte
}

func newPackets(fd int) *packets { return &packets{fd: fd, buffer: make([]byte, wire.MaxMessage)} }

// Read returns the next packet. Errors: io.EOF when the agent has closed its end.
func (p *packets) Read() ([]byte, error) {
	for {
		n, _, flags, _, err := unix.Recvmsg(p.fd, p.buffer, nil, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECONNRESET):
			return nil, io.EOF
		case err != nil:
			return nil, os.NewSyscallError("recvmsg", err)
		case flags&unix.MSG_TRUNC != 0:
			return nil, wire.ErrProtocol
		case n == 0:
			return nil, io.EOF
		}
		return p.buffer[:n], nil
	}
}

// Write sends a packet. It returns an error, and no signal, when the agent has closed its end.
func (p *packets) Write(message []byte) error {
	for {
		err := unix.Sendto(p.fd, message, unix.MSG_NOSIGNAL, nil)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sendto", err)
		}
	}
}
