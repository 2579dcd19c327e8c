package router

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"weak"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"github.com/causeway-csi/causeway/internal/await"
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
	simulate(t, func(t *testing.T, c *cluster) {
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
	}, "a", "b")
}

// TestAClosedConnectionIsReleased: a router that runs for months makes a new connection to each
// node every 20 minutes.
func TestAClosedConnectionIsReleased(t *testing.T) {
	c := newCluster(t, "a")
	n := c.meet(c.nodes["a"])
	conn := weak.Make(n.conn)
	n.conn.close()
	n = nil //nolint:wastedassign // lets the garbage collector have the connection
	await.True(t, "nothing holds the closed connection", func() bool {
		runtime.GC()
		return conn.Value() == nil
	})
}

// TestTheEndOfRunClosesConnections includes a connection in use by a call, and a connection that no
// node has yet.
func TestTheEndOfRunClosesConnections(t *testing.T) {
	simulate(t, func(t *testing.T, c *cluster) {
		kept, n := c.router.view.Load().nodes[0], c.meet(c.nodes["a"])
		kept.calls.Add(1)
		c.stop()
		await.NoError(c.TB, "both connections are closed", func() error {
			if is, was := n.conn.GetState(), kept.conn.GetState(); is != connectivity.Shutdown || was != is {
				return fmt.Errorf("the connections are %s and %s", is, was)
			}
			return nil
		})
	}, "a")
}
