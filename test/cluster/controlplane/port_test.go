//go:build unix

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// sharing is a listener that asks to share its port, as the components do.
var sharing = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET,
			unix.SO_REUSEPORT, 1)
	}), err)
}}

func TestReservedPort(t *testing.T) {
	port, keep, err := reserve("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	address := fmt.Sprintf("127.0.0.1:%d", port)
	if l, err := net.Listen("tcp", address); err == nil {
		l.Close()
		t.Error("somebody else could listen on it")
	}
	for range 2 {
		if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connect while nobody listens: got %v, %v, want %v", c, err, syscall.ECONNREFUSED)
		}
		l, err := sharing.Listen(context.Background(), "tcp", address)
		if err != nil {
			t.Fatalf("listen on it: %v", err)
		}
		for range 10 { // every connection is the listener's
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		l.Close()
	}
}

func TestReserveRefusesAName(t *testing.T) {
	if _, _, err := reserve("localhost"); err == nil {
		t.Error("no error")
	}
}
