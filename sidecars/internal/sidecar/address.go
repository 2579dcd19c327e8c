package sidecar

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Address is a flag.Value for the port that a controller serves itself: 9808, or 127.0.0.1:9808 for
// a pod on the network of the host. "0" and "" mean no port.
type Address string

func (a *Address) String() string { return string(*a) }

// Set sets the address. Set returns an error if value is neither a port nor host:port.
func (a *Address) Set(value string) error {
	*a = Address(value)
	_, err := a.split()
	return err
}

// Listen returns the address for net.Listen, or "" for no port.
func (a Address) Listen() string {
	address, _ := a.split() // Set has rejected invalid values
	return address
}

func (a Address) split() (string, error) {
	host, port := "", string(a)
	if strings.Contains(port, ":") {
		var err error
		if host, port, err = net.SplitHostPort(port); err != nil {
			return "", err
		}
	}
	if port == "" {
		return "", nil
	}
	n, err := strconv.Atoi(port)
	switch {
	case err != nil || n > 65535:
		return "", fmt.Errorf("%q is neither a port nor host:port", string(a))
	case n <= 0: // as in upstream's registrar
		return "", nil
	}
	return net.JoinHostPort(host, port), nil
}
