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

// bindSocket makes the socket under another name, takes everyone else's rights away, and puts it in place in one
// step: there is no moment without a socket and none in which a stranger could connect.
func bindSocket(path string) (net.Listener, error) {
	next := filepath.Join(filepath.Dir(path), "."+rand.Text()[:10])
	// On Linux a socket is born with the mode of its descriptor. Elsewhere it gets it a moment later.
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

// socket is a listener that removes its socket when it is closed, unless another driver has put its own there.
type socket struct {
	*net.UnixListener
	path   string
	info   fs.FileInfo
	closed sync.Once
}

// Close may be called again, and then does nothing: the next driver's socket may have the number of ours by then.
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

// Replaced reports whether another process has put a socket of its own in the place of the one on which
// l listens.
func Replaced(l net.Listener) bool {
	s, ok := l.(*socket)
	if !ok {
		return false
	}
	info, err := os.Lstat(s.path)
	return err == nil && !os.SameFile(info, s.info)
}
