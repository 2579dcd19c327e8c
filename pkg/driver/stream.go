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

// maxStreams is how many calls whose answer is a stream, those of the SnapshotMetadata service, run in a process at the
// same time. One that its client does not read keeps its buffers and a file, some 400 KB, for as long as stallLimit.
const maxStreams = 16

// stallLimit is how long the client of such a call may read nothing, or leave the driver without the request.
const stallLimit = time.Minute

// errStalled says that a client has read nothing for stallLimit. Its code is DEADLINE_EXCEEDED: in CSI, ABORTED says that
// another call for the same snapshot runs. The client may ask again, from the offset that it has reached.
var errStalled = errors.New("the client does not read the answer")

// streams limits the calls of a process whose answer is a stream.
type streams struct {
	places chan struct{} // held by calls
	stall  time.Duration
}

func newStreams() *streams {
	return &streams{places: make(chan struct{}, maxStreams), stall: stallLimit}
}

// enter takes a place, and returns a function that gives it back. Errors: ErrUnavailable if none is left.
func (s *streams) enter() (leave func(), err error) {
	select {
	case s.places <- struct{}{}:
		return func() { <-s.places }, nil
	default:
		return nil, fmt.Errorf("%w: %d calls for metadata of snapshots are running, which is the limit", backend.ErrUnavailable, cap(s.places))
	}
}

// within runs f, which waits for the client. If f takes too long, within returns errStalled; f then ends when the handler
// has returned, which ends the stream.
func (s *streams) within(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- guard.Do(f) }()
	late := time.NewTimer(s.stall)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("%w: nothing came or went for %s", errStalled, s.stall)
	}
}

// aroundStreams puts the interceptors of unary calls, the outermost first, around calls with streams: they have a request
// too, the first message, and so are counted, logged, given codes and guarded in the same way. The response is nil to the
// interceptors, and so is a request that did not come.
func aroundStreams(around []grpc.UnaryServerInterceptor, limits *streams) grpc.StreamServerInterceptor {
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
	ctx     context.Context
	req     proto.Message
	limits  *streams // nil for a stream in both directions, which only a router has
	stalled error    // why nothing more is sent
}

// receive takes the request off the stream.
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
		return fmt.Errorf("%T is no message", m)
	}
	proto.Reset(to)
	proto.Merge(to, s.req)
	s.req = nil
	return nil
}

// SendMsg returns errStalled if the client reads nothing, and from then on.
func (s *receivedStream) SendMsg(m any) error {
	return s.within(func() error { return s.ServerStream.SendMsg(m) })
}

// within is that of the stream's limits, if it has any.
func (s *receivedStream) within(f func() error) error {
	if s.limits == nil {
		return f()
	}
	if s.stalled != nil { // the call that stalled is under way still, and gRPC allows one
		return s.stalled
	}
	err := s.limits.within(f)
	if errors.Is(err, errStalled) {
		s.stalled = err
	}
	return err
}
