package worker

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/containercopy/wire"
)

// packets are the messages of a socket whose calls block: a worker has one copy, and needs no
// poller.
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
	return Retry(func() error {
		for {
			err := unix.Sendto(p.fd, message, unix.MSG_NOSIGNAL, nil)
			if !errors.Is(err, unix.EINTR) {
				return os.NewSyscallError("sendto", err)
			}
		}
	})
}

// closed reports whether the agent has closed its end.
func (p *packets) closed() bool {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}

// Retry repeats a send for which the kernel has no memory at the moment: a packet needs pages in a
// row.
func Retry(send func() error) error {
	const pause, patience = 10 * time.Millisecond, 10 * time.Second
	for start := time.Now(); ; {
		err := send()
		if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ENOMEM) || time.Since(start) > patience {
			return err
		}
		time.Sleep(pause)
	}
}
