package registrar

import "net"

// bind makes the socket. Windows has no modes: the permissions of the kubelet's directory protect
// the socket.
func bind(path string) (*net.UnixListener, error) {
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}
