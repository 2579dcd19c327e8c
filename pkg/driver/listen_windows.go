package driver

import (
	"errors"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/windows"
)

// bindSocket makes the socket. Windows has no modes: the rights on the directory keep strangers out.
func bindSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }

// Replaced reports false: Windows does not stop processes as SIGSTOP does.
func Replaced(net.Listener) bool { return false }
