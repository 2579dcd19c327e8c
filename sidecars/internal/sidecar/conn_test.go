package sidecar

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/causeway-csi/causeway/internal/await"
)

// small is a driver that makes volumes and groups of snapshots, and nothing else.
type small struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	probes atomic.Int32
	made   atomic.Int32
}

func (s *small) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "small.example.com", VendorVersion: "1"}, nil
}

// Probe is not ready at first.
func (s *small) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(s.probes.Add(1) > 1)}, nil
}

func (s *small) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	of := func(t csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}}
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		of(csi.PluginCapability_Service_CONTROLLER_SERVICE), of(csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)}}, nil
}

func (s *small) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{
		Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}}}}}, nil
}

func (s *small) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{Type: &csi.GroupControllerServiceCapability_Rpc{
		Rpc: &csi.GroupControllerServiceCapability_RPC{Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}}}}}, nil
}

func (s *small) CreateVolume(context.Context, *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	s.made.Add(1)
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "1"}}, nil
}

// serve serves it at a path until it is stopped.
func (s *small) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, s)
	csi.RegisterControllerServer(server, s)
	csi.RegisterGroupControllerServer(server, s)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return server.Stop
}

// line dials a socket in a short directory.
func line(t *testing.T, c *calls, lost func()) (*Socket, *grpc.ClientConn) {
	t.Helper()
	socket := NewSocket(filepath.Join(t.TempDir(), "s"))
	conn, err := dial(t.Context(), socket, c, lost)
	if err != nil {
		t.Fatal(err)
	}
	return socket, conn
}

func TestWhereTheSocketMayBe(t *testing.T) {
	for _, c := range []struct {
		address, want string
		bad           bool
	}{
		{address: "/run/csi/socket", want: "/run/csi/socket"},
		{address: "unix:///csi/csi.sock", want: "/csi/csi.sock"},
		{address: "unix:/csi/csi.sock", want: "/csi/csi.sock"},
		{address: `unix://C:\k\plugins\csi.example.com\csi.sock`, want: `C:\k\plugins\csi.example.com\csi.sock`},
		{address: `C:\k\csi.sock`, want: `C:\k\csi.sock`},
		{address: "csi.sock", want: "csi.sock"},
		{address: "unix:csi.sock", want: "csi.sock"},
		{address: "", bad: true},
		{address: "unix:", bad: true},
		{address: "unix://", bad: true},
		{address: "tcp://127.0.0.1:1", bad: true},
		{address: "dns:///x", bad: true},
	} {
		got, err := socketPath(c.address)
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("%q: got %q, %v, want %q", c.address, got, err, c.want)
		}
	}
}

func TestADriverIsIdentifiedWhenItIsReady(t *testing.T) {
	t.Parallel()
	socket, conn := line(t, newCalls(nil, -1), func() {})
	env := &Env{Conn: conn, Socket: socket}
	known := make(chan error, 1)
	go func() { known <- identify(await.Context(t), env, 10*time.Second) }()
	if _, err := csi.NewIdentityClient(conn).Probe(await.Context(t),
		&csi.ProbeRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a call before the driver is there: %v, want it to fail at once", err)
	}
	s := &small{}
	s.serve(t, socket.path)
	if err := <-known; err != nil {
		t.Fatal(err)
	}
	if env.Driver != "small.example.com" || s.probes.Load() < 2 {
		t.Errorf("found %q after %d probes, though it was not ready at the first", env.Driver, s.probes.Load())
	}
	if !env.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME] ||
		env.Controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME] ||
		!env.Group[csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT] {
		t.Errorf("it can %v and %v", env.Controller, env.Group)
	}
}

