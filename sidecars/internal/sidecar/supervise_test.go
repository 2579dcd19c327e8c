package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
)

// play runs a command until all that notes says has happened, tells it to end, and returns its exit
// code.
func play(t *testing.T, c *Command, args string, until string, d *diary) int {
	t.Helper()
	on, err := c.parse(strings.Fields(args))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() { code <- c.run(ctx, on) }()
	defer cancel()
	if until != "" {
		await.True(t, until, func() bool { return strings.Contains(d.String(), until) })
		cancel()
	}
	return await.Receive(t, "the command ends", code)
}

func TestAllIsBuiltBeforeAnyIsLedAndEndsBeforeTheRelease(t *testing.T) {
	var d diary
	cluster := Needs{Cluster: true}
	c := command(&alone{diary: &d}, &toy{name: "a", needs: cluster, diary: &d},
		&toy{name: "b", needs: cluster, diary: &d})
	if code := play(t, c, "", "run b", &d); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	got := d.String()
	for _, want := range []string{"connect , build a, build b, run", "release"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if !strings.HasSuffix(got, ", release") || strings.Count(got, "end ") != 2 {
		t.Errorf("it was %q", got)
	}
}

func TestWhoNeedsNobodyRunsBeforeTheClusterIsThere(t *testing.T) {
	var d diary
	c := command(&alone{diary: &d, connect: errors.New("no such place")},
		&toy{name: "late", needs: Needs{Cluster: true}, diary: &d}, &toy{name: "early", diary: &d})
	if code := play(t, c, "", "", &d); code != 1 {
		t.Errorf("it ended with %d", code)
	}
	if got := d.String(); !strings.HasPrefix(got, "build early, ") || strings.Contains(got, "build late") {
		t.Errorf("it was %q", got)
	}
}

func TestAFailureEndsAllControllers(t *testing.T) {
	elected := Needs{Cluster: true}
	returned := func(err error) func(context.Context) error {
		return func(context.Context) error { return err }
	}
	for _, c := range []struct {
		name  string
		bad   toy
		run   error
		after string // a word of the diary
	}{
		{name: "one that cannot be built", bad: toy{build: errors.New("no bricks")}},
		{name: "one that returns", bad: toy{run: returned(nil)}, after: "release"},
		{name: "one that returns an error", bad: toy{run: returned(errors.New("enough"))}, after: "release"},
		{name: "one that panics", bad: toy{run: func(context.Context) error { panic("oh") }}, after: "release"},
		{name: "an election that cannot go on", run: errors.New("an old one is back")},
		{name: "a lost lease", run: fmt.Errorf("%w: mine", ErrLost)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d diary
			c.bad.name, c.bad.needs, c.bad.diary = "bad", elected, &d
			command := command(&alone{diary: &d, run: c.run}, &toy{name: "good", needs: elected, diary: &d}, &c.bad)
			if code := play(t, command, "", "", &d); code != 1 {
				t.Errorf("it ended with %d", code)
			}
			if !strings.Contains(d.String(), c.after) {
				t.Errorf("%q is not in %q", c.after, &d)
			}
		})
	}
}

func TestFailuresAreCountedByControllerAndKind(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&Failure{Controller: "a", Err: errors.New("it returned")},
			`csi_sidecars_controller_failures_total{controller="a",kind="returned"} 1`},
		{&Failure{Controller: "a", Err: errors.New("oh"), Stack: "here"},
			`csi_sidecars_controller_failures_total{controller="a",kind="panicked"} 1`},
		{errors.New("nobody's"), `csi_sidecars_controller_failures_total{controller="",kind="returned"} 1`},
	} {
		s := newSupervisor(t.Context(), &Command{options: options{metricsPath: "/metrics"}})
		s.Fail(c.err)
		s.Fail(errors.New("a consequence"))
		if _, body := ask(s.server, "/metrics"); !strings.Contains(body, c.want) ||
			strings.Count(body, "failures_total{") != 1 {
			t.Errorf("%q is not all there is of failures in\n%s", c.want, body)
		}
		if !errors.Is(s.failure(), c.err) || s.work.Err() == nil {
			t.Errorf("the first failure is %v, and the work goes on: %v", s.failure(), s.work.Err())
		}
	}
}

func TestAFailureAfterTheEndIsNone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newSupervisor(ctx, &Command{options: options{metricsPath: "/metrics"}})
	cancel()
	s.Fail(errors.New("its context was canceled"))
	if s.failure() != nil {
		t.Errorf("got %v", s.failure())
	}
}

func TestPatienceHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		forever := make(chan struct{})
		defer close(forever)
		c := command(&alone{diary: &d}, &toy{name: "stubborn", needs: Needs{Cluster: true}, diary: &d,
			run: func(context.Context) error { <-forever; return nil }})
		on, err := c.parse(nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		code := make(chan int, 1)
		go func() { code <- c.run(ctx, on) }()
		time.Sleep(time.Hour)
		told := time.Now()
		cancel()
		if got := <-code; got != 0 {
			t.Errorf("it ended with %d", got)
		}
		if took := time.Since(told); took != c.patience {
			t.Errorf("it took %v, want %v", took, c.patience)
		}
		if got := d.String(); !strings.HasSuffix(got, "run stubborn, release") {
			t.Errorf("it was %q", got)
		}
	})
}

// After the loss of a lease a controller waits for no other.
func TestALostLeaseLeavesNoTimeToFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSupervisor(t.Context(), &Command{options: options{metricsPath: "/metrics", patience: time.Hour}})
		forever := make(chan struct{})
		defer close(forever)
		s.Fail(ErrLost)
		began := time.Now()
		s.bounded(func() { <-forever })
		if took := time.Since(began); took > 0 {
			t.Errorf("it waits for %v", took)
		}
	})
}

