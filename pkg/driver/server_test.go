package driver

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// For a server that was stopped before it began, gRPC returns ErrServerStopped, which is not a
// failure.
func TestAnEndBeforeTheFirstCallIsNoFailure(t *testing.T) {
	for range 200 { // the two race
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Serve(ctx, slog.New(slog.DiscardHandler), time.Second, Endpoint{grpc.NewServer(), l}); err != nil {
			t.Fatalf("got %v, want nil", err)
		}
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			c.Close()
			t.Fatal("the listener is open")
		}
	}
}
