package registrar

import "net"

// bind makes the socket. Windows has no modes: the rights on the kubelet's directory keep strangers out.
func bind(path string) (*net.UnixListener, error) {
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}
