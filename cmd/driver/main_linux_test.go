package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/gobuild"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

// noNamespace is the reason why this process cannot start drivers, which mount.
var noNamespace error

func TestMain(m *testing.M) {
	host.Main() // of helper processes, where the program of the tests is the driver
	if os.Getenv(driverEnv) != "" {
		main()
		return
	}
	runTrial()
	noNamespace = namespace.Enter()
	code := m.Run()
	if binDir != "" {
		os.RemoveAll(binDir)
	}
	os.Exit(code)
}

// driverEnv is an environment variable with which the program of the tests is the driver.
const driverEnv = "CAUSEWAY_TEST_DRIVER"

// binDir is the directory of the driver program, once it is built.
var binDir string

var buildOnce = sync.OnceValue(func() (err error) {
	if binDir, err = os.MkdirTemp("", "bin"); err != nil {
		return err
	}
	return gobuild.Program{Package: gobuild.Driver}.Copy(context.Background(), filepath.Join(binDir, "driver"))
})

// process is a driver process, as an operator starts it.
type process struct {
	*testing.T
	dir  string
	cmd  *exec.Cmd
	done chan error
}

// said returns the output of the process so far.
func (p *process) said() string {
	p.Helper()
	out, err := os.ReadFile(p.cmd.Stdout.(*os.File).Name())
	if err != nil {
		p.Fatal(err)
	}
	return string(out)
}

