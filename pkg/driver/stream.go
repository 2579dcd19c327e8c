package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// maxStreams is the maximum number of streaming calls in a process: the calls of the
// SnapshotMetadata service. A call whose client does not read keeps its buffers and a file, some
// 400 KB, for at most stallLimit.
const maxStreams = 16

// stallLimit is the maximum time for which the client of such a call may read nothing, or may delay
// its request.
const stallLimit = time.Minute

// errStalled is the error for a client that has read nothing for stallLimit. Its code is
// DEADLINE_EXCEEDED, because in CSI ABORTED means that another call for the same snapshot is
// running. The client may call again, from the offset that it has reached.
var errStalled = errors.New("the client does not read the response")

// streams limits the streaming calls of a process.
type streams struct {
	running chan struct{} // an element for each call
}

func newStreams() *streams {
	return &streams{running: make(chan struct{}, maxStreams)}
}

// enter counts a call, and returns a function that ends the count. Errors: ErrUnavailable if
// maxStreams calls are running.
func (s *streams) enter() (leave func(), err error) {
	select {
	case s.running <- struct{}{}:
		return func() { <-s.running }, nil
	default:
		return nil, fmt.Errorf("%w: %d calls for snapshot metadata are in progress, which is the limit",
			backend.ErrUnavailable, cap(s.running))
	}
}

// within runs f, which waits for the client. If f takes too long, within returns errStalled. Then f
// ends after the handler, because the return of the handler ends the stream.
func (s *streams) within(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- guard.Do(f) }()
	late := time.NewTimer(stallLimit)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("%w: no data was sent or received for %s", errStalled, stallLimit)
	}
}

// interceptStreams applies the interceptors of unary calls, the outermost first, to streaming
// calls. A streaming call has a request too, its first message. So streaming calls are counted,
// logged, guarded and given a status code in the same way. For the interceptors, the response is
// nil. The request is nil if the client has not sent a request.
func interceptStreams(interceptors []grpc.UnaryServerInterceptor, limits *streams) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		req, err := requestOf(info)
		if err != nil {
			return err
		}
		received := &receivedStream{ServerStream: stream, req: req}
		if !info.IsClientStream {
			leave, full := limits.enter()
			if full == nil {
				defer leave()
			}
			received.limits, err = limits, full
		}
		if err == nil {
			err = received.receive()
		}
		call := func(ctx context.Context, _ any) (any, error) {
			received.ctx = ctx
			return nil, handler(srv, received)
		}
		if err != nil {
			req, call = nil, func(context.Context, any) (any, error) { return nil, err }
		}
		unary := &grpc.UnaryServerInfo{Server: srv, FullMethod: info.FullMethod}
		for i := len(interceptors) - 1; i >= 0; i-- {
			intercept, next := interceptors[i], call
			call = func(ctx context.Context, req any) (any, error) { return intercept(ctx, req, unary, next) }
		}
		_, err = call(stream.Context(), req)
		return err
	}
}

// requestOf returns an empty request of a method. Errors: UNIMPLEMENTED for an unknown method.
func requestOf(info *grpc.StreamServerInfo) (proto.Message, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(info.FullMethod, "/"), "/", ".")
	d, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	method, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", info.FullMethod)
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return nil, status.Errorf(codes.Unimplemented, "method %s: %v", info.FullMethod, err)
	}
	return t.New().Interface(), nil
}

// receivedStream is a stream whose first request has been received.
type receivedStream struct {
	grpc.ServerStream
	ctx     context.Context
	req     proto.Message
	limits  *streams // nil for a bidirectional stream, which only a router opens
	stalled error    // error of all later calls
}

// receive receives the first request.
func (s *receivedStream) receive() error {
	err := s.within(func() error { return s.ServerStream.RecvMsg(s.req) })
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the request is missing", backend.ErrInvalid)
	}
	return err
}

func (s *receivedStream) Context() context.Context { return s.ctx }

func (s *receivedStream) RecvMsg(m any) error {
	if s.req == nil {
		return s.ServerStream.RecvMsg(m)
	}
	to, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", m)
	}
	proto.Reset(to)
	proto.Merge(to, s.req)
	s.req = nil
	return nil
}

// SendMsg returns errStalled if the client reads nothing, and for all later messages.
func (s *receivedStream) SendMsg(m any) error {
	return s.within(func() error { return s.ServerStream.SendMsg(m) })
}

// within applies the limits of the stream, if it has limits.
func (s *receivedStream) within(f func() error) error {
	if s.limits == nil {
		return f()
	}
	if s.stalled != nil { // the stalled call has not returned, and gRPC allows only one at a time
		return s.stalled
	}
	err := s.limits.within(f)
	if errors.Is(err, errStalled) {
		s.stalled = err
	}
	return err
}
