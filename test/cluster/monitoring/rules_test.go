package monitoring

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/chart"
)

func TestRules(t *testing.T) { Chart().Check(t) }

// ownAlerts are the alerts for a single condition of the storage, by its reason.
var ownAlerts = map[string]string{
	"StorageAlmostFull": "CausewayStorageAlmostFull", "StorageInodesExhausted": "CausewayInodesAlmostExhausted",
	"TrashStuck": "CausewayTrashStuck", "TaskPanicked": "CausewayBackgroundPanic",
}

// TestAConditionRaisesOneAlert: CausewayStorageUnhealthy is for the conditions that have no alert of their
// own.
func TestAConditionRaisesOneAlert(t *testing.T) {
	page := text(t, filepath.Join(chart.Sources(), "docs", "how-to", "troubleshooting.md"))
	alerts := map[string]string{} // expressions
	for _, r := range Chart().Load(t) {
		alerts[r.Alert] = r.Expr
	}
	found := regexp.MustCompile(`reason!~"([^"]*)"`).FindStringSubmatch(alerts["CausewayStorageUnhealthy"])
	if found == nil {
		t.Fatal("CausewayStorageUnhealthy excludes no condition")
	}
	excluded := strings.Split(found[1], "|")
	for reason, alert := range ownAlerts {
		if !slices.Contains(excluded, reason) || alerts[alert] == "" || !strings.Contains(page, "\n| `"+reason+"` | STORAGE_") {
			t.Errorf("%s: CausewayStorageUnhealthy has it, or there is no alert %s, or no such row of the page", reason, alert)
		}
	}
	for _, reason := range excluded {
		if ownAlerts[reason] == "" {
			t.Errorf("no alert tells of the condition %s", reason)
		}
	}
	for alert, expr := range alerts { // by their names, or the conditions that they ask for
		for _, m := range regexp.MustCompile(`causeway_storage_conditions\{reason="([^"]*)"`).FindAllStringSubmatch(expr, -1) {
			if !slices.Contains(excluded, m[1]) {
				t.Errorf("%s and CausewayStorageUnhealthy are both for %s", alert, m[1])
			}
		}
		if reason := strings.TrimPrefix(alert, "Causeway"); strings.Contains(page, "\n| `"+reason+"` | STORAGE_") &&
			!slices.Contains(excluded, reason) {
			t.Errorf("%s and CausewayStorageUnhealthy are both for %s", alert, reason)
		}
	}
}

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
