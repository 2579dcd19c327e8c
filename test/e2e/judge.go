package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/test/e2e/result"
)

// report has the relevant fields of ginkgo's JSON report.
type report struct {
	SpecialSuiteFailureReasons []string
	SpecReports                []specReport
}

type specReport struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 int64 // nanoseconds
	NumAttempts             int
	Failure                 struct{ Message string }
}

// outcome is the content of a report.
type outcome struct {
	ran   []result.Spec
	all   []result.Spec // with specs that were not selected, without a state
	wrong []string      // problems beside the specs
}

// readReport reads a report.
func readReport(path string) (outcome, error) {
	var o outcome
	data, err := os.ReadFile(path)
	if err != nil {
		return o, err
	}
	var suites []report
	if err := json.Unmarshal(data, &suites); err != nil {
		return o, fmt.Errorf("%s: %w", path, err)
	}
	for _, s := range suites {
		o.wrong = append(o.wrong, s.SpecialSuiteFailureReasons...)
		for _, r := range s.SpecReports {
			o.add(r)
		}
	}
	return o, nil
}

func (o *outcome) add(r specReport) {
	spec := result.Spec{Name: nameOf(r), Suite: suiteOf(r)}
	if r.LeafNodeType != "It" {
		if stateOf(r) == result.Failed {
			o.wrong = append(o.wrong, fmt.Sprintf("%s: %s: %s", r.LeafNodeType, r.State, first(r.Failure.Message)))
		}
		return
	}
	if len(r.ContainerHierarchyTexts) == 0 || !commonName.MatchString(r.ContainerHierarchyTexts[0]+" ") {
		return // not of a driver file
	}
	o.all = append(o.all, spec)
	if r.NumAttempts == 0 { // it was not selected, or its turn never came
		return
	}
	if r.NumAttempts > 1 {
		o.wrong = append(o.wrong, fmt.Sprintf("it took %d attempts: %s", r.NumAttempts, spec.Name))
	}
	spec.State, spec.Seconds, spec.Message = stateOf(r), float64(r.RunTime)/1e9, first(r.Failure.Message)
	o.ran = append(o.ran, spec)
}

// stateOf returns a spec's state. A spec that neither passed nor was skipped has failed: it
// panicked, was interrupted, took too long.
func stateOf(r specReport) result.State {
	switch r.State {
	case "passed":
		return result.Passed
	case "skipped":
		return result.Skipped
	}
	return result.Failed
}

// first returns the first lines of a message, which may hold pages of objects.
func first(message string) string {
	const enough = 600
	message = strings.TrimSpace(message)
	if len(message) > enough {
		message = strings.ToValidUTF8(message[:enough], "") + " …"
	}
	return message
}

// commonName is how every name begins.
var commonName = regexp.MustCompile(`^External Storage \[Driver: [^\]]*\] `)

func nameOf(r specReport) string {
	full := strings.Join(append(slices.Clone(r.ContainerHierarchyTexts), r.LeafNodeText), " ")
	return commonName.ReplaceAllString(full, "")
}

var brackets = regexp.MustCompile(`\[[^\]]*\]`)

// suiteOf returns the name of the suite, which stands behind its pattern.
func suiteOf(r specReport) string {
	for _, text := range r.ContainerHierarchyTexts {
		if strings.Contains(text, "[Testpattern: ") {
			return strings.TrimSpace(brackets.ReplaceAllString(text, ""))
		}
	}
	return ""
}

// judge completes a result that has the specs that ran: it counts them, and adds the reasons and
// the problems. all has every spec of the configuration, selected or not.
func judge(r *result.Result, e expected, f features, all []result.Spec) {
	ran := judgeRan(r, e, f)
	leave, left := among(e.LeftOut, f), map[int]int{}
	for _, s := range all {
		if ran[s.Name] {
			continue
		}
		if i := leftOut(leave, s.Name); i >= 0 {
			s.State, s.Reason = result.LeftOut, leave[i].Reason
			left[i]++
			r.Specs = append(r.Specs, s)
		} else if r.Scope == full {
			r.Problems = append(r.Problems, "did not run: "+s.Name)
		}
		ran[s.Name] = true
	}
	if r.Scope == full {
		for _, name := range slices.Sorted(maps.Keys(e.skipped(f))) {
			if !ran[name] {
				r.Problems = append(r.Problems, "expected.yaml has it skipped, and there is no such spec: "+name)
			}
		}
		for i, g := range leave {
			if want := cmp.Or(g.Count, len(g.Specs)); left[i] != want && want != anyCount {
				r.Problems = append(r.Problems,
					fmt.Sprintf("%d specs are left out, and expected.yaml has %d: %s", left[i], want, g.Reason))
			}
		}
	}
	slices.SortFunc(r.Specs, func(a, b result.Spec) int { return strings.Compare(a.Name, b.Name) })
	r.Counts = count(r.Specs)
	if floor := e.floor(f); r.Scope == full && r.Counts.Passed < floor {
		r.Problems = append(r.Problems, fmt.Sprintf("%d passed, and expected.yaml wants %d", r.Counts.Passed, floor))
	}
	if r.Counts.Passed == 0 {
		r.Problems = append(r.Problems, "nothing passed")
	}
}

// skipped returns the specs that the suite is expected to skip, with the reasons.
func (e expected) skipped(f features) map[string]string {
	skips := map[string]string{}
	for _, g := range among(e.Skips, f) {
		for _, s := range g.Specs {
			skips[s] = g.Reason
		}
	}
	return skips
}

// judgeRan judges the specs that ran, and returns their names.
func judgeRan(r *result.Result, e expected, f features) map[string]bool {
	skips, ran := e.skipped(f), map[string]bool{}
	for i, s := range r.Specs {
		if ran[s.Name] {
			r.Problems = append(r.Problems, "it ran twice: "+s.Name)
		}
		ran[s.Name] = true
		reason, expected := skips[s.Name]
		switch {
		case s.State == result.Failed:
			r.Problems = append(r.Problems, fmt.Sprintf("failed: %s: %s", s.Name, s.Message))
		case s.State == result.Skipped && e.unlisted:
			r.Specs[i].Reason = s.Message
		case s.State == result.Skipped && !expected:
			r.Problems = append(r.Problems,
				fmt.Sprintf("skipped, and expected.yaml has not it: %s: %s", s.Name, s.Message))
		case s.State == result.Skipped:
			r.Specs[i].Reason = reason
		case expected:
			r.Problems = append(r.Problems, "passed, and expected.yaml has it skipped: "+s.Name)
		}
	}
	return ran
}

// floor returns the number of specs that pass at least.
func (e expected) floor(f features) int {
	floor := e.Floor
	for _, g := range e.Skips {
		if f.lacks(g.Without) {
			floor -= len(g.Specs)
		}
	}
	return floor
}

// leftOut returns the index of the group by which a spec is left out, or -1.
func leftOut(groups []group, name string) int {
	return slices.IndexFunc(groups, func(g group) bool {
		return slices.ContainsFunc(g.Specs,
			func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(name) })
	})
}

func count(specs []result.Spec) result.Counts {
	var c result.Counts
	for _, s := range specs {
		switch s.State {
		case result.Passed:
			c.Passed++
		case result.Skipped:
			c.Skipped++
		case result.Failed:
			c.Failed++
		case result.LeftOut:
			c.LeftOut++
		}
	}
	c.Selected = c.Passed + c.Skipped + c.Failed
	return c
}
