// Package ownsocket makes Unix sockets that other users cannot use.
package ownsocket

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
)

// Socket is a listener whose Close removes the socket, unless another process has replaced it.
type Socket struct {
	path string

	mu       sync.Mutex
	listener *net.UnixListener
	info     fs.FileInfo
	closed   bool
}

// Listen makes a socket that only its owner can use: with mode 0600, or on Windows with an access
// control list. There must be no file at path.
func Listen(path string) (*Socket, error) {
	l, info, err := listenAt(path)
	if err != nil {
		return nil, err
	}
	return &Socket{path: path, listener: l, info: info}, nil
}

func listenAt(path string) (*net.UnixListener, fs.FileInfo, error) {
	l, err := bind(path)
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // it would remove any file at the path
	err = restrict(path)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Lstat(path); err == nil {
			return l, info, nil
		}
	}
	return nil, nil, errors.Join(err, l.Close(), os.Remove(path))
}

// Rename moves the socket to another path, in place of a file there.
func (s *Socket) Rename(path string) error {
	if err := os.Rename(s.path, path); err != nil {
		return err
	}
	s.path = path
	return nil
}

// Accept implements net.Listener.
func (s *Socket) Accept() (net.Conn, error) {
	for {
		l := s.present()
		conn, err := l.Accept()
		if err == nil || s.present() == l {
			return conn, err
		}
	}
}

// Addr implements net.Listener.
func (s *Socket) Addr() net.Addr { return s.present().Addr() }

// present returns the listener, which Restore replaces.
func (s *Socket) present() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener
}

// Restore makes the socket again if it was removed, and reports whether it was. No connection can
// reach a socket without a path. Connections that were accepted stay open.
func (s *Socket) Restore() (restored bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := os.Lstat(s.path); s.closed || !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	l, info, err := listenAt(s.path) // fails if another process was faster
	if err != nil {
		return false, err
	}
	s.listener.Close() // its socket has no path any more
	s.listener, s.info = l, info
	return true, nil
}

// Close does nothing when it is called again: by then, the socket of another process may have the
// inode number of this socket.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.info) {
		os.Remove(s.path)
	}
	return s.listener.Close()
}

// Replaced reports whether another process has replaced the socket.
func (s *Socket) Replaced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Lstat(s.path)
	return err == nil && !os.SameFile(info, s.info)
}
