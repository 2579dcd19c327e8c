package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// simulate runs a test in a synctest bubble, with a router before nodes with these names. The nodes
// have real drivers with volumes in memory, and the network is in memory, too. So the times of the
// product pass while everything waits.
func simulate(t *testing.T, run func(t *testing.T, c *cluster), names ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{TB: patient{t, time.Now().Add(24 * time.Hour)}, dir: shortDir(t), nodes: map[string]*machine{},
			wires: &wires{listeners: map[string]*bufconn.Listener{}, silent: map[string]*atomic.Bool{}}}
		c.boot(names...)
		run(t, c)
	})
}

// patient is a test in a bubble, with a deadline in the time of the bubble.
type patient struct {
	*testing.T
	deadline time.Time
}

func (p patient) Deadline() (time.Time, bool) { return p.deadline, true }

// wires is a network in memory. All its addresses end with the port of a node.
type wires struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener // by address
	silent    map[string]*atomic.Bool      // by address: packets to it are lost
	last      int
}

// listen listens at an address, or at a new one if address is "".
func (w *wires) listen(address string) net.Listener {
	w.mu.Lock()
	defer w.mu.Unlock()
	if address == "" {
		w.last++
		address = fmt.Sprintf("10.0.0.%d:9810", w.last)
	}
	l := bufconn.Listen(64 << 10)
	w.listeners[address], w.silent[address] = l, new(atomic.Bool)
	return wireListener{l, wireAddress(address)}
}

// silence loses the packets to an address from now on, or no more.
func (w *wires) silence(address string, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent[address].Store(silent)
}

func (w *wires) dial(ctx context.Context, address string) (net.Conn, error) {
	w.mu.Lock()
	l, silent := w.listeners[address], w.silent[address]
	w.mu.Unlock()
	if l == nil {
		return nil, refused(address)
	}
	if silent.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := l.DialContext(ctx)
	if err != nil {
		return nil, refused(address)
	}
	return &wire{conn, wireAddress(address), silent}, nil
}

func refused(address string) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: wireAddress(address), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

type wireAddress string

func (wireAddress) Network() string  { return "tcp" }
func (a wireAddress) String() string { return string(a) }

type wireListener struct {
	net.Listener
	address wireAddress
}

func (l wireListener) Addr() net.Addr { return l.address }

// wire is the client's end of a connection.
type wire struct {
	net.Conn
	remote wireAddress
	silent *atomic.Bool
}

func (w *wire) RemoteAddr() net.Addr { return w.remote }

func (w *wire) Write(p []byte) (int, error) {
	if w.silent.Load() {
		return len(p), nil
	}
	return w.Conn.Write(p)
}

// shelf is a backend with empty volumes in memory, and is the storage itself: it outlives a driver.
type shelfBackend struct {
	node string

	mu      sync.Mutex
	volumes map[string]backend.Volume
}

func (s *shelfBackend) Node() string { return s.node }

func (s *shelfBackend) Create(_ context.Context, o backend.CreateOptions) (backend.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := volumeid.New(volumeid.Volume, s.node, o.Name)
	if _, ok := s.volumes[id]; !ok {
		s.volumes[id] = backend.Volume{ID: id, Size: o.Required}
	}
	return s.volumes[id], nil
}

func (s *shelfBackend) Get(_ context.Context, id string, _ map[string]string) (backend.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.volumes[id]; ok {
		return v, nil
	}
	return backend.Volume{}, fmt.Errorf("%w: volume %q", backend.ErrNotFound, id)
}

func (s *shelfBackend) Delete(_ context.Context, id string, _ map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.volumes, id)
	return nil
}

func (s *shelfBackend) Mount(context.Context, string, backend.Access) (mounter.Mount, error) {
	return mounter.Mount{}, errors.ErrUnsupported
}

func (s *shelfBackend) List(_ context.Context, after string, limit int) (page []backend.Volume, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.volumes)) {
		if id > after {
			page = append(page, s.volumes[id])
		}
	}
	if len(page) > limit {
		return page[:limit], true, nil
	}
	return page, false, nil
}

// Capacity is CapacityReporter: a volume takes some of it.
func (s *shelfBackend) Capacity(context.Context, backend.CreateOptions) (backend.Capacity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := int64(1 << 40)
	for _, v := range s.volumes {
		left -= v.Size
	}
	return backend.Capacity{Available: left, Maximum: left}, nil
}
