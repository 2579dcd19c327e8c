package inventory

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

func TestMain(m *testing.M) {
	helper.Main(host.HelperTasks(), hostpath.HelperTasks())
	os.Exit(m.Run())
}

// startDriver starts hostpath behind the real services of CSI, on a socket. Nothing is mounted.
func startDriver(t *testing.T) *grpc.ClientConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "orphans") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	root, kubelet, endpoint := filepath.Join(dir, "root"), filepath.Join(dir, "kubelet"), "unix://"+filepath.Join(dir,
		"csi.sock")
	for _, d := range []string{root, kubelet, filepath.Join(dir, "state")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m := mountertest.NewFake(kubelet)
	storage, err := hostpath.New(hostpath.Config{
		Root: root, Node: "node-1", Init: true, RootRecord: filepath.Join(dir, "seen"), Images: m,
	})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := driver.New(driver.Config{
		Name: "hostpath.csi.causeway.dev", Release: "test", Node: "node-1", Backend: storage, Mounter: m, StateDir: filepath.Join(dir, "state"),
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := driver.Listen(endpoint, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx, 10*time.Second, driver.Endpoint{Server: d.All(), Listener: l}) }()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := storage.Close(); err != nil {
			t.Error(err)
		}
	})
	await.True(t, "the driver is ready", func() bool {
		resp, err := csi.NewIdentityClient(conn).Probe(context.Background(), &csi.ProbeRequest{},
			grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetReady().GetValue()
	})
	return conn
}

// makeBoth creates a volume, and a snapshot of it.
func makeBoth(t *testing.T, conn *grpc.ClientConn, name string) (volume, snapshot string) {
	t.Helper()
	c := csi.NewControllerClient(conn)
	v, err := c.CreateVolume(context.Background(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.CreateSnapshot(context.Background(),
		&csi.CreateSnapshotRequest{Name: "of-" + name, SourceVolumeId: v.GetVolume().GetVolumeId()})
	if err != nil {
		t.Fatal(err)
	}
	return v.GetVolume().GetVolumeId(), s.GetSnapshot().GetSnapshotId()
}

func TestTheListOfARealDriver(t *testing.T) {
	conn := startDriver(t)
	made := map[string]string{} // volumes, by their snapshots
	for _, name := range []string{"pvc-1", "pvc-2", "pvc-3", "pvc-4", "pvc-5"} {
		v, s := makeBoth(t, conn, name)
		made[s] = v
	}
	for _, page := range []int32{0, 1, 2, 5, 1000} {
		got, err := List(context.Background(), conn, Options{Page: page})
		if err != nil || got.Driver != "hostpath.csi.causeway.dev" || len(got.Volumes) != 5 || len(got.Snapshots) != 5 {
			t.Fatalf("pages of %d: %+v, %v", page, got, err)
		}
		for _, v := range got.Volumes {
			if v.Size != 1<<20 || v.Nodes[0] != "node-1" || v.Source != "" {
				t.Errorf("%+v", v)
			}
		}
		for _, s := range got.Snapshots {
			if s.Source != made[s.ID] || s.Nodes[0] != "node-1" || time.Since(s.Created) > time.Hour {
				t.Errorf("%+v, want the source %s", s, made[s.ID])
			}
		}
	}
}
