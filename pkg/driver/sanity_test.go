package driver

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/sized"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// The reasons for which csi-sanity may skip specs. Each reason must occur, so that the lists shrink
// when the driver gains features. The volumes in memory skip nothing if their topology is a single
// node.
var (
	// notHostpath has nothing to attach.
	notHostpath = []string{
		"ControllerPublishVolume not supported",
		"ControllerUnpublishVolume not supported",
		"Controller Publish, UnpublishVolume not supported",
	}

	// notEverywhere: volumes that all nodes can use have no topology.
	notEverywhere = []string{"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported"}
)

// csi-sanity has 103 specs. Each spec runs at least once below, except a spec that csi-sanity
// itself has marked as pending. That spec pages through ListVolumes while volumes are created and
// deleted, as TestListVolumesPagesWhileVolumesComeAndGo does.
const (
	specs   = 103
	pending = 1
)

// canLoop reports whether this process may use loop devices, which no process may in a user
// namespace.
func canLoop() bool {
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	return err == nil && !inUserNamespace
}

// ids are IDs that this driver could have made.
type ids struct{ sanity.DefaultIDGenerator }

func (ids) GenerateUniqueValidVolumeID() string {
	return volumeid.New(volumeid.Volume, "node-1", uuid.NewString())
}

// cloningNTFS makes the driver restore and clone images of Windows.
func cloningNTFS(d *testDriver) { d.cloneVHDX = true }

// withNTFS requests ntfs in the capabilities of a call, as a class for Windows does. csi-sanity
// has no option for a filesystem.
func withNTFS(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption) error {
	var all []*csi.VolumeCapability
	if r, ok := req.(interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}); ok {
		all = r.GetVolumeCapabilities()
	}
	if r, ok := req.(interface {
		GetVolumeCapability() *csi.VolumeCapability
	}); ok && r.GetVolumeCapability() != nil {
		all = append(all, r.GetVolumeCapability())
	}
	for _, c := range all {
		if m := c.GetMount(); m != nil {
			m.FsType = "ntfs"
		}
	}
	return invoke(ctx, method, req, reply, conn, options...)
}

// sanityRun is a run of csi-sanity.
type sanityRun struct {
	driver  *testDriver
	maySkip []string // reasons
	passed  int
	skipped map[string]int
}

// TestSanity runs csi-sanity. Ginkgo rejects -count, because a suite cannot run twice in a process.
func TestSanity(t *testing.T) {
	runs := map[string]*sanityRun{}
	run := func(name string, maySkip []string, parameters map[string]string, access string,
		change ...func(*testDriver)) {
		ginkgo.Describe(name, func() {
			d := startDriver(t, change...)
			runs[name] = &sanityRun{driver: d, maySkip: maySkip, skipped: map[string]int{}}
			config := sanity.NewTestConfig()
			config.Address = d.address()
			config.TargetPath, config.StagingPath = d.path("target"), d.path("staging")
			config.TestVolumeSize = 64 << 20
			config.TestNodeVolumeAttachLimit = true
			config.IDGen = ids{}
			config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(sized.Answers))
			if d.cloneVHDX {
				config.TestVolumeSize = 128 << 20 // the smallest
				config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(withNTFS))
			}
			config.TestVolumeParameters = parameters
			config.TestVolumeAccessType = access
			config.TestVolumeMutableParameters = map[string]string{"label": "mine"}
			if d.memory != nil {
				config.TestVolumeMutableParameters = map[string]string{"tier": "fast"}
			}
			sanity.GinkgoTest(&config)
		})
	}
	image := map[string]string{"kind": "image"}
	run("fake mounter", notHostpath, nil, "mount")
	run("fake mounter, images", notHostpath, image, "mount")
	run("fake mounter, block devices", notHostpath, image, "block")
	run("volumes in memory", notEverywhere, nil, "mount", inMemory)
	run("volumes in memory, on one node", nil, nil, "mount", inMemory, onOneNode)
	run("block devices in memory", notEverywhere, nil, "block", inMemory)
	if newFakeWindows != nil {
		links := func(d *testDriver) { d.links = true }
		run("links of Windows", notHostpath, nil, "mount", links)
		if runtime.GOOS != "windows" { // Wine has no virtual disks
			run("links of Windows, images", notHostpath, image, "mount", links, cloningNTFS)
		}
	}
	mounts := func(d *testDriver) { d.real = true }
	if realMounter != nil {
		run("real mounts", notHostpath, nil, "mount", mounts)
	}
	if realMounter != nil && canLoop() {
		run("real mounts, images", notHostpath, image, "mount", mounts)
		run("real mounts, block devices", notHostpath, image, "block", mounts)
	}

	ran := map[string]bool{} // by the name of the spec: whether it ran at least once
	ginkgo.ReportAfterSuite("specs that ran", func(report types.Report) {
		for _, spec := range report.SpecReports {
			if spec.LeafNodeType != types.NodeTypeIt {
				continue
			}
			name := strings.Join(append(spec.ContainerHierarchyTexts[1:], spec.LeafNodeText), " ")
			ran[name] = ran[name] || spec.State == types.SpecStatePassed
			switch {
			case spec.State == types.SpecStatePassed:
				runs[spec.ContainerHierarchyTexts[0]].passed++
			case spec.State == types.SpecStateSkipped:
				runs[spec.ContainerHierarchyTexts[0]].skipped[spec.Failure.Message]++
			case spec.Failed():
				t.Errorf("%s: %s", spec.FullText(), spec.FailureMessage())
			}
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct, reporter.NoColor = !testing.Verbose(), true // test/wine prints the summary
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter)

	for name, r := range runs {
		r.check(t, name)
	}
	all := len(ran)
	maps.DeleteFunc(ran, func(_ string, passed bool) bool { return passed })
	if nowhere := slices.Sorted(maps.Keys(ran)); all != specs || len(nowhere) != pending {
		t.Errorf("csi-sanity has %d specs, of which these never passed: %q", all, nowhere)
	}
}

// check fails the test if specs were skipped for other reasons than maySkip, or if files or mounts
// are left.
func (r *sanityRun) check(t *testing.T, name string) {
	for _, reason := range slices.Sorted(maps.Keys(r.skipped)) {
		if !slices.Contains(r.maySkip, reason) {
			t.Errorf("%s: %d specs were skipped: %s", name, r.skipped[reason], reason)
		}
	}
	for _, reason := range r.maySkip {
		if r.skipped[reason] == 0 {
			t.Errorf("%s: no spec was skipped because of %q: remove the reason from the list", name, reason)
		}
	}
	d := r.driver
	dirs := []string{filepath.Join(d.root, "volumes"), filepath.Join(d.root, "snapshots"),
		filepath.Join(d.root, "groups")}
	if d.memory != nil {
		dirs = []string{filepath.Join(d.dir, "volumes")}
	}
	for _, dir := range dirs {
		left, err := os.ReadDir(dir)
		if users, err2 := d.mounter.MountPointsOf(dir); err != nil || err2 != nil || len(left)+len(users) > 0 {
			t.Errorf("%s: left in %s: %v, mounts %v, %v, %v", name, dir, left, users, err, err2)
		}
	}
	t.Logf("%s: %d specs passed, %d do not apply", name, r.passed, sum(r.skipped))
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}
