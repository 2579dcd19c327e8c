package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/pkg/csidriver"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// The nodes of these tests have the logic of Windows over the links and files of this machine:
// mountertest.FakeWindows. They find a disk by its serial number, partition and format it if it is
// blank, and mount it through a link.

// windowsCloud is a cloud whose machines are such nodes.
type windowsCloud struct {
	cloud
	dir   string
	nodes map[string]*mountertest.FakeWindows
}

func (c windowsCloud) AttachDisk(ctx context.Context, id, node string, a attachment) (attachment, error) {
	a, err := c.cloud.AttachDisk(ctx, id, node, a)
	if err != nil {
		return a, err
	}
	d, err := c.Disk(ctx, id)
	if err != nil {
		return a, err
	}
	return a, c.nodes[node].AttachDisk(d.Serial, c.image(id), a.ReadOnly)
}

func (c windowsCloud) DetachDisk(ctx context.Context, id, node string) error {
	d, err := c.Disk(ctx, id)
	if err == nil {
		for name, machine := range c.nodes {
			if node == "" || node == name {
				machine.DetachDisk(d.Serial)
			}
		}
	}
	return c.cloud.DetachDisk(ctx, id, node)
}

// image is the file with the bytes of a disk.
func (c windowsCloud) image(id string) string { return filepath.Join(c.dir, disksDir, id, imageName) }

// windowsNode is a driver on a node, in this process.
type windowsNode struct {
	*process
	host *mountertest.FakeWindows
}

func newWindowsNode(t testing.TB, name string) windowsNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "attached")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := windowsNode{process: &process{dir: dir, node: name}}
	if err := os.Mkdir(n.path("state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if n.host, err = mountertest.NewFakeWindows(dir, n.path("state/mounts")); err != nil {
		t.Fatal(err)
	}
	return n
}

// serve serves the node, and the controller if cloud is not nil.
func (n windowsNode) serve(t testing.TB, cloud cloud) {
	t.Helper()
	registry := prometheus.NewRegistry()
	s := &storage{cloud: cloud, node: n.node, limit: 16, find: findBy(n.host.FindDevice)}
	d, err := driver.New(driver.Config{Name: "attached.csi.example.com", Release: "test", Node: n.node, Backend: s,
		Mounter: n.host, StateDir: n.path("state"), Log: slog.New(slog.DiscardHandler), Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	l, err := driver.Listen(n.endpoint(), false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx, 10*time.Second, driver.Endpoint{Server: d.All(), Listener: l}) }()
	conn, err := grpc.NewClient(n.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(conn.Close(), <-served, d.Close()); err != nil {
			t.Error(err)
		}
	})
	n.ControllerClient, n.NodeClient = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
}

func (n windowsNode) endpoint() string { return "unix://" + n.path("csi.sock") }

func TestADiskMovesBetweenWindowsNodes(t *testing.T) {
	a, b := newWindowsNode(t, "a"), newWindowsNode(t, "b")
	cloud := newWindowsCloud(t, a, b)
	a.serve(t, cloud)
	b.serve(t, nil)
	a.T, b.T = t, t
	v := a.create("moves", "ntfs", 128<<20)
	v.comes(a.process)
	sum := v.write(a.process)
	if err := v.detach("b"); err != nil {
		t.Errorf("detach from a node that does not have the disk: %v", err)
	}
	if err := v.stage(t.Context(), b.process, nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("stage without a publish context: %v", err)
	}
	if path := device(t, a, v.id, cloud); path != `\\.\PhysicalDrive1` {
		t.Errorf("the disk is %s on its first node", path)
	}
	v.goes(a.process)

	other := a.create("other", "ntfs", 128<<20)
	if _, err := other.attach(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	v.comes(b.process)
	if path := device(t, b, v.id, cloud); path != `\\.\PhysicalDrive2` {
		t.Errorf("the disk is %s on its second node", path)
	}
	v.holds(b.process, sum)

	grown := &csi.CapacityRange{RequiredBytes: 256 << 20}
	_, err := a.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: v.id, CapacityRange: grown})
	if err == nil {
		_, err = b.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: v.id, VolumePath: b.path("target"),
			StagingTargetPath: b.path("staging"), CapacityRange: grown, VolumeCapability: v.use})
	}
	if err != nil {
		t.Errorf("growth: %v", err)
	}
	v.holds(b.process, sum)
	v.goes(b.process)
	v.comes(b.process)
	v.holds(b.process, sum)
	v.goes(b.process)
}

