package mounter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watchdogName is argv[0] of a watchdog. Who can choose that can run any program, so nobody else gets one by it.
const watchdogName = "causeway-freeze-watchdog"

// guardAgain is how often a watchdog thaws when the limit is over: one that was just being frozen can't be thawed.
const guardAgain = 100 * time.Millisecond

// mainIsOurs says that Main was called: a program that doesn't would, run again as a watchdog, do all its work again.
var mainIsOurs atomic.Bool

// Main is what every program must call first in its main, or a test in its TestMain, that calls Freeze. In a process
// that Freeze has started as its watchdog it doesn't return; in any other it does nothing.
func Main() {
	mainIsOurs.Store(true)
	if len(os.Args) == 3 && os.Args[0] == watchdogName {
		os.Exit(watch(os.Args[1], os.Args[2]))
	}
}

// What a watchdog has open beside a way to say that it is ready: a pipe of which its parent has the other end, and
// that many mounts.
const (
	lifeline   = 3
	firstMount = 4
)

// watch thaws mounts as soon as the parent is dead, and tries until it can, or when limit has passed since it began to freeze.
func watch(limit, mounts string) (code int) {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM) // it ends with its parent, not before
	wait, err := time.ParseDuration(limit)
	n, notNumber := strconv.Atoi(mounts)
	if err != nil || notNumber != nil {
		return 2
	}
	frozen := make([]*os.File, n)
	for i := range frozen {
		frozen[i] = os.NewFile(uintptr(firstMount+i), "mount")
	}
	parent := os.NewFile(lifeline, "parent")
	if _, err := os.Stdout.Write([]byte("r")); err != nil {
		return 1
	}
	if _, err := io.ReadFull(parent, make([]byte, 1)); err != nil {
		return 0 // it died before it began
	}
	dead := make(chan struct{})
	go func() {
		io.Copy(io.Discard, parent)
		close(dead)
	}()
	for {
		select {
		case <-dead:
			for !allThawed(thawAll(frozen)) {
				time.Sleep(guardAgain)
			}
			return 0
		case <-time.After(wait):
			thawAll(frozen)
			wait = guardAgain
		}
	}
}

// allThawed reports whether nothing is frozen any more by what thawAll returned.
func allThawed(errs []error) bool {
	return !slices.ContainsFunc(errs, func(err error) bool { return err != nil && !errors.Is(err, unix.EINVAL) })
}

// watchdog is the process that thaws if this one can't.
type watchdog struct {
	cmd      *exec.Cmd
	lifeline *os.File
}

// newWatchdog starts one for mounts, and returns when it is ready.
func newWatchdog(ctx context.Context, limit time.Duration, mounts []*os.File) (*watchdog, error) {
	if !mainIsOurs.Load() {
		return nil, errors.New("this program can't freeze: it must call mounter.Main first of all")
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	ready, said, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	defer ready.Close()
	defer said.Close()
	cmd := exec.Command("/proc/self/exe") // even if there is a newer file at its path
	cmd.Args = []string{watchdogName, limit.String(), strconv.Itoa(len(mounts))}
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdout = said
	cmd.ExtraFiles = append([]*os.File{theirs}, mounts...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends our session or group leaves it alone
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the watchdog of a freeze: %w", err), ours.Close())
	}
	w := &watchdog{cmd: cmd, lifeline: ours}
	said.Close() // or its death would not be seen
	if err := heard(ctx, ready); err != nil {
		w.end()
		return nil, fmt.Errorf("the watchdog of a freeze isn't ready: %w", err)
	}
	return w, nil
}

// heard waits for one byte.
func heard(ctx context.Context, pipe *os.File) error {
	stop := context.AfterFunc(ctx, func() { pipe.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := io.ReadFull(pipe, make([]byte, 1))
	return errors.Join(ctx.Err(), err)
}

// begin says that from now on there is something to thaw.
func (w *watchdog) begin() error {
	_, err := w.lifeline.Write([]byte("b"))
	return err
}

// end ends it when nothing is frozen any more. It is killed, as it would thaw if it saw the other end of its pipe
// closed, even what somebody else has frozen.
func (w *watchdog) end() {
	w.cmd.Process.Kill()
	w.cmd.Wait() // the error is that it was killed
	w.lifeline.Close()
}

// leave lets it go on until it has thawed what we couldn't. To it, it is as if we were dead.
func (w *watchdog) leave() {
	w.lifeline.Close()
	go w.cmd.Wait()
}
