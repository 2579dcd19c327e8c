package ownsocket

import (
	"net"

	"github.com/causeway-csi/causeway/internal/dacl"
)

// bind makes a socket. Until restrict, the access control list of its directory protects the
// socket: there are no file modes here.
func bind(path string) (*net.UnixListener, error) {
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// restrict excludes other users. The kubelet is SYSTEM.
func restrict(path string) error { return dacl.Set(path, dacl.Private) }
