// Package sized is for tests that run csi-sanity.
package sized

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Answers makes an answer cache its size, as a message does once it was sent. csi-sanity v5.6.0
// compares the topology of a snapshot with a topology that it has sent, by reflect.DeepEqual, which
// includes the caches.
func Answers(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, options...)
	if m, ok := reply.(proto.Message); ok {
		proto.Size(m)
	}
	return err
}
