package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/moby/sys/mountinfo"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/sized"
)

func TestHostpathIsSane(t *testing.T) {
	sane(t, newDir(t), trial{Mutable: map[string]string{"label": "mine"}})
}

// trial says with what csi-sanity tries a driver.
type trial struct {
	Parameters map[string]string // of the volumes that it makes
	Mutable    map[string]string // that a Modifier's volumes can have
	Block      bool              // volumes are block devices

	Dir string // where the driver is; for sane to set
}

// sane runs csi-sanity against a driver process that is started in dir with these flags: over its socket, with real
// mounts. It fails where a spec fails, where none ran, and where one was skipped for another reason than that the driver
// doesn't advertise what it is about; and if the driver leaves a mount or doesn't end well.
func sane(t *testing.T, dir string, what trial, flags ...string) {
	t.Helper()
	p := start(t, build(t), dir, flags...)
	if ready, err := p.probe(); !ready || err != nil {
		t.Fatalf("Probe = %v, %v: %s", ready, err, p.said())
	}
	what.Dir = dir
	env, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	// In a process of its own, as Ginkgo runs one suite only in each.
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), trialEnv+"="+string(env))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the driver said: %s\ncsi-sanity: %v\n%s", p.said(), err, out)
	}
	passed, skipped := specs(t, what.report())
	for reason, n := range skipped {
		if !skippable(reason) {
			t.Errorf("csi-sanity: %d specs were skipped: %s", n, reason)
		}
	}
	if passed == 0 {
		t.Errorf("csi-sanity ran nothing:\n%s", out)
	}
	t.Logf("csi-sanity: %d specs passed; skipped were %v", passed, skipped)

	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.ended(); code != 0 {
		t.Errorf("after SIGTERM: exit %d, %s", code, p.said())
	}
	if mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir)); err != nil || len(mounts) > 0 {
		t.Errorf("left: mounts %v, %v", mounts, err)
	}
}

// trialEnv is set in the environment of a process that is csi-sanity, to its trial.
const trialEnv = "CAUSEWAY_TRIAL"

// run is csi-sanity. It returns the exit code of the process.
func (w trial) run() int {
	config := sanity.NewTestConfig()
	config.Address = "unix://" + filepath.Join(w.Dir, "csi.sock")
	config.TargetPath, config.StagingPath = filepath.Join(w.Dir, "kubelet", "target"), filepath.Join(w.Dir, "kubelet",
		"staging")
	config.TestVolumeSize, config.TestNodeVolumeAttachLimit = 64<<20, true
	config.TestVolumeParameters, config.TestVolumeMutableParameters = w.Parameters, w.Mutable
	if w.Block {
		config.TestVolumeAccessType = "block"
	}
	config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(sized.Answers))
	sanity.GinkgoTest(&config)
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct, reporter.NoColor, reporter.JSONReport = true, true, w.report()
	if !ginkgo.RunSpecs(ginkgoTest{}, "csi-sanity", suite, reporter) {
		return 1
	}
	return 0
}

// report is where csi-sanity writes what ran.
func (w trial) report() string { return filepath.Join(w.Dir, "report.json") }

// ginkgoTest is told that the suite failed, which RunSpecs also returns.
type ginkgoTest struct{}

func (ginkgoTest) Fail() {}

// specs reads how many specs passed, and how many were skipped for which reason.
func specs(t *testing.T, report string) (passed int, skipped map[string]int) {
	t.Helper()
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var suites []types.Report
	if err := json.Unmarshal(data, &suites); err != nil {
		t.Fatal(err)
	}
	skipped = map[string]int{}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			switch {
			case spec.LeafNodeType != types.NodeTypeIt:
			case spec.State == types.SpecStatePassed:
				passed++
			case spec.State == types.SpecStateSkipped:
				skipped[spec.Failure.Message]++
			}
		}
	}
	return passed, skipped
}

// skippable reports whether a reason to skip a spec is that the driver doesn't advertise something: which it does
// exactly if the backend has the method, to which pkg/driver's tests hold it.
func skippable(reason string) bool {
	switch reason {
	case "Required bytes not supported": // said where CreateVolume fails
		return false
	case "No MaxVolumesPerNode", "node does not report accessible topology":
		return true
	}
	return strings.HasSuffix(reason, " not supported")
}

// runTrial makes this process csi-sanity if it is to be.
func runTrial() {
	env := os.Getenv(trialEnv)
	if env == "" {
		return
	}
	var w trial
	if err := json.Unmarshal([]byte(env), &w); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(w.run())
}
