package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// somebodysDriver is a driver that mounts nothing but checks the order of calls and their undoing.
type somebodysDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	mu                         sync.Mutex
	volumes, staged, published map[string]string // by name or path, the volume's ID
	calls                      map[string]int
	// intercept runs with the n-th call of a method, from 1 on. Its error is the answer; it may or
	// may not handle.
	intercept func(method string, n int, handle func() error) error
}

func (d *somebodysDriver) call(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (resp any, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ctx.Err() != nil { // the caller has gone
		return nil, ctx.Err()
	}
	method := path.Base(info.FullMethod)
	d.calls[method]++
	err = d.intercept(method, d.calls[method], func() (err error) {
		resp, err = handler(ctx, req)
		return err
	})
	return resp, err
}

// counts returns the numbers of volumes, of staged and of published volumes.
func (d *somebodysDriver) counts() [3]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return [3]int{len(d.volumes), len(d.staged), len(d.published)}
}

func (d *somebodysDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "somebodys"}, nil
}

func (d *somebodysDriver) CreateVolume(_ context.Context,
	r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	id := "id-" + r.GetName()
	d.volumes[r.GetName()] = id
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id}}, nil
}

func (d *somebodysDriver) NodeStageVolume(_ context.Context,
	r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d.staged[r.GetStagingTargetPath()] = r.GetVolumeId()
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *somebodysDriver) NodePublishVolume(_ context.Context,
	r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.published[r.GetTargetPath()] = r.GetVolumeId()
	err := os.MkdirAll(filepath.Join(r.GetTargetPath(), "data"), 0o755)
	return &csi.NodePublishVolumeResponse{}, err
}

func (d *somebodysDriver) NodeGetVolumeStats(context.Context, *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return &csi.NodeGetVolumeStatsResponse{}, nil
}

func (d *somebodysDriver) NodeUnpublishVolume(_ context.Context,
	r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if _, ok := d.published[r.GetTargetPath()]; !ok {
		return nil, status.Error(codes.NotFound, "not published")
	}
	delete(d.published, r.GetTargetPath())
	err := errors.Join(os.Remove(filepath.Join(r.GetTargetPath(), "data")), os.Remove(r.GetTargetPath()))
	return &csi.NodeUnpublishVolumeResponse{}, err
}

func (d *somebodysDriver) NodeUnstageVolume(_ context.Context,
	r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	for _, id := range d.published {
		if id == r.GetVolumeId() {
			return nil, status.Error(codes.FailedPrecondition, "published")
		}
	}
	delete(d.staged, r.GetStagingTargetPath())
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (d *somebodysDriver) DeleteVolume(_ context.Context,
	r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	for _, id := range d.staged {
		if id == r.GetVolumeId() {
			return nil, status.Error(codes.FailedPrecondition, "staged")
		}
	}
	for name, id := range d.volumes {
		if id == r.GetVolumeId() {
			delete(d.volumes, name)
		}
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// start serves the driver and returns a driver of the benchmark with few volumes. A socket's path
// must be short.
func (d *somebodysDriver) start(t *testing.T) options {
	t.Helper()
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, kubelet := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "kubelet")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	d.volumes, d.staged, d.published, d.calls = map[string]string{}, map[string]string{}, map[string]string{}, map[string]int{}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.call))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return options{endpoints: [2]string{"unix://" + socket}, dir: kubelet, volumes: 6, callers: 3, rounds: 2}
}

var methods = []string{
	"CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeGetVolumeStats", "NodeUnpublishVolume", "NodeUnstageVolume", "DeleteVolume",
}

func TestNothingIsLeftAtADriver(t *testing.T) {
	busy := status.Error(codes.Aborted, "busy")
	for what, intercept := range map[string]func(n int, interrupt func(), handle func() error) error{
		"refused": func(n int, _ func(), handle func() error) error {
			if n == 3 {
				return status.Error(codes.Internal, "no")
			}
			return handle()
		},
		"done, but the answer is lost": func(n int, _ func(), handle func() error) error {
			if err := handle(); err != nil || n != 3 {
				return err
			}
			return status.Error(codes.Unavailable, "lost")
		},
		"done while the user presses Ctrl-C, and then busy": func(n int, interrupt func(), handle func() error) error {
			switch n {
			case 3:
				interrupt()
			case 4, 5:
				return busy
			}
			return handle()
		},
	} {
		for _, fails := range methods {
			t.Run(fails+" is "+what, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				d := &somebodysDriver{intercept: func(method string, n int, handle func() error) error {
					if method != fails {
						return handle()
					}
					return intercept(n, interrupt, handle)
				}}
				o := d.start(t)
				if err := compare(ctx, o); err == nil {
					t.Error("no error")
				}
				if got := d.counts(); got != [3]int{} {
					t.Errorf("left are %d volumes, %d staged, %d published", got[0], got[1], got[2])
				}
				if left, err := os.ReadDir(o.dir); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
			})
		}
	}
}

func TestNothingIsLeftWhereTheDriverMayNotMount(t *testing.T) {
	d := &somebodysDriver{intercept: func(method string, _ int, handle func() error) error {
		if strings.HasPrefix(method, "NodeStage") || strings.HasPrefix(method, "NodeUnstage") {
			return status.Error(codes.InvalidArgument, "not below my kubelet directory")
		}
		return handle()
	}}
	o := d.start(t)
	err := compare(t.Context(), o)
	if err == nil || strings.Contains(err.Error(), "left") {
		t.Errorf("got %v", err)
	}
	if got := d.counts(); got != [3]int{} {
		t.Errorf("left are %d volumes, %d staged, %d published", got[0], got[1], got[2])
	}
}

func TestAPublishedVolumeKeepsItsData(t *testing.T) {
	d := &somebodysDriver{intercept: func(method string, _ int, handle func() error) error {
		if method == "NodeUnpublishVolume" {
			return status.Error(codes.Internal, "no")
		}
		return handle()
	}}
	o := d.start(t)
	err := compare(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "may be left: 6,") {
		t.Errorf("got %v", err)
	}
	if got, want := d.counts(), [3]int{o.volumes, o.volumes, o.volumes}; got != want {
		t.Errorf("got %v volumes, staged and published; want %v", got, want)
	}
	for target := range d.published {
		if _, err := os.Stat(filepath.Join(target, "data")); err != nil {
			t.Error(err)
		}
	}
}

func TestTwoDriversHaveTwoHeadings(t *testing.T) {
	for _, names := range [][2]string{{"a", "a"}, {"a", "b"}} {
		clients := []*client{{name: names[0]}, {name: names[1]}}
		headings(clients)
		if clients[0].name == clients[1].name || names[0] != names[1] && clients[0].name != names[0] {
			t.Errorf("%q became %q and %q", names, clients[0].name, clients[1].name)
		}
	}
}
