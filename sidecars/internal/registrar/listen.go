package registrar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/causeway-csi/causeway/internal/ownsocket"
)

// maxSocketPath is the longest path of a Unix socket on Linux and on Windows, in bytes.
const maxSocketPath = 107

// directory is the directory in which the kubelet finds the socket.
type directory interface {
	// listen makes a socket. It replaces an existing socket.
	listen(path string) (net.Listener, error)
	// dial connects to a socket.
	dial(ctx context.Context, path string) (net.Conn, error)
	// stat returns fs.ErrNotExist if there is no file at path.
	stat(path string) error
}

// files is a directory in a filesystem.
type files struct{}

func (files) listen(path string) (net.Listener, error) { return listen(path) }

func (files) dial(ctx context.Context, path string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}

func (files) stat(path string) error {
	_, err := os.Lstat(path)
	return err
}

// listen makes a socket with mode 0600. It replaces an existing socket, even if a process serves
// it: the previous pod is about to end, or was killed. A path that is not a socket stays and is an
// error. Its Close leaves the socket of another process: the kubelet would forget a driver whose
// new pod has just registered it.
func listen(path string) (net.Listener, error) {
	if err := unlink(path); err != nil {
		return nil, err
	}
	l, err := ownsocket.Listen(path)
	if err != nil {
		return nil, err // a nil *ownsocket.Socket is no nil net.Listener
	}
	return l, nil
}

// unlink removes a socket. No socket is no error.
func unlink(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("there is something that is no socket: %v", info.Mode())
	case err == nil:
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
