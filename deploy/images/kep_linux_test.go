package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/yaml"
)

// kepDriver takes the place of <csi-driver> in the manifests of KEP-4958.
const kepDriver = "csi.example.com"

// kepCommands returns the sidecar's command lines of the KEP: the control plane's and the worker
// node's.
func kepCommands(t *testing.T) (controller, node []string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "kep-4958.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	type podSpec struct {
		Spec struct {
			Containers []struct {
				Name    string
				Command []string
			}
		}
	}
	var commands [][]string
	for document := range bytes.SplitSeq(bytes.ReplaceAll(content, []byte("<csi-driver>"), []byte(kepDriver)),
		[]byte("\n---\n")) {
		var m struct {
			Spec struct{ Template, Templates podSpec } // the KEP's Deployment has the second
		}
		if err := yaml.Unmarshal(document, &m); err != nil {
			t.Fatal(err)
		}
		for _, c := range append(m.Spec.Template.Spec.Containers, m.Spec.Templates.Spec.Containers...) {
			if c.Name == "csi-sidecars" {
				commands = append(commands, c.Command)
			}
		}
	}
	if len(commands) != 2 || len(commands[0]) != 10 || len(commands[1]) != 4 {
		t.Fatalf("the commands are %q", commands)
	}
	return commands[0], commands[1]
}

// kepServer is a driver for volumes and no more.
type kepServer struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
}

func (kepServer) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: kepDriver, VendorVersion: "1"}, nil
}

func (kepServer) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (kepServer) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}}}}, nil
}

func (kepServer) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{
		Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}}}}}, nil
}

// kepImage returns the image with /csi, in which a driver that runs as root has its socket.
func kepImage(t *testing.T) container {
	t.Helper()
	c := unpackImage(t, "csi-sidecars")
	socket := filepath.Join(c.mount(t, "/csi"), "csi.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o755); err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, kepServer{})
	csi.RegisterControllerServer(server, kepServer{})
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return c
}

// kepLog collects the log of the sidecar.
type kepLog struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *kepLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *kepLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// start runs a command of the container, as a user, until the test is over.
func (c container) start(t *testing.T, user string, command ...string) *kepLog {
	t.Helper()
	log, cmd := &kepLog{}, c.command(t, user, command...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Wait() }) // t.Context is done
	return log
}

// within waits until something is so, and fails with the log.
func within(t *testing.T, log *kepLog, what string, is func() bool) {
	t.Helper()
	end, limited := t.Deadline()
	for end = end.Add(-20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if limited && time.Now().After(end) {
			t.Fatalf("it never came to be that %s:\n%s", what, log)
		}
	}
}

// TestTheCommandsOfTheKEPWithoutPermission runs both as the image's user, since the KEP's manifests
// name none.
func TestTheCommandsOfTheKEPWithoutPermission(t *testing.T) {
	controller, node := kepCommands(t)
	for name, command := range map[string][]string{"controller": controller, "node": node} {
		t.Run(name, func(t *testing.T) {
			c := kepImage(t)
			c.mount(t, "/registration")
			user, _, _ := strings.Cut(c.config.User, ":")
			log := c.start(t, user, command...)
			for _, want := range []string{"Cannot open the driver's socket",
				"dial unix /csi/csi.sock: connect: permission denied",
				"this process has uid 65532", "/csi/csi.sock has owner 0:0 and mode 0755: set runAsUser: 0 for this " +
					"container", "fsGroup"} {
				within(t, log, "the log has "+want, func() bool { return strings.Contains(log.String(), want) })
			}
		})
	}
}

// TestTheControllerIsNotReadyWithoutPermission adds a port to the KEP's command line.
func TestTheControllerIsNotReadyWithoutPermission(t *testing.T) {
	command, _ := kepCommands(t)
	c := kepImage(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().String()
	l.Close()
	log := c.start(t, "65532", append(command, "--http-endpoint="+port)...)
	within(t, log, "/readyz has the remedy", func() bool {
		answer, err := http.Get("http://" + port + "/readyz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return err == nil && answer.StatusCode == http.StatusServiceUnavailable &&
			strings.Contains(string(body), "waiting for the driver at /csi/csi.sock\n") &&
			strings.Contains(string(body), "owner 0:0 and mode 0755: set runAsUser: 0")
	})
}

// TestTheNodeCommandOfTheKEP registers the driver with a kubelet.
func TestTheNodeCommandOfTheKEP(t *testing.T) {
	_, command := kepCommands(t)
	c := kepImage(t)
	socket := filepath.Join(c.mount(t, "/registration"), kepDriver+"-reg.sock")
	log := c.start(t, "0", command...)
	within(t, log, "the registration socket is there", func() bool { _, err := os.Lstat(socket); return err == nil })
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kubelet := registerapi.NewRegistrationClient(conn)
	info, err := kubelet.GetInfo(t.Context(), &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if info.GetType() != registerapi.CSIPlugin || info.GetName() != kepDriver ||
		info.GetEndpoint() != "/var/lib/kubelet/plugins/"+kepDriver+"/csi.sock" {
		t.Errorf("the kubelet is told %v", info)
	}
	if _, err := kubelet.NotifyRegistrationStatus(t.Context(),
		&registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Error(err)
	}
	within(t, log, "the sidecar knows",
		func() bool { return strings.Contains(log.String(), "The kubelet registered the driver") })
}

// TestTheControllerCommandOfTheKEP finds the driver and asks the API server, which refuses
// everything.
func TestTheControllerCommandOfTheKEP(t *testing.T) {
	command, _ := kepCommands(t)
	c := kepImage(t)
	asked := make(chan string, 1)
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Header.Get("Authorization"):
		default:
		}
		http.Error(w, "not now", http.StatusServiceUnavailable)
	}))
	defer api.Close()
	account := c.mount(t, "/var/run/secrets/kubernetes.io/serviceaccount")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	for name, content := range map[string]string{"ca.crt": string(ca), "token": "secret", "namespace": "kube-system"} {
		if err := os.WriteFile(filepath.Join(account, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	host, port, err := net.SplitHostPort(api.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.env = []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	log := c.start(t, "0", command...)
	for _, want := range []string{"Found the driver", kepDriver} {
		within(t, log, "the log has "+want, func() bool { return strings.Contains(log.String(), want) })
	}
	select {
	case got := <-asked:
		if got != "Bearer secret" {
			t.Errorf("the API server is asked with %q", got)
		}
	case <-time.After(time.Minute):
		t.Errorf("the API server is not asked:\n%s", log)
	}
}
