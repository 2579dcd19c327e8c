//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
)

// script is a step that runs lines of a shell.
func script(lines string) step { return step{"sh", "-c", lines} }

// long returns a step that makes the file started and does not end. At an interruption it prints
// cleaned.
func long(started string) step {
	return script(`trap 'echo cleaned; exit 1' INT; sleep 600 & >` + started + `; wait`)
}

// states returns the states of results.
func states(results []result) string {
	var all []string
	for _, r := range results {
		all = append(all, r.state)
	}
	return strings.Join(all, ", ")
}

func newGate(t *testing.T, out *bytes.Buffer) *gate {
	return &gate{out: out, dir: t.TempDir(), grace: time.Hour}
}

// outcome is the end of gate.run.
type outcome struct {
	results []result
	err     error
}

// interrupt runs a lane, calls stop when the file started exists, and returns the end.
func interrupt(ctx context.Context, t *testing.T, g *gate, started string, stop func(), lane ...step) ([]result, error) {
	t.Helper()
	end := make(chan outcome, 1)
	go func() {
		results, err := g.run(ctx, [][]step{lane}, 0)
		end <- outcome{results, err}
	}()
	await.True(t, "the step has started", func() bool { _, err := os.Stat(started); return err == nil })
	stop()
	o := <-end
	return o.results, o.err
}

