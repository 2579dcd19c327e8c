package driver

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// aroundStreams puts the interceptors of unary calls, the outermost first, around calls with streams: they have a request
// too, the first message, and so are counted, logged, given codes and guarded in the same way. The response is nil to the
// interceptors.
func aroundStreams(around []grpc.UnaryServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		req, err := requestOf(info)
		if err != nil {
			return err
		}
		if err := stream.RecvMsg(req); err != nil {
			return err
		}
		call := func(ctx context.Context, _ any) (any, error) {
			return nil, handler(srv, &receivedStream{ServerStream: stream, ctx: ctx, req: req})
		}
		unary := &grpc.UnaryServerInfo{Server: srv, FullMethod: info.FullMethod}
		for i := len(around) - 1; i >= 0; i-- {
			intercept, next := around[i], call
			call = func(ctx context.Context, req any) (any, error) { return intercept(ctx, req, unary, next) }
		}
		_, err = call(stream.Context(), req)
		return err
	}
}

// requestOf returns an empty request of a method. Errors: UNIMPLEMENTED for a method that isn't known.
func requestOf(info *grpc.StreamServerInfo) (proto.Message, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(info.FullMethod, "/"), "/", ".")
	d, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	method, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "method %s is unknown", info.FullMethod)
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return nil, status.Errorf(codes.Unimplemented, "method %s: %v", info.FullMethod, err)
	}
	return t.New().Interface(), nil
}

// receivedStream is a stream whose first request was taken off it.
type receivedStream struct {
	grpc.ServerStream
	ctx context.Context
	req proto.Message
}

func (s *receivedStream) Context() context.Context { return s.ctx }

func (s *receivedStream) RecvMsg(m any) error {
	if s.req == nil {
		return s.ServerStream.RecvMsg(m)
	}
	to, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", m)
	}
	proto.Reset(to)
	proto.Merge(to, s.req)
	s.req = nil
	return nil
}