// device returns the path of a disk on a node.
func device(t *testing.T, n windowsNode, id string, c windowsCloud) string {
	t.Helper()
	d, err := c.Disk(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	path, _, err := n.host.FindDevice(t.Context(), d.Serial)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAWindowsNodeDoesNotFormatAUsedDisk, such as one that a Linux node has formatted.
func TestAWindowsNodeDoesNotFormatAUsedDisk(t *testing.T) {
	n := newWindowsNode(t, "a")
	n.T = t
	cloud := newWindowsCloud(t, n)
	n.serve(t, cloud)
	v := n.create("v", "ntfs", 128<<20)
	file, err := os.OpenFile(cloud.image(v.id), os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt([]byte("XFSB"), 0)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	before := fileSum(t, cloud.image(v.id))
	publish, err := v.attach(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.stage(t.Context(), n.process, publish); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "has xfs") {
		t.Errorf("stage: %v", err)
	}
	if fileSum(t, cloud.image(v.id)) != before {
		t.Error("the disk has changed")
	}
	publish[sizeKey] = "268435456"
	if err := v.stage(t.Context(), n.process, publish); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "268435456") {
		t.Errorf("stage of a smaller disk: %v", err)
	}
}

func newWindowsCloud(t *testing.T, nodes ...windowsNode) windowsCloud {
	t.Helper()
	c := windowsCloud{dir: cloudDir(t), nodes: map[string]*mountertest.FakeWindows{}}
	var names []string
	for _, n := range nodes {
		c.nodes[n.node] = n.host
		names = append(names, n.node)
	}
	var err error
	if c.cloud, err = openCloud(c.dir, names, 16, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// maySkip are the reasons for which csi-sanity skips specs here, as on Linux: the example has no
// topology, groups, capacity, health or classes of attributes.
var maySkip = []string{
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported", "GroupControllerService not supported",
	"GetCapacity not supported", "Modify volume not supported", "Modify Volume not supported",
	"ControllerModifyVolume not supported", "ControllerGetVolumeHealth not supported",
	"ControllerListVolumeHealth not supported", "NodeGetVolumeHealth not supported",
	"NodeGetStorageHealth not supported",
}

func TestSanityOnAWindowsNode(t *testing.T) {
	n := newWindowsNode(t, "a")
	n.serve(t, newWindowsCloud(t, n))
	config := sanity.NewTestConfig()
	config.Address, config.TargetPath, config.StagingPath = n.endpoint(), n.path("target"), n.path("staging")
	config.TestVolumeSize = 128 << 20
	config.TestNodeVolumeAttachLimit = true
	config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(withNTFS))
	sanity.GinkgoTest(&config)
	var passed int
	ginkgo.ReportAfterSuite("results", func(report types.Report) {
		for _, spec := range report.SpecReports {
			switch {
			case spec.State == types.SpecStatePassed:
				passed++
			case spec.State == types.SpecStateSkipped && !slices.Contains(maySkip, spec.Failure.Message):
				t.Errorf("skipped: %s: %s", spec.FullText(), spec.Failure.Message)
			case spec.Failed():
				t.Errorf("%s: %s", spec.FullText(), spec.FailureMessage())
			}
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct, reporter.NoColor = !testing.Verbose(), true
	if !ginkgo.RunSpecs(t, "csi-sanity on a Windows node", suite, reporter) || passed == 0 {
		t.Errorf("%d specs passed", passed)
	}
	t.Logf("%d specs passed", passed)
}

// withNTFS requests ntfs in the capabilities of a call, as a class for Windows does.
func withNTFS(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption) error {
	var all []*csi.VolumeCapability
	switch r := req.(type) {
	case interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}:
		all = r.GetVolumeCapabilities()
	case interface {
		GetVolumeCapability() *csi.VolumeCapability
	}:
		all = []*csi.VolumeCapability{r.GetVolumeCapability()}
	}
	for _, c := range all {
		if m := c.GetMount(); m != nil {
			m.FsType = "ntfs"
		}
	}
	return invoke(ctx, method, req, reply, conn, options...)
}

// TestANodeHasNoDirectoryOfTheCloud: on Windows the default is not even an absolute path.
func TestANodeHasNoDirectoryOfTheCloud(t *testing.T) {
	o := &options{dir: "var/lib/attached"}
	if err := o.check(csidriver.Config{}); err != nil {
		t.Errorf("on a node: %v", err)
	}
	if err := o.check(csidriver.Config{Controller: true}); err == nil {
		t.Error("a controller accepts a relative path")
	}
}
