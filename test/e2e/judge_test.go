package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/test/e2e/result"
)

// ginkgoReport has a spec of each state, and the parts of a suite that are not specs.
const ginkgoReport = `[{
"SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"],
"SpecReports": [
 {"LeafNodeType": "BeforeSuite", "State": "passed", "NumAttempts": 1},
 {"LeafNodeType": "SynchronizedAfterSuite", "State": "failed", "NumAttempts": 1, "Failure": {"Message": "no"}},
 {"ContainerHierarchyTexts": ["External Storage [Driver: a.b]", "[Testpattern: Dynamic PV (default fs)(allowExpansion)] volume-expand"],
  "LeafNodeType": "It", "LeafNodeText": "should grow", "State": "passed", "NumAttempts": 1, "RunTime": 1500000000},
 {"ContainerHierarchyTexts": ["External Storage [Driver: a.b]", "[Testpattern: CSI Ephemeral-volume (default fs)] ephemeral"],
  "LeafNodeType": "It", "LeafNodeText": "should not", "State": "skipped", "NumAttempts": 1, "Failure": {"Message": "not here"}},
 {"ContainerHierarchyTexts": ["External Storage [Driver: a.b]", "[Testpattern: p] [Slow] s"],
  "LeafNodeType": "It", "LeafNodeText": "panics", "State": "panicked", "NumAttempts": 1, "Failure": {"Message": "oh"}},
 {"ContainerHierarchyTexts": ["External Storage [Driver: a.b]", "[Testpattern: p] s"],
  "LeafNodeType": "It", "LeafNodeText": "is not selected", "State": "skipped", "NumAttempts": 0}
]}]`

func TestAReportIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, []byte(ginkgoReport), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readReport(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []result.Spec{
		{Name: "[Testpattern: Dynamic PV (default fs)(allowExpansion)] volume-expand should grow",
			Suite: "volume-expand", State: result.Passed, Seconds: 1.5},
		{Name: "[Testpattern: CSI Ephemeral-volume (default fs)] ephemeral should not", Suite: "ephemeral",
			State: result.Skipped, Message: "not here"},
		{Name: "[Testpattern: p] [Slow] s panics", Suite: "s", State: result.Failed, Message: "oh"},
	}
	if !reflect.DeepEqual(got.ran, want) {
		t.Errorf("the specs that ran are\n%+v\nwant\n%+v", got.ran, want)
	}
	if len(got.all) != 4 || got.all[3].Name != "[Testpattern: p] s is not selected" {
		t.Errorf("all specs are %+v", got.all)
	}
	if want := []string{"Suite Timeout Elapsed", "SynchronizedAfterSuite: failed: no"}; !slices.Equal(got.wrong, want) {
		t.Errorf("what is wrong is %q, want %q", got.wrong, want)
	}
}

func TestARunIsJudged(t *testing.T) {
	spec := func(name string, s result.State) result.Spec { return result.Spec{Name: name, State: s} }
	expect := expected{
		Floor: 1, Smoke: []string{"good"},
		LeftOut: []group{{Reason: "no machine for it", Specs: []string{"huge"}}},
		Skips: []group{
			{Reason: "not of this storage", Specs: []string{"skip"}},
			{Reason: "no way in", Without: withoutSSH, Specs: []string{"stops the kubelet"}},
			{Reason: "no other node", Without: withoutSecondNode, Specs: []string{"moves"}},
		},
	}
	two, unreachable := features{ssh: true, nodes: 2}, features{nodes: 2}
	for name, test := range map[string]struct {
		ran  []result.Spec
		all  []string // beside those; a nil entry is left out
		in   features
		want string // in the only problem; empty if there is none
	}{
		"as expected": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped),
			spec("stops the kubelet", result.Passed)}, in: two},
		"as expected without ssh": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped),
			spec("stops the kubelet", result.Skipped)}, in: unreachable},
		"a failure": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped),
			spec("bad", result.Failed)}, in: two, want: "failed: bad"},
		"a skip that is not expected": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped),
			spec("other", result.Skipped)}, in: two, want: "expected.yaml has not it: other"},
		"an expected skip that passes": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Passed)},
			in: two, want: "has it skipped: skip"},
		"an expected skip that is gone": {ran: []result.Spec{spec("good", result.Passed)}, in: two,
			want: "no such spec: skip"},
		"a spec that did not run": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped)}, all: []string{"huge one", "forgotten"}, in: two, want: "did not run: forgotten"},
		"nothing is left out any more": {ran: []result.Spec{spec("good", result.Passed),
			spec("skip", result.Skipped)}, all: []string{}, in: two, want: "0 specs are left out"},
		"more is left out": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped)}, all: []string{"huge one", "huge two"}, in: two, want: "2 specs are left out"},
		"a spec that ran twice": {ran: []result.Spec{spec("good", result.Passed), spec("good", result.Passed),
			spec("skip", result.Skipped)}, in: two, want: "ran twice: good"},
		"one node": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped),
			spec("moves", result.Skipped)}, in: features{ssh: true, nodes: 1}},
		"one node, and none is missed": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped),
			spec("moves", result.Passed)}, in: features{ssh: true, nodes: 1}, want: "has it skipped: moves"},
		"two nodes, and one is missed": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped),
			spec("moves", result.Skipped)}, in: two, want: "has not it: moves"},
		"a skip that holds without only": {ran: []result.Spec{spec("good", result.Passed), spec("skip", result.Skipped),
			spec("stops the kubelet", result.Skipped)}, in: two, want: "has not it: stops the kubelet"},
	} {
		t.Run(name, func(t *testing.T) {
			r := result.Result{Scope: full, Specs: slices.Clone(test.ran)}
			all := slices.Clone(test.ran)
			if test.all == nil {
				test.all = []string{"huge one"}
			}
			for _, name := range test.all {
				all = append(all, result.Spec{Name: name})
			}
			judge(&r, expect, test.in, all)
			switch {
			case test.want == "" && len(r.Problems) > 0:
				t.Errorf("the problems are %q", r.Problems)
			case test.want != "" && (len(r.Problems) != 1 || !strings.Contains(r.Problems[0], test.want)):
				t.Errorf("the problems are %q, want one with %q", r.Problems, test.want)
			}
		})
	}
}

