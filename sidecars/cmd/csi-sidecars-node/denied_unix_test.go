//go:build !windows

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/internal/unprivileged"
)

// asProgram makes this test's binary the program.
const asProgram = "CAUSEWAY_TEST_CSI_SIDECARS_NODE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// driver is healthy.
type driver struct {
	csi.UnimplementedIdentityServer
}

func (driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "csi.example.com"}, nil
}

// serve serves the driver at a socket of the test's user, which other users may not write to.
func serve(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	mode := os.FileMode(0o755)
	if os.Geteuid() != 0 { // the program is the same user then
		mode = 0
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, driver{})
	go server.Serve(l)
	t.Cleanup(server.Stop)
}

// output collects the output of a program.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *output) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *output) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// program runs the program as the images' user until the test is over.
func program(t *testing.T, args ...string) *output {
	t.Helper()
	var out output
	cmd := exec.CommandContext(t.Context(), unprivileged.Self(t), args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", append(os.Environ(), asProgram+"=1"), &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = unprivileged.Credential()
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { // after t.Context is done
		if <-ended; cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("the program ended with %v:\n%s", cmd.ProcessState, &out)
		}
	})
	return &out
}

// answers waits until a URL answers with a code and a text that has all words.
func answers(t *testing.T, log *output, url string, code int, words ...string) {
	t.Helper()
	await.NoError(t, fmt.Sprintf("%s answers %d with %q", url, code, words), func() error {
		answer, err := http.Get(url)
		if err != nil {
			return fmt.Errorf("%w\nThe log:\n%s", err, log)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if text := fmt.Sprint(answer.StatusCode, " ", string(body), err); answer.StatusCode != code ||
			!hasAll(text, words) {
			return fmt.Errorf("it answers %s\nThe log:\n%s", text, log)
		}
		return nil
	})
}

func hasAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// TestAHealthyDriverOutlivesASidecarWithoutPermission: the socket, then the registration directory,
// may not be used, and both are repaired while the program runs.
func TestAHealthyDriverOutlivesASidecarWithoutPermission(t *testing.T) {
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	chmod := func(path string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(dir, 0o755)
	socket, registry := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "registration")
	serve(t, socket)
	live, own := freeport.Must(t), freeport.Must(t)
	log := program(t, "--csi-address="+socket,
		"--kubelet-registration-path=/var/lib/kubelet/plugins/csi.example.com/csi.sock",
		"--plugin-registration-path="+registry, "--livenessprobe-health-port="+live, "--http-endpoint="+own)

	answers(t, log, "http://"+own+"/readyz", 503, "csi-address: dial unix "+socket, "permission denied",
		socket+" has owner", "runAsUser: 0")
	answers(t, log, "http://"+live+"/healthz", 200, "the driver was not asked", "permission denied", "runAsUser: 0")
	answers(t, log, "http://"+own+"/healthz/livenessprobe", 200, "running: the driver was not asked")
	answers(t, log, "http://"+own+"/healthz", 200, "ok")
	if !hasAll(log.String(), []string{"Cannot open the driver's socket", socket + " has owner", "runAsUser: 0"}) {
		t.Errorf("the log does not have the error with its remedy:\n%s", log)
	}

	chmod(socket, 0o777)
	answers(t, log, "http://"+live+"/healthz", 200, "200 ok")
	answers(t, log, "http://"+own+"/readyz", 503, "node-driver-registrar: the registration socket "+registry,
		"mount the kubelet's plugins_registry there")
	answers(t, log, "http://"+own+"/healthz", 200, "ok")
	answers(t, log, "http://"+live+"/healthz", 200, "200 ok")

	if err := os.Mkdir(registry, 0o777); err != nil {
		t.Fatal(err)
	}
	chmod(registry, 0o777)
	answers(t, log, "http://"+own+"/readyz", 503, "the kubelet has not registered the driver yet") // there is none
	answers(t, log, "http://"+own+"/healthz/node-driver-registrar", 200, "running")
	if _, err := os.Lstat(filepath.Join(registry, "csi.example.com-reg.sock")); err != nil {
		t.Error(err)
	}
}
