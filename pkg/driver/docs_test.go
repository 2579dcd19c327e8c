package driver

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

// TestTheDocumentedMetricsAreTheMetrics compares docs/reference/metrics.md with the registered
// metrics.
func TestTheDocumentedMetricsAreTheMetrics(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	rows := regexp.MustCompile("(?m)^\\| `(" + metricPrefix + "[a-z_]+)")
	for _, m := range rows.FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
	}
	maps.DeleteFunc(documented, func(name string, _ bool) bool { // of internal/router, pkg/csidriver and backend smb
		return strings.HasPrefix(name, metricPrefix+"router_") || strings.HasPrefix(name, metricPrefix+"peer_") ||
			strings.HasPrefix(name, metricPrefix+"share_") ||
			name == metricPrefix+"dropped_connections_total" || name == metricPrefix+"build_info"
	})
	if host.HelperTasks() == nil {
		delete(documented, metricPrefix+"helpers")
	}
	d := startDriver(t)
	d.create("v", capability(sharedMode))
	var last atomic.Pointer[state] // of a storage with a condition, which the driver under test has not
	last.Store(&state{name: unhealthy, conditions: []backend.Condition{{Reason: "TrashStuck"}}})
	unwell := newRegistry()
	unwell.MustRegister(stateMetrics{&last})
	var names []string
	count := d.driver.interceptors.calls[0] // a call in progress has an age
	_, err = count(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Identity/Probe"},
		func(context.Context, any) (any, error) {
			for _, r := range []*prometheus.Registry{d.registry, unwell} {
				families, err := r.Gather()
				if err != nil {
					return nil, err
				}
				for _, f := range families {
					names = append(names, f.GetName())
				}
			}
			return nil, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !documented[name] {
			t.Errorf("%s is not in docs/reference/metrics.md", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/reference/metrics.md has %s, the driver has not", name)
	}
}

// TestMetricsNameNoObject: every client that reaches the port can read the metrics.
func TestMetricsNameNoObject(t *testing.T) {
	ctx := context.Background()
	d := startDriver(t)
	req := createRequest("name-of-a-tenant")
	req.Parameters = map[string]string{"csi.storage.k8s.io/pvc/namespace": "namespace-of-a-tenant"}
	resp, err := d.CreateVolume(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	id := resp.GetVolume().GetVolumeId()
	snapshot := &csi.CreateSnapshotRequest{Name: "snapshot-of-a-tenant", SourceVolumeId: id}
	if _, err := d.CreateSnapshot(ctx, snapshot); err != nil {
		t.Fatal(err)
	}
	families, err := d.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels++
				if !slices.Contains([]string{"method", "code", "resource", "kind", "pool", "reason"}, l.GetName()) {
					t.Errorf("%s has the label %s", f.GetName(), l.GetName())
				}
				if strings.Contains(l.GetValue(), id) || strings.Contains(l.GetValue(), "-of-a-tenant") {
					t.Errorf("the label %s of %s is %q", l.GetName(), f.GetName(), l.GetValue())
				}
			}
		}
	}
	if labels == 0 {
		t.Error("no metric has a label: the test shows nothing")
	}
}

// TestTheDocumentedConditionsAreTheConditions looks for every reason of a condition in
// docs/how-to/troubleshooting.md.
func TestTheDocumentedConditionsAreTheConditions(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "how-to", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?:Reason: |condition\(backend\.[A-Za-z]+, |condition\(severity, )"([A-Za-z]+)"`)
	found := 0
	for _, dir := range []string{".", filepath.Join("..", "backend", "hostpath")} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range reasons.FindAllStringSubmatch(string(source), -1) {
				found++
				if !strings.Contains(string(page), "`"+m[1]+"`") {
					t.Errorf("%s is not in docs/how-to/troubleshooting.md", m[1])
				}
			}
		}
	}
	if found < 6 {
		t.Errorf("only %d reasons found in the source", found)
	}
}

// TestTheProofsOfTheSecurityPageExist looks for every test, subtest and trial that
// docs/explanation/security.md names.
func TestTheProofsOfTheSecurityPageExist(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "explanation", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests, trials := map[string]string{}, ""
	function := regexp.MustCompile(`(?ms)^func ((?:Test|Fuzz)\w+)\(.*?^}`)
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(path, "_test.go"):
			source, err := os.ReadFile(path)
			for _, m := range function.FindAllSubmatch(source, -1) {
				tests[string(m[1])] += string(m[0])
			}
			return err
		case strings.HasPrefix(path, filepath.Join(root, "test", "hostile")+string(filepath.Separator)):
			source, err := os.ReadFile(path)
			trials += string(source)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(string(page), -1)
	for _, name := range named {
		if tests[name] == "" {
			t.Errorf("docs/explanation/security.md names %s, which does not exist", name)
		}
	}
	for _, m := range regexp.MustCompile("`(Test\\w+)/([^`]+)`").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(tests[m[1]], `"`+m[2]+`"`) {
			t.Errorf("docs/explanation/security.md names %q of %s, which does not exist", m[2], m[1])
		}
	}
	titles := regexp.MustCompile("trials? `([^`]+)`(?: and `([^`]+)`)?").FindAllStringSubmatch(string(page), -1)
	for _, m := range titles {
		for _, title := range m[1:] {
			if !strings.Contains(trials, `"`+title+`"`) && title != "" {
				t.Errorf("docs/explanation/security.md names the trial %q, which does not exist", title)
			}
		}
	}
	if len(named) < 50 || len(titles) < 7 {
		t.Errorf("found %d tests and %d trials only", len(named), len(titles))
	}
}
