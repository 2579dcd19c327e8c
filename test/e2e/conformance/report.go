package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/test/e2e/result"
)

// Report is the content of docs/reference/conformance.json: runs and their results.
type Report struct {
	Made     time.Time         `json:"made"`
	Commit   string            `json:"commit"` // of the sources; "+" at its end stands for uncommitted changes
	Machine  string            `json:"machine"`
	Versions map[string]string `json:"versions"`
	Runs     []Run             `json:"runs"`
}

// Run is a suite with a configuration.
type Run struct {
	Suite         string `json:"suite"`   // csi-sanity, own or external-storage
	Backend       string `json:"backend"` // hostpath, smb, memory, or none, where the tests are of none in particular
	OS            string `json:"os"`
	Configuration string `json:"configuration"`
	Commit        string `json:"commit,omitempty"` // of the driver, if it differs from the report's
	// Behind is how many commits of the report's driver are missing in that of the run; -1: unknown.
	Behind int `json:"commitsBehind,omitempty"`
	// Times is how often it was run, where that was counted. A test has passed that passed each
	// time, and times are medians.
	Times      int     `json:"times,omitempty"`
	Seconds    float64 `json:"seconds,omitempty"`
	CPUSeconds float64 `json:"cpuSeconds,omitempty"` // of the whole machine, where it was measured
	// NotRun is why nothing was run. All that follows is empty then.
	NotRun  string         `json:"notRun,omitempty"`
	Passed  int            `json:"passed"`
	Failed  int            `json:"failed"`
	Skipped map[string]int `json:"skipped,omitempty"` // how many, by the reason
	// SpecSeconds is the wall time of each spec of the external-storage suite that passed, by name.
	SpecSeconds map[string]float64 `json:"specSeconds,omitempty"`
	// Tests are the tests that did not pass, by name, with their messages.
	Tests map[string]string `json:"tests,omitempty"`
	// Problems are the problems of the run as a whole. A good run has none.
	Problems []string `json:"problems,omitempty"`
}

// age is that of an earlier driver.
func (r Run) age() string {
	if r.Behind < 0 {
		return "which git does not know here"
	}
	return fmt.Sprintf("commits behind this page: %d", r.Behind)
}

// skips is how many were skipped.
func (r Run) skips() (n int) {
	for _, of := range r.Skipped {
		n += of
	}
	return n
}

// skip counts a test that was skipped.
func (r *Run) skip(name, reason string) {
	if r.Skipped == nil {
		r.Skipped = map[string]int{}
	}
	r.Skipped[reason]++
	r.say(name, "skipped: "+reason)
}

// fail counts a test that failed.
func (r *Run) fail(name, message string) {
	r.Failed++
	r.say(name, "failed: "+message)
}

func (r *Run) say(name, message string) {
	if r.Tests == nil {
		r.Tests = map[string]string{}
	}
	r.Tests[name] = message
}

// notRun are the parts without a machine to run them, and the parts that do not exist yet.
var notRun = []Run{
	{Suite: "csi-sanity", Backend: "hostpath", OS: "windows", Configuration: "process",
		NotRun: "make test-wine, which runs csi-sanity with driver.exe, needs Debian's packages for amd64"},
	{Suite: "external-storage", Backend: "hostpath", OS: "windows", Configuration: "directory",
		NotRun: "there is no Windows machine here"},
	{Suite: "external-storage", Backend: "smb", OS: "linux", Configuration: "share",
		NotRun: "make conformance does not run make e2e-smb; --storage=DIR adds its results"},
}

// without returns those of the parts that were not run in any of the runs.
func without(parts, runs []Run) []Run {
	return slices.DeleteFunc(slices.Clone(parts), func(p Run) bool {
		return slices.ContainsFunc(runs, func(r Run) bool {
			return r.Suite == p.Suite && r.Backend == p.Backend && r.OS == p.OS
		})
	})
}

// kinds are those of backends that have one kind of volume.
var kinds = map[string]string{"smb": "share", "attached": "attached disk"}

