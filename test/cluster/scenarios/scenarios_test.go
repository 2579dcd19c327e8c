package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/chart"
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
