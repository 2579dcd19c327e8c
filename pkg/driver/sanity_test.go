package driver

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// notOurs are the reasons for which csi-sanity may skip: services and calls that this driver doesn't have. Each one
// must be met, so that the list shrinks when the driver grows.
var notOurs = []string{
	"Snapshot not supported",
	"Volume Cloning not supported",
	"Modify volume not supported",
	"Modify Volume not supported",
	"ControllerPublishVolume not supported",
	"ControllerUnpublishVolume not supported",
	"Controller Publish, UnpublishVolume not supported",
	"ListSnapshots not supported",
	"GetSnapshot not supported",
	"DeleteSnapshot not supported",
	"CreateSnapshot not supported",
	"ControllerExpandVolume not supported",
	"ControllerModifyVolume not supported",
	"NodeExpandVolume not supported",
	"GroupControllerService not supported",
}

// canLoop reports whether this process may use loop devices, which nobody may in a user namespace.
func canLoop() bool {
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	return err == nil && !inUserNamespace
}

// ids are IDs that this driver could have made.
type ids struct{ sanity.DefaultIDGenerator }

func (ids) GenerateUniqueValidVolumeID() string { return volumeid.New("node-1", uuid.NewString()) }

// TestSanity runs csi-sanity. Ginkgo refuses -count, as a suite can't run twice in one process.
func TestSanity(t *testing.T) {
	var drivers []*testDriver
	run := func(name string, parameters map[string]string, access string, change ...func(*testDriver)) {
		ginkgo.Describe(name, func() {
			d := startDriver(t, change...)
			drivers = append(drivers, d)
			config := sanity.NewTestConfig()
			config.Address = d.endpoint()
			config.TargetPath, config.StagingPath = d.path("target"), d.path("staging")
			config.TestVolumeSize = 64 << 20
			config.IDGen = ids{}
			config.TestVolumeParameters = parameters
			config.TestVolumeAccessType = access
			sanity.GinkgoTest(&config)
		})
	}
	image := map[string]string{"kind": "image"}
	run("fake mounter", nil, "mount")
	run("fake mounter, images", image, "mount")
	run("fake mounter, block devices", image, "block")
	real := func(d *testDriver) { d.real = true }
	if realMounter != nil {
		run("real mounts", nil, "mount", real)
	}
	if realMounter != nil && canLoop() {
		run("real mounts, images", image, "mount", real)
		run("real mounts, block devices", image, "block", real)
	}

	passed, skipped := 0, map[string]int{}
	ginkgo.ReportAfterSuite("what ran", func(report types.Report) {
		for _, spec := range report.SpecReports {
			switch spec.State {
			case types.SpecStatePassed:
				if spec.LeafNodeType == types.NodeTypeIt {
					passed++
				}
			case types.SpecStateSkipped:
				skipped[spec.Failure.Message]++
			}
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct, reporter.NoColor = true, true
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter)

	for _, reason := range slices.Sorted(maps.Keys(skipped)) {
		if !slices.Contains(notOurs, reason) {
			t.Errorf("%d specs were skipped: %s", skipped[reason], reason)
		}
	}
	for _, reason := range notOurs {
		if skipped[reason] == 0 {
			t.Errorf("nothing was skipped because of %q: take it off the list", reason)
		}
	}
	for _, d := range drivers {
		volumes, err := os.ReadDir(filepath.Join(d.root, "volumes"))
		if users, err2 := d.mounter.Users(d.root); err != nil || err2 != nil || len(volumes)+len(users) > 0 {
			t.Errorf("left: volumes %v, mounts %v, %v, %v", volumes, users, err, err2)
		}
	}
	t.Logf("%d specs passed, %d don't apply", passed, sum(skipped))
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}
