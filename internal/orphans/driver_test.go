package orphans

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

func TestMain(m *testing.M) {
	helper.Main(mounter.HelperTasks(), hostpath.HelperTasks())
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
	m := mounter.NewFake(kubelet)
	storage, err := hostpath.New(hostpath.Config{
		Root: root, Node: "node-1", Init: true, Seen: filepath.Join(dir, "seen"), Images: m,
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
	for resp := (*csi.ProbeResponse)(nil); !resp.GetReady().GetValue(); time.Sleep(time.Millisecond) {
		if resp, err = csi.NewIdentityClient(conn).Probe(context.Background(), &csi.ProbeRequest{},
			grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
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

func TestOrphansOfARealDriver(t *testing.T) {
	conn := startDriver(t)
	var stdin []map[string]any
	var volume, snapshot string
	for _, name := range []string{"pvc-1", "pvc-2", "pvc-3", "pvc-4", "pvc-5"} {
		v, s := makeBoth(t, conn, name)
		if name == "pvc-3" {
			volume, snapshot = v, s
			continue
		}
		stdin = append(stdin, pv(v), content(s))
	}
	for _, page := range []int32{0, 1, 2, 5, 1000} {
		r, err := Find(context.Background(), conn, strings.NewReader(listOf(stdin...)+mark), Options{Page: page})
		if err != nil || r.Volumes != (Count{Held: 5, Named: 4, Orphans: 1}) ||
			r.Snapshots != (Count{Held: 5, Named: 4, Orphans: 1}) || r.Members.Held != 0 || len(r.Orphans) != 2 {
			t.Fatalf("pages of %d: %+v, %v", page, r, err)
		}
		v, s := r.Orphans[0], r.Orphans[1]
		if v.What != "volume" || v.ID != volume || v.Size != 1<<20 || v.Nodes[0] != "node-1" || v.Source != "" {
			t.Errorf("%+v, want volume %s", v, volume)
		}
		if s.What != "snapshot" || s.ID != snapshot || s.Nodes[0] != "node-1" || s.Source != volume ||
			time.Since(s.Created) > time.Hour {
			t.Errorf("%+v, want snapshot %s", s, snapshot)
		}
	}
	after, err := csi.NewControllerClient(conn).ListVolumes(context.Background(), &csi.ListVolumesRequest{})
	if err != nil || len(after.GetEntries()) != 5 {
		t.Errorf("afterwards there are %d volumes, %v, want all 5", len(after.GetEntries()), err)
	}
}

func TestReports(t *testing.T) {
	r, err := Find(context.Background(), full().serve(t), strings.NewReader(listOf(pv(v1), pv(v3), content(s1))+mark),
		Options{})
	if err != nil {
		t.Fatal(err)
	}
	var text, nothing bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	want := "WHAT      ID" + strings.Repeat(" ",
		57) + "BYTES       NODE  CREATED               SOURCE" + strings.Repeat(" ", 53) + "GROUP\n" +
		"volume    " + v2 + "  2147483648  n1    -                     " + s1 + "  -\n" +
		"snapshot  " + s2 + "  3221225472  n2    2026-11-02T10:00:00Z  " + v3 + "  -\n" +
		"volumes: 3 held, 2 named, 1 orphans\nsnapshots: 2 held, 1 named, 1 orphans\n" +
		"snapshots in groups: 3 held, 0 named, the others NOT JUDGED: there is no VolumeGroupSnapshotContent on " +
		"stdin: if the cluster has none, say --expect-no-groups\n"
	if text.String() != want || r.Judged() {
		t.Errorf("got\n%s, want\n%s", text.String(), want)
	}
	var out bytes.Buffer
	var read Report
	if err := r.JSON(&out); err != nil || json.Unmarshal(out.Bytes(), &read) != nil || summary(read) != summary(r) ||
		!read.Orphans[1].Created.Equal(when) {
		t.Errorf("%v: %s", err, out.String())
	}
	if err := (Report{}).JSON(&nothing); err != nil || !strings.Contains(nothing.String(), `"orphans": []`) {
		t.Errorf("%v: %s", err, nothing.String())
	}
	if got := cell("n\x1b[2J"); got != `"n\x1b[2J"` {
		t.Errorf("a node's name reaches the terminal as %s", got)
	}
	if err := r.Text(failing{}); err == nil {
		t.Error("what cannot be written is not an error")
	}
}

// failing is where nothing can be written.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
