package driver

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheDocumentedMetricsAreTheMetrics compares docs/metrics.md with what is registered.
func TestTheDocumentedMetricsAreTheMetrics(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `("+metricPrefix+"[a-z_]+)").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
	}
	maps.DeleteFunc(documented, func(name string, _ bool) bool { // pkg/router's, and cmd/driver's
		return strings.HasPrefix(name, metricPrefix+"router_") || strings.HasPrefix(name, metricPrefix+"peer_") || name == metricPrefix+"dropped_connections_total"
	})
	d := startDriver(t)
	d.create("v", capability(sharedMode))
	families, err := d.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !documented[f.GetName()] {
			t.Errorf("%s is not in docs/metrics.md", f.GetName())
		}
		delete(documented, f.GetName())
	}
	for name := range documented {
		t.Errorf("docs/metrics.md has %s, the driver hasn't", name)
	}
}

// TestTheDocumentedConditionsAreTheConditions looks for every reason of a condition in docs/troubleshooting.md.
func TestTheDocumentedConditionsAreTheConditions(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "troubleshooting.md"))
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
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range reasons.FindAllStringSubmatch(string(source), -1) {
				found++
				if !strings.Contains(string(page), "`"+m[1]+"`") {
					t.Errorf("%s is not in docs/troubleshooting.md", m[1])
				}
			}
		}
	}
	if found < 6 {
		t.Errorf("only %d reasons found in the source", found)
	}
}
