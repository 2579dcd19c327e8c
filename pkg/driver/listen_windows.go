package driver

import (
	"errors"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/windows"

	"github.com/causeway-csi/causeway/internal/dacl"
)

// makeSocketDir makes the directory of the socket, which other users cannot enter.
func makeSocketDir(dir string) error { return dacl.MakePrivate(dir) }

// bindSocket creates the socket, and then excludes other users: there are no file modes here.
func bindSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := dacl.Set(path, dacl.Private); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }

// Replaced returns false, because Windows has no way to stop a process as SIGSTOP does.
func Replaced(net.Listener) bool { return false }
