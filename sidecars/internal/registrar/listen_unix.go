//go:build !windows

package registrar

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
)

// bind makes the socket with mode 0600. On Linux a new socket has the mode of its descriptor;
// elsewhere the mode is set a moment later. The umask would also do, but belongs to the whole
// process.
func bind(path string) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.Fchmod(int(fd), 0o600) })
	}}
	l, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l.(*net.UnixListener), nil
}
