//go:build !windows

package ownsocket

import (
	"context"
	"net"
	"os"
	"syscall"
)

// bind makes a socket. On Linux a socket gets the mode of its descriptor when it is bound. The
// umask would also do, but belongs to the whole process.
func bind(path string) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.Fchmod(int(fd), 0o600) })
	}}
	l, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// restrict sets the mode, which systems other than Linux do not take from the descriptor.
func restrict(path string) error { return os.Chmod(path, 0o600) }
