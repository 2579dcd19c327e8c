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

	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/moby/sys/mountinfo"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/sized"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

func TestHostpathPassesSanity(t *testing.T) {
	sane(t, newDir(t), trial{Mutable: map[string]string{"label": "mine"}})
}

// trial is the configuration of a run of csi-sanity.
type trial struct {
	Parameters map[string]string // of the volumes that csi-sanity creates
	Mutable    map[string]string // mutable parameters, for a Modifier
	Block      bool              // volumes are block devices
	Source     string            // of IDs that the driver could have made, for shares

	Dir string // directory of the driver; set by sane
}

// sane runs csi-sanity against a driver process that is started in dir with these flags: over its
// socket, with real mounts. It fails if a spec fails, if no spec ran, or if a spec was skipped for
// another reason than a capability that the driver does not advertise. It also fails if the driver
// leaves a mount or ends with an error.
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
	// csi-sanity runs in a process of its own, because Ginkgo runs only one suite in a process.
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), trialEnv+"="+string(env))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the output of the driver: %s\ncsi-sanity: %v\n%s", p.said(), err, out)
	}
	passed, skipped := specs(t, what.report())
	for reason, n := range skipped {
		if !skippable(reason) {
			t.Errorf("csi-sanity: %d specs were skipped: %s", n, reason)
		}
	}
	if passed == 0 {
		t.Errorf("csi-sanity ran no spec:\n%s", out)
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

// trialEnv is an environment variable of the process that runs csi-sanity. It has the trial.
const trialEnv = "CAUSEWAY_TRIAL"

// run runs csi-sanity in this process. It returns the exit code of the process.
func (w trial) run() int {
	config := sanity.NewTestConfig()
	config.Address = "unix://" + filepath.Join(w.Dir, "csi.sock")
	config.TargetPath = filepath.Join(w.Dir, "kubelet", "target")
	config.StagingPath = filepath.Join(w.Dir, "kubelet", "staging")
	config.TestVolumeSize, config.TestNodeVolumeAttachLimit = 64<<20, true
	config.TestVolumeParameters, config.TestVolumeMutableParameters = w.Parameters, w.Mutable
	if w.Source != "" {
		config.IDGen = ids{source: w.Source}
	}
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

// ids are IDs of volumes on a share.
type ids struct {
	sanity.DefaultIDGenerator
	source string
}

func (i ids) GenerateUniqueValidVolumeID() string {
	return volumeid.New(volumeid.Volume, i.source, uuid.NewString()) + "@" + strings.TrimPrefix(i.source, "//")
}

// report is the file to which csi-sanity writes the results.
func (w trial) report() string { return filepath.Join(w.Dir, "report.json") }

// ginkgoTest is notified that the suite failed, which RunSpecs also returns.
type ginkgoTest struct{}

func (ginkgoTest) Fail() {}

// specs returns the number of specs that passed, and the numbers of skipped specs by reason.
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

// skippable reports whether a spec is skipped because the driver does not advertise a capability.
// The tests of pkg/driver ensure that the driver advertises a capability exactly if the backend has
// the method.
func skippable(reason string) bool {
	switch reason {
	case "Required bytes not supported": // the reason if CreateVolume fails
		return false
	case "No MaxVolumesPerNode", "node does not report accessible topology":
		return true
	}
	return strings.HasSuffix(reason, " not supported")
}

// runTrial runs csi-sanity in this process if trialEnv is set.
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