// storage combines runs of the external-storage suite with a configuration into a Run. A spec with
// different results has failed.
func storage(runs []result.Result) Run {
	r := runs[0]
	backend, kind, _ := strings.Cut(r.Configuration, "-")
	run := Run{
		Suite: "external-storage", Backend: backend, OS: "linux",
		Configuration: fmt.Sprintf("%s, %s, %d nodes (%s), %d at once",
			cmp.Or(kind, kinds[backend], backend), r.Scope, r.Nodes, r.Provider, r.Procs),
		Commit: r.Versions["driver"], Times: len(runs),
		Seconds:    median(runs, func(r result.Result) float64 { return r.Seconds }),
		CPUSeconds: median(runs, func(r result.Result) float64 { return r.CPU.Machine }), SpecSeconds: map[string]float64{},
	}
	if run.Commit == "" || run.Commit == "unknown" || strings.HasSuffix(run.Commit, "-dirty") {
		run.Problems = append(run.Problems,
			fmt.Sprintf("nobody can get the driver that was run: its commit is %q", run.Commit))
	}
	specs := map[string][]result.Spec{}
	for _, one := range runs {
		for _, s := range one.Specs {
			specs[s.Name] = append(specs[s.Name], s)
		}
		run.Problems = append(run.Problems, one.Problems...)
		if v := one.Versions["driver"]; v != run.Commit {
			run.Problems = append(run.Problems, fmt.Sprintf("one of the runs is of %s, another of %s", run.Commit, v))
		}
		if one.Scope != "full" {
			run.Problems = append(run.Problems, "it is "+one.Scope+", and not all of the suite")
		}
	}
	for name, all := range specs {
		run.count(name, all, len(runs))
	}
	return run
}

// count counts a spec, which is to be the same in each of so many runs.
func (r *Run) count(name string, all []result.Spec, runs int) {
	s, same := all[0], 0
	for _, other := range all {
		if other.State == s.State {
			same++
		}
		if other.State == result.Failed {
			s = other
		}
	}
	switch {
	case s.State == result.Failed:
		r.fail(name, s.Message)
	case same < runs:
		r.fail(name, fmt.Sprintf("it %s in %d of %d runs", s.State, same, runs))
	case s.State == result.Passed:
		r.Passed++
		r.SpecSeconds[name] = math.Round(10*median(all, func(s result.Spec) float64 { return s.Seconds })) / 10
	case s.State == result.Skipped:
		r.skip(name, cmp.Or(s.Reason, s.Message))
	case s.State == result.LeftOut:
		r.skip(name, "left out: "+s.Reason)
	}
}

