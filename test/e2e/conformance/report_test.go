package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/test/e2e/result"
)

// TestThePageIsTheReports: the page is never written by hand.
func TestThePageIsTheReports(t *testing.T) {
	root, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	r, err := read(filepath.Join(root, "docs", "reference", "conformance.json"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "reference", "conformance.md"))
	if err != nil || string(page) != r.page() {
		t.Errorf("docs/reference/conformance.md, %v, is not what conformance.json says: run make conformance", err)
	}
	if !r.good() {
		t.Errorf("it says that something failed:\n%s", strings.Join(r.failures(), "\n"))
	}
	var suites []string
	for _, run := range r.Runs {
		if run.Passed > 0 {
			suites = append(suites, run.Suite)
		}
	}
	slices.Sort(suites)
	if suites = slices.Compact(suites); !slices.Equal(suites, []string{"csi-sanity", "external-storage", "own"}) {
		t.Errorf("only %q passed anything", suites)
	}
}

func TestValidValues(t *testing.T) {
	passed := Run{Suite: "own", Passed: 1}
	failed, empty := passed, Run{Suite: "own"}
	failed.fail("a test", "a reason")
	for name, tc := range map[string]struct {
		runs []Run
		want bool
	}{
		"nothing":                    {nil, false},
		"only what is not run":       {notRun, false},
		"a run":                      {append([]Run{passed}, notRun...), true},
		"a failure":                  {[]Run{passed, failed}, false},
		"a run in which nothing ran": {[]Run{passed, empty}, false},
	} {
		if got := (Report{Runs: tc.runs}).good(); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// TestTheOutput: a failure, and the errors of a run as a whole, are on the page; a skip has its
// reason.
func TestTheOutput(t *testing.T) {
	run := storage([]result.Result{{
		Configuration: "hostpath-image", Scope: "full", Nodes: 2, Provider: "local", Procs: 8, Problems: []string{"2 specs were skipped that should not be"},
		Specs: []result.Spec{
			{Name: "one", State: result.Passed},
			{Name: "two", State: result.Failed, Message: "no | luck"},
			{Name: "three", State: result.Skipped, Message: "what it says", Reason: "what is known"},
			{Name: "four", State: result.LeftOut, Reason: "it needs ssh"},
		},
	}})
	if run.Passed != 1 || run.Failed != 1 || run.skips() != 2 {
		t.Errorf("%+v", run)
	}
	failed := run.Failed
	run.Failed = 0
	if (Report{Runs: []Run{run}}).good() {
		t.Error("a run with a problem is good")
	}
	run.Failed = failed
	page := Report{Runs: []Run{run}}.page()
	for _, want := range []string{"image, full, 2 nodes (local), 8 at once | 1 | 1 | 2 |", `two: failed: no \| luck`,
		"2 specs were skipped that should not be", "| 1 | what is known |", "| 1 | left out: it needs ssh |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q:\n%s", want, page)
		}
	}
}

// TestSharesAreNotRunUntilThereIsAResult: a result of the storage suite with shares takes the place
// of the row without one.
func TestSharesAreNotRunUntilThereIsAResult(t *testing.T) {
	of := func(runs []Run) (all []string) {
		for _, r := range runs {
			if r.Suite == "external-storage" && r.Backend == "smb" {
				all = append(all, r.Configuration+" "+r.NotRun)
			}
		}
		return all
	}
	run := storage([]result.Result{{Configuration: "smb", Scope: "full", Nodes: 2, Provider: "local", Procs: 4,
		Specs: []result.Spec{{Name: "one", State: result.Passed}}}})
	if run.Backend != "smb" || !strings.HasPrefix(run.Configuration, "share, full, 2 nodes") {
		t.Errorf("%+v", run)
	}
	if got := of(without(notRun, []Run{run})); len(got) != 0 {
		t.Errorf("not run: %q", got)
	}
	hostpath := storage([]result.Result{{Configuration: "hostpath-image", Scope: "full"}})
	if got := of(without(notRun, []Run{hostpath})); hostpath.Backend != "hostpath" || len(got) != 1 {
		t.Errorf("without a result of shares, %s: not run: %q", hostpath.Backend, got)
	}
}

// TestTheAgeOfARun: a row of another commit than the page's has the number of commits between them.
func TestTheAgeOfARun(t *testing.T) {
	run := storage([]result.Result{{Configuration: "attached", Scope: "full", Nodes: 2, Provider: "local", Procs: 4,
		Versions: map[string]string{"driver": "old"}, Specs: []result.Spec{{Name: "one", State: result.Passed}}}})
	run.Behind = 12
	page := Report{Commit: "new", Runs: []Run{run}}.page()
	if want := "| attached disk, full, 2 nodes (local), 4 at once, of `old`, commits behind this page: 12 |"; !strings.Contains(page, want) {
		t.Errorf("no %q on the page:\n%s", want, page)
	}
	run.Commit = "new"
	if page := (Report{Commit: "new", Runs: []Run{run}}).page(); strings.Contains(page, "behind") {
		t.Errorf("the same commit has an age:\n%s", page)
	}
}

