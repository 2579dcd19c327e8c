package csidriver

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestOrphansDefaults(t *testing.T) {
	o, err := parseOrphans(program(), nil, env(nil))
	if err != nil || o.endpoint != "unix:///var/lib/kubelet/plugins/hostpath.csi.causeway.dev/csi.sock" ||
		o.output != "text" {
		t.Errorf("%+v, %v", o, err)
	}
	if f := o.find; f.NoVolumes || f.NoSnapshots || f.NoGroups || f.NoneNamed || f.Settle < 10*time.Second ||
		f.Call == 0 || f.Page == 0 {
		t.Errorf("%+v, want the safe defaults", f)
	}
	csiEndpoint := env(map[string]string{"CSI_ENDPOINT": "unix:///csi/csi.sock"})
	if o, err = parseOrphans(program(), nil, csiEndpoint); err != nil || o.endpoint != "unix:///csi/csi.sock" {
		t.Errorf("CSI_ENDPOINT is not used: %+v, %v", o, err)
	}
	if o, err = parseOrphans(program(), []string{"--endpoint=unix:///x.sock"}, csiEndpoint); err != nil ||
		o.endpoint != "unix:///x.sock" {
		t.Errorf("--endpoint is not used: %+v, %v", o, err)
	}
	for _, bad := range []string{"--output=yaml", "--endpoint=/csi.sock", "--settle=-1s", "--timeout=-1s",
		"--no-such-flag", "stray", "--delete"} {
		if _, err := parseOrphans(program(), []string{bad}, env(nil)); err == nil ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want an error of one line", bad, err)
		}
	}
	var help strings.Builder
	e := env(nil)
	e.Stderr = &help
	if _, err := parseOrphans(program(), []string{"--help"}, e); !errors.Is(err, flag.ErrHelp) ||
		!strings.Contains(help.String(), "sleep 60") || !strings.Contains(help.String(), "--expect-no-groups") {
		t.Errorf("%v: %s", err, help.String())
	}
}

// TestTheDocumentedFlagsOfOrphansAreTheFlags compares docs/how-to/orphans.md with the declared
// flags.
func TestTheDocumentedFlagsOfOrphansAreTheFlags(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "how-to", "orphans.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
	}
	var o orphansFlags
	set := flag.NewFlagSet("orphans", flag.ContinueOnError)
	o.flags(set)
	set.VisitAll(func(f *flag.Flag) {
		if !documented[f.Name] {
			t.Errorf("--%s is not in docs/how-to/orphans.md", f.Name)
		}
		delete(documented, f.Name)
		if f.DefValue != "" && f.DefValue != "false" &&
			!strings.Contains(string(page), "`"+strings.TrimSuffix(f.DefValue, "0s")+"`") &&
			!strings.Contains(string(page), "`"+f.DefValue+"`") {
			t.Errorf("the default of --%s, %s, is not in docs/how-to/orphans.md", f.Name, f.DefValue)
		}
	})
	for name := range documented {
		t.Errorf("docs/how-to/orphans.md has --%s, the command has not", name)
	}
}
