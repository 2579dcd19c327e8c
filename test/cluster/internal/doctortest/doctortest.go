// Package doctortest runs kubectl causeway doctor in tests.
package doctortest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/gobuild"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
)

// Finding and Report are the output of doctor.
type Finding struct{ Check, Severity, Object, Cause, Evidence, Remedy, Page string }

// Report has the findings of a run.
type Report struct {
	Checks     int
	Findings   []Finding
	NotChecked []struct{ Check, Reason string }
}

func (r Report) String() string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s: %s\n  evidence: %s\n  remedy: %s\n  page: %s\n", f.Check, f.Object, f.Cause,
			f.Evidence, f.Remedy, f.Page)
	}
	for _, n := range r.NotChecked {
		fmt.Fprintf(&b, "not checked: %s: %s\n", n.Check, n.Reason)
	}
	return b.String()
}

// Doctor runs doctor with further arguments. It returns the report and the exit code. Each part of
// a finding must have a text.
type Doctor func(t *testing.T, args ...string) (Report, int)

// BuildPlugin builds kubectl causeway and returns the path of the program.
func BuildPlugin(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kubectl-causeway")
	p := gobuild.Program{Package: "./cmd/kubectl-causeway", Dir: filepath.Join(chart.Sources(), "plugin")}
	if err := p.Copy(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	return program
}

// Build builds kubectl causeway for a cluster.
func Build(t *testing.T, kube kubectl.Kubectl) Doctor {
	t.Helper()
	program := BuildPlugin(t)
	return func(t *testing.T, args ...string) (r Report, code int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, append([]string{"doctor", "-o", "json"}, args...)...)
		cmd.Env = kube.Environment()
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		code = cmd.ProcessState.ExitCode()
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
			return Report{NotChecked: []struct{ Check, Reason string }{{"doctor", stderr.String()}}}, code
		}
		for _, f := range r.Findings {
			if slices.Contains([]string{f.Check, f.Severity, f.Object, f.Cause, f.Evidence, f.Remedy, f.Page}, "") {
				t.Errorf("a part of the finding is missing: %+v", f)
			}
		}
		return r, code
	}
}
