package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/test/cluster/chart"
)

// Rules are a file of rules with its tests and its page.
type Rules struct {
	File  string // rules of Prometheus
	Tests string // of promtool test rules
	// Page has a section for each alert: a heading of level 3. Address is that of the page.
	Page, Address string
	Metrics       []string // pages that have the metrics of the rules; tests compare these with the programs
	Prefixes      []string // of the names of these metrics
}

// Chart returns the rules of the chart causeway.
func Chart() Rules {
	docs := filepath.Join(chart.Sources(), "docs")
	return Rules{
		File:    filepath.Join(chart.Directory(), "files", "rules.yaml"),
		Tests:   filepath.Join(chart.Sources(), "test", "cluster", "monitoring", "testdata", "rules_test.yaml"),
		Page:    filepath.Join(docs, "how-to", "alerts.md"),
		Address: "https://github.com/causeway-csi/causeway/blob/main/docs/how-to/alerts.md",
		Metrics: []string{filepath.Join(docs, "reference", "metrics.md"),
			filepath.Join(docs, "explanation", "csi-sidecars.md")},
		Prefixes: []string{"causeway", "csi_sidecars"},
	}
}

// Rule is an alert, or a recording rule.
type Rule struct {
	Alert, Record, Expr, For string
	Labels, Annotations      map[string]string
}

// Load returns the rules of the file.
func (r Rules) Load(t testing.TB) (all []Rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []Rule } }
	load(t, r.File, &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// load reads a YAML file.
func load(t testing.TB, path string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text(t, path)), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// text returns files, one after the other.
func text(t testing.TB, paths ...string) (all string) {
	t.Helper()
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all += string(data)
	}
	return all
}

// firing is the expression of the tests of rules.
const firing = `group by (alertname) (ALERTS{alertstate="firing"})`

// Check has promtool check the rules and run their tests. It reports alerts without a complete test
// or without a section, and metrics that do not exist.
func (r Rules) Check(t *testing.T) {
	t.Helper()
	bin, err := Programs(t.Context(), os.Stderr, "promtool")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", r.File},
		{"test", "rules", r.Tests},
	} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "promtool"), args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "SUCCESS") {
			t.Errorf("promtool %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	r.checkTests(t)
	r.checkSections(t)
	r.CheckMetrics(t, func(report func(where, expr string)) {
		for _, rule := range r.Load(t) {
			report(rule.Alert+rule.Record, rule.Expr)
		}
	})
}

// checkTests: the test of an alert has a time before the alert, a time at which it fires, alone or
// with others that it names, and a time after its end; perhaps with more times between the last
// two.
func (r Rules) checkTests(t *testing.T) {
	t.Helper()
	var file struct {
		Tests []struct {
			Name  string
			Times []struct {
				Expr       string
				ExpSamples []struct{ Labels string } `json:"exp_samples"`
			} `json:"promql_expr_test"`
		}
	}
	load(t, r.Tests, &file)
	tested := map[string]bool{}
	for _, c := range file.Tests {
		at := c.Times
		if len(at) < 3 || len(at[0].ExpSamples) != 0 || len(at[1].ExpSamples) == 0 ||
			len(at[len(at)-1].ExpSamples) != 0 || at[1].ExpSamples[0].Labels != `{alertname="`+c.Name+`"}` {
			t.Errorf("the test %s has the times %+v, want silence, the alert, silence", c.Name, at)
		}
		for _, a := range at {
			if a.Expr != firing {
				t.Errorf("the test %s has the expression %s", c.Name, a.Expr)
			}
		}
		tested[c.Name] = true
	}
	if len(tested) == 0 {
		t.Error("there is no test")
	}
	for _, rule := range r.Load(t) {
		if rule.Alert != "" && !tested[rule.Alert] {
			t.Errorf("%s has no test", rule.Alert)
		}
		delete(tested, rule.Alert)
	}
	for name := range tested {
		t.Errorf("a test is for %s, which does not exist", name)
	}
}

// checkSections: an alert has a severity, words, and the address of its section.
func (r Rules) checkSections(t *testing.T) {
	t.Helper()
	sections := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(text(t, r.Page), -1) {
		sections[m[1]] = true
	}
	for _, rule := range r.Load(t) {
		if rule.Alert == "" {
			continue
		}
		if !sections[rule.Alert] {
			t.Errorf("%s has no section for %s", r.Page, rule.Alert)
		}
		delete(sections, rule.Alert)
		if want := r.Address + "#" + strings.ToLower(rule.Alert); rule.Annotations["runbook_url"] != want {
			t.Errorf("%s has the page %s, want %s", rule.Alert, rule.Annotations["runbook_url"], want)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
			t.Errorf("%s has the severity %q", rule.Alert, rule.Labels["severity"])
		}
		for _, key := range []string{"summary", "description"} {
			if len(rule.Annotations[key]) < 20 {
				t.Errorf("%s has the %s %q", rule.Alert, key, rule.Annotations[key])
			}
		}
	}
	for name := range sections {
		t.Errorf("%s has a section for %s, which does not exist", r.Page, name)
	}
}

// CheckMetrics reports metrics with the prefixes, in the expressions of each, that are neither on
// the pages nor recorded. where is for the error.
func (r Rules) CheckMetrics(t *testing.T, each func(report func(where, expr string))) {
	t.Helper()
	recorded, pages := map[string]bool{}, text(t, r.Metrics...)
	for _, rule := range r.Load(t) {
		recorded[rule.Record] = true
	}
	names := regexp.MustCompile(`\b(?:` + strings.Join(r.Prefixes, "|") + `)[a-z0-9_:]*\b`)
	suffix := regexp.MustCompile(`_(bucket|count|sum)$`)
	found := 0
	each(func(where, expr string) {
		for _, name := range names.FindAllString(strings.ReplaceAll(expr, "causeway_component", ""), -1) { // a label
			found++
			base := suffix.ReplaceAllString(name, "")
			if !recorded[name] && !strings.Contains(pages, "`"+name) && !strings.Contains(pages, "`"+base) {
				t.Errorf("%s uses %s, which no page has", where, name)
			}
		}
	})
	if found == 0 {
		t.Error("no metric was found")
	}
}
