package smb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/sized"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// notShares are the reasons for which csi-sanity may skip specs. Each must occur.
var notShares = []string{
	"ControllerPublishVolume not supported",
	"ControllerUnpublishVolume not supported",
	"Controller Publish, UnpublishVolume not supported",
	"GroupControllerService not supported",             // a copy of a directory is not of one point in time
	"GetCapacity not supported",                        // a server has other users, and reserves nothing
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported", // all nodes can use a share
}

// ids are IDs that this backend could have made.
type ids struct {
	sanity.DefaultIDGenerator
	world *world
}

func (i ids) GenerateUniqueValidVolumeID() string {
	o, err := records.NewObject('a', i.world.parsed(), uuid.NewString())
	if err != nil {
		panic(err)
	}
	return o.String()
}

// machine is a driver with all services.
type machine struct {
	*world
	kubelet  string // the directory in which the driver mounts
	endpoint string
	mounter  mounter.Mounter
	backend  *Backend
	state    string // the directory of its state
	log      *logBuffer
}

// logBuffer keeps the log of a driver.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newKubelet makes a directory in which a driver mounts.
func newKubelet(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil { // fails if a mount is left in it
			t.Error(err)
		}
	})
	return dir
}

// start starts a driver that serves all services, and ends it with the test.
func (w *world) start(dir string, m mounter.Mounter) *machine {
	w.Helper()
	images, _ := m.(mounter.Images)
	b := w.openOn(images)
	run := &machine{world: w, kubelet: dir, endpoint: "unix://" + filepath.Join(w.TempDir(), "s"), mounter: m, backend: b,
		state: w.TempDir(), log: new(logBuffer)}
	d, err := driver.New(driver.Config{
		Name: "smb.csi.causeway.dev", Release: "test", Node: "node-1", Backend: b,
		Mounter: m, StateDir: run.state,
		Log:      slog.New(slog.NewTextHandler(run.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registry: prometheus.NewRegistry(),
	})
	if err != nil {
		w.Fatal(err)
	}
	l, err := driver.Listen(run.endpoint, false)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx, 10*time.Second, driver.Endpoint{Server: d.All(), Listener: l}) }()
	w.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			w.Error(err)
		}
		d.Close()
	})
	return run
}

// hasNoSecrets searches for secrets where they must not be: in the log, in the files of the driver,
// on the share, in the arguments and environments of processes, and in the tables of the kernel. In
// a guest these are all processes; elsewhere other tests run.
func (m *machine) hasNoSecrets(secrets ...string) {
	m.Helper()
	files := []string{"/proc/self/mountinfo", "/proc/mounts", "/proc/fs/cifs/DebugData", "/proc/fs/cifs/Stats"}
	dirs, pids := []string{m.state, m.kubelet}, "[0-9]*"
	if m.Server != nil {
		dirs, pids = append(dirs, m.path()), "self"
	}
	for _, name := range []string{"cmdline", "environ"} {
		processes, err := filepath.Glob(filepath.Join("/proc", pids, name))
		if err != nil || len(processes) == 0 {
			m.Fatalf("no processes: %v", err)
		}
		files = append(files, processes...)
	}
	for _, dir := range dirs {
		if err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) { // the background empties the trash
				return nil
			}
			if err == nil && e.Type().IsRegular() {
				files = append(files, path)
			}
			return err
		}); err != nil {
			m.Fatal(err)
		}
	}
	texts := map[string]string{"the log": m.log.String()}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // such as a process that has ended
			continue
		} else if err != nil {
			m.Fatal(err)
		}
		texts[file] = string(content)
	}
	for name, text := range texts {
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				m.Errorf("%s has the secret %q", name, secret)
			}
		}
	}
}

// onPort445 is a Windows node whose server has another port, to which Windows does not connect.
type onPort445 struct {
	*mountertest.FakeWindows
	port string
}

func (p onPort445) moved(m mounter.Mount) mounter.Mount {
	m.Source = strings.Replace(m.Source, p.port, "", 1)
	return m
}

