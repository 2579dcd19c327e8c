package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// Each scenario is a target of the Makefile, so that it can be started alone.
func TestScenariosAreTargets(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(chart.Sources(), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(s.target) + `:`).Match(makefile) {
			t.Errorf("%s: the Makefile has no target %q", s.name, s.target)
		}
	}
}

// A scenario that ends the control plane is the last.
func TestOrder(t *testing.T) {
	if i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.last }); i != len(scenarios)-1 {
		t.Errorf("scenario %d ends the control plane, and %d follow", i, len(scenarios)-1-i)
	}
}

func TestChoose(t *testing.T) {
	chosen, err := choose("e2e,demo")
	if err != nil || len(chosen) != 2 || chosen[0].name != "demo" || chosen[1].name != "e2e" {
		t.Errorf("the choice is %+v, %v, want demo and e2e", chosen, err)
	}
	all, err := choose("")
	if err != nil || len(all) < len(scenarios)-1 {
		t.Errorf("without names the choice is %+v, %v", all, err)
	}
	if _, err := choose("demo,missing"); err == nil {
		t.Error("an unknown scenario is no error")
	}
}

// fake is a cluster that notes its calls.
type fake struct {
	calls *[]string
	dirty *bool // the installation cannot be removed
}

func (f fake) call(name string) error {
	*f.calls = append(*f.calls, name)
	return nil
}

func (f fake) empty(context.Context) error {
	if *f.dirty {
		return errors.New("something is left")
	}
	return f.call("empty")
}

func (f fake) report(_ context.Context, dir string) error {
	return f.call("report " + filepath.Base(dir))
}
func (f fake) end() error { return f.call("end") }

// fakeRun returns a run whose make notes its target, and runs a line of shell.
func fakeRun(t *testing.T, line string) (r *run, calls *[]string, dirty *bool) {
	t.Helper()
	bin := t.TempDir()
	script := "#!/bin/sh\necho \"$1 on $" + local.LentVariable + "\"\n" + line + "\n"
	if err := os.WriteFile(filepath.Join(bin, "make"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	calls, dirty = new([]string), new(bool)
	f := fake{calls, dirty}
	return &run{report: filepath.Join(t.TempDir(), "report"), startCluster: func(context.Context) (running, error) {
		return f, f.call("start")
	}}, calls, dirty
}

// some are three scenarios, of which the last ends the control plane.
var some = []scenario{{name: "a", target: "make-a"}, {name: "b", target: "make-b"},
	{name: "c", target: "make-c", last: true}}

func TestOneCluster(t *testing.T) {
	r, calls, _ := fakeRun(t, "")
	if err := errors.Join(r.all(t.Context(), some), r.end()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"start", "empty", "empty", "end"}; !slices.Equal(*calls, want) {
		t.Errorf("the calls were %q, want %q", *calls, want)
	}
	for _, s := range some {
		log, err := os.ReadFile(filepath.Join(r.report, s.name+".log"))
		if want := s.target + " on " + name + "\n"; err != nil || string(log) != want {
			t.Errorf("the log of %s is %q, %v, want %q", s.name, log, err, want)
		}
		if !strings.Contains(r.summary.String(), "s  "+s.name+"\n") {
			t.Errorf("%s has no duration in\n%s", s.name, r.summary.String())
		}
	}
}

// After a failure the other scenarios have another cluster.
func TestAScenarioFails(t *testing.T) {
	r, calls, _ := fakeRun(t, "test $1 != make-a")
	err := errors.Join(r.all(t.Context(), some), r.end())
	if err == nil || !strings.Contains(err.Error(), "failed: a;") {
		t.Errorf("the error is %v", err)
	}
	if want := []string{"start", "report a", "end", "start", "empty", "end"}; !slices.Equal(*calls, want) {
		t.Errorf("the calls were %q, want %q", *calls, want)
	}
	if !strings.Contains(r.summary.String(), "s  a: failed\n") {
		t.Errorf("a did not fail in\n%s", r.summary.String())
	}
}

// A scenario that leaves something behind has failed.
func TestAScenarioLeavesSomething(t *testing.T) {
	r, calls, dirty := fakeRun(t, "")
	*dirty = true
	err := errors.Join(r.all(t.Context(), some), r.end())
	if err == nil || !strings.Contains(err.Error(), "failed: a, b;") {
		t.Errorf("the error is %v", err)
	}
	want := []string{"start", "report a", "end", "start", "report b", "end", "start", "end"}
	if !slices.Equal(*calls, want) {
		t.Errorf("the calls were %q, want %q", *calls, want)
	}
}

// An interrupt reaches the scenario, which may clean up, and no other scenario runs.
func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	began, cleaned := filepath.Join(dir, "began"), filepath.Join(dir, "cleaned")
	if err := syscall.Mkfifo(began, 0o600); err != nil {
		t.Fatal(err)
	}
	r, calls, _ := fakeRun(t, "trap 'touch "+cleaned+"; exit 1' INT; echo >"+began+"; while :; do sleep 0.1; done")
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		if _, err := os.ReadFile(began); err != nil {
			t.Error(err)
		}
		interrupt()
	}()
	if err := errors.Join(r.all(ctx, some), r.end()); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(cleaned); err != nil {
		t.Errorf("the scenario did not clean up: %v", err)
	}
	if want := []string{"start", "end"}; !slices.Equal(*calls, want) {
		t.Errorf("the calls were %q, want %q", *calls, want)
	}
}

func TestALentClusterIsRefused(t *testing.T) {
	r, calls, _ := fakeRun(t, "")
	t.Setenv(local.LentVariable, "other")
	if err := r.all(t.Context(), some); err == nil || len(*calls) > 0 {
		t.Errorf("the error is %v, and the calls were %q", err, *calls)
	}
}