// TestCountCommits: also of a commit that the repository does not have.
func TestCountCommits(t *testing.T) {
	c := collector{root: t.TempDir()}
	git := func(args ...string) {
		t.Helper()
		args = append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"}, args...)
		if out, err := c.command(t.Context(), "git", args...).Output(); err != nil {
			t.Fatalf("git %q: %v %s", args, err, out)
		}
	}
	git("init", "-q")
	var commits []string
	for range 3 {
		git("commit", "-q", "--allow-empty", "-m", "x")
		id, err := c.commit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		commits = append(commits, id)
	}
	c.report = Report{Commit: commits[2] + "+", Runs: []Run{{Commit: commits[0]}, {Commit: commits[2] + "+"}, {},
		{Commit: "0123456789ab"}}}
	c.countCommits(t.Context())
	for i, want := range []int{2, 0, 0, -1} {
		if got := c.report.Runs[i].Behind; got != want {
			t.Errorf("run %d of %q is %d commits behind, want %d", i, c.report.Runs[i].Commit, got, want)
		}
	}
}

// TestRunsOfOneConfiguration: a result that differs between runs is flaky, also if the last run
// passed.
func TestRunsOfOneConfiguration(t *testing.T) {
	of := func(driver string, seconds float64, states ...result.State) result.Result {
		r := result.Result{Configuration: "hostpath-image", Scope: "full", Seconds: seconds,
			Versions: map[string]string{"driver": driver}}
		for i, s := range states {
			if s != "" {
				r.Specs = append(r.Specs, result.Spec{Name: string(rune('a' + i)), State: s, Seconds: seconds, Message: "why"})
			}
		}
		return r
	}
	const p, s, f = result.Passed, result.Skipped, result.Failed
	run := storage([]result.Result{of("x", 9, p, p, p, s, p), of("x", 1, p, f, p, s, ""), of("x", 5, p, p, s, s, p)})
	want := map[string]string{"b": "failed: why", "c": "failed: it passed in 2 of 3 runs", "d": "skipped: why",
		"e": "failed: it passed in 2 of 3 runs"}
	if run.Passed != 1 || run.Failed != 3 || run.skips() != 1 || !maps.Equal(run.Tests, want) || run.Times != 3 ||
		run.Seconds != 5 || !maps.Equal(run.SpecSeconds, map[string]float64{"a": 5}) || len(run.Problems) > 0 {
		t.Errorf("%+v", run)
	}
	run = storage([]result.Result{of("x", 1, p), of("y", 1, p)})
	if len(run.Problems) != 1 || !strings.Contains(run.Problems[0], "of x, another of y") {
		t.Errorf("%q", run.Problems)
	}
	if page := (Report{Runs: []Run{run}}).page(); !strings.Contains(page, ", each of 2 times | 1 | 0 |") {
		t.Error(page)
	}
}

// TestResults: beside the results are Ginkgo's own reports.
func TestResults(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run-1", "smb.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
		result.Result{Configuration: "smb", Scope: "full"}.Write(path),
		os.WriteFile(filepath.Join(dir, "smb.parallel.ginkgo.json"), []byte("[{}]"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if all, err := results(dir); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestEarlierRuns: a configuration without a new run keeps that of the former report.
func TestEarlierRuns(t *testing.T) {
	of := func(version string, configurations ...string) Report {
		r := Report{Versions: map[string]string{"kubernetes": version}, Runs: slices.Clone(notRun)}
		for _, c := range configurations {
			r.Runs = append(r.Runs, storage([]result.Result{{Configuration: c, Scope: "full", Nodes: 2,
				Specs: []result.Spec{{Name: "one", State: result.Passed}}}}))
		}
		return r
	}
	for name, tc := range map[string]struct {
		now, former Report
		kept        []string
		err         string
	}{
		"all new": {of("1", "hostpath-directory", "hostpath-image", "smb"), of("0", "hostpath-image", "smb"), nil,
			""},
		"shares are kept": {of("1", "hostpath-directory", "hostpath-image"), of("1", "smb"), []string{"smb"}, ""},
		"only shares are new": {of("1", "smb"), of("1", "hostpath-directory", "hostpath-image", "smb"),
			[]string{"hostpath", "hostpath"}, ""},
		"a missing configuration": {of("1", "smb"), of("1", "hostpath-directory"), nil, "no result of hostpath-image"},
		"another version": {of("1", "smb"), of("0", "hostpath-directory", "hostpath-image"), nil,
			"is of kubernetes 0, and not of 1"},
	} {
		kept, err := tc.now.earlier(tc.former)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var got []string
		for _, r := range kept {
			got = append(got, r.Backend)
		}
		if err != nil || !slices.Equal(got, tc.kept) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.kept)
		}
	}
}

func TestTheReasonOfASkip(t *testing.T) {
	for output, want := range map[string]string{
		"=== RUN   TestX\n    x_test.go:12: no quotas: here\n--- SKIP: TestX (0.00s)\n": "no quotas: here",
		"": "",
	} {
		if got := last(output); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestACellHasNoHTML: the site rejects pages with HTML, such as Go's <nil> in a message.
func TestACellHasNoHTML(t *testing.T) {
	if got, want := cell("a | b:\n <nil>"), `a \| b: \<nil>`; got != want {
		t.Errorf("cell = %s, want %s", got, want)
	}
}