func build(t *testing.T) string {
	t.Helper()
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	if smbtest.FromEnvironment() != nil { // a guest has no compiler
		return os.Args[0]
	}
	if err := buildOnce(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(binDir, "driver")
}

func start(t *testing.T, bin, dir string, args ...string) *process {
	t.Helper()
	p := &process{T: t, dir: dir, done: make(chan error, 1)}
	args = append([]string{
		"--endpoint=unix://" + filepath.Join(dir, "csi.sock"), "--root=" + filepath.Join(dir, "root"),
		"--kubelet-dir=" + filepath.Join(dir, "kubelet"), "--node-id=n", "--init-root",
	}, args...)
	p.cmd = exec.Command(bin, args...)
	if bin == os.Args[0] {
		p.cmd.Env = append(os.Environ(), driverEnv+"=1")
	}
	out, err := os.CreateTemp(dir, "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() { p.cmd.Process.Kill() })
	return p
}

// ended waits for the process to end and returns its exit code.
func (p *process) ended() int {
	p.Helper()
	await.Receive(p.T, "the driver has ended", p.done)
	return p.cmd.ProcessState.ExitCode()
}

// probe waits until the driver answers, and reports whether it is ready.
func (p *process) probe() (bool, error) {
	p.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, "csi.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.Fatal(err)
	}
	defer conn.Close()
	ctx := await.Context(p.T)
	var ready bool
	await.True(p.T, "the driver is ready, or has an error", func() bool {
		var resp *csi.ProbeResponse
		resp, err = csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		ready = resp.GetReady().GetValue()
		return err != nil || ready
	})
	return ready, err
}

// awaitReady waits until the driver is ready.
func (p *process) awaitReady(event string) {
	p.Helper()
	await.NoError(p.T, event, func() error {
		ready, err := p.probe()
		if err == nil && ready {
			return nil
		}
		return errors.Join(err, errors.New(p.said()))
	})
}

// awaitError waits until the driver reports why it is not ready.
func (p *process) awaitError(words string) {
	p.Helper()
	await.NoError(p.T, "an error names "+words, func() error {
		if _, err := p.probe(); err == nil || !strings.Contains(err.Error(), words) {
			return fmt.Errorf("the error is %w", err)
		}
		return nil
	})
}

func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cmd") // short, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, sub := range []string{"root", "kubelet"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTheProcess(t *testing.T) {
	bin, dir := build(t), newDir(t)
	first := start(t, bin, dir, "--log-format=json", "--http-endpoint=127.0.0.1:0")
	if ready, err := first.probe(); !ready || err != nil {
		t.Fatalf("Probe = %v, %v: %s", ready, err, first.said())
	}
	second := start(t, bin, dir)
	if code := second.ended(); code != 1 || !strings.Contains(second.said(), "another process serves this endpoint") {
		t.Errorf("a second driver on a live socket: exit %d, %s", code, second.said())
	}
	first.cmd.Process.Kill()
	first.ended()
	third := start(t, bin, dir) // on a stale socket
	if ready, err := third.probe(); !ready || err != nil {
		t.Fatalf("Probe = %v, %v: %s", ready, err, third.said())
	}
	third.cmd.Process.Signal(syscall.SIGTERM)
	if code := third.ended(); code != 0 || !strings.Contains(third.said(), "drained and done") {
		t.Errorf("after SIGTERM: exit %d, %s", code, third.said())
	}
	if _, err := os.Lstat(filepath.Join(dir, "csi.sock")); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	for _, line := range strings.Split(strings.TrimSpace(first.said()), "\n") {
		if !strings.HasPrefix(line, `{"time":`) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

// TestAStalledProcessIsReplaced: the successor of a stopped process takes the endpoint. It serves
// the root after the first process, which ends as soon as it resumes, has released the root.
func TestAStalledProcessIsReplaced(t *testing.T) {
	bin, dir := build(t), newDir(t)
	first := start(t, bin, dir)
	if ready, err := first.probe(); !ready || err != nil {
		t.Fatalf("Probe = %v, %v: %s", ready, err, first.said())
	}
	socket := filepath.Join(dir, "csi.sock")
	before, err := os.Lstat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second := start(t, bin, dir)
	await.NoError(t, "the socket is replaced", func() error {
		after, err := os.Lstat(socket)
		if err == nil && os.SameFile(before, after) {
			err = errors.New(second.said())
		}
		return err
	})
	if ready, err := second.probe(); ready || err == nil ||
		!strings.Contains(err.Error(), "another process serves it") {
		t.Errorf("while the first process has the root: Probe = %v, %v", ready, err)
	}
	if err := first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if code := first.ended(); code != 1 || !strings.Contains(first.said(), "another process serves the endpoint") {
		t.Errorf("the first process, after it resumed: exit %d, %s", code, first.said())
	}
	if _, err := os.Lstat(socket); err != nil {
		t.Errorf("the first process removed the second one's socket: %v", err)
	}
	second.awaitReady("the second process serves the root")
}

// TestARemovedSocketIsMadeAgain: the kubelet makes a new connection for each call.
func TestARemovedSocketIsMadeAgain(t *testing.T) {
	p := start(t, build(t), newDir(t))
	if ready, err := p.probe(); !ready || err != nil {
		t.Fatalf("Probe = %v, %v: %s", ready, err, p.said())
	}
	if err := os.Remove(filepath.Join(p.dir, "csi.sock")); err != nil {
		t.Fatal(err)
	}
	if ready, err := p.probe(); !ready || err != nil {
		t.Errorf("Probe after the removal = %v, %v: %s", ready, err, p.said())
	}
	await.True(t, "the log tells it", func() bool { return strings.Contains(p.said(), "the socket was removed") })
}

func TestTheProcessServesMetrics(t *testing.T) {
	dir := newDir(t)
	p := start(t, build(t), dir, "--http-endpoint=127.0.0.1:0")
	if ready, err := p.probe(); !ready || err != nil {
		t.Fatalf("Probe = %v, %v: %s", ready, err, p.said())
	}
	m := regexp.MustCompile(`serving metrics" endpoint=(\S+)`).FindStringSubmatch(p.said())
	if m == nil {
		t.Fatalf("no endpoint of the metrics in the log: %s", p.said())
	}
	resp, err := http.Get("http://" + m[1] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	for _, want := range []string{"causeway_volumes 0", "go_goroutines ", "process_resident_memory_bytes "} {
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("/metrics has no %s: %v", want, err)
		}
	}
}

func TestAnInvalidFlagChangesNothing(t *testing.T) {
	bin, dir := build(t), newDir(t)
	for _, flag := range []string{"--backend=tape", "--node-id=a/b", "--endpoint=tcp://:1", "--http-endpoint=x",
		"--root=relative", "--no-such-flag"} {
		p := start(t, bin, dir, flag)
		if code := p.ended(); code != 2 || strings.Count(p.said(), "\n") != 1 {
			t.Errorf("%s: exit %d, %q, want 2 and one line", flag, code, p.said())
		}
	}
	p := start(t, bin, dir, "--kubelet-dir="+filepath.Join(dir, "none"))
	if code := p.ended(); code != 1 || !strings.Contains(p.said(), "--kubelet-dir") {
		t.Errorf("without a kubelet directory: exit %d, %s", code, p.said())
	}
	for _, sub := range []string{"root", "kubelet"} {
		if entries, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(entries) != 0 {
			t.Errorf("%s holds %v, %v", sub, entries, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("the kubelet directory was created: %v", err)
	}
}

func TestTheFirstStartNeedsInitRoot(t *testing.T) {
	bin, dir := build(t), newDir(t)
	p := start(t, bin, dir, "--init-root=false")
	p.awaitError("--init-root")
	if entries, err := os.ReadDir(filepath.Join(dir, "root")); err != nil || len(entries) != 0 {
		t.Errorf("the root holds %v, %v", entries, err)
	}
}

func TestTheDriverWaitsForAMissingRoot(t *testing.T) {
	bin, dir := build(t), newDir(t)
	if err := os.Remove(filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	p := start(t, bin, dir)
	p.awaitError("the root must exist")
	if err := os.Mkdir(filepath.Join(dir, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.awaitReady("the driver serves a root that was mounted later")
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.ended(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestVersion(t *testing.T) {
	out, err := exec.Command(build(t), "--version").Output()
	if err != nil || !strings.Contains(string(out), "CSI v1.13.0") {
		t.Errorf("--version prints %q, %v", out, err)
	}
}
