// Package freeport finds addresses for servers that tests start.
package freeport

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// hosts is how many hosts a process has.
const hosts = 250

var found atomic.Int32

// Address returns a "host:port" without a listener. All of 127.0.0.0/8 is this machine, and 15 bits
// of this process's ID are in the host: hardly another process takes the port before the server
// does, neither for a server nor for the own end of a connection. Where only 127.0.0.1 can be used,
// the host is that, and another process may be faster.
func Address() (string, error) {
	pid := os.Getpid()
	host := fmt.Sprintf("127.%d.%d.%d", 1+pid>>8&0x7f, pid&0xff, 2+(found.Add(1)-1)%hosts)
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Must is Address, and fails the test after an error.
func Must(t testing.TB) string {
	t.Helper()
	address, err := Address()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
