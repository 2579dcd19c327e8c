package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/inventory"
)

// create creates a volume and returns its ID.
func (p *process) create(name string) string {
	p.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, "csi.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.Fatal(err)
	}
	defer conn.Close()
	resp, err := csi.NewControllerClient(conn).CreateVolume(context.Background(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		}},
	})
	if err != nil {
		p.Fatal(err)
	}
	return resp.GetVolume().GetVolumeId()
}

// list runs the command list against the driver, and returns its output and its exit code.
func (p *process) list(args ...string) (out, log string, code int) {
	p.Helper()
	cmd := exec.Command(p.cmd.Path, append([]string{"list"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func TestTheProcessListsAndShowsVolumes(t *testing.T) {
	p := start(t, build(t), newDir(t))
	if ready, err := p.probe(); !ready || err != nil {
		t.Fatalf("Probe = %v, %v: %s", ready, err, p.said())
	}
	endpoint := "--endpoint=unix://" + filepath.Join(p.dir, "csi.sock")
	one, two := p.create("pvc-1"), p.create("pvc-2")
	out, log, code := p.list(endpoint)
	var all inventory.Inventory
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 || len(all.Volumes) != 2 ||
		all.Volumes[0].ID != min(one, two) || all.Volumes[1].ID != max(one, two) || all.Volumes[0].Nodes[0] != "n" {
		t.Errorf("exit %d, %v: %s%s", code, err, out, log)
	}
	out, log, code = p.list(endpoint, "--volume="+one)
	var detail inventory.Detail
	if err := json.Unmarshal([]byte(out), &detail); err != nil || code != 0 || detail.Volume == nil ||
		detail.Volume.ID != one || len(detail.Errors) > 0 {
		t.Errorf("exit %d, %v: %s%s", code, err, out, log)
	}
	show := exec.Command(p.cmd.Path, append([]string{"show", one, "pvc-1"}, p.cmd.Args[1:]...)...)
	shown, err := show.Output()
	if err != nil || !strings.Contains(string(shown), filepath.Join("volumes", one)) ||
		!strings.Contains(string(shown), `"record":{`) {
		t.Errorf("%v: %s", err, shown)
	}
	if out, log, code = p.list("--endpoint=unix://" + filepath.Join(p.dir, "none.sock")); code != 1 || out != "" ||
		!strings.Contains(log, "Unavailable") {
		t.Errorf("without a driver: exit %d: %s%s", code, out, log)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.ended(); code != 0 {
		t.Errorf("the driver ends with %d", code)
	}
}
