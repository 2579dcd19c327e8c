package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/pflag"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/causeway-csi/causeway/pkg/volumeid"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/doctor"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
	"github.com/causeway-csi/causeway/plugin/internal/orphans"
	"github.com/causeway-csi/causeway/plugin/internal/status"
)

// execute runs a command line against a fake cluster.
func execute(t *testing.T, c *fake.Cluster, in string, args ...string) (out, log string, code int) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config")
	content := `{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"x"}}],"clusters":[{"name":"x","cluster":{"server":"https://127.0.0.1:1"}}]}`
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", config)
	var stdout, stderr bytes.Buffer
	clients := c.Clients()
	code = run(context.Background(), args, streams{strings.NewReader(in), &stdout, &stderr},
		func(*rest.Config) (cluster.Client, error) { return clients.Client, nil })
	return stdout.String(), stderr.String(), code
}

func TestCommandLines(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "kubectl causeway status"}, {[]string{"--help"}, 0, "kubectl causeway doctor"}, {[]string{"version"}, 0, "dev"},
		{[]string{"statu"}, 2, "unknown command"}, {[]string{"status", "--no-such"}, 2, "unknown flag"},
		{[]string{"status", "x"}, 2, "unexpected arguments"}, {[]string{"status", "-o", "yaml"}, 2, "must be text or json"},
		{[]string{"doctor", "--help"}, 0, "Exit codes"}, {[]string{"volume"}, 2, "want the name of a claim"},
		{[]string{"orphans", "--yes"}, 2, "need --delete"}, {[]string{"orphans", "--delete", "-o=json"}, 2, "no --output=json"},
		{[]string{"orphans", "--settle=-1s"}, 2, "--settle"}, {[]string{"bundle", "--log-limit=0"}, 2, "must be positive"},
		{[]string{"bundle", "-o", "json"}, 2, "bundle has no --output=json"},
		{[]string{"doctor", "-n", "elsewhere"}, 2, "could not check: there is no driver"},
		{[]string{"status", "-n", "elsewhere"}, 1, `in namespace "elsewhere"`}, {[]string{"status", "--driver=x"}, 1, `with the name "x"`},
		{[]string{"volume", "none"}, 1, "not found"},
	} {
		out, log, code := execute(t, fake.Healthy(), "", tc.args...)
		if code != tc.code || !strings.Contains(out+log, tc.want) {
			t.Errorf("%v: exit %d, want %d and %q: %s%s", tc.args, code, tc.code, tc.want, out, log)
		}
	}
}

