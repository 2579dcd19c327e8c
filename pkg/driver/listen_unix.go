//go:build !windows

package driver

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// makeSocketDir makes the directory of the socket.
func makeSocketDir(dir string) error { return os.MkdirAll(dir, 0o750) }

// bindSocket creates the socket under another name, removes the permissions of other users, and
// renames the socket to path. So there is no moment without a socket at path, and no moment in
// which another user can connect.
func bindSocket(path string) (net.Listener, error) {
	next := filepath.Join(filepath.Dir(path), "."+rand.Text()[:10])
	// On Linux a socket gets the mode of its descriptor when it is bound. On other systems,
	// os.Chmod sets the mode a moment later.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.Fchmod(int(fd), 0o600) })
	}}
	listener, err := config.Listen(context.Background(), "unix", next)
	if err != nil {
		return nil, err
	}
	l := listener.(*net.UnixListener)
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(next, 0o600); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(next))
	}
	info, err := os.Lstat(next)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(next))
	}
	return &socket{UnixListener: l, path: path, info: info}, nil
}

// socket is a listener that removes its socket when it is closed, unless another driver has
// replaced the socket.
type socket struct {
	*net.UnixListener
	path   string
	info   fs.FileInfo
	closed sync.Once
}

// Close does nothing when it is called again: by then, the socket of the next driver may have the
// inode number of this socket.
func (s *socket) Close() (err error) {
	s.closed.Do(func() {
		if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.info) {
			os.Remove(s.path)
		}
		err = s.UnixListener.Close()
	})
	return err
}

func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// Replaced reports whether another process has replaced the socket on which l listens with its own
// socket.
func Replaced(l net.Listener) bool {
	s, ok := l.(*socket)
	if !ok {
		return false
	}
	info, err := os.Lstat(s.path)
	return err == nil && !os.SameFile(info, s.info)
}
