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
	*net.UnixListener
	path   string
	info   fs.FileInfo
	closed sync.Once
}

// Listen makes a socket that only its owner can use: with mode 0600, or on Windows with an access
// control list. There must be no file at path.
func Listen(path string) (*Socket, error) {
	l, err := bind(path)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would remove any file at the path
	err = restrict(path)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Lstat(path); err == nil {
			return &Socket{UnixListener: l, path: path, info: info}, nil
		}
	}
	return nil, errors.Join(err, l.Close(), os.Remove(path))
}

// Rename moves the socket to another path, in place of a file there.
func (s *Socket) Rename(path string) error {
	if err := os.Rename(s.path, path); err != nil {
		return err
	}
	s.path = path
	return nil
}

// Close does nothing when it is called again: by then, the socket of another process may have the
// inode number of this socket.
func (s *Socket) Close() (err error) {
	s.closed.Do(func() {
		if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.info) {
			os.Remove(s.path)
		}
		err = s.UnixListener.Close()
	})
	return err
}

// Replaced reports whether another process has replaced the socket.
func (s *Socket) Replaced() bool {
	info, err := os.Lstat(s.path)
	return err == nil && !os.SameFile(info, s.info)
}
