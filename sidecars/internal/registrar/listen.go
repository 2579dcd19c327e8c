package registrar

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
)

// maxSocketPath is the longest path of a Unix socket on Linux and on Windows, in bytes.
const maxSocketPath = 107

// listen makes a socket for its owner alone. One that is there is replaced, though somebody may serve it: the pod of before,
// which is about to end, or one that was killed. What is no socket is left alone, and an error.
func listen(path string) (net.Listener, error) {
	if err := unlink(path); err != nil {
		return nil, err
	}
	l, err := bind(path)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would go by the path alone
	info, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &socket{UnixListener: l, path: path, info: info}, nil
}

// unlink removes a socket. That there is none is fine.
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

// socket is a listener that removes its socket when it is closed, unless another process has put its own there: the kubelet
// would forget a driver whose new pod has just registered it.
type socket struct {
	*net.UnixListener
	path   string
	info   fs.FileInfo
	closed sync.Once
}

// Close may be called again, and then does nothing.
func (s *socket) Close() (err error) {
	s.closed.Do(func() {
		if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.info) {
			os.Remove(s.path)
		}
		err = s.UnixListener.Close()
	})
	return err
}