func TestStatusAndDoctor(t *testing.T) {
	out, _, code := execute(t, fake.Healthy(), "", "status")
	for _, want := range []string{"v1.37.1", "causeway-node-2", "leader causeway-controller-6d-1", "driver:dev", "6.12.0", "5Gi"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, %q is not in\n%s", code, want, out)
		}
	}
	out, _, code = execute(t, fake.Healthy(), "", "status", "-o", "json")
	var s status.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 || len(s.Drivers) != 1 || len(s.Drivers[0].Nodes) != 2 ||
		*s.Drivers[0].Nodes[0].Volumes != 3 || s.Drivers[0].Nodes[0].CertificateExpires == nil || len(s.Drivers[0].Capacity) != 2 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if out, _, code = execute(t, fake.Healthy(), "", "doctor"); code != 0 || !strings.Contains(out, " 0 findings, 0 not checked") {
		t.Errorf("exit %d: %s", code, out)
	}
	c := fake.Healthy()
	fake.Remove[*storagev1.CSIDriver](c, "")
	out, _, code = execute(t, c, "", "doctor", "-o=json")
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 1 || r.Findings[0].Check != "csidriver" {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	c = fake.Healthy()
	c.Refuse["nodes"] = errors.New("forbidden")
	if out, _, code = execute(t, c, "", "doctor"); code != 2 || !strings.Contains(out, "not checked: nodes: nodes: forbidden") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestOrphansAndTheirConfirmation(t *testing.T) {
	v1, v2 := volumeid.New(volumeid.Volume, "node-1", "pvc-1"), volumeid.New(volumeid.Volume, "node-1", "pvc-2")
	withOrphan := func() *fake.Cluster {
		c := fake.Healthy()
		c.Custom = []*unstructured.Unstructured{{Object: map[string]any{"apiVersion": "v1", "kind": "PersistentVolume",
			"metadata": map[string]any{"name": "pv-1", "uid": "1"}, "spec": map[string]any{"csi": map[string]any{"volumeHandle": v1}}}}}
		c.Pods.OnExec = func(_, _ string, command []string, out io.Writer) error {
			_, err := io.WriteString(out, `{"driver":"`+fake.Driver+`","volumes":[{"id":"`+v1+`","size":1},{"id":"`+v2+`","size":1}],"snapshots":[]}`)
			return err
		}
		return c
	}
	out, _, code := execute(t, withOrphan(), "", "orphans", "--settle=0s")
	if code != 3 || !strings.Contains(out, v2) || strings.Contains(out, "volume  "+v1) {
		t.Errorf("exit %d: %s", code, out)
	}
	for _, answer := range []string{"", "yes\n", "2\n", "\n"} {
		c := withOrphan()
		if _, log, code := execute(t, c, answer, "orphans", "--settle=0s", "--delete"); code != 1 || !strings.Contains(log, "nothing was deleted") {
			t.Errorf("%q: exit %d: %s", answer, code, log)
		}
	}
	if _, log, code := execute(t, withOrphan(), "", "orphans", "--settle=0s", "--delete", "--yes", v1); code != 1 ||
		!strings.Contains(log, "is not in the report") {
		t.Errorf("exit %d: %s", code, log)
	}
	// No sidecar works in this cluster: the volume does not become Released.
	if _, log, code := execute(t, withOrphan(), "1\n", "orphans", "--settle=0s", "--delete", "--wait=10ms"); code != 1 ||
		!strings.Contains(log, "does not become Released") {
		t.Errorf("exit %d: %s", code, log)
	}
}

// TestTheConfirmationNamesTheAnswer: the question has the text to type.
func TestTheConfirmationNamesTheAnswer(t *testing.T) {
	var log strings.Builder
	s := session{streams: streams{in: strings.NewReader("3\n"), err: &log}}
	if err := s.confirm(3); err != nil || !strings.HasSuffix(log.String(), "To delete 3 orphans, type 3: ") {
		t.Errorf("%v: %q", err, log.String())
	}
}

// TestAnErrorOfANodeHasLines: once for all pods of the controller, and safe for a terminal.
func TestAnErrorOfANodeHasLines(t *testing.T) {
	c := fake.Healthy()
	c.Pods.OnExec = func(string, string, []string, io.Writer) error {
		return errors.New("not all nodes answer:\nnode-2: \x1b[2J\nno address")
	}
	const want = "controller-6d-2: not all nodes answer:\n  \"node-2: \\x1b[2J\"\n  no address\n"
	if _, log, code := execute(t, c, "", "orphans", "--settle=0s"); code != 1 || !strings.HasSuffix(log, want) ||
		strings.Count(log, "no address") != 1 {
		t.Errorf("exit %d: %q, want %q", code, log, want)
	}
}

// TestTheHelpHasNoFormatThatTheCommandRejects: an archive is neither text nor JSON.
func TestTheHelpHasNoFormatThatTheCommandRejects(t *testing.T) {
	for name := range commands() {
		out, _, code := execute(t, fake.Healthy(), "", name, "--help")
		if got, want := strings.Contains(out, "--output"), name != "bundle"; code != 0 || got != want {
			t.Errorf("%s: exit %d, --output in the help: %t, want %t", name, code, got, want)
		}
	}
}

func TestTheExitCodeAfterADelete(t *testing.T) {
	for _, tc := range []struct {
		orphans, deleted int
		notJudged        string
		want             error
	}{
		{0, 0, "", nil},
		{2, 2, "", nil},
		{2, 1, "", errCode(codeOrphans)},
		{2, 1, "a reason", errCode(codeOrphans)},
		{2, 2, "a reason", errCode(codeError)},
	} {
		r := orphans.Report{Orphans: make([]orphans.Orphan, tc.orphans), Snapshots: orphans.Count{NotJudged: tc.notJudged}}
		if err := orphansLeft(r, tc.deleted); !errors.Is(err, tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func TestABundleIsANewPrivateFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	c := fake.Healthy()
	c.Pods.OnExec = func(_, _ string, _ []string, out io.Writer) error {
		_, err := io.WriteString(out, "{}")
		return err
	}
	if out, log, code := execute(t, c, "", "bundle", "--file="+file); code != 0 || out != file+"\n" {
		t.Fatalf("exit %d: %s%s", code, out, log)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() < 1000 {
		t.Errorf("%v, %v", info, err)
	}
	if _, log, code := execute(t, fake.Healthy(), "", "bundle", "--file="+file); code != 1 || !strings.Contains(log, "exists") {
		t.Errorf("exit %d: %s", code, log)
	}
	c.Refuse["csinodes"] = errors.New("forbidden")
	if out, log, code := execute(t, c, "", "bundle", "--file="+file+".2"); code != 0 || !strings.Contains(out, "MANIFEST") {
		t.Errorf("exit %d: %s%s", code, out, log)
	}
}

// TestTheDocumentedFlagsOfOrphansAreTheFlags compares docs/how-to/orphans.md with the flags.
func TestTheDocumentedFlagsOfOrphansAreTheFlags(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(fake.Root(), "docs", "how-to", "orphans.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
	}
	fs := pflag.NewFlagSet("orphans", pflag.ContinueOnError)
	orphansCommand().flags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if !documented[f.Name] {
			t.Errorf("--%s is not in docs/how-to/orphans.md", f.Name)
		}
		delete(documented, f.Name)
	})
	if len(documented) > 0 {
		t.Errorf("docs/how-to/orphans.md has %v, the command has not", documented)
	}
}

// TestThePageHasAllChecks compares docs/how-to/plugin.md with the checks of doctor.
func TestThePageHasAllChecks(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(fake.Root(), "docs", "how-to", "plugin.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range doctor.Checks() {
		if !strings.Contains(string(page), "`"+c.Name+"`") {
			t.Errorf("docs/how-to/plugin.md does not have the check %s", c.Name)
		}
	}
	if last := fmt.Sprintf("\n%d checks, 1 findings, 0 not checked\n", len(doctor.Checks())); !strings.Contains(string(page), last) {
		t.Errorf("docs/how-to/plugin.md does not have the line %q", last)
	}
}

// TestThePageHasTheRightsOfWebSockets: a WebSocket needs two verbs.
func TestThePageHasTheRightsOfWebSockets(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(fake.Root(), "docs", "how-to", "plugin.md"))
	if err != nil {
		t.Fatal(err)
	}
	rights := regexp.MustCompile("(?m)^\\| `(status|volume|orphans|bundle)`.*").FindAllString(string(page), -1)
	if len(rights) != 4 {
		t.Fatalf("docs/how-to/plugin.md has %d rows of rights, want 4", len(rights))
	}
	for _, row := range rights {
		for _, m := range regexp.MustCompile(`[^,;|]*pods/(exec|portforward)`).FindAllString(row, -1) {
			if !strings.HasPrefix(strings.TrimSpace(m), "get and create pods/") {
				t.Errorf("docs/how-to/plugin.md has %q, want get and create", m)
			}
		}
	}
}

// named is a report with a name.
type named struct{ Name string }

func (named) Text(io.Writer) error { return nil }

// TestJSONShowsNothingHidden: a terminal shows all characters of a text, and obeys none.
func TestJSONShowsNothingHidden(t *testing.T) {
	const hostile = "a\u009b31m\u202eb\u2028\x1b\U000e0041"
	var out bytes.Buffer
	s := session{streams: streams{out: &out}, output: "json"}
	if err := s.print(named{hostile}); err != nil {
		t.Fatal(err)
	}
	var r named
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Name != hostile {
		t.Errorf("%q, %v", r.Name, err)
	}
	if i := strings.IndexFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("%q has a hidden character at %d", out.String(), i)
	}
}
