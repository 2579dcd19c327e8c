package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/test/figures"
)

const (
	// idleClients is the number of connections that a neighbor on the network wants to keep open.
	idleClients = 4000
	// reconnectAfter is the time after which a client that was dropped connects again. Clients
	// without it only measure how the processors are shared: they run on those of the driver.
	reconnectAfter = 5 * time.Second
)

// idleConnections: clients of the endpoint for metrics send nothing, and connect again after they
// are dropped.
func idleConnections(ctx context.Context, b *bench) error {
	address, err := freeport.Address()
	if err != nil {
		return err
	}
	w, err := newWorld(ctx, b, "xfs", "--http-endpoint="+address)
	if err != nil {
		return err
	}
	defer w.kill()
	if _, err := w.laps(ctx, 1, 0); err != nil { // warm
		return err
	}
	before, err := w.laps(ctx, b.rounds, 0)
	if err != nil {
		return err
	}
	was := figures.Status(w.cmd.Process.Pid, "VmRSS")
	disconnect := keepConnecting(ctx, address, idleClients)
	defer disconnect()
	if err := w.suffer(ctx, b, before, nil); err != nil {
		return fmt.Errorf("%w; the log ends with %s", err, w.tail())
	}
	if _, err := w.laps(ctx, 1, b.least); err != nil { // of the next driver
		return err
	}
	fmt.Printf("  memory with %d idle clients: %d KiB, was %d KiB\n", idleClients,
		figures.Status(w.cmd.Process.Pid, "VmRSS"), was)
	disconnect()
	return w.end(ctx, nil)
}

// keepConnecting keeps n connections open that send nothing, until disconnect is called.
func keepConnecting(ctx context.Context, address string, n int) (disconnect func()) {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			for ctx.Err() == nil {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				io.Copy(io.Discard, conn)
				stop()
				conn.Close()
				select {
				case <-ctx.Done():
				case <-time.After(rand.N(2 * reconnectAfter)):
				}
			}
		})
	}
	return func() {
		cancel()
		clients.Wait()
	}
}
