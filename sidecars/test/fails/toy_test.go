package fails

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// toyKey is the variable that makes this test binary a program like csi-sidecars, with two toys:
// the first does nothing until the end of the process, and then until the file at toyEnd exists.
// The second fails as the variable describes, when the file at toyCue exists.
const (
	toyKey = "CAUSEWAY_FAILS_TOY"
	toyCue = "CAUSEWAY_FAILS_CUE"
	toyEnd = "CAUSEWAY_FAILS_END"
)

func toy() int {
	cluster := kube.New()
	command := &sidecar.Command{
		Name: "toys",
		Controllers: []sidecar.Controller{toyController{"good", nil},
			toyController{"bad", failures[os.Getenv(toyKey)]}},
		Cluster: cluster, Logging: &kube.Logging{},
	}
	return command.Main(os.Args[1:])
}

// failures are ways to fail, by name.
var failures = map[string]func(context.Context) error{
	"returns":        func(context.Context) error { return nil },
	"returns-error":  func(context.Context) error { return errors.New("no more toys") },
	"panics-in-run":  func(context.Context) error { panic("the toy broke") },
	"panics-in-work": func(ctx context.Context) error { wait.UntilWithContext(ctx, breaks, time.Second); return nil },
	"panics-unwaited": func(ctx context.Context) error {
		go wait.Until(func() { breaks(ctx) }, time.Second, ctx.Done())
		<-ctx.Done()
		return nil
	},
	"is-fatal": func(ctx context.Context) error { klog.Fatal("the toy is fatal"); return nil },
	"exits":    func(ctx context.Context) error { klog.FlushAndExit(time.Second, 3); return nil },
}

func breaks(context.Context) { panic("the toy broke") }

// exists waits until the file exists whose path is in a variable of the environment, and reports
// false when ctx is done first.
func exists(ctx context.Context, variable string) bool {
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		_, err := os.Stat(os.Getenv(variable))
		return err == nil, nil
	}) == nil
}

// toyController does nothing, or fails after its cue.
type toyController struct {
	name string
	fail func(context.Context) error
}

func (c toyController) Name() string           { return c.name }
func (c toyController) About() string          { return "A toy." }
func (c toyController) Flags(f *sidecar.Flags) { new(kube.Limits).Flags(f) }
func (c toyController) Validate() error        { return nil }
func (c toyController) Needs() sidecar.Needs {
	return sidecar.Needs{Driver: true, Capabilities: true, Cluster: true}
}
func (c toyController) Build(context.Context, *sidecar.Env) (sidecar.Runner, error) {
	return sidecar.RunnerFunc(func(ctx context.Context) error {
		if c.fail == nil {
			<-ctx.Done()
			exists(context.WithoutCancel(ctx), toyEnd) // the test reads the metrics meanwhile
			return nil
		}
		if exists(ctx, toyCue) {
			return c.fail(ctx)
		}
		return nil
	}), nil
}

// unhurried is a flag with which a process that ends serves its metrics until a test has read them.
// Goroutines that panicked or were fatal never end: these cases take the whole time.
const unhurried = "--shutdown-timeout=30s"

func TestAFailedControllerIsNamedAndCountedAndEndsTheProcess(t *testing.T) {
	for _, c := range []struct {
		how  string
		says []string // in the log, beside the lines of all
		kind string
		of   string
	}{
		{how: "returns", says: []string{"it returned before the process ended"}, kind: "returned", of: "bad"},
		{how: "returns-error", says: []string{"no more toys"}, kind: "returned", of: "bad"},
		{how: "panics-in-run", says: []string{"panic: the toy broke", "toy_test.go"}, kind: "panicked", of: "bad"},
		// Upstream's workers are known by their packages, which these toys have none of.
		{how: "panics-in-work", says: []string{"panic: the toy broke", "fails.breaks"}, kind: "panicked"},
		{how: "panics-unwaited", says: []string{"panic: the toy broke", "fails.breaks"}, kind: "panicked"},
		{how: "is-fatal", says: []string{"the toy is fatal", "it ended the process with code"}, kind: "returned"},
		{how: "exits", says: []string{"it ended the process with code 3"}, kind: "returned"},
	} {
		t.Run(c.how, func(t *testing.T) {
			s := newScene(t)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cue, end := s.dir+"/cue", s.dir+"/end"
			r := s.program(self, []string{toyKey + "=" + c.how, toyCue + "=" + cue, toyEnd + "=" + end},
				append(slices.Clone(quickly), unhurried)...)
			r.says(`"Controller starts" name="bad"`)
			if err := os.WriteFile(cue, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf(`csi_sidecars_controller_failures_total{controller=%q,kind=%q} 1`, c.of, c.kind)
			s.until("the failure is counted", func(ctx context.Context) error {
				if body := r.answers("/metrics", http.StatusOK); !strings.Contains(body, want) {
					return fmt.Errorf("%q is not there", want)
				}
				return nil
			})
			if err := os.WriteFile(end, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			r.ends(1)
			all := append(slices.Clone(c.says), `"Cannot go on"`)
			if c.of != "" {
				all = append(all, fmt.Sprintf("failed=%q", c.of))
			}
			for _, words := range all {
				if !contains(r, words) {
					t.Errorf("%q is not in the log", words)
				}
			}
			s.released()
		})
	}
}

// A second signal is for those who cannot wait.
func TestASecondSignalEndsTheProcessAtOnce(t *testing.T) {
	s := newScene(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	never := s.dir + "/never"
	r := s.program(self, []string{toyKey + "=returns", toyCue + "=" + never, toyEnd + "=" + never},
		append(slices.Clone(quickly), unhurried)...)
	r.says(`"Controller starts" name="good"`)
	r.send(syscall.SIGTERM)
	s.until("it is told", func(ctx context.Context) error {
		r.Signal(syscall.SIGTERM)
		if !ended(r) {
			return errors.New("it still runs")
		}
		return nil
	})
	if code := r.ExitCode(); code != -1 {
		t.Errorf("it ended with %d, want by the signal", code)
	}
}
