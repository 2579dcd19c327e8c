// Command conformance runs csi-sanity, this repository's own tests and Kubernetes' external-storage
// suite, and writes their results: docs/reference/conformance.md and
// docs/reference/conformance.json.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/causeway-csi/causeway/test/e2e/result"
)

func main() {
	storage := flag.String("storage", "",
		"a `directory` with the results of earlier runs of the external-storage suite (make e2e-full, make e2e-smb), "+
			"instead of new ones; a configuration without results there keeps its row of the page")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	defer stop()
	if err := run(ctx, *storage); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, results string) error {
	root, err := sources()
	if err != nil {
		return err
	}
	if results != "" && !filepath.IsAbs(results) { // make has changed the directory
		return fmt.Errorf("--storage=%s: say it as an absolute path", results)
	}
	tmp, err := os.MkdirTemp("", "causeway-conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	c := collector{root: root, tmp: tmp,
		report: Report{Made: time.Now().UTC(), Machine: machine(),
			Versions: map[string]string{"Go": strings.TrimPrefix(runtime.Version(), "go")}}}
	if c.report.Commit, err = c.commit(ctx); err != nil {
		return err
	}
	// the storage suite's result would say so, after half an hour
	if results == "" && strings.HasSuffix(c.report.Commit, "+") {
		return errors.New("uncommitted changes: commit them, so that the report names a commit")
	}
	for _, step := range []func() error{
		func() error { return c.sanity(ctx, "./pkg/driver") },
		func() error { return c.sanity(ctx, "./pkg/backend/smb") },
		func() error { return c.sanity(ctx, "./internal/router") },
		func() error { return c.own(ctx) },
		func() error { return c.wine(ctx) },
		func() error { return c.storage(ctx, results) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	c.report.Runs = append(c.report.Runs, without(notRun, c.report.Runs)...)
	if err := c.report.write(filepath.Join(root, "docs", "reference", "conformance.json")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "docs", "reference", "conformance.md"), []byte(c.report.page()),
		0o644); err != nil {
		return err
	}
	if !c.report.good() {
		return fmt.Errorf("not everything passed:\n%s", strings.Join(c.report.failures(), "\n"))
	}
	return nil
}

// sources is the root of the sources that this was built from.
func sources() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	_, err := os.Stat(filepath.Join(root, "docs"))
	return root, err
}

// machine describes this machine.
func machine() string {
	kernel := "an unknown kernel"
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = "Linux " + strings.TrimSpace(string(text))
	}
	return fmt.Sprintf("%d cores of %s, %s", runtime.NumCPU(), runtime.GOARCH, kernel)
}

// collector runs the suites and collects their results.
type collector struct {
	root, tmp string
	report    Report
}

// command is a command in the sources' root, whose errors are seen.
func (c *collector) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = c.root, os.Stderr
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if os.Getuid() == 0 {
		cmd.Env = append(cmd.Env, "CAUSEWAY_MUST_MOUNT=1") // a test that cannot mount fails instead of being skipped
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	return cmd
}

// commit is the sources' commit.
func (c *collector) commit(ctx context.Context) (string, error) {
	id, err := c.command(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git: %w", err)
	}
	changes, err := c.command(ctx, "git", "status", "--porcelain", "--", ".", ":!docs/reference/conformance.*").Output()
	if err != nil {
		return "", fmt.Errorf("git: %w", err)
	}
	if len(changes) > 0 {
		return strings.TrimSpace(string(id)) + "+", nil
	}
	return strings.TrimSpace(string(id)), nil
}

