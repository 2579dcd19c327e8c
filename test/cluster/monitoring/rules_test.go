package monitoring

import "testing"

func TestRules(t *testing.T) { Chart().Check(t) }

// TestTheMetricsOfTheDashboardsExist: a query of a metric that does not exist draws an empty panel.
func TestTheMetricsOfTheDashboardsExist(t *testing.T) {
	queries, err := Queries()
	if err != nil {
		t.Fatal(err)
	}
	Chart().CheckMetrics(t, func(report func(where, expr string)) {
		for _, q := range queries {
			report(q.Dashboard+": "+q.Panel, q.Expr)
		}
	})
}
