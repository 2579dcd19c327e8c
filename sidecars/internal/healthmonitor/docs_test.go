package healthmonitor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestTheDocumentedMetricsAreTheMetrics compares docs/explanation/csi-sidecars.md with the metrics.
func TestTheDocumentedMetricsAreTheMetrics(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "explanation", "csi-sidecars.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`("+prefix+"[a-z_]+)`").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
	}
	descriptions := make(chan *prometheus.Desc, 100)
	for _, c := range newMetrics("driver").collectors() {
		c.Describe(descriptions)
	}
	close(descriptions)
	name := regexp.MustCompile(`fqName: "([a-z_]+)"`)
	for d := range descriptions {
		m := name.FindStringSubmatch(d.String())
		if m == nil || !strings.HasPrefix(m[1], prefix) {
			t.Fatalf("a metric without the prefix: %s", d)
		}
		if !documented[m[1]] {
			t.Errorf("docs/explanation/csi-sidecars.md has no %s", m[1])
		}
		delete(documented, m[1])
	}
	for name := range documented {
		t.Errorf("docs/explanation/csi-sidecars.md has %s, which does not exist", name)
	}
}
