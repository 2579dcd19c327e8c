package smb

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// section returns a section of a page of docs/reference.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), heading)
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	text2, _, _ := strings.Cut(rest, "\n## ")
	return text2
}

var row = regexp.MustCompile("(?m)^\\| `([A-Za-z_]+)` \\|")

// TestTheDocumentedParametersAreTheParameters compares docs/reference/parameters.md with the
// parameters, their defaults and the permitted mount options.
func TestTheDocumentedParametersAreTheParameters(t *testing.T) {
	text := section(t, "parameters.md", "\n## Shares\n")
	var documented []string
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		documented = append(documented, m[1])
	}
	all, err := complete(map[string]string{sourceKey: "//a/b"})
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range all {
		if !slices.Contains(documented, key) {
			t.Errorf("parameters.md has no parameter %s", key)
		}
		if key != sourceKey && !strings.Contains(text, "| `"+key+"` | `"+value+"` |") {
			t.Errorf("parameters.md does not have the default %s of %s", value, key)
		}
	}
	if len(documented) != len(all) {
		t.Errorf("parameters.md has the parameters %v, the driver has %d", documented, len(all))
	}
	_, options, _ := strings.Cut(text, "Mount options:")
	options, _, _ = strings.Cut(options, "\n\n") // the end of the paragraph
	names := regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(options, -1)
	if len(names) < 20 {
		t.Errorf("parameters.md has %d mount options", len(names))
	}
	for _, m := range names {
		valid := false
		for _, value := range []string{"", "=0", "=0644", "=none", "=3", "=krb5", "=1048576", "=u:r:t:s0"} {
			valid = valid || mounter.CheckOptions(mounter.Share, "", []string{m[1] + value}) == nil
		}
		if !valid {
			t.Errorf("parameters.md has the mount option %s, which is refused", m[1])
		}
	}
}

// TestTheDocumentedMetricsAreTheMetrics compares docs/reference/metrics.md with the metrics.
func TestTheDocumentedMetricsAreTheMetrics(t *testing.T) {
	b := newWorld(t, smbtest.Serve(t), smbtest.Share).open()
	page := section(t, "metrics.md", "# Metrics\n")
	for _, m := range b.Metrics() {
		if !strings.Contains(page, "`causeway_"+m.Name+"`") && !strings.Contains(section(t, "metrics.md", "\n## The driver\n"),
			"`causeway_"+m.Name+"`") {
			t.Errorf("metrics.md has no causeway_%s", m.Name)
		}
	}
}