func (p onPort445) Mount(ctx context.Context, m mounter.Mount, path string) error {
	return p.FakeWindows.Mount(ctx, p.moved(m), path)
}

func (p onPort445) Mounted(ctx context.Context, m mounter.Mount, path string) (bool, error) {
	return p.FakeWindows.Mounted(ctx, p.moved(m), path)
}

// newWindowsMounter returns the mounter of a Windows node that reaches the server of w. The data of
// volumes is in its mounts.
func (w *world) newWindowsMounter(dir string) mounter.Mounter {
	w.Helper()
	host, err := mountertest.NewFakeWindows(dir, w.TempDir())
	if err != nil {
		w.Fatal(err)
	}
	c := mounter.Credentials{Username: w.user, Password: w.password}
	if err := host.AddShare("//"+w.Address+"/"+smbtest.Share, filepath.Join(w.Dir, smbtest.Share), c); err != nil {
		w.Fatal(err)
	}
	return onPort445{host, fmt.Sprint(":", w.Port)}
}

// sanity registers a run of csi-sanity with a mounter. check is for the end.
func (w *world) sanity(name, dir string, m mounter.Mounter) (check func()) {
	w.Helper()
	run := w.start(dir, m)
	config := sanity.NewTestConfig()
	config.Address = run.endpoint
	config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	config.TestVolumeSize = 64 << 20
	config.IDGen = ids{world: w}
	config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(sized.Answers))
	config.TestVolumeParameters = map[string]string{sourceKey: w.source()}
	config.TestVolumeMutableParameters = map[string]string{onDeleteKey: records.DeleteData}
	ginkgo.Describe(name, func() { sanity.GinkgoTest(&config) })

	passed, skipped := 0, map[string]int{}
	ginkgo.ReportAfterSuite("specs that ran: "+name, func(report types.Report) {
		for _, spec := range report.SpecReports {
			switch {
			case spec.LeafNodeType != types.NodeTypeIt || spec.ContainerHierarchyTexts[0] != name:
			case spec.State == types.SpecStatePassed:
				passed++
			case spec.State == types.SpecStateSkipped:
				skipped[spec.Failure.Message]++
			case spec.Failed():
				w.Errorf("%s: %s\n%s", spec.FullText(), spec.FailureMessage(), run.log)
			}
		}
	})
	return func() {
		w.Helper()
		for reason, n := range skipped {
			if !slices.ContainsFunc(notShares, func(r string) bool { return strings.Contains(reason, r) }) {
				w.Errorf("%s: %d specs were skipped: %s", name, n, reason)
			}
		}
		run.hasNoSecrets(w.password)
		if !strings.Contains(run.log.String(), "CreateVolume") {
			w.Errorf("%s: the log has no calls", name)
		}
		if passed < 70 {
			w.Errorf("%s: %d specs passed", name, passed)
		}
		w.Logf("%s: %d specs passed; skipped: %v", name, passed, skipped)
	}
}

// TestSanity runs csi-sanity: the controller against a private server, the node with mounts in
// memory, and with the links of a Windows node. In the guest of make test-vm the mounts are the
// kernel's.
func TestSanity(t *testing.T) {
	var checks []func()
	dir := newKubelet(t)
	if server := smbtest.FromEnvironment(); server != nil {
		w := newRemoteWorld(t, server, "sanity")
		host, err := host.New(dir, dir+".frozen")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir + ".frozen")
		checks = append(checks, w.sanity("shares, real mounts", dir, host))
	} else {
		s := smbtest.Serve(t)
		w := newWorld(t, s, smbtest.Share)
		checks = append(checks, w.sanity("shares, fake mounter", dir, mountertest.NewFake(dir)))
		w, dir = newWorld(t, s, smbtest.Share), newKubelet(t)
		checks = append(checks, w.sanity("shares, links of Windows", dir, w.newWindowsMounter(dir)))
	}
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct, reporter.NoColor = true, true
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter)
	for _, check := range checks {
		check()
	}
}
