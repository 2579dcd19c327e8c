package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/doctor"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

func TestDoctorBeforeAnInstallation(t *testing.T) {
	out, _, code := execute(t, fake.Fresh(), "", "doctor", "--pre")
	if code != 2 || !strings.Contains(out, "not checked: node-root: directories of the volumes: needs --nodes") ||
		!strings.Contains(out, " 0 findings, 3 not checked") {
		t.Errorf("exit %d: %s", code, out)
	}
	c := fake.Fresh()
	fake.Remove[*corev1.Namespace](c, "")
	out, _, code = execute(t, c, "", "doctor", "--pre", "-o=json")
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 1 || r.Findings[0].Check != "namespace" || len(r.Notes) == 0 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	out, _, code = execute(t, fake.Fresh(), "", "doctor", "--pre", "-n=other", "--driver=x.example.com", "--smb")
	if code != 1 || !strings.Contains(out, "kubectl create namespace other ") {
		t.Errorf("exit %d: %s", code, out)
	}
	out, _, code = execute(t, fake.Healthy(), "", "doctor", "--pre", "--driver=x.example.com")
	if strings.Contains(out, "installed already") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// TestDoctorReadsTheNodes runs the script of the pods for real.
func TestDoctorReadsTheNodes(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no sh")
	}
	host := t.TempDir()
	if err := fake.Host(host); err != nil {
		t.Fatal(err)
	}
	c := fake.Fresh()
	c.RunPods([]string{"sh"}, host)
	run := c.OnPod
	c.OnPod = func(p *corev1.Pod) corev1.PodStatus {
		if err := os.MkdirAll(filepath.Join(host, "var/lib/kubelet/pods", string(p.UID)), 0o755); err != nil {
			t.Error(err)
		}
		return run(p)
	}
	out, _, code := execute(t, c, "", "doctor", "--pre", "--nodes")
	if code != 0 || !strings.Contains(out, "15 checks, 0 findings, 0 not checked") {
		t.Errorf("exit %d: %s", code, out)
	}
	out, _, code = execute(t, c, "", "doctor", "--pre", "--nodes", "--root=/var/lib/elsewhere", "--kubelet-dir=/srv/kubelet")
	for _, want := range []string{"node-root: Node/node-1, Node/node-2", "mkdir -p /var/lib/elsewhere", "set kubeletDir to /var/lib/kubelet"} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit %d, %q is not in\n%s", code, want, out)
		}
	}
}

func TestDoctorReadsTheNodesOfTheSelector(t *testing.T) {
	c := fake.Fresh()
	for _, n := range []string{"node-1", "node-2"} {
		fake.Get[*corev1.Node](c, n).Labels["storage.example.com/causeway"] = strconv.FormatBool(n == "node-2")
	}
	nodes := map[string]bool{}
	var mu sync.Mutex
	c.OnPod = func(p *corev1.Pod) corev1.PodStatus {
		mu.Lock()
		defer mu.Unlock()
		nodes[p.Spec.NodeName] = true
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}}
	}
	out, _, code := execute(t, c, "", "doctor", "--pre", "--nodes", "--node-selector=storage.example.com/causeway=true")
	if code != 2 || !maps.Equal(nodes, map[string]bool{"node-2": true}) || strings.Contains(out, "node-1") {
		t.Errorf("exit %d, pods on %v: %s", code, nodes, out)
	}
	out, _, code = execute(t, c, "", "doctor", "--pre", "--node-selector=storage.example.com/causeway=tru")
	if code != 1 || !strings.Contains(out, "selects no node") || !strings.Contains(out, " 1 findings,") {
		t.Errorf("exit %d: %s", code, out)
	}
	for _, bad := range []string{"a b", "a in b", "=x", "a=b=c"} {
		_, log, code := execute(t, c, "", "doctor", "--pre", "--node-selector="+bad)
		if want := fmt.Sprintf("invalid --node-selector %q: must be a label selector", bad); code != 2 || !strings.Contains(log, want) {
			t.Errorf("exit %d, want 2 and %s: %s", code, want, log)
		}
	}
}

func TestFlagsOfDoctor(t *testing.T) {
	for _, args := range [][]string{{"--nodes"}, {"--node-selector=a=b"}, {"--smb"}, {"--root=/x"}, {"--kubelet-dir=/x"}, {"--image=x"}, {"--pre", "--root=x"},
		{"--pre", "--root=/"}, {"--pre", "--root=/a/../b"}, {"--pre", "--root=/a b"}, {"--pre", "--kubelet-dir=/a/"}} {
		if out, log, code := execute(t, fake.Healthy(), "", append([]string{"doctor"}, args...)...); code != 2 || !strings.Contains(log, args[len(args)-1][:5]) {
			t.Errorf("%v: exit %d: %s%s", args, code, out, log)
		}
	}
}

// TestThePageAndTheChartHaveTheDefaults compares the defaults of the flags with the chart, and the
// flags and checks with the page.
func TestThePageAndTheChartHaveTheDefaults(t *testing.T) {
	read := func(file string) string {
		data, err := os.ReadFile(filepath.Join(fake.Root(), file))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	values, page := read("charts/causeway/values.yaml"), read("docs/how-to/plugin.md")
	for key, value := range map[string]string{"image": defaultImage, "root": defaultRoot, "kubeletDir": defaultKubelet} {
		if !regexp.MustCompile(`(?m)^ *` + key + `: ` + regexp.QuoteMeta(value) + `$`).MatchString(values) {
			t.Errorf("the chart does not have %s: %s", key, value)
		}
	}
	for _, driver := range []string{defaultDriver, defaultSMBDriver} {
		if !strings.Contains(values, "driverName: "+driver+"\n") {
			t.Errorf("the chart does not have %s", driver)
		}
	}
	fs := pflag.NewFlagSet("doctor", pflag.ContinueOnError)
	doctorCommand().flags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(page, "--"+f.Name) {
			t.Errorf("docs/how-to/plugin.md does not have --%s", f.Name)
		}
	})
	for _, c := range doctor.ChecksBefore(cluster.Plan{}) {
		if !strings.Contains(page, "`"+c.Name+"`") {
			t.Errorf("docs/how-to/plugin.md does not have the check %s", c.Name)
		}
	}
}
