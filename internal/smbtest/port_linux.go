package smbtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
)

// freePort returns a TCP port that no socket of this machine has at an address. While a server is
// down, its port must stay free. The kernel therefore must not give the port to a client, as it may
// give any port of ip_local_port_range. Source: the kernel's
// Documentation/networking/ip-sysctl.rst.
func freePort(address string) (int, error) {
	low, high, err := clientPorts()
	if err != nil {
		return 0, err
	}
	ports := serverPorts(low, high)
	for range 100 {
		port := ports[rand.IntN(len(ports))]
		var l net.Listener
		l, err = net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return 0, err
}

// portRange is the file with the first and the last port for clients.
const portRange = "/proc/sys/net/ipv4/ip_local_port_range"

// clientPorts returns the first and the last port that the kernel gives to clients.
func clientPorts() (low, high int, err error) {
	data, err := os.ReadFile(portRange)
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscan(string(data), &low, &high); err != nil {
		return 0, 0, fmt.Errorf("%s: %q: %w", portRange, data, err)
	}
	return low, high, nil
}

// lowest is the lowest port of a server of a test. Most ports with a registered use are lower.
const lowest = 10000

// serverPorts returns the ports that are outside of the range from low to high, or all ports if the
// range has all of them.
func serverPorts(low, high int) []int {
	var all, outside []int
	for port := lowest; port < 1<<16; port++ {
		all = append(all, port)
		if port < low || port > high {
			outside = append(outside, port)
		}
	}
	if len(outside) == 0 {
		return all
	}
	return outside
}
