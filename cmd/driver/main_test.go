package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func env(m map[string]string) func(string) string { return func(k string) string { return m[k] } }

func TestDefaults(t *testing.T) {
	o, err := parse(nil, env(nil), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		o.endpoint:   "unix:///var/lib/kubelet/plugins/hostpath.csi.causeway.dev/csi.sock",
		o.stateDir:   "/var/lib/kubelet/plugins/hostpath.csi.causeway.dev.state",
		o.driverName: "hostpath.csi.causeway.dev",
		o.backend:    "hostpath",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if o.nodeID == "" || o.allowTCP || o.adoptRoot || o.httpEndpoint != "" || o.verbosity != 0 {
		t.Errorf("%+v", o)
	}
	o, err = parse([]string{"--kubelet-dir=/k/", "--driver-name=x.example", "--node-id=n"}, env(nil), io.Discard)
	if err != nil || o.endpoint != "unix:///k/plugins/x.example/csi.sock" || o.stateDir != "/k/plugins/x.example.state" || o.nodeID != "n" {
		t.Errorf("%+v, %v", o, err)
	}
	o, err = parse(nil, env(map[string]string{"CSI_ENDPOINT": "unix:///x.sock"}), io.Discard)
	if err != nil || o.endpoint != "unix:///x.sock" {
		t.Errorf("CSI_ENDPOINT is not used: %+v, %v", o, err)
	}
}

func TestBadFlagsAreNamed(t *testing.T) {
	for says, args := range map[string][]string{
		"no-such-flag":  {"--no-such-flag"},
		"stray":         {"stray"},
		"--log-format":  {"--log-format=xml"},
		"--kubelet-dir": {"--kubelet-dir=relative"},
		"--root":        {"--root=relative"},
		"--state-dir":   {"--state-dir=relative"},
		"--driver-name": {"--driver-name=../x"},
		"is no flag":    {"--allow-tcp", "true"},
		"parse error":   {"-v=loud"},
	} {
		if _, err := parse(args, env(nil), io.Discard); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q in it", args, err, says)
		}
	}
	o, err := parse([]string{"--backend=tape"}, env(nil), io.Discard)
	if err == nil {
		_, _, err = openBackend(o, nil)
	}
	if err == nil || !strings.Contains(err.Error(), "tape") {
		t.Errorf("--backend=tape: %v", err)
	}
}

// TestTheDocumentedFlagsAreTheFlags compares docs/flags.md with what the command declares.
func TestTheDocumentedFlagsAreTheFlags(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "flags.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `--?([a-z-]+)").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
	}
	var o options
	set := flag.NewFlagSet("driver", flag.ContinueOnError)
	o.flags(set)
	set.VisitAll(func(f *flag.Flag) {
		if !documented[f.Name] {
			t.Errorf("--%s is not in docs/flags.md", f.Name)
		}
		delete(documented, f.Name)
		if f.DefValue != "" && f.DefValue != "false" && !strings.Contains(string(page), "`"+f.DefValue+"`") {
			t.Errorf("the default of --%s, %s, is not in docs/flags.md", f.Name, f.DefValue)
		}
	})
	for name := range documented {
		t.Errorf("docs/flags.md has --%s, the command hasn't", name)
	}
}