func TestTheWaitForADriverEndsWithTheContext(t *testing.T) {
	t.Parallel()
	socket, conn := line(t, newCalls(nil, -1), func() {})
	ctx, cancel := context.WithCancel(t.Context())
	known := make(chan error, 1)
	go func() { known <- identify(ctx, &Env{Conn: conn, Socket: socket}, time.Second) }()
	cancel()
	if err := <-known; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestALostConnectionIsNoticedOnceAndMadeAgain(t *testing.T) {
	t.Parallel()
	lost := make(chan struct{}, 10)
	socket, conn := line(t, newCalls(nil, -1), func() { lost <- struct{}{} })
	s := &small{}
	for range 2 {
		stop := s.serve(t, socket.path)
		if err := awaitConnection(await.Context(t), conn, socket); err != nil {
			t.Fatal(err)
		}
		if _, err := csi.NewIdentityClient(conn).GetPluginInfo(await.Context(t), &csi.GetPluginInfoRequest{}); err != nil {
			t.Fatal(err)
		}
		if len(lost) != 0 {
			t.Error("it was lost while the driver is there")
		}
		stop()
		await.Receive(t, "the loss is noticed", lost)
	}
}

func TestNoCallWithoutLeadership(t *testing.T) {
	t.Parallel()
	c := newCalls(nil, -1)
	var lost atomic.Bool
	c.leads = func() error {
		if lost.Load() {
			return ErrLost
		}
		return nil
	}
	socket, conn := line(t, c, func() {})
	s := &small{}
	s.serve(t, socket.path)
	if err := awaitConnection(await.Context(t), conn, socket); err != nil {
		t.Fatal(err)
	}
	lost.Store(true)
	_, err := csi.NewControllerClient(conn).CreateVolume(await.Context(t), &csi.CreateVolumeRequest{Name: "v"})
	if status.Code(err) != codes.Unavailable || s.made.Load() != 0 {
		t.Errorf("got %v, and the driver made %d volumes", err, s.made.Load())
	}
	if _, err := csi.NewIdentityClient(conn).Probe(await.Context(t),
		&csi.ProbeRequest{}); status.Code(err) != codes.Unavailable || s.probes.Load() != 0 {
		t.Errorf("what is not asked for a controller goes the same way: %v", err)
	}
	lost.Store(false)
	if err := awaitConnection(await.Context(t), conn, socket); err != nil {
		t.Fatal(err)
	}
	if _, err := csi.NewControllerClient(conn).CreateVolume(await.Context(t), &csi.CreateVolumeRequest{Name: "v"}); err != nil ||
		s.made.Load() != 1 {
		t.Errorf("the leader: %v, and the driver made %d volumes", err, s.made.Load())
	}
}

func TestCallsAreCountedByDriverControllerAndCode(t *testing.T) {
	c := newCalls(func(context.Context) string { return "true" }, -1)
	socket, conn := line(t, c, func() {})
	(&small{}).serve(t, socket.path)
	if err := awaitConnection(await.Context(t), conn, socket); err != nil {
		t.Fatal(err)
	}
	control := csi.NewControllerClient(conn)
	control.CreateVolume(await.Context(t), &csi.CreateVolumeRequest{Name: "v"})
	csi.NewIdentityClient(conn).GetPluginInfo(await.Context(t), &csi.GetPluginInfoRequest{})
	control.ControllerExpandVolume(await.Context(t), &csi.ControllerExpandVolumeRequest{VolumeId: "v"})
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.seconds)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for _, m := range families[0].Metric {
		for _, l := range m.Label {
			said.WriteString(l.GetValue() + " ")
		}
		said.WriteString("\n")
	}
	for _, want := range []string{
		"provisioner unknown-driver OK /csi.v1.Controller/CreateVolume true",
		" small.example.com OK /csi.v1.Identity/GetPluginInfo true",
		"resizer small.example.com Unimplemented /csi.v1.Controller/ControllerExpandVolume true",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q is not in\n%s", want, &said)
		}
	}
}

func TestAnswersInTheLogAreCut(t *testing.T) {
	for _, c := range []struct {
		max          int
		answer, want string
	}{{-1, "abc", "abc"}, {0, "abc", "abc"}, {3, "abc", "abc"}, {2, "abc", "ab… (3 letters)"}, {2, "aé",
		"a… (3 letters)"}} {
		if got := newCalls(nil, c.max).cut(c.answer); got != c.want {
			t.Errorf("%d letters of %q: %q, want %q", c.max, c.answer, got, c.want)
		}
	}
}
