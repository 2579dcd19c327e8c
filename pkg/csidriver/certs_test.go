package csidriver

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// runCerts runs the command certs and returns its exit code and output.
func runCerts(args ...string) (code int, out, errOut string) {
	return execute(program(), append([]string{"certs"}, args...)...)
}

func TestCertsCreatesCertificatesAndPrintsCommands(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's here")
	long := strings.Repeat("n", 200)
	args := []string{"--dir=" + dir, "--node=node-a,node-b", "--node", long, "--shared=all-nodes", "--days=30"}
	code, out, errOut := runCerts(args...)
	if code != 0 || errOut != "" {
		t.Fatalf("exit %d: %s", code, errOut)
	}
	for _, sub := range []string{"router", "nodes-shared", "nodes/node-a", "nodes/node-b",
		"nodes/" + volumeid.NodeID(long)} {
		if _, err := peertls.Open(filepath.Join(dir, sub), func(err error) { t.Error(err) }); err != nil {
			t.Error(err)
		}
	}
	path := func(file string) string {
		return "'" + strings.ReplaceAll(filepath.Join(dir, "router", file), "'", `'\''`) + "'"
	}
	for _, want := range []string{
		"created CA Causeway CA ", "created router causeway-router", "created node node-a", "created nodes all-nodes",
		"kubectl -n causeway create secret generic causeway-router-tls --type=kubernetes.io/tls " +
			"--from-file=" + path("ca.crt") + " --from-file=" + path("tls.crt") + " --from-file=" + path("tls.key"),
		"secret generic causeway-nodes-tls", "secret generic causeway-node-node-a-tls",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	if strings.Contains(out, "PRIVATE") {
		t.Error("a key was printed")
	}
	for _, again := range []struct {
		args []string
		want string
	}{{args, "kept router"}, {append(args, "--renew"), "created router"}} {
		code, out, errOut := runCerts(again.args...)
		if code != 0 || !strings.Contains(out, "kept CA") || !strings.Contains(out, again.want) {
			t.Errorf("again: exit %d, %s%s", code, out, errOut)
		}
	}
	if code, out, _ := runCerts("--dir="+dir, "--namespace=storage"); code != 0 ||
		!strings.Contains(out, "kubectl -n storage create secret generic causeway-router-tls ") {
		t.Errorf("another namespace: exit %d, %s", code, out)
	}
	if code, _, errOut := runCerts("--dir="+dir, "--client=other"); code != 1 ||
		!strings.Contains(errOut, "wrong name") {
		t.Errorf("another router: exit %d, %s", code, errOut)
	}
}

func TestInvalidCertsFlagsAreReported(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		args    []string
		wantErr string
	}{
		"no directory":     {nil, "--dir"},
		"an unknown flag":  {[]string{"--dir=" + dir, "--no-such-flag"}, "no-such-flag"},
		"an argument":      {[]string{"--dir=" + dir, "node-a"}, "node-a"},
		"no days":          {[]string{"--dir=" + dir, "--days=0"}, "--days"},
		"too many days":    {[]string{"--dir=" + dir, "--days=9999999"}, "--days"},
		"no namespace":     {[]string{"--dir=" + dir, "--namespace="}, "--namespace"},
		"no client":        {[]string{"--dir=" + dir, "--client="}, "--client"},
		"a node's path":    {[]string{"--dir=" + dir, "--node=good,../bad"}, "--node=../bad"},
		"an empty node":    {[]string{"--dir=" + dir, "--node=a,,b"}, "--node="},
		"a space":          {[]string{"--dir=" + dir, "--node=a, b"}, "--node= b"},
		"a node upwards":   {[]string{"--dir=" + dir, "--node=.."}, ".."},
		"a shared pattern": {[]string{"--dir=" + dir, "--shared=*.x"}, "*.x"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, out, errOut := runCerts(tc.args...); code == 0 || out != "" ||
				!strings.Contains(errOut, tc.wantErr) || strings.Count(errOut, "\n") != 1 {
				t.Errorf("exit %d, %s%s, want one line with %q in it", code, out, errOut, tc.wantErr)
			}
		})
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if code, _, errOut := runCerts("--help"); code != 0 || !strings.Contains(errOut, "--shared name") {
		t.Errorf("--help: exit %d, %s", code, errOut)
	}
}

// TestTheDocumentedCertsFlagsAreTheFlags compares docs/how-to/certificates.md with the declared
// flags.
func TestTheDocumentedCertsFlagsAreTheFlags(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "how-to", "certificates.md"))
	if err != nil {
		t.Fatal(err)
	}
	var documented, declared []string
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, m[1])
	}
	set := flag.NewFlagSet("certs", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	new(certsFlags).flags(set)
	set.VisitAll(func(f *flag.Flag) {
		declared = append(declared, f.Name)
		if f.DefValue != "" && f.DefValue != "false" && !strings.Contains(string(page), "`"+f.DefValue+"`") {
			t.Errorf("the default of --%s, %s, is not in docs/how-to/certificates.md", f.Name, f.DefValue)
		}
	})
	slices.Sort(documented)
	if !slices.Equal(documented, declared) {
		t.Errorf("docs/how-to/certificates.md has %q, the command %q", documented, declared)
	}
}
