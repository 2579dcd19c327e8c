package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/providers"
)

// parsed returns the options of a command line.
func parsed(args ...string) (options, error) {
	o := options{cluster: providers.Choice{Name: "e2e"}}
	set := flag.NewFlagSet("e2e", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	o.flags(set)
	if err := set.Parse(args); err != nil {
		return o, err
	}
	return o, o.complete()
}

func TestTheCommandLine(t *testing.T) {
	for name, test := range map[string]struct {
		args    string
		nodes   int
		install string
		scope   string
	}{
		"nothing":                          {"", 2, "", smoke},
		"one node":                         {"--nodes=1 --full", 1, "", full},
		"an existing cluster":              {"--provider=existing", 1, "no", smoke},
		"an existing cluster of two nodes": {"--provider=existing --nodes=2", 2, "no", smoke},
		"a definition in an existing one":  {"--provider=existing --definition=d.yaml --full", 1, "no", full},
		"a definition in a local one":      {"--nodes=1 --keep --definition=d.yaml --focus=subPath", 1, "no", focus},
		"a definition for our driver":      {"--definition=d.yaml --full --install=yes", 2, "yes", full},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parsed(strings.Fields(test.args)...)
			if err != nil || o.nodes != test.nodes || o.install != test.install || o.scope() != test.scope {
				t.Errorf("got %d nodes, install %q, scope %q, %v; want %+v", o.nodes, o.install, o.scope(), err, test)
			}
		})
	}
}

func TestMistakesOnTheCommandLineAreErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--nodes=-1":                                 "at least 1",
		"--definition=d.yaml --config=c --full":      "say one",
		"--full --focus=a":                           "say one",
		"--provider=existing --definition=d.yaml":    "say --full or --focus=PATTERN",
		"--definition=d.yaml --full":                 "say --keep",
		"--focus=(":                                  "missing closing",
		"--full --skip=^a":                           "begin with ^",
		"--provider=existing --definitions=d --full": "not defined",
	} {
		if _, err := parsed(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", args, err, want)
		}
	}
}

func TestADefinitionIsAConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "test-driver.yaml")
	if err := os.WriteFile(file, []byte("DriverInfo: {Name: example.com}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := chooseConfigs(options{definition: file, focus: "subPath", skip: "Slow"}, "")
	want := config{
		name: "test-driver", dir: filepath.Dir(file), definition: file, driver: "example.com",
		expected: expected{unlisted: true, Smoke: []string{"subPath"},
			LeftOut: []group{{Reason: "--skip", Count: anyCount, Specs: []string{"Slow"}}}},
	}
	if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if err := os.WriteFile(file, []byte("{\n\t\"DriverInfo\": {\n\t\t\"Name\": \"example.org\"\n\t}\n}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readDefinition(file); err != nil || got.driver != "example.org" {
		t.Errorf("of JSON, got %+v, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("DriverInfo: example.com\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := chooseConfigs(options{definition: file, full: true}, ""); err != nil {
		t.Errorf("got %v: the suite reports this, with all other mistakes", err)
	}
	if _, err := chooseConfigs(options{definition: file + ".none", full: true}, ""); err == nil {
		t.Error("a file that is not there is no error")
	}
}

// TestSharesHaveAClusterOfTheirOwn: the configuration of shares has guests, which only a local
// cluster has, and no other configuration runs beside it.
func TestSharesHaveAClusterOfTheirOwn(t *testing.T) {
	o, err := parsed("--kinds=smb")
	if err != nil {
		t.Fatal(err)
	}
	all, err := chooseConfigs(o, ".")
	if err != nil || len(all) != 1 || !all[0].cluster.Shares || len(all[0].cluster.Guests) != 2 {
		t.Errorf("got %+v, %v", all, err)
	}
	for args, want := range map[string]string{
		"--kinds=directory,smb":       "need different clusters",
		"--kinds=smb --provider=kind": "needs nodes that are guests",
	} {
		o, err := parsed(strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := chooseConfigs(o, "."); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestTheSelectionsOfAScope(t *testing.T) {
	for name, test := range map[string]struct {
		scope string
		procs int
		want  []selection
	}{
		"all": {full, 8, []selection{
			{"parallel", external, []string{alone, "left"}, 8}, {"serial", external + ".*(" + alone + ")",
				[]string{"left"}, 1},
		}},
		"smoke":             {smoke, 8, []selection{{"smoke", external + ".*(a|b)", []string{alone, "left"}, 8}}},
		"smoke, one by one": {smoke, 1, []selection{{"smoke", external + ".*(a|b)", []string{alone, "left"}, 1}}},
		"focus":             {focus, 8, []selection{{"focus", external + ".*(a|b)", []string{alone, "left"}, 8}}},
		"focus, one by one": {focus, 1, []selection{{"focus", external + ".*(a|b)", []string{"left"}, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := suite{procs: test.procs, config: config{expected: expected{Smoke: []string{"a", "b"},
				LeftOut: []group{{Specs: []string{"left"}}}}}}
			if got := s.selections(test.scope); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestNodesThatKeepPodsAwayDoNotCount(t *testing.T) {
	const ready, not = `"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}]`, `"conditions": [{"type": "Ready", "status": "Unknown"}]`
	for name, test := range map[string]struct {
		nodes []string
		want  int
	}{
		"one": {[]string{`{"status": {` + ready + `}}`}, 1},
		"two": {[]string{`{"status": {` + ready + `}}`,
			`{"spec": {"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}, "status": {` + ready + `}}`}, 2},
		"not ready":   {[]string{`{"status": {` + not + `}}`}, 0},
		"tainted":     {[]string{`{"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}, "status": {` + ready + `}}`}, 0},
		"cordoned":    {[]string{`{"spec": {"unschedulable": true}, "status": {` + ready + `}}`}, 0},
		"none at all": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := schedulable([]byte(`{"items": [` + strings.Join(test.nodes, ",") + `]}`))
			if err != nil || got != test.want {
				t.Errorf("got %d, %v, want %d", got, err, test.want)
			}
		})
	}
}

func TestMistakesAreReportedWithoutTheSuitesFlags(t *testing.T) {
	bin := t.TempDir()
	for script, test := range map[string]struct {
		notes []string
		want  string
	}{
		"echo a: 1 >&2; echo b: 2 >&2; exit 1": {nil, "invalid driver definition:\na: 1\nb: 2"},
		"echo note 1; echo note 2":             {[]string{"note 1", "note 2"}, ""},
		":":                                    {nil, ""},
	} {
		if err := os.WriteFile(filepath.Join(bin, "suite.test"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		notes, err := config{definition: "/d.yaml"}.checkDriver(t.Context(), bin)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != test.want || !slices.Equal(notes, test.notes) {
			t.Errorf("%s: got %q and the notes %q, want %q and %q", script, got, notes, test.want, test.notes)
		}
	}
}
