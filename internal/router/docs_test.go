package router

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheDocumentedMetricsAreTheMetrics compares docs/reference/metrics.md with the registered
// metrics.
func TestTheDocumentedMetricsAreTheMetrics(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "metrics.md"))
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
			t.Errorf("%s is not in docs/reference/metrics.md", name)
		}
		documented[name] = true
	}
	for name, there := range documented {
		if !there {
			t.Errorf("docs/reference/metrics.md has %s, the router has not", name)
		}
	}
}

// TestMetricsNameNoObject: anyone who reaches the port reads the metrics. They name nodes.
func TestMetricsNameNoObject(t *testing.T) {
	c := newCluster(t, "a")
	id := c.volume("name-of-a-tenant", "a")
	c.snapshot("snapshot-of-a-tenant", id)
	named := false
	for metric := range c.metrics() {
		if strings.Contains(metric, id) || strings.Contains(metric, "-of-a-tenant") {
			t.Errorf("the labels of a metric name an object: %s", metric)
		}
		named = named || metric == "causeway_router_node_up a "+c.nodes["a"].address
	}
	if !named {
		t.Error("no metric names the node: the test shows nothing")
	}
}
