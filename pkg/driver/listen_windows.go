package driver

import (
	"errors"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/windows"

	"github.com/causeway-csi/causeway/internal/dacl"
	"github.com/causeway-csi/causeway/internal/ownsocket"
)

// makeSocketDir makes the directory of the socket, which other users cannot enter.
func makeSocketDir(dir string) error { return dacl.MakePrivate(dir) }

// bindSocket creates the socket, and then excludes other users: there are no file modes here.
func bindSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	s, err := ownsocket.Listen(path)
	if err != nil {
		return nil, err // a nil *ownsocket.Socket is no nil net.Listener
	}
	return s, nil
}

func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }

// Replaced returns false, because Windows has no way to stop a process as SIGSTOP does.
func Replaced(net.Listener) bool { return false }