func TestMissingCapabilitiesAreSkippedWithAReason(t *testing.T) {
	var d diary
	c := command(&alone{diary: &d})
	c.metricsPath = "/metrics"
	s := newSupervisor(t.Context(), c)
	parts := s.parts([]Controller{&toy{name: "a", needs: Needs{Cluster: true}, diary: &d,
		build: fmt.Errorf("%w: it has no legs", ErrNotSupported)}})
	var running sync.WaitGroup
	if err := s.build(&Env{}, parts, &running); err != nil {
		t.Fatal(err)
	}
	if code, body := ask(s.server, "/healthz/a"); code != http.StatusOK ||
		body != "skipped: not supported by the driver: it has no legs\n" {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := ask(s.server, "/readyz"); code != http.StatusOK {
		t.Errorf("not ready: %d", code)
	}
}

// A driver that goes away ends the controllers that were built for its capabilities, and no others.
func TestALostDriverEndsItsControllers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		needs Needs
		code  int
	}{
		{"what asked for capabilities", Needs{Driver: true, Capabilities: true, Cluster: true}, 1},
		{"what only calls it", Needs{Driver: true}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d diary
			path := filepath.Join(t.TempDir(), "s")
			stop := (&small{}).serve(t, path)
			k := &caller{toy: toy{name: "a", needs: c.needs, diary: &d}, stop: stop}
			command := &Command{Name: "toys", Controllers: []Controller{k}, Cluster: &alone{diary: &d}}
			until := ""
			if c.code == 0 {
				until = "unavailable"
			}
			if code := play(t, command, "--csi-address="+path, until, &d); code != c.code {
				t.Errorf("it ended with %d: %s", code, &d)
			}
		})
	}
}

// caller calls the driver, ends it, and notes that it is away.
type caller struct {
	toy
	stop func()
}

func (k *caller) Build(_ context.Context, env *Env) (Runner, error) {
	return RunnerFunc(func(ctx context.Context) error {
		probe(ctx, env, grpc.WaitForReady(true))
		k.stop()
		env.Conn.WaitForStateChange(ctx, connectivity.Ready)
		if status.Code(probe(ctx, env)) != codes.Unavailable {
			return errors.New("the driver still answers")
		}
		k.diary.note("unavailable")
		<-ctx.Done()
		return nil
	}), nil
}

func probe(ctx context.Context, env *Env, options ...grpc.CallOption) error {
	_, err := csi.NewIdentityClient(env.Conn).Probe(ctx, &csi.ProbeRequest{}, options...)
	return err
}

// To give a lease up takes the right to call the driver first, which may break the connection
// before the API server has answered.
func TestAConnectionThatBreaksAtTheEndLeavesTimeForTheRelease(t *testing.T) {
	s := newSupervisor(t.Context(),
		&Command{options: options{metricsPath: "/metrics"}, Cluster: &alone{leads: func() error { return ErrLost }}})
	s.stop() // as SIGTERM does
	s.lostDriver(true)
	if s.atOnce.Err() != nil {
		t.Error("nothing may be finished any more")
	}
}

// Where upstream's constructors end their process, they never return here.
func TestABuildThatNeverReturnsDoesNotKeepTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithCancel(t.Context())
		forever := make(chan struct{})
		defer close(forever)
		c := command(&alone{diary: &d},
			&toy{name: "stuck", needs: Needs{Cluster: true}, diary: &d, building: func() { cancel(); <-forever }})
		on, err := c.parse(nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c.run(ctx, on)
		if took := time.Since(began); took != c.patience+release {
			t.Errorf("it took %v, want %v", took, c.patience+release)
		}
	})
}

func TestAProcessWithoutClusterMeasuresItself(t *testing.T) {
	var d diary
	c := command(&alone{diary: &d}, &toy{name: "small", diary: &d})
	on, err := c.parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := newSupervisor(ctx, c)
	cancel()
	if err := s.all(on); err != nil {
		t.Fatal(err)
	}
	if _, body := ask(s.server, "/metrics"); !strings.Contains(body, "go_goroutines") {
		t.Errorf("nothing of the Go runtime is in\n%s", body)
	}
}

func TestABuildThatPanicsIsNamed(t *testing.T) {
	s := newSupervisor(t.Context(), &Command{options: options{metricsPath: "/metrics"}})
	parts := s.parts([]Controller{&toy{name: "broken", building: func() { panic("no wheels") }}})
	var f *Failure
	if err := s.buildOne(&Env{}, parts[0]); !errors.As(err, &f) || f.Controller != "broken" ||
		!strings.Contains(f.Err.Error(), "no wheels") || !strings.Contains(f.Stack, "toy_test.go") {
		t.Errorf("got %v", err)
	}
}

// A cluster that cannot be reached keeps the process from being ready, and /readyz names the
// controller that waits.
func TestNoControllerIsReadyBeforeTheAPIServerAnswers(t *testing.T) {
	s := newSupervisor(t.Context(), onPath(command(&alone{connect: errors.New("away")})))
	var running sync.WaitGroup
	err := s.build(&Env{}, s.parts([]Controller{&toy{name: "a", needs: Needs{Cluster: true}}}), &running)
	if err == nil {
		t.Error("it was built")
	}
	if code, body := ask(s.server, "/readyz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, "API server") {
		t.Errorf("%d %s", code, body)
	}
}

// onPath gives a command that was not parsed the path of metrics.
func onPath(c *Command) *Command {
	c.metricsPath = "/metrics"
	return c
}
