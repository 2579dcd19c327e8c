package works

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestThePortHasHealthAndMetricsOfAllControllers(t *testing.T) {
	t.Parallel()
	s := launch(t, setup{name: "ports", controllers: all,
		args: []string{"--leader-election", "--logging-format=json", "--v=5"}})
	l := newLab(t, s)
	claim, _ := l.bound("claim")
	l.askFor("claim", "2Gi")
	l.awaitGrown("claim", 2<<30)
	l.remove(claim)

	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/healthz/leader-election": 200, "/healthz/attacher": 200, "/healthz/provisioner": 200,
		"/healthz/resizer": 200, "/healthz/snapshotter": 200, "/healthz/snapshot-controller": 404, "/healthz/nobody": 404, "/nothing": 404,
	} {
		if code, body := s.get(t, path); code != want {
			t.Errorf("%s answers %d %s, not %d", path, code, body, want)
		}
	}
	checkJSON(t, s.Log())
}

// checkJSON fails the test unless each line is JSON, and lines of upstream's controllers say whose
// they are.
func checkJSON(t *testing.T, log string) {
	t.Helper()
	said := map[string]bool{}
	for line := range strings.Lines(log) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("the log has a line that is no JSON: %s", line)
		}
		if who, ok := entry["sidecar"].(string); ok {
			said[who] = true
		}
	}
	for _, c := range strings.Split(all, ",") {
		if !said[c] {
			t.Errorf("no line in the log is of the %s", c)
		}
	}
}

// The metrics of upstream's dashboards, with the controller as an additional label.
func TestMetricsHaveUpstreamsNamesAndTheController(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	claim, volume := l.bound("claim")
	l.detach(l.attached(volume, l.csiNode()))
	l.askFor("claim", "2Gi")
	l.awaitGrown("claim", 2<<30)
	l.snapshot("snapshot", "claim")
	l.remove(claim)
	wants := []string{
		call("CreateVolume", "provisioner"), call("DeleteVolume", "provisioner"),
		call("ControllerPublishVolume", "attacher"), call("ControllerUnpublishVolume", "attacher"),
		call("ControllerExpandVolume", "resizer"), call("CreateSnapshot", "snapshotter"),
		queue("claims", "provisioner"), queue("volumes", "provisioner"), queue("csi-attacher-va",
			"attacher"), queue("csi-attacher-pv", "attacher"),
		queue("everything.csi.example-pvc", "resizer"),
		queue("csi-snapshotter-content", "snapshotter"), queue("snapshot-controller-snapshot", "snapshot-controller"),
		`controller_persistentvolumeclaim_provision_total{.*controller="provisioner".*} [1-9]`,
		`controller_persistentvolume_delete_total{.*controller="provisioner".*} [1-9]`,
		`snapshot_controller_operation_total_seconds_count{.*controller="snapshot-controller".*operation_name="CreateSnapshot".*} [1-9]`,
		`csi_sidecars_controller_up{controller="provisioner"} 1`,
		`process_start_time_seconds [1-9]`, `go_goroutines [1-9]`, `rest_client_requests_total{.*} [1-9]`,
	}
	until(t, "all is counted", func(ctx context.Context) error {
		_, body := l.s.get(t, "/metrics")
		for _, want := range wants {
			if !regexp.MustCompile(`(?m)^` + want).MatchString(body) {
				return fmt.Errorf("there is nothing like %s", want)
			}
		}
		return nil
	})
}

// call is a CSI call that was counted.
func call(method, controller string) string {
	return fmt.Sprintf(`csi_sidecar_operations_seconds_count{controller=%q,driver_name="everything.csi.example",grpc_status_code="OK",method_name="/csi.v1.Controller/%s",migrated=".*"} [1-9]`, controller, method)
}

// queue is a work queue in which something was.
func queue(name, controller string) string {
	return fmt.Sprintf(`workqueue_adds_total{controller=%q,name=%q} [1-9]`, controller, name)
}

func TestLinesOfTheLogNameTheirController(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	_, volume := l.bound("claim")
	l.attached(volume, l.csiNode())
	l.snapshot("snapshot", "claim")
	l.askFor("claim", "2Gi")
	l.awaitGrown("claim", 2<<30)
	for _, c := range append(strings.Split(all, ","), "snapshot-controller") {
		if !strings.Contains(l.s.Log(), fmt.Sprintf("sidecar=%q", c)) {
			t.Errorf("no line in the log is of the %s", c)
		}
	}
}
