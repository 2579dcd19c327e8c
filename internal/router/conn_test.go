package router

import (
	"context"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// meet connects to a node beside the connections that the router keeps.
func (c *cluster) meet(m *machine) *node {
	c.Helper()
	n, err := c.router.identify(context.Background(), m.address)
	if err != nil {
		c.Fatal(err)
	}
	return n
}

// TestALostConnectionIsNotMadeAgain: a channel of gRPC connects again by itself, and the address
// may be another node's by then.
func TestALostConnectionIsNotMadeAgain(t *testing.T) {
	c := newCluster(t, "a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	n := c.meet(a)
	defer n.conn.close()
	a.stop()
	b.stop()
	b.address = a.address
	b.start()
	c.lost(1)
	n.conn.Connect()
	calls := b.calls.Load()
	for range 20 {
		_, err := controllerCall(context.Background(), c.router, n, csi.ControllerClient.DeleteVolume,
			&csi.DeleteVolumeRequest{VolumeId: volumeid.New(volumeid.Volume, "a", "v")})
		wantCode(t, err, codes.Unavailable, "a ("+a.address)
	}
	if got := b.calls.Load(); got != calls {
		t.Errorf("b got %d calls that were for a", got-calls)
	}
}

// TestAClosedConnectionIsReleased: a router that runs for months makes a new connection to each
// node every 20 minutes.
func TestAClosedConnectionIsReleased(t *testing.T) {
	c := newCluster(t, "a")
	n := c.meet(c.nodes["a"])
	conn := weak.Make(n.conn)
	n.conn.close()
	n = nil //nolint:wastedassign // lets the garbage collector have the connection
	for deadline := time.Now().Add(30 * time.Second); conn.Value() != nil; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("something still holds the closed connection")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestTheEndOfRunClosesConnections includes a connection in use by a call, and a connection that no
// node has yet.
func TestTheEndOfRunClosesConnections(t *testing.T) {
	c := newCluster(t, "a")
	kept, n := c.router.view.Load().nodes[0], c.meet(c.nodes["a"])
	kept.calls.Add(1)
	c.stop()
	for deadline := time.Now().Add(30 * time.Second); n.conn.GetState() != connectivity.Shutdown ||
		kept.conn.GetState() != connectivity.Shutdown; {
		if time.Now().After(deadline) {
			t.Fatalf("the connections are %s and %s", n.conn.GetState(), kept.conn.GetState())
		}
		time.Sleep(time.Millisecond)
	}
}
