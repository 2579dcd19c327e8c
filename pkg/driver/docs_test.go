package driver

import (
	"io/fs"
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

// TestTheProofsOfTheSecurityPageExist looks for every test and trial that docs/security.md names.
func TestTheProofsOfTheSecurityPageExist(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests, trials := map[string]bool{}, ""
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(path, "_test.go"):
			source, err := os.ReadFile(path)
			for _, m := range function.FindAllSubmatch(source, -1) {
				tests[string(m[1])] = true
			}
			return err
		case strings.HasPrefix(path, filepath.Join(root, "test", "hostile")+string(filepath.Separator)):
			source, err := os.ReadFile(path)
			trials += string(source)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(string(page), -1)
	for _, name := range named {
		if !tests[name] {
			t.Errorf("docs/security.md names %s, which does not exist", name)
		}
	}
	titles := regexp.MustCompile("trials? `([^`]+)`(?: and `([^`]+)`)?").FindAllStringSubmatch(string(page), -1)
	for _, m := range titles {
		for _, title := range m[1:] {
			if !strings.Contains(trials, `"`+title+`"`) && title != "" {
				t.Errorf("docs/security.md names the trial %q, which does not exist", title)
			}
		}
	}
	if len(named) < 50 || len(titles) < 7 {
		t.Errorf("found %d tests and %d trials only", len(named), len(titles))
	}
}
