package rig

import (
	"context"
	"fmt"
	"net"

	grpcpeer "google.golang.org/grpc/peer"
)

// knowing is a listener whose connections know which process is at the other end.
type knowing struct{ *net.UnixListener }

// Accept is net.Listener's.
func (l knowing) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	pid, err := peer(c)
	if err != nil {
		pid = 0 // whose calls these are is only known on Linux
	}
	return known{c, caller{c.RemoteAddr(), pid}}, nil
}

// known is the connection of a process.
type known struct {
	*net.UnixConn
	from caller
}

// RemoteAddr is net.Conn's.
func (c known) RemoteAddr() net.Addr { return c.from }

// caller is an address with its process.
type caller struct {
	net.Addr
	pid int
}

// String is net.Addr's.
func (c caller) String() string { return fmt.Sprintf("process %d", c.pid) }

// callerOf returns the ID of the process that makes a call, or 0.
func callerOf(ctx context.Context) int {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return 0
	}
	c, _ := p.Addr.(caller)
	return c.pid
}
