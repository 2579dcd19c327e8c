package live

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/chart"
)

func readPage(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chart.Sources(), "docs", "how-to", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// rows returns the rows of the tables of troubleshooting.md: a heading, ": ", and the first cell.
func rows(t *testing.T) (all []string) {
	t.Helper()
	for _, section := range strings.Split(readPage(t, "troubleshooting.md"), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			isHeader := i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|---")
			if strings.HasPrefix(line, "| ") && !isHeader {
				cell, _, _ := strings.Cut(line[2:], " | ")
				all = append(all, heading+": "+cell)
			}
		}
	}
	if len(all) < 100 {
		t.Fatalf("the page has %d rows", len(all))
	}
	return all
}

// TestEachRowAndAlertIsInjected: a row of the troubleshooting page and an alert has a fault, or a
// reason why it has none.
func TestEachRowAndAlertIsInjected(t *testing.T) {
	covered, faults := map[string]bool{}, 0
	for _, s := range steps() {
		for _, f := range s.faults {
			faults++
			if f.name == "" || len(f.named)+len(f.alerts)+len(f.lasting) == 0 {
				t.Errorf("%s: %s has no effect", s.name, f.name)
			}
			for _, w := range f.named {
				if w.check == "" || w.object == "" || w.cause == "" || w.remedy == "" || w.page == "" {
					t.Errorf("%s: %s: a part is missing: %+v", s.name, f.name, w)
				}
			}
			for _, name := range slices.Concat(f.rows, f.alerts, f.lasting) {
				covered[name] = true
			}
		}
	}
	all := rows(t)
	for _, m := range regexp.MustCompile(`(?m)^### (Causeway\w+)$`).FindAllStringSubmatch(readPage(t, "alerts.md"), -1) {
		all = append(all, m[1])
	}
	excepted := func(name string) string {
		if reason, ok := exceptions[name]; ok {
			return reason
		}
		section, _, _ := strings.Cut(name, ": ")
		return exceptions[section+": *"]
	}
	injected, reasons := 0, map[string]int{}
	for _, name := range all {
		switch reason := excepted(name); {
		case covered[name] && reason != "":
			t.Errorf("%q has a fault and a reason against it", name)
		case covered[name]:
			injected++
		case reason == "":
			t.Errorf("%q has neither a fault nor a reason", name)
		default:
			reasons[reason]++
		}
	}
	for name := range covered {
		if !slices.Contains(all, name) {
			t.Errorf("no page has %q", name)
		}
	}
	for name := range exceptions {
		if !strings.HasSuffix(name, ": *") && !slices.Contains(all, name) {
			t.Errorf("no page has %q, which has a reason", name)
		}
	}
	t.Logf("%d faults in %d steps; %d of %d rows and alerts are injected; the others: %v", faults, len(steps()), injected,
		len(all), reasons)
}
