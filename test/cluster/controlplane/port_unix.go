//go:build unix

package controlplane

import (
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// reserve finds a free port of address and reserves it for as long as the returned file is open:
// bound to a socket that does not listen. A server that asks to share the port (SO_REUSEPORT) can
// listen on it, again and again; no other process gets the port in between, not even for an
// outgoing connection. While no server listens, connections are refused.
func reserve(address string) (port int, keep *os.File, err error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return 0, nil, err
	}
	domain, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: ip.As16()})
	if ip.Is4() {
		domain, to = unix.AF_INET, &unix.SockaddrInet4{Addr: ip.As4()}
	}
	fd, err := socket(domain)
	if err != nil {
		return 0, nil, fmt.Errorf("reserve a port: %w", err)
	}
	keep = os.NewFile(uintptr(fd), "reserved port")
	if port, err = bind(fd, to); err != nil {
		keep.Close()
		return 0, nil, fmt.Errorf("reserve a port of %s: %w", address, err)
	}
	return port, keep, nil
}

// socket makes a socket that no child gets, which would keep the port longer than this process
// does.
func socket(domain int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Socket(domain, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	return fd, err
}

// bind binds a socket to an address whose port is 0, in a way that others may share, and returns
// the port it got.
func bind(fd int, to unix.Sockaddr) (int, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, to); err != nil {
		return 0, err
	}
	got, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	switch a := got.(type) {
	case *unix.SockaddrInet4:
		return a.Port, nil
	case *unix.SockaddrInet6:
		return a.Port, nil
	}
	return 0, fmt.Errorf("bound to %T", got)
}
