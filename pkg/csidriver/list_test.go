package csidriver

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestListDefaults(t *testing.T) {
	l, err := parseList(program(), nil, env(nil))
	if err != nil || l.endpoint != "unix:///var/lib/kubelet/plugins/hostpath.csi.causeway.dev/csi.sock" ||
		l.volume != "" || l.calls.Call == 0 || l.calls.Page == 0 {
		t.Errorf("%+v, %v", l, err)
	}
	csiEndpoint := env(map[string]string{"CSI_ENDPOINT": "unix:///csi/csi.sock"})
	if l, err = parseList(program(), nil, csiEndpoint); err != nil || l.endpoint != "unix:///csi/csi.sock" {
		t.Errorf("CSI_ENDPOINT is not used: %+v, %v", l, err)
	}
	if l, err = parseList(program(), []string{"--endpoint=unix:///x.sock"}, csiEndpoint); err != nil ||
		l.endpoint != "unix:///x.sock" {
		t.Errorf("--endpoint is not used: %+v, %v", l, err)
	}
	for _, bad := range []string{"--endpoint=/csi.sock", "--timeout=-1s", "--no-such-flag", "stray", "--delete"} {
		if _, err := parseList(program(), []string{bad}, env(nil)); err == nil ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want an error of one line", bad, err)
		}
	}
	var help strings.Builder
	e := env(nil)
	e.Stderr = &help
	if _, err := parseList(program(), []string{"--help"}, e); !errors.Is(err, flag.ErrHelp) ||
		!strings.Contains(help.String(), "--volume") {
		t.Errorf("%v: %s", err, help.String())
	}
}

func TestAFailedListPrintsNothing(t *testing.T) {
	code, out, log := execute(program(), "list", "--endpoint=unix://"+filepath.Join(t.TempDir(), "s"))
	if code != exitError || out != "" || !strings.Contains(log, "Unavailable") {
		t.Errorf("exit %d: %q, %q", code, out, log)
	}
}

// TestTheDocumentedFlagsOfListAreTheFlags compares docs/reference/flags.md with the declared flags.
func TestTheDocumentedFlagsOfListAreTheFlags(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "flags.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## driver list")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented, declared []string
	for _, m := range regexp.MustCompile("(?m)^\\| `list --([a-z-]+)").FindAllStringSubmatch(section, -1) {
		documented = append(documented, m[1])
	}
	var l listing
	set := flag.NewFlagSet("list", flag.ContinueOnError)
	l.flags(set)
	set.VisitAll(func(f *flag.Flag) { declared = append(declared, f.Name) })
	slices.Sort(documented)
	if !slices.Equal(documented, declared) {
		t.Errorf("docs/reference/flags.md has %v, the command has %v", documented, declared)
	}
}

func TestShow(t *testing.T) {
	p := program()
	p.Backends = slices.Clone(p.Backends)
	var asked Config
	p.Backends[0].Describe = func(c Config, id string) (Description, error) {
		asked = c
		if id == "v1" {
			return Description{Path: "/root/v1", Record: json.RawMessage(`{"a":1}`)}, nil
		}
		return Description{Path: "/root/" + id}, errors.New("no such volume\x1b[2J")
	}
	code, out, log := execute(p, "show", "v1", "pvc-1,", "--mode=all", "--node-id=n1", "--kubelet-dir=/k")
	var got shown
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || got.Path != "/root/v1" ||
		string(got.Record) != `{"a":1}` || got.Node != "n1" || asked.KubeletDir != "/k" {
		t.Errorf("exit %d: %s%s, %v", code, out, log, err)
	}
	code, out, _ = execute(p, "show", "v2", "-")
	if code != exitUsage || out != "" {
		t.Errorf("exit %d: %s", code, out)
	}
	code, out, _ = execute(p, "show", "v2", "pvc-2")
	if code != 0 || !strings.Contains(out, "no such volume") || strings.Contains(out, "\x1b") {
		t.Errorf("exit %d: %s", code, out)
	}
	for _, bad := range [][]string{{}, {"v1"}, {"--node-id=n"}, {"v1", "x", "--no-such-flag"}} {
		if code, out, _ := execute(p, append([]string{"show"}, bad...)...); code != exitUsage || out != "" {
			t.Errorf("%v: exit %d: %s", bad, code, out)
		}
	}
	lines, err := linesWith(strings.NewReader("1 /a/pvc-1/mount\n2 /b\n3 /c/v1\n"), []string{"pvc-1", "", "v1"})
	if err != nil || len(lines) != 2 {
		t.Errorf("%v, %v", lines, err)
	}
}
