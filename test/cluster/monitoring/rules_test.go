package monitoring

import (
	"path/filepath"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/chart"
)

// rules are those of the chart.
func rules() Rules {
	docs := filepath.Join(chart.Sources(), "docs")
	return Rules{
		File: filepath.Join(chart.Directory(), "files", "rules.yaml"), Tests: filepath.Join("testdata", "rules_test.yaml"),
		Page:    filepath.Join(docs, "how-to", "alerts.md"),
		Address: "https://github.com/causeway-csi/causeway/blob/main/docs/how-to/alerts.md",
		Metrics: []string{filepath.Join(docs, "reference", "metrics.md"),
			filepath.Join(docs, "explanation", "csi-sidecars.md")},
		Prefixes: []string{"causeway", "csi_sidecars"},
	}
}

func TestRules(t *testing.T) { rules().Check(t) }

// TestTheMetricsOfTheDashboardsExist: a query of a metric that does not exist draws an empty panel.
func TestTheMetricsOfTheDashboardsExist(t *testing.T) {
	queries, err := Queries()
	if err != nil {
		t.Fatal(err)
	}
	rules().CheckMetrics(t, func(report func(where, expr string)) {
		for _, q := range queries {
			report(q.Dashboard+": "+q.Panel, q.Expr)
		}
	})
}