// sanity runs the csi-sanity of a package, and reads Ginkgo's own report of it: a Run for each
// outermost container.
func (c *collector) sanity(ctx context.Context, pkg string) error {
	fmt.Fprintln(os.Stderr, "conformance: csi-sanity of", pkg)
	path := filepath.Join(c.tmp, filepath.Base(pkg)+".json")
	out, failed := c.command(ctx, "go", "test", "-count=1", "-run=^TestSanity$", pkg, "-args",
		"-ginkgo.json-report="+path).Output()
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("csi-sanity of %s: %w", pkg, errors.Join(failed, err, errors.New(string(out))))
	}
	var suites []types.Report
	if err := json.Unmarshal(data, &suites); err != nil {
		return err
	}
	at := map[string]int{}
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			// which csi-sanity has put aside
			if s.LeafNodeType != types.NodeTypeIt || s.State == types.SpecStatePending {
				continue
			}
			name := s.ContainerHierarchyTexts[0]
			if _, ok := at[name]; !ok {
				at[name] = len(c.report.Runs)
				c.report.Runs = append(c.report.Runs,
					Run{Suite: "csi-sanity", Backend: backend(name), OS: runtime.GOOS, Configuration: name})
			}
			run, test := &c.report.Runs[at[name]], strings.Join(append(s.ContainerHierarchyTexts[1:], s.LeafNodeText),
				" ")
			run.Seconds += s.RunTime.Seconds()
			switch {
			case s.State == types.SpecStatePassed:
				run.Passed++
			case s.State == types.SpecStateSkipped:
				run.skip(test, s.Failure.Message)
			default:
				run.fail(test, s.Failure.Message)
			}
		}
	}
	if failed != nil && c.report.good() { // the test around it reports other failures than Ginkgo
		c.report.Runs[len(c.report.Runs)-1].fail("the test around it", string(out))
	}
	return nil
}

