package registrar

import (
	"errors"
	"net"

	"github.com/causeway-csi/causeway/internal/dacl"
)

// bind makes the socket, and then excludes other users: there are no file modes here. Until then,
// the access control list of the kubelet's directory protects the socket. The kubelet is SYSTEM.
func bind(path string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := dacl.Set(path, dacl.Private); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
