package driver

import (
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// serveStreams serves a backend in memory, and returns a connection to the server.
func serveStreams(t *testing.T, b backend.Backend, log *logBuffer) *grpc.ClientConn {
	t.Helper()
	// The windows are fixed, so that gRPC does not receive responses that the test does not read.
	conn, _, _ := serveInMemory(t, b, log, time.Second, grpc.WithStaticStreamWindowSize(64<<10),
		grpc.WithStaticConnWindowSize(1<<20))
	return conn
}

// serveInMemory is serveOdd over a connection in memory, for a synctest bubble.
func serveInMemory(t *testing.T, b backend.Backend, log *logBuffer, drain time.Duration,
	options ...grpc.DialOption) (conn *grpc.ClientConn, stop func(), served chan error) {
	t.Helper()
	dir := t.TempDir()
	server, err := New(Config{
		Name: testName, Release: "test", Node: "n", Backend: b, Mounter: mountertest.NewFake(dir), StateDir: dir,
		Log: newTestLogger(log), Registry: newRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	l := bufconn.Listen(64 << 10)
	ctx, cancel := context.WithCancel(context.Background())
	served = make(chan error, 1)
	go func() { served <- server.Serve(ctx, drain, Endpoint{server.All(), l}) }()
	if conn, err = grpc.NewClient("passthrough:///memory", append(options, insecureOption(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
	)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); conn.Close() })
	return conn, cancel, served
}

// endless is a backend whose responses never end.
func endless() *differ {
	return &differ{odd: &odd{probe: alwaysReady}, size: math.MaxInt64, ranges: manyRanges(1 << 20),
		ended: make(chan error, 2*maxStreams)}
}

func allocated(ctx context.Context, t *testing.T,
	conn *grpc.ClientConn) (csi.SnapshotMetadata_GetMetadataAllocatedClient, error) {
	t.Helper()
	stream, err := csi.NewSnapshotMetadataClient(conn).GetMetadataAllocated(ctx,
		&csi.GetMetadataAllocatedRequest{SnapshotId: "a"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	return stream, err
}

func TestUnreadStreamsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBuffer{}
		conn := serveStreams(t, endless(), log)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i := range maxStreams {
			if _, err := allocated(ctx, t, conn); err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
		}
		for range 100 {
			if _, err := allocated(context.Background(), t, conn); status.Code(err) != codes.Unavailable ||
				!strings.Contains(err.Error(), "16 calls for snapshot metadata") {
				t.Fatalf("a call over the limit: %v", err)
			}
		}
		if _, err := csi.NewIdentityClient(conn).Probe(context.Background(), &csi.ProbeRequest{}); err != nil {
			t.Errorf("another call: %v", err)
		}
		if said := log.String(); !strings.Contains(said, "msg=GetMetadataAllocated code=Unavailable") {
			t.Errorf("the log has no rejected call: %s", said)
		}
		cancel()
		synctest.Wait()
		if _, err := allocated(t.Context(), t, conn); err != nil {
			t.Errorf("after the end of the others: %v", err)
		}
	})
}

func TestAnUnreadStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, d := &logBuffer{}, endless()
		conn := serveStreams(t, d, log)
		for range 2 * maxStreams { // the end of each call lets another call start
			start := time.Now()
			stream, err := allocated(t.Context(), t, conn)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-d.ended; !errors.Is(err, errStalled) {
				t.Fatalf("the call ended with %v", err)
			}
			if since := time.Since(start); since != stallLimit {
				t.Fatalf("the call ended after %v, want %v", since, stallLimit)
			}
			for err == nil { // first come the responses that the client has not read, then the error
				_, err = stream.Recv()
			}
			if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "does not read") {
				t.Fatalf("the client gets %v", err)
			}
		}
		if said := log.String(); !strings.Contains(said, "code=DeadlineExceeded") {
			t.Errorf("the log: %s", said)
		}
	})
}

// stuck is a stream whose client reads nothing until it is released.
type stuck struct {
	grpc.ServerStream
	sends atomic.Int32
	let   chan struct{}
}

func (s *stuck) SendMsg(any) error {
	s.sends.Add(1)
	<-s.let
	return nil
}

// TestNothingIsSentAfterAStall: gRPC allows one SendMsg at a time, and a backend may continue after
// an error.
func TestNothingIsSentAfterAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &stuck{let: make(chan struct{})}
		defer close(client.let)
		stream := &receivedStream{ServerStream: client, limits: newStreams()}
		for range 3 {
			if err := stream.SendMsg(nil); !errors.Is(err, errStalled) {
				t.Errorf("SendMsg = %v", err)
			}
		}
		if n := client.sends.Load(); n != 1 {
			t.Errorf("gRPC has %d messages at the same time", n)
		}
	})
}

// TestASlowReaderGetsItsAnswer reads for longer than a client may read nothing.
func TestASlowReaderGetsItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause = 10 * time.Second
		d := &differ{odd: &odd{probe: alwaysReady}, size: 1 << 40, ranges: manyRanges(30 * maxRanges)}
		conn := serveStreams(t, d, &logBuffer{})
		stream, err := allocated(t.Context(), t, conn)
		if err != nil {
			t.Fatal(err)
		}
		got, start := maxRanges, time.Now()
		for {
			time.Sleep(pause)
			answer, err := stream.Recv()
			if err != nil {
				if got != len(d.ranges) {
					t.Errorf("%d ranges of %d, %v", got, len(d.ranges), err)
				}
				if took := time.Since(start); took < 4*stallLimit {
					t.Errorf("the call took %s, which proves nothing for a limit of %s", took, stallLimit)
				}
				return
			}
			got += len(answer.GetBlockMetadata())
		}
	})
}

func TestAStreamWithoutARequestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := serveStreams(t, endless(), &logBuffer{})
		desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
		for range 2 * maxStreams {
			stream, err := conn.NewStream(t.Context(), desc, csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.RecvMsg(&csi.GetMetadataAllocatedResponse{}); status.Code(err) != codes.DeadlineExceeded {
				t.Fatalf("without a request: %v", err)
			}
		}
	})
}