// wine runs the tests under Wine, where they can run: test/wine needs Debian's packages for amd64.
// Its rows have the form of a Run.
func (c *collector) wine(ctx context.Context) error {
	if system, err := os.ReadFile("/etc/os-release"); err != nil || runtime.GOARCH != "amd64" ||
		!strings.Contains("\n"+string(system), "\nID=debian\n") {
		return nil
	}
	fmt.Fprintln(os.Stderr, "conformance: tests under Wine, which take minutes")
	path := filepath.Join(c.tmp, "wine.json")
	if out, err := c.command(ctx, "go", "run", "./test/wine", "-report="+path).Output(); err != nil {
		return fmt.Errorf("tests under Wine: %w: %s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var rows []Run
	if err := json.Unmarshal(data, &rows); err != nil {
		return err
	}
	c.report.Runs = append(c.report.Runs, rows...)
	return nil
}

// backend is the subject of a run of csi-sanity.
func backend(name string) string {
	switch {
	case strings.Contains(name, "in memory"):
		return "memory"
	case strings.HasPrefix(name, "shares"):
		return "smb"
	}
	return "hostpath"
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// groups are the repository's packages by subject. A package belongs to the first group with a
// matching prefix.
var groups = []struct{ prefix, backend, about string }{
	{"pkg/backend/hostpath", "hostpath", "the backend and its contract"},
	{"pkg/backend/smb", "smb", "the backend and its contract"},
	{"pkg/backend/backendtest/memory", "memory", "the backend and its contract"},
	{"test/crash", "hostpath", "crashes (those of make test)"},
	{"internal/router", "hostpath", "the router"},
	{"sidecars/internal", "none", "csi-sidecars"},
	{"sidecars/cmd", "none", "csi-sidecars, the program"},
	{"pkg/mounter", "none", "mounting"},
	{"", "none", "the rest"},
}

// own runs the repository's own tests.
func (c *collector) own(ctx context.Context) error {
	fmt.Fprintln(os.Stderr, "conformance: the repository's own tests, which take minutes")
	var out []byte
	var failed error
	for _, module := range []string{".", "sidecars"} {
		printed, err := c.command(ctx, "go", "-C", module, "test", "-count=1", "-json", "-skip=^TestSanity$",
			"./...").Output()
		out, failed = append(out, printed...), errors.Join(failed, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	runs := make([]Run, len(groups))
	for i, g := range groups {
		runs[i] = Run{Suite: "own", Backend: g.backend, OS: runtime.GOOS, Configuration: g.about}
	}
	said := map[string]string{}   // output by test
	failures := map[string]bool{} // packages in which a test failed
	parents := map[string]bool{}  // tests that have others in them, which count instead of them
	for line := range strings.Lines(string(out)) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return fmt.Errorf("go test: %w: %s", err, line)
		}
		pkg := strings.TrimPrefix(e.Package, "github.com/causeway-csi/causeway/")
		run := &runs[slices.IndexFunc(groups,
			func(g struct{ prefix, backend, about string }) bool { return strings.HasPrefix(pkg, g.prefix) })]
		name := pkg + " " + e.Test
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 && e.Action == "run" {
			parents[pkg+" "+e.Test[:i]] = true
		}
		switch {
		case e.Action == "output":
			said[name] += e.Output
		case e.Test == "" && e.Action == "fail" && !failures[pkg]: // a failed compilation, for example
			run.fail(pkg, last(said[name]))
		case e.Test == "":
			run.Seconds += e.Elapsed
		case e.Action == "pass" && parents[name]:
		case e.Action == "pass":
			run.Passed++
		case e.Action == "skip":
			run.skip(name, last(said[name]))
		case e.Action == "fail" && parents[name] && failures[pkg]: // a subtest failed
		case e.Action == "fail":
			failures[pkg] = true
			run.fail(name, last(said[name]))
		}
		if e.Action != "output" {
			delete(said, name)
		}
	}
	c.report.Runs = append(c.report.Runs, runs...)
	if failed != nil && c.report.good() {
		return fmt.Errorf("go test: %w", failed)
	}
	return nil
}

// last is the last thing that a test has said for itself, without where in its source that is.
func last(output string) string {
	text := ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") || line == "FAIL" {
			continue
		}
		if _, after, ok := strings.Cut(line, ".go:"); ok {
			_, line, _ = strings.Cut(after, ": ")
		}
		text = line
	}
	return text
}

// storage reads the results of the external-storage suite, which it runs if there are none yet. A
// configuration without results keeps the run of the former report, which names its commit.
func (c *collector) storage(ctx context.Context, dir string) error {
	if dir == "" {
		dir = filepath.Join(c.tmp, "storage")
		cmd := c.command(ctx, "go", "-C", filepath.Join("test", "e2e"), "run", ".", "--full", "--report="+dir)
		cmd.Stdout = os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "conformance: external-storage:", err) // its results have the reason
		}
	}
	results, err := results(dir)
	if err != nil {
		return err
	}
	of := map[string][]result.Result{}
	for _, r := range results {
		of[r.Configuration] = append(of[r.Configuration], r)
		for name, version := range r.Versions {
			if name == "kernel" && r.Configuration == "smb" { // those of guests, too
				name = "kernels (smb)"
			}
			if name != "driver" { // each run's own
				c.report.Versions[name] = version
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		c.report.Runs = append(c.report.Runs, storage(of[name]))
	}
	former, err := read(filepath.Join(c.root, "docs", "reference", "conformance.json"))
	if err != nil {
		return err
	}
	kept, err := c.report.earlier(former)
	if err != nil {
		return err
	}
	c.report.Runs = append(c.report.Runs, kept...)
	c.countCommits(ctx)
	for name, version := range former.Versions {
		if _, ok := c.report.Versions[name]; !ok && len(kept) > 0 {
			c.report.Versions[name] = version
		}
	}
	return nil
}

// countCommits counts the commits after the driver of each earlier run.
func (c *collector) countCommits(ctx context.Context) {
	for i := range c.report.Runs {
		run, head := &c.report.Runs[i], strings.TrimSuffix(c.report.Commit, "+")
		if run.Commit == "" || run.Commit == c.report.Commit {
			continue
		}
		run.Behind = -1
		n, err := c.command(ctx, "git", "rev-list", "--count", run.Commit+".."+head).Output()
		if err != nil { // another history
			continue
		}
		if behind, err := strconv.Atoi(strings.TrimSpace(string(n))); err == nil {
			run.Behind = behind
		}
	}
}

// results reads the results below dir, as test/e2e writes them.
func results(dir string) (all []result.Result, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".json" || strings.HasSuffix(path, ".ginkgo.json") {
			return err
		}
		r, err := result.Read(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if r.Configuration+".json" == filepath.Base(path) {
			all = append(all, r)
		}
		return nil
	})
	return all, err
}