// median is that of a measure; of an even number, the upper.
func median[T any](measured []T, of func(T) float64) float64 {
	var all []float64
	for _, m := range measured {
		all = append(all, of(m))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// earlier returns the runs of the external-storage suite in a former report of configurations that
// have no new run. Errors: they are of another version of Kubernetes or of the suite; a
// configuration has no run in either.
func (r Report) earlier(former Report) (kept []Run, err error) {
	has := func(runs []Run, backend, kind string) bool {
		return slices.ContainsFunc(runs, func(run Run) bool { return run.is(backend, kind) })
	}
	for _, run := range former.Runs {
		kind, _, _ := strings.Cut(run.Configuration, ",")
		if run.Suite != "external-storage" || run.NotRun != "" || has(r.Runs, run.Backend, kind) {
			continue
		}
		for _, name := range []string{"kubernetes", "suite"} {
			if now, ok := r.Versions[name]; ok && now != former.Versions[name] {
				err = errors.Join(err, fmt.Errorf("the last run of %s, %s is of %s %s, and not of %s: run it again",
					run.Backend, kind, name, former.Versions[name], now))
			}
		}
		kept = append(kept, run)
	}
	for _, kind := range []string{"directory", "image"} {
		if !has(slices.Concat(r.Runs, kept), "hostpath", kind) {
			err = errors.Join(err, fmt.Errorf("there is no result of hostpath-%s", kind))
		}
	}
	return kept, err
}

// is reports whether the run is of the external-storage suite with volumes of a kind.
func (r Run) is(backend, kind string) bool {
	return r.Suite == "external-storage" && r.NotRun == "" && r.Backend == backend &&
		strings.HasPrefix(r.Configuration, kind+",")
}

// good reports whether nothing failed, nothing is wrong with a run, and something ran.
func (r Report) good() bool {
	ran := 0
	for _, run := range r.Runs {
		ran += run.Passed
		if run.Failed > 0 || len(run.Problems) > 0 || run.NotRun == "" && run.Passed == 0 {
			return false
		}
	}
	return ran > 0
}

// write writes a report as JSON.
func (r Report) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// read reads the output of write.
func read(path string) (r Report, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

// intro describes the suites.
const intro = `# Conformance

For operators and maintainers who want to know which tests passed. ` + "`make conformance`" + ` runs all of them and
writes this page and [conformance.json](conformance.json), which names every test that did not pass. A test
compares the page with the file.

- **csi-sanity** (csi-test v5.6.0) calls every RPC of CSI, with the fake mounter, with real mounts, and with
  a router. For shares, ` + "`make test-vm`" + ` runs the same specs with mounts of the kernel. "Links of
  Windows" is the mounter of Windows over links and files of Linux. Rows of Windows are of
  ` + "`make test-wine`" + `: Wine is not Windows.
- **own** are the tests of this repository: the contract of a backend, crashes at every step, the
  controllers of the sidecars, and the rest of ` + "`make test`" + `. Tests that need a cluster are not among them:
  [cluster](../contributing/cluster.md).
- **external-storage** is Kubernetes' own suite for storage, in
  [a cluster of two nodes](../contributing/cluster.md) with all components in pods from the chart and
  csi-sidecars as the only sidecar. [The suite's page](../contributing/e2e.md) lists the declared features
  and the reasons.
`

// page is the report for people.
func (r Report) page() string {
	var b strings.Builder
	b.WriteString(intro)
	fmt.Fprintf(&b, "\nMade on %s of `%s`, on %s", r.Made.UTC().Format(time.DateOnly), r.Commit, r.Machine)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(&b, "; %s %s", name, r.Versions[name])
	}
	b.WriteString(".\n\n| Suite | Backend | OS | Configuration | Passed | Failed | Skipped | Wall | CPU " +
		"|\n|---|---|---|---|---|---|---|---|---|\n")
	for _, run := range r.Runs {
		if run.NotRun != "" {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | not run: %s | | | | |\n", run.Suite, run.Backend, run.OS,
				run.Configuration, run.NotRun)
			continue
		}
		configuration := run.Configuration
		if run.Commit != "" && run.Commit != r.Commit {
			configuration += fmt.Sprintf(", of `%s`, %s", run.Commit, run.age())
		}
		if run.Times > 1 {
			configuration += fmt.Sprintf(", each of %d times", run.Times)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %d | %d | %s | %s |\n", run.Suite, run.Backend, run.OS,
			configuration, run.Passed, run.Failed, run.skips(), seconds(run.Seconds), seconds(run.CPUSeconds))
	}
	if failed := r.failures(); len(failed) > 0 {
		b.WriteString("\n## What failed\n\n" + strings.Join(failed, "\n") + "\n")
	}
	b.WriteString("\n## Skipped tests, with reasons\n\n| Suite | Configuration | Skipped | Reason |\n|---|---|---|---|\n")
	for _, run := range r.Runs {
		for _, reason := range slices.Sorted(maps.Keys(run.Skipped)) {
			fmt.Fprintf(&b, "| %s | %s, %s | %d | %s |\n", run.Suite, run.Backend, run.Configuration,
				run.Skipped[reason], cell(reason))
		}
	}
	return b.String()
}

// failures has a line for each failed test, and for each problem of a run as a whole.
func (r Report) failures() (lines []string) {
	for _, run := range r.Runs {
		for _, name := range slices.Sorted(maps.Keys(run.Tests)) {
			if message := run.Tests[name]; !strings.HasPrefix(message, "skipped: ") {
				lines = append(lines, fmt.Sprintf("- %s, %s, %s: %s: %s", run.Suite, run.Backend, run.Configuration,
					name, cell(message)))
			}
		}
		for _, p := range run.Problems {
			lines = append(lines, fmt.Sprintf("- %s, %s, %s: %s", run.Suite, run.Backend, run.Configuration, cell(p)))
		}
	}
	return lines
}

// cell is text that fits into a table, and has no HTML.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", `\<`).Replace(strings.Join(strings.Fields(text), " "))
}

// seconds is a duration for people; nothing, where it was not measured.
func seconds(s float64) string {
	if s == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f s", s)
}