func TestTooFewIsAProblem(t *testing.T) {
	r := result.Result{Scope: full, Specs: []result.Spec{{Name: "a", State: result.Passed}}}
	judge(&r, expected{Floor: 2}, features{ssh: true, nodes: 2}, r.Specs)
	if len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "1 passed") {
		t.Errorf("the problems are %q", r.Problems)
	}
	r = result.Result{Scope: full, Specs: []result.Spec{{Name: "a", State: result.Passed},
		{Name: "b", State: result.Skipped}}}
	for without, in := range map[string]features{withoutSSH: {nodes: 2}, withoutSecondNode: {ssh: true, nodes: 1}} {
		r.Problems = nil
		judge(&r, expected{Floor: 2, Skips: []group{{Reason: "not here", Without: without, Specs: []string{"b"}}}}, in,
			r.Specs)
		if len(r.Problems) > 0 {
			t.Errorf("without %s, the problems are %q", without, r.Problems)
		}
	}
}

func TestADefinitionAloneAllowsSkips(t *testing.T) {
	c := config{expected: expected{unlisted: true}}
	c.choose("", "huge")
	r := result.Result{Scope: full, Specs: []result.Spec{
		{Name: "a", State: result.Passed}, {Name: "b", State: result.Skipped, Message: "one node only"}, {Name: "c",
			State: result.Skipped, Message: "no blocks"},
		{Name: "d", State: result.Skipped, Message: "one node only"},
	}}
	all := append(slices.Clone(r.Specs), result.Spec{Name: "huge one"}, result.Spec{Name: "huge two"})
	judge(&r, c.expected, features{nodes: 1}, all)
	if len(r.Problems) > 0 || r.Specs[1].Reason != "one node only" || r.Counts.LeftOut != 2 {
		t.Errorf("the problems are %q, the specs %+v", r.Problems, r.Specs)
	}
	if got, want := skipReasons(r.Specs), []string{"2: one node only", "1: no blocks"}; !slices.Equal(got, want) {
		t.Errorf("the reasons are %q, want %q", got, want)
	}
	r = result.Result{Scope: full, Specs: []result.Spec{{Name: "a", State: result.Failed, Message: "oh"}}}
	judge(&r, c.expected, features{nodes: 1}, append(r.Specs, result.Spec{Name: "b"}))
	if got := strings.Join(r.Problems, "; "); got != "failed: a: oh; did not run: b; nothing passed" {
		t.Errorf("the problems are %q", got)
	}
}

func TestReasonsAndCountsAreInTheResult(t *testing.T) {
	r := result.Result{Scope: full,
		Specs: []result.Spec{{Name: "b", State: result.Skipped}, {Name: "a", State: result.Passed}}}
	judge(&r, expected{
		LeftOut: []group{{Reason: "too large", Specs: []string{"c"}}}, Skips: []group{{Reason: "because",
			Specs: []string{"b"}}},
	}, features{ssh: true, nodes: 2}, []result.Spec{{Name: "a"}, {Name: "b"}, {Name: "c"}})
	if want := (result.Counts{Selected: 2, Passed: 1, Skipped: 1, LeftOut: 1}); r.Counts != want {
		t.Errorf("the counts are %+v, want %+v", r.Counts, want)
	}
	want := []result.Spec{
		{Name: "a", State: result.Passed}, {Name: "b", State: result.Skipped, Reason: "because"}, {Name: "c",
			State: result.LeftOut, Reason: "too large"},
	}
	if !reflect.DeepEqual(r.Specs, want) {
		t.Errorf("the specs are %+v, want %+v", r.Specs, want)
	}
}

func TestOurConfigurationsAreExpectedOfSomething(t *testing.T) {
	for _, dir := range configurations(t) {
		c, err := readConfig(dir)
		if err != nil {
			t.Error(err)
			continue
		}
		if c.Floor < 1 || len(c.Smoke) == 0 || len(c.Skips) == 0 {
			t.Errorf("%s: floor %d, %d for smoke, %d kinds of skips", c.name, c.Floor, len(c.Smoke), len(c.Skips))
		}
	}
}

// configurations returns the directories of ours.
func configurations(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("configs/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("there are no configurations: %v", err)
	}
	return dirs
}

func TestMistakesInExpectedAreErrors(t *testing.T) {
	for name, test := range map[string]struct{ expected, want string }{
		"an unknown key":          {"flor: 1\n", "flor"},
		"a count of one each":     {"leftOut: [{reason: r, count: 1, specs: [a]}]\n", "leave it out"},
		"no reason":               {"skips: [{specs: [a]}]\n", "no reason"},
		"the same twice":          {"skips: [{reason: r, specs: [a, a]}]\n", "twice"},
		"an unknown circumstance": {"skips: [{reason: r, without: wings, specs: [a]}]\n", "wings"},
		"a pattern that is none":  {"leftOut: [{reason: r, specs: ['(']}]\n", "missing closing"},
		"a pattern of everything": {"leftOut: [{reason: r, specs: ['']}]\n", "all specs"},
		"a pattern of a name":     {"leftOut: [{reason: r, specs: [^a]}]\n", "or none"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{driverFile: "DriverInfo: {Name: a.b}\n",
				"expected.yaml": test.expected} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := readConfig(dir); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}
