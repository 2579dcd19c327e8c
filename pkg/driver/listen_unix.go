//go:build !windows

package driver

import (
	"crypto/rand"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/causeway-csi/causeway/internal/ownsocket"
)

// makeSocketDir makes the directory of the socket.
func makeSocketDir(dir string) error { return os.MkdirAll(dir, 0o750) }

// bindSocket creates the socket under another name, removes the permissions of other users, and
// renames the socket to path. So there is no moment without a socket at path, and no moment in
// which another user can connect.
func bindSocket(path string) (net.Listener, error) {
	next := filepath.Join(filepath.Dir(path), "."+rand.Text()[:10])
	s, err := ownsocket.Listen(next)
	if err != nil {
		return nil, err
	}
	if err := s.Rename(path); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// Replaced reports whether another process has replaced the socket on which l listens with its own
// socket.
func Replaced(l net.Listener) bool {
	s, ok := l.(*ownsocket.Socket)
	return ok && s.Replaced()
}
