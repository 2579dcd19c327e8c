package sidecar

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Address is the value of a flag for a port that one controller serves by itself: 9808, or 127.0.0.1:9808 where the pod is on
// the host's network; 0 or nothing for none. It is a flag.Value.
type Address string

func (a *Address) String() string { return string(*a) }

// Set takes what the command line says, and refuses what can't be listened on.
func (a *Address) Set(said string) error {
	*a = Address(said)
	_, err := a.split()
	return err
}

// Listen is the address as net.Listen takes it, and empty where there is to be no port.
func (a Address) Listen() string {
	address, _ := a.split() // Set refused what is wrong
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
	case n <= 0: // upstream's registrar takes those below for off, too
		return "", nil
	}
	return net.JoinHostPort(host, port), nil
}
