package rules

import (
	"path/filepath"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/monitoring"
)

// TestRules checks the rules of the chart, their tests, and the page of the alerts.
func TestRules(t *testing.T) {
	folder := filepath.Join("..", "..")
	monitoring.Rules{
		File: filepath.Join(folder, "chart", "files", "rules.yaml"), Tests: "rules_test.yaml",
		Page:     filepath.Join(folder, "docs", "alerts.md"),
		Address:  "https://github.com/causeway-csi/causeway/blob/main/containercopy/docs/alerts.md",
		Metrics:  []string{filepath.Join(folder, "docs", "questionnaire.md")},
		Prefixes: []string{"container_copy_"},
	}.Check(t)
}
