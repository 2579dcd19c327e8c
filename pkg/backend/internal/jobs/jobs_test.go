package jobs

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// reason returns the reason of a Conflict, or -1.
func reason(err error) Reason {
	if c := (*Conflict)(nil); errors.As(err, &c) {
		return c.Reason
	}
	return -1
}

// blocked starts a job that makes "made" from "source". The job ends with the result that finish
// gets.
func blocked(t *testing.T, j *Jobs) (job *Job, finish func(error)) {
	t.Helper()
	started, result := make(chan *Job), make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- j.RunOrJoin(ctx, "made", "source", []string{"source"}, func(_ context.Context, job *Job) error {
			started <- job
			return <-result
		})
	}()
	job = <-started
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("the call that started the job: %v, want Canceled", err)
	}
	return job, func(err error) {
		result <- err
		<-job.done
	}
}

func never(context.Context, *Job) error { panic("a second job runs") }

func TestACallJoinsTheJobThatRuns(t *testing.T) {
	j := New()
	defer j.Close()
	job, finish := blocked(t, j)
	job.Report(Progress{Bytes: 42, Stall: ", no progress"})
	gone, cancel := context.WithCancel(context.Background())
	waiting := make(chan error, 1)
	go func() { waiting <- j.RunOrJoin(gone, "made", "source", []string{"source"}, never) }()
	cancel()
	// The context of the call may end before or after the call has joined.
	if err := <-waiting; !errors.Is(err, context.Canceled) &&
		(reason(err) != Busy || !strings.HasSuffix(err.Error(), "42 bytes so far, no progress")) {
		t.Errorf("a call that gives up: %v", err)
	}
	if err := j.RunOrJoin(context.Background(), "made", "another source", nil, never); reason(err) != Differs {
		t.Errorf("another source: %v, want Differs", err)
	}
	if err := j.Run(context.Background(), "made", "another source", nil, nil); reason(err) != Busy {
		t.Errorf("Run = %v, want Busy", err)
	}
	if err := j.Free("made"); reason(err) != Differs {
		t.Errorf("Free = %v, want Differs", err)
	}
	failed := errors.New("failed")
	finish(failed)
	if err := j.RunOrJoin(context.Background(), "made", "source", []string{"source"}, never); !errors.Is(err, failed) {
		t.Errorf("the next call: %v, want the error of the job", err)
	}
	ran := false
	if err := j.RunOrJoin(context.Background(), "made", "source", []string{"source"},
		func(context.Context, *Job) error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("the call after that: %v, ran: %v", err, ran)
	}
	if s := j.Stats(); s.Bytes != 42 || s.Failed != 1 || s.Running != 0 || j.Free("made") != nil {
		t.Errorf("Stats = %+v, Free = %v", s, j.Free("made"))
	}
}

// TestOnlyCopiesCount: an empty volume is no copy, so its failure is no failed copy.
func TestOnlyCopiesCount(t *testing.T) {
	j := New()
	defer j.Close()
	failed := errors.New("failed")
	running := -1
	for _, sources := range [][]string{nil, {"source"}, nil} {
		if err := j.Run(context.Background(), "made", "x", sources, func(context.Context) error {
			if sources == nil {
				running = j.Stats().Running
			}
			return failed
		}); !errors.Is(err, failed) {
			t.Error(err)
		}
	}
	if s := j.Stats(); s.Failed != 1 || running != 0 {
		t.Errorf("Stats = %+v; %d copies during the creation of an empty volume", s, running)
	}
}

func TestASourceIsReadOrInExclusiveUse(t *testing.T) {
	j := New()
	defer j.Close()
	_, finish := blocked(t, j)
	for _, id := range []string{"source", "made"} {
		if _, err := j.Exclusive("other", id); reason(err) != InUse {
			t.Errorf("Exclusive of %s = %v, want InUse", id, err)
		}
	}
	if j.InExclusiveUse("other") {
		t.Error("a failed call has exclusive use of one of its objects")
	}
	finish(nil)
	release, err := j.Exclusive("source", "made")
	if err != nil || !j.InExclusiveUse("source") {
		t.Fatalf("Exclusive = %v", err)
	}
	if _, err := j.Exclusive("source"); reason(err) != Busy {
		t.Errorf("a second call: %v, want Busy", err)
	}
	if err := j.RunOrJoin(context.Background(), "new", "source", []string{"source"}, never); reason(err) != Busy {
		t.Errorf("RunOrJoin = %v, want Busy", err)
	}
	release()
	if err := j.Run(context.Background(), "new", "source", []string{"source"},
		func(context.Context) error { return nil }); err != nil {
		t.Errorf("Run after release: %v", err)
	}
}

func TestCloseStopsJobs(t *testing.T) {
	for name, start := range map[string]func(j *Jobs, run func(ctx context.Context) error) error{
		"RunOrJoin": func(j *Jobs, run func(ctx context.Context) error) error {
			return j.RunOrJoin(context.Background(), "id", "source", nil,
				func(ctx context.Context, _ *Job) error { return run(ctx) })
		},
		"Run": func(j *Jobs, run func(ctx context.Context) error) error {
			return j.Run(context.Background(), "id", "source", nil, run)
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, started, ended := New(), make(chan bool), false
			result := make(chan error, 1)
			go func() {
				result <- start(j, func(ctx context.Context) error {
					close(started)
					<-ctx.Done()
					ended = true
					return ctx.Err()
				})
			}()
			<-started
			j.Close()
			if !ended {
				t.Error("Close did not wait")
			}
			if err := <-result; !errors.Is(err, ErrStopped) {
				t.Errorf("the job: %v, want ErrStopped", err)
			}
		})
	}
}

func TestAnObjectIsHeldUntilTheLastRelease(t *testing.T) {
	j := New()
	defer j.Close()
	first, second := j.BlockWrites("id"), j.BlockWrites("id")
	first()
	if !j.WritesBlocked("id") {
		t.Error("the object is free after the first of two releases")
	}
	second()
	if j.WritesBlocked("id") {
		t.Error("the object is held after the last release")
	}
}
