package router

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
)

// Sizes in bytes. Those of messages and windows are the same as the nodes'.
const (
	maxMessage = 16 << 20
	maxAnswer  = 1 << 20  // of all calls but lists, so that a node cannot take much of the router's memory
	maxHeader  = 64 << 10 // including the text of an error; gRPC takes seconds to read a longer header
	bufferSize = 4 << 10
	window     = 1 << 20
)

var errLost = errors.New("the connection was lost")

// connection is a gRPC channel over a single network connection. It never reconnects: the address
// may belong to another node by then. docs/reference/benchmarks.md compares a channel for each node
// with a shared channel.
type connection struct {
	*grpc.ClientConn
	raw  net.Conn
	stop func() bool // keeps the end of Run from closing the connection
}

// connect returns a channel over raw. The caller must close the channel, which closes raw; the end
// of Run closes both, too. After an error the caller must close raw.
func (r *Router) connect(raw net.Conn) (*connection, error) {
	var taken atomic.Bool
	dial := func(context.Context, string) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, errLost
		}
		return raw, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+raw.RemoteAddr().String(), append([]grpc.DialOption{
		grpc.WithContextDialer(dial), grpc.WithTransportCredentials(r.cfg.Credentials),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingLimit,
			PermitWithoutStream: true}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
		grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(maxMessage)),
		// A router has hundreds of channels, most of them idle. TLS buffers reads already.
		grpc.WithReadBufferSize(0), grpc.WithWriteBufferSize(bufferSize),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
	}, r.cfg.DialOptions...)...)
	if err != nil {
		return nil, err
	}
	c := &connection{ClientConn: conn, raw: raw}
	c.stop = context.AfterFunc(r.life, c.end)
	return c, nil
}

// close ends the calls on the connection.
func (c *connection) close() {
	c.stop()
	c.end()
}

func (c *connection) end() {
	c.ClientConn.Close()
	c.raw.Close() // the channel may not have dialed yet
}

// lost reports whether a connection that was ready is lost.
func (c *connection) lost() bool { return c.GetState() != connectivity.Ready }