func TestAllStepsPass(t *testing.T) {
	var out bytes.Buffer
	g, dir := newGate(t, &out), t.TempDir()
	meet := func(own, other string) step { // ends if the other lane runs at the same time
		return script("echo " + own + "; >" + dir + "/" + own + ".here; " +
			"until [ -e " + dir + "/" + other + ".here ]; do sleep 0.01; done; echo end of " + own)
	}
	results, err := g.run(t.Context(), [][]step{{meet("a", "b"), script("echo later >&2")}, {meet("b", "a")}}, 0)
	if err != nil || states(results) != "passed, passed, passed" {
		t.Errorf("%v, %s", err, states(results))
	}
	for _, want := range []string{"\na\nend of a\n== passed", "\nb\nend of b\n== passed", "\nlater\n== passed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output is not whole: %q is missing in %s", want, &out)
		}
	}
	if left, err := os.ReadDir(g.dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestStepsOfTheFirstLaneThatStay: the second lane takes none of them, and the first takes none of
// the second.
func TestStepsOfTheFirstLaneThatStay(t *testing.T) {
	p := newPlan([][]step{{{"a"}, {"b"}, {"c"}, {"d"}}, {{"x"}}}, 2)
	var got []string
	for _, lane := range []int{1, 1, 1, 1, 0, 1, 0, 0} {
		if next, ok := p.next(lane); ok {
			got = append(got, next.step.String())
		} else {
			got = append(got, "-")
		}
	}
	if want := []string{"x", "d", "c", "-", "a", "-", "b", "-"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if next, ok := newPlan([][]step{{}, {{"x"}}}, 0).next(0); ok {
		t.Errorf("the first lane takes %s", next.step)
	}
}

// TestALaneWithoutStepsTakesTheLastOfTheOther, while the other lane is busy.
func TestALaneWithoutStepsTakesTheLastOfTheOther(t *testing.T) {
	var out bytes.Buffer
	dir := t.TempDir()
	write := func(name string) step { return script("echo " + name + " >>" + dir + "/order") }
	busy := script("until [ \"$(wc -l <" + dir + "/order)\" = 3 ]; do sleep 0.01; done")
	if err := os.WriteFile(filepath.Join(dir, "order"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	results, err := newGate(t, &out).run(t.Context(), [][]step{{busy, write("second"), write("last")}, {write("own")}}, 0)
	order, readErr := os.ReadFile(filepath.Join(dir, "order"))
	if err := errors.Join(err, readErr); err != nil || string(order) != "own\nlast\nsecond\n" {
		t.Errorf("%v, the order is %q", err, order)
	}
	if states(results) != "passed, passed, passed, passed" || !slices.Equal(results[2].step, write("last")) {
		t.Errorf("%v", results)
	}
}

func TestAFailureInterruptsTheOtherLane(t *testing.T) {
	var out bytes.Buffer
	started := filepath.Join(t.TempDir(), "started")
	fails := script("until [ -e " + started + " ]; do sleep 0.01; done; echo the reason; exit 3")
	results, err := newGate(t, &out).run(t.Context(), [][]step{{fails, script("echo never")}, {long(started), script("echo never")}}, 0)
	if err == nil || !strings.HasSuffix(err.Error(), "exit 3 failed") ||
		states(results) != "failed, not run, interrupted, not run" {
		t.Errorf("%v, %s", err, states(results))
	}
	for _, want := range []string{"the reason\nexit status 3\n== failed", "cleaned\n== interrupted"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %s", want, &out)
		}
	}
	if strings.Contains(out.String(), "\nnever\n") {
		t.Errorf("a step ran after the failure: %s", &out)
	}
}

func TestAnInterruptionReachesTheSteps(t *testing.T) {
	var out bytes.Buffer
	started := filepath.Join(t.TempDir(), "started")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	results, err := interrupt(ctx, t, newGate(t, &out), started, stop, long(started), script("echo never"))
	if err == nil || err.Error() != "interrupted" || states(results) != "interrupted, not run" ||
		!strings.Contains(out.String(), "cleaned\n") {
		t.Errorf("%v, %s, %s", err, states(results), &out)
	}
}

func TestTheLimitInterrupts(t *testing.T) {
	var out bytes.Buffer
	started := filepath.Join(t.TempDir(), "started")
	g := newGate(t, &out)
	limit := make(chan time.Time)
	g.limit = limit
	results, err := interrupt(t.Context(), t, g, started, func() { limit <- time.Time{} }, script("true"), long(started))
	if !errors.Is(err, errLimit) || states(results) != "passed, interrupted" {
		t.Errorf("%v, %s", err, states(results))
	}
	g.summary(results, 3*time.Second, err)
	for _, want := range []string{"interrupted  sh -c trap", "     3      0  all: interrupted at the limit of CAUSEWAY_CI_SECONDS\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %s", want, &out)
		}
	}
}

func TestAStepThatIgnoresTheInterruptionIsKilled(t *testing.T) {
	var out bytes.Buffer
	dir := t.TempDir()
	g := newGate(t, &out)
	g.grace = 0
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	results, err := interrupt(ctx, t, g, dir+"/started", stop, script("trap '' INT; >"+dir+"/started; sleep 600"))
	if err == nil || states(results) != "interrupted" {
		t.Errorf("%v, %s", err, states(results))
	}
}

func TestTheTimeOfProcessorsIsMeasured(t *testing.T) {
	var out bytes.Buffer
	results, err := newGate(t, &out).run(t.Context(), [][]step{{script("sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done'")}}, 0)
	if err != nil || results[0].cpu == 0 || results[0].wall == 0 {
		t.Errorf("%v, %v", err, results)
	}
}

func TestAStepThatDoesNotStartFails(t *testing.T) {
	var out bytes.Buffer
	results, err := newGate(t, &out).run(t.Context(), [][]step{{{filepath.Join(t.TempDir(), "none")}}}, 0)
	if err == nil || states(results) != "failed" || !strings.Contains(out.String(), "no such file") {
		t.Errorf("%v, %s, %s", err, states(results), &out)
	}
}

func TestLimits(t *testing.T) {
	for text, want := range map[string]time.Duration{"": standardLimit * time.Second, "7": 7 * time.Second} {
		if got, err := parseLimit(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"0", "-1", "1h", "x"} {
		if _, err := parseLimit(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestPlans(t *testing.T) {
	for _, c := range []struct {
		name string
		m    machine
		wait string // the second lane
		left int
		err  string
	}{
		{"all", machine{root: true, groupsOne: true, debian: true}, "test-vm test-wine clusters", 0, ""},
		{"no container copy", machine{root: true, groupsOne: true, debian: true, noCopy: true}, "test-vm", 1, ""},
		{"not Debian", machine{root: true, groupsOne: true}, "clusters", 1, ""},
		{"no clusters", machine{debian: true, noClusters: true}, "test-vm test-wine", 1, ""},
		{"a user", machine{groupsOne: true, debian: true}, "", 0, "CAUSEWAY_NO_CLUSTER=1"},
		{"control groups of version 2", machine{root: true, debian: true}, "", 0, "version 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lanes, left, err := c.m.plan()
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %s", err, c.err)
				}
				return
			}
			if err != nil || len(left) != c.left {
				t.Fatalf("%v, left out: %q", err, left)
			}
			if !slices.Equal(lanes[0][0], step{"make", "test"}) {
				t.Errorf("the first step is %s", lanes[0][0])
			}
			if !slices.Equal(lanes[0][ownSteps-1], step{"make", "vet"}) {
				t.Errorf("the last suite that only the first lane runs is %s, want vet", lanes[0][ownSteps-1])
			}
			copies := slices.ContainsFunc(lanes[0], func(s step) bool { return strings.Contains(s.String(), "copy") })
			if copies == c.m.noCopy {
				t.Errorf("suites of container copy: %v", copies)
			}
			var wait []string
			for _, s := range lanes[1] {
				wait = append(wait, s[1])
			}
			if got := strings.Join(wait, " "); !strings.HasPrefix(got, c.wait) {
				t.Errorf("the second lane is %s, want %s", got, c.wait)
			}
		})
	}
}

// TestEachStepIsATarget: a step with the name of a removed target would fail after an hour.
func TestEachStepIsATarget(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []machine{{root: true, groupsOne: true, debian: true}, {noClusters: true}} {
		lanes, _, err := m.plan()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range slices.Concat(lanes...) {
			if s[0] == "make" && !strings.Contains(string(makefile), "\n"+s[1]+": ## ") {
				t.Errorf("%s: the Makefile has no such target", s)
			}
		}
	}
}

// TestContributingHasTheSteps: the page names the steps of each lane, and the suites outside of
// them are targets.
func TestContributingHasTheSteps(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	lanes, _, err := machine{root: true, groupsOne: true, debian: true}.plan()
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "first lane computes:")
	first, text, _ := strings.Cut(text, "second lane waits")
	second, _, _ := strings.Cut(text, "A failure interrupts")
	name := regexp.MustCompile("`([^`]+)`")
	for i, part := range []string{first, second} {
		var named, run []string
		for _, m := range name.FindAllStringSubmatch(part, -1) {
			named = append(named, m[1])
		}
		for _, s := range lanes[i] {
			if s[0] == "make" {
				run = append(run, s[1])
			} else {
				run = append(run, strings.TrimPrefix(s[0], "./"))
			}
		}
		slices.Sort(named)
		slices.Sort(run)
		if !slices.Equal(named, run) {
			t.Errorf("CONTRIBUTING.md names in lane %d %q, the gate runs %q", i+1, named, run)
		}
	}
}
