// Package doctor finds faults of an installation. Each check is a function from a view of the
// cluster to findings, so a test needs no cluster. A check whose data could not be read is reported
// as not checked, never as passed.
package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/safe"
)

// Severity tells whether users of volumes notice a fault.
type Severity string

// Severities.
const (
	Error   Severity = "error"   // calls fail, or data is at risk
	Warning Severity = "warning" // calls will fail, or work slowly
	Note    Severity = "note"    // no fault: a fact that matters for the settings
)

// Finding is a fault.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Object   string   `json:"object"`
	Cause    string   `json:"cause"`
	Evidence string   `json:"evidence"`
	Remedy   string   `json:"remedy"`
	Page     string   `json:"page"` // path in the repository, with an anchor
}

// NotChecked is a check that could not run.
type NotChecked struct {
	Check  string `json:"check"`
	Reason string `json:"reason"`
}

// Report is the result of all checks.
type Report struct {
	Checks     int          `json:"checks"` // that ran
	Findings   []Finding    `json:"findings"`
	Notes      []Finding    `json:"notes,omitempty"` // they do not count as findings
	NotChecked []NotChecked `json:"notChecked"`
}

// Check finds faults of one kind.
type Check struct {
	Name  string
	Needs []cluster.Source
	Run   func(v *cluster.View) []Finding
}

// Checks returns all checks of an installation.
func Checks() []Check {
	return slices.Concat(apiChecks(), podChecks(), nodeChecks(), storageChecks(), controllerChecks(), callChecks())
}

// Run runs checks.
func Run(v *cluster.View, checks []Check) Report {
	r := Report{Findings: []Finding{}, NotChecked: []NotChecked{}}
	for _, c := range checks {
		reason, partly := unread(v, c.Needs)
		if reason != "" {
			r.NotChecked = append(r.NotChecked, NotChecked{Check: c.Name, Reason: reason})
			if !partly {
				continue
			}
		}
		r.Checks++
		for _, f := range c.Run(v) {
			f.Check = c.Name
			if f.Severity == Note {
				r.Notes = append(r.Notes, f)
				continue
			}
			r.Findings = append(r.Findings, f)
		}
	}
	if err := v.Unread(cluster.Answers); err != nil {
		r.NotChecked = append(r.NotChecked, NotChecked{Check: string(cluster.Answers), Reason: err.Error()})
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(a.Severity, b.Severity) })
	return r
}

// unread returns the reason why one of the sources could not be read, or "". Partly is true if each
// of them was read for some nodes, so that the check can judge those.
func unread(v *cluster.View, needs []cluster.Source) (reason string, partly bool) {
	for _, s := range needs {
		err := v.Unread(s)
		if err == nil {
			continue
		}
		if !errors.As(err, &cluster.Partial{}) {
			return fmt.Sprintf("%s: %v", s, err), false
		}
		reason = fmt.Sprintf("%s: not of all nodes: %v", s, err)
	}
	return reason, true
}

// Exit codes of a report.
const (
	CodeHealthy    = 0
	CodeFindings   = 1
	CodeNotChecked = 2
)

// Code returns the exit code of the report.
func (r Report) Code() int {
	switch {
	case len(r.Findings) > 0:
		return CodeFindings
	case len(r.NotChecked) > 0:
		return CodeNotChecked
	}
	return CodeHealthy
}

// Text writes the report as text. Names and messages come from nodes and tenants.
func (r Report) Text(out io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s: %s\n  cause:    %s\n", f.Severity, f.Check, safe.Text(f.Object), safe.Text(f.Cause))
		for i, line := range strings.Split(strings.TrimSpace(f.Evidence), "\n") {
			label := "evidence:"
			if i > 0 {
				label = strings.Repeat(" ", len(label))
			}
			fmt.Fprintf(&b, "  %s %s\n", label, safe.Text(line))
		}
		fmt.Fprintf(&b, "  remedy:   %s\n  page:     %s\n\n", safe.Text(f.Remedy), f.Page)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s: %s: %s (%s)\n", n.Check, safe.Text(n.Object), safe.Text(n.Cause), n.Page)
	}
	for _, n := range r.NotChecked {
		fmt.Fprintf(&b, "not checked: %s: %s\n", n.Check, safe.Text(n.Reason))
	}
	fmt.Fprintf(&b, "%d checks, %d findings, %d not checked\n", r.Checks, len(r.Findings), len(r.NotChecked))
	_, err := io.WriteString(out, b.String())
	return err
}
