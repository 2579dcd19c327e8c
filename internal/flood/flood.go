// Package flood opens connections for tests, as an attacker does to lock others out.
package flood

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// Run connects clients to a server until the test ends, from an address of this machine. Each
// client sends a text and nothing more. When the server closes its connection, the client connects
// again at once.
func Run(t testing.TB, server, from string, clients int, text string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for range clients {
		running.Go(func() {
			for ctx.Err() == nil {
				conn, err := dialer.DialContext(ctx, "tcp", server)
				if err != nil { // such as no free port: the server closes the other connections too slowly
					continue
				}
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				io.WriteString(conn, text)
				io.Copy(io.Discard, conn)
				stop()
				conn.Close()
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}
