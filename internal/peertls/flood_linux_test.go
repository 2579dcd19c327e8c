package peertls

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/connlimit"
	"github.com/causeway-csi/causeway/internal/flood"
)

// TestARouterGetsInBesideAFlood: clients that do not authenticate, and that connect again as soon
// as the server drops them, keep no new router out, whether they are silent or begin a handshake.
func TestARouterGetsInBesideAFlood(t *testing.T) {
	ca := newTestCA(t, "test CA")
	const (
		routers = 10
		hello   = "\x16\x03\x01"
	)
	for _, tc := range []struct {
		clients, places int // 0 places: as many as Limit gives
		from, says      string
	}{
		{clients: 80, from: "127.0.0.1"},
		{clients: 80, from: "127.0.0.2"},
		{clients: 80, places: 32, from: "127.0.0.1"},
		{clients: 80, places: 32, from: "127.0.0.2"},
		{clients: 1000, from: "127.0.0.1"},
		{clients: 1000, from: "127.0.0.2"},
		{clients: 1000, from: "127.0.0.1", says: hello},
		{clients: 1000, from: "127.0.0.2", says: hello},
	} {
		t.Run(fmt.Sprintf("%d clients at %s that send %q, %d places", tc.clients, tc.from, tc.says, tc.places),
			func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				limited := Limit(l)
				if tc.places > 0 {
					limited = connlimit.New(l, connlimit.Limits{Waiting: tc.places, Admitted: routers})
				}
				id, log := open(t, ca.leaf(t, node, forServers).dir(t))
				s := serveAt(t, limited, grpc.Creds(id.Server(router)))
				flood.Run(t, s.addr, tc.from, tc.clients, tc.says)
				if tc.places > 0 || tc.clients > maxConns {
					await.True(t, "connections are dropped",
						func() bool { return limited.Dropped() > 3*uint64(tc.clients) })
					says(t, "log", strings.Join(log.takeLines(), "\n"), "client "+tc.from, "too many handshakes are in progress")
				}
				made := 0 // a router's own connection may be dropped before its first message has come
				for range routers {
					creds := identity(t, ca.leaf(t, router, forClients)).Client(node)
					await.True(t, "a router gets in", func() bool {
						made++
						_, err := s.call(creds)
						return err == nil
					})
				}
				t.Logf("%d attempts of %d routers", made, routers)
			})
	}
}
