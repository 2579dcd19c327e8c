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

	"github.com/causeway-csi/causeway/internal/orphans"
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

// orphans runs the command orphans against the driver, and returns its output and its exit code.
func (p *process) orphans(stdin string, args ...string) (out, log string, code int) {
	p.Helper()
	cmd := exec.Command(p.cmd.Path,
		append([]string{"orphans", "--endpoint=unix://" + filepath.Join(p.dir, "csi.sock")}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// persistentVolumes returns the output of kubectl for PersistentVolumes, with the mark at its end.
func persistentVolumes(handles ...string) string {
	var items []string
	for _, h := range handles {
		items = append(items, `{"kind":"PersistentVolume","spec":{"csi":{"volumeHandle":"`+h+`"}}}`)
	}
	return `{"kind":"List","items":[` + strings.Join(items, ",") + "]}\ncomplete\n"
}

func TestTheProcessFindsOrphans(t *testing.T) {
	p := start(t, build(t), newDir(t))
	if ready, err := p.probe(); !ready || err != nil {
		t.Fatalf("Probe = %v, %v: %s", ready, err, p.said())
	}
	one, two := p.create("pvc-1"), p.create("pvc-2")
	for name, tc := range map[string]struct {
		stdin   string
		args    []string
		code    int
		wantErr string
	}{
		"none": {persistentVolumes(one, two), []string{"--settle=0"}, 0,
			"volumes: 2 held, 2 named, 0 orphans"},
		"one":             {persistentVolumes(one), []string{"--settle=0"}, 3, "volume  " + two},
		"another cluster": {persistentVolumes("other"), []string{"--settle=0"}, 1, "are they this cluster's?"},
		"forced": {persistentVolumes("other"), []string{"--settle=0", "--expect-none-named"}, 3,
			"0 named, 2 orphans"},
		"no volumes": {`{"kind":"VolumeSnapshotContentList","items":[]} complete`, []string{"--settle=0"}, 1,
			"NOT JUDGED: there is no PersistentVolume"},
		"no sleep": {persistentVolumes(one, two), nil, 1, "Put a sleep before kubectl get"},
		"no input": {"", nil, 1, "stdin is empty"},
		"a driver that does not run": {persistentVolumes(one),
			[]string{"--endpoint=unix://" + filepath.Join(p.dir, "none.sock")}, 1, "Unavailable"},
		"a wrong flag": {"", []string{"--delete"}, 2, "delete"},
	} {
		t.Run(name, func(t *testing.T) {
			out, log, code := p.orphans(tc.stdin, tc.args...)
			if code != tc.code || !strings.Contains(out+log, tc.wantErr) {
				t.Errorf("exit %d, want %d and %q: %s%s", code, tc.code, tc.wantErr, out, log)
			}
		})
	}
	out, log, code := p.orphans(persistentVolumes(two), "--settle=0s", "--output=json")
	var r orphans.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 3 || len(r.Orphans) != 1 ||
		r.Orphans[0].ID != one || r.Orphans[0].Nodes[0] != "n" {
		t.Errorf("exit %d, %v: %s%s", code, err, out, log)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.ended(); code != 0 {
		t.Errorf("the driver ends with %d", code)
	}
}
