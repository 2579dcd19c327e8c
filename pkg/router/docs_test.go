package router

import (
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
	for _, m := range regexp.MustCompile("(?m)^\\| `(causeway_router_[a-z_]+)").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = false
	}
	c := newCluster(t, "a")
	c.volume("v", "a")
	for name := range c.metrics() {
		name, _, _ = strings.Cut(name, " ")
		if _, ok := documented[name]; !ok {
			t.Errorf("%s is not in docs/metrics.md", name)
		}
		documented[name] = true
	}
	for name, there := range documented {
		if !there {
			t.Errorf("docs/metrics.md has %s, the router hasn't", name)
		}
	}
}
