//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// step is a command with its arguments.
type step []string

func (s step) String() string { return strings.Join(s, " ") }

// result is the end of a step.
type result struct {
	step  step
	state string // passed, failed, interrupted or not run
	wall  time.Duration
	cpu   time.Duration // of the command and its children: user and system
}

// gate runs steps.
type gate struct {
	out   io.Writer
	dir   string           // for the output of running steps
	limit <-chan time.Time // a value interrupts the running steps
	grace time.Duration    // from the interruption of a step until it is killed
	mu    sync.Mutex       // of out
}

var errLimit = errors.New("interrupted at the limit of CAUSEWAY_CI_SECONDS")

// plan has the steps of each lane that have not begun.
type plan struct {
	mu    sync.Mutex
	lanes [][]place
	own   int // number of the first steps of the first lane that no other lane takes
}

// place is a step, and its position in the lanes.
type place struct {
	step    step
	lane, n int
}

func newPlan(lanes [][]step, own int) *plan {
	p := &plan{lanes: make([][]place, len(lanes)), own: own}
	for i, lane := range lanes {
		for n, s := range lane {
			p.lanes[i] = append(p.lanes[i], place{s, i, n})
		}
	}
	return p
}

// next returns the next step of a lane, or the last step of the first lane if another lane has none.
func (p *plan) next(lane int) (next place, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own := p.lanes[lane]; len(own) > 0 {
		p.lanes[lane] = own[1:]
		return own[0], true
	}
	first := p.lanes[0]
	if last := len(first) - 1; last >= 0 && first[last].n >= p.own {
		p.lanes[0] = first[:last]
		return first[last], true
	}
	return place{}, false
}

// run runs the steps of a lane one after another, and the lanes side by side. A lane that has no
// step left takes the last step of the first lane, but none of the first own steps there. A step
// that fails interrupts the other lane, as the limit and the end of ctx do. The results are in the
// order of the lanes. The error is the reason for an early end.
func (g *gate) run(ctx context.Context, lanes [][]step, own int) ([]result, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-g.limit:
			stop(errLimit)
		case <-ended:
		}
	}()
	left, results := newPlan(lanes, own), make([][]result, len(lanes))
	for i, lane := range lanes {
		results[i] = make([]result, len(lane))
	}
	var group sync.WaitGroup
	for i := range lanes {
		group.Go(func() {
			for p, ok := left.next(i); ok; p, ok = left.next(i) {
				r := g.runStep(ctx, p.step, fmt.Sprintf("%s/%d-%d", g.dir, p.lane, p.n))
				if r.state == failed {
					stop(fmt.Errorf("%s failed", p.step))
				}
				results[p.lane][p.n] = r
			}
		})
	}
	group.Wait()
	err := context.Cause(ctx)
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	return slices.Concat(results...), err
}

// The states of steps.
const (
	passed      = "passed"
	failed      = "failed"
	interrupted = "interrupted"
	notRun      = "not run"
)

// runStep runs a step with its output in a file, and prints the file when the step ends: the lines
// of two steps are not mixed.
func (g *gate) runStep(ctx context.Context, s step, log string) result {
	r := result{step: s, state: notRun}
	if ctx.Err() != nil {
		return r
	}
	g.print("== start: %s\n", s)
	file, err := os.Create(log)
	if err != nil {
		g.print("%v\n", err)
		r.state = failed
		return r
	}
	defer os.Remove(log)
	defer file.Close()
	cmd := exec.Command(s[0], s[1:]...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	start := time.Now()
	err = g.runInterruptible(ctx, cmd)
	r.wall = time.Since(start)
	if p := cmd.ProcessState; p != nil {
		r.cpu = p.UserTime() + p.SystemTime()
	}
	switch {
	case err == nil:
		r.state = passed
	case ctx.Err() != nil:
		r.state = interrupted
	default:
		r.state = failed
		fmt.Fprintln(file, err)
	}
	g.show(r, file)
	return r
}

// runInterruptible runs a command in its process group, which gets SIGINT when ctx ends, and
// SIGKILL when the command has not ended then after the grace.
func (g *gate) runInterruptible(ctx context.Context, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // fails if the group has ended
		select {
		case <-ended:
		case <-time.After(g.grace):
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
	})
	err := cmd.Wait()
	close(ended)
	watcher.Wait()
	return err
}

func (g *gate) print(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fmt.Fprintf(g.out, format, args...)
}

// show prints the output of a step.
func (g *gate) show(r result, log *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fmt.Fprintf(g.out, "\n== %s\n", r.step)
	_, err := log.Seek(0, io.SeekStart)
	if err == nil {
		_, err = io.Copy(g.out, log)
	}
	if err != nil {
		fmt.Fprintln(g.out, err)
	}
	fmt.Fprintf(g.out, "== %s after %.0f s: %s\n", r.state, r.wall.Seconds(), r.step)
}

// summary prints the durations of all steps.
func (g *gate) summary(results []result, wall time.Duration, why error) {
	var cpu time.Duration
	g.print("\n== seconds, and seconds of the processors\n")
	for _, r := range results {
		cpu += r.cpu
		if r.state == notRun {
			g.print("%6s %6s  %-11s  %s\n", "", "", r.state, r.step)
			continue
		}
		g.print("%6.0f %6.0f  %-11s  %s\n", r.wall.Seconds(), r.cpu.Seconds(), r.state, r.step)
	}
	end := passed
	if why != nil {
		end = why.Error()
	}
	g.print("%6.0f %6.0f  all: %s\n", wall.Seconds(), cpu.Seconds(), end)
}
