package driver

import (
	"errors"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/windows"
)

// bindSocket creates the socket. Windows has no file modes: the permissions of the directory
// exclude other users.
func bindSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }

// Replaced returns false, because Windows has no way to stop a process as SIGSTOP does.
func Replaced(net.Listener) bool { return false }
