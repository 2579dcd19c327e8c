package mounter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// toolLimit is the time after which the driver gives up a program that makes no progress. A tenth
// of toolLimit is the time between two checks of the progress. A killed program gets the same
// time to end, as a system call can stall.
const toolLimit = 5 * time.Minute

// disk is an image on which programs run.
type disk struct {
	file   *os.File // the image, or its loop device
	image  backing
	path   string // of the image
	tenant string // as Mount.Tenant
}

// imageDisk returns a disk whose file is the image.
func imageDisk(image *os.File) (disk, error) {
	b, err := backingOf(image)
	return disk{file: image, image: b, path: image.Name()}, err
}

// toolEnd selects the end of a program that the driver gives up.
type toolEnd bool

const (
	killed toolEnd = true  // the driver kills the program
	left   toolEnd = false // the program runs on, as a kill could destroy the filesystem
)

// tool runs a program with the disk as its last argument. Errors: those of output.
func (l *linux) tool(ctx context.Context, d disk, end toolEnd, name string, args ...string) error {
	out, err := l.output(ctx, d, end, nil, name, append(args, diskPath)...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Errorf("%w: %.400s", err, bytes.TrimSpace(out))
	}
	return err
}

// Paths in a program that output runs.
const (
	diskPath = "/proc/self/fd/3" // the disk
	filePath = "/proc/self/fd/4" // the first of files
)

// output runs a program that can open a disk and files, and returns its standard output and
// standard error. The program has no input, so it cannot wait for an answer of a user. The image
// counts as stalled while a program that was given up still runs. Errors: errors.ErrUnsupported if
// the program is not installed; *exec.ExitError; ErrStalled if the program makes no progress, or an
// earlier program still runs on the image; those of ctx.
func (l *linux) output(
	ctx context.Context, d disk, end toolEnd, files []*os.File, name string, args ...string,
) ([]byte, error) {
	if err := errors.Join(ctx.Err(), l.stalls.check(d.image)); err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.ExtraFiles = append([]*os.File{d.file}, files...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = l.toolLimit / 10 // for child processes that keep the output open
	err := cmd.Start()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: %s is not installed", errors.ErrUnsupported, name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	ended := make(chan struct{})
	go func() {
		err = cmd.Wait()
		close(ended)
	}()
	why := awaitProgress(ctx, ended, cmd.Process.Pid, l.toolLimit)
	if why != nil && !l.endTool(d, end, cmd, ended) {
		return nil, fmt.Errorf("%w: %s on %s: %w", ErrStalled, name, d.path, why)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case why != nil:
		return nil, fmt.Errorf("%w: %s on %s: %w", ErrStalled, name, d.path, why)
	case err != nil:
		err = fmt.Errorf("%s: %w", name, err)
	}
	return out.Bytes(), err
}

// endTool ends a program that the driver gives up, and reports whether the program has ended. If it
// has not, the image counts as stalled until the program ends.
func (l *linux) endTool(d disk, end toolEnd, cmd *exec.Cmd, ended <-chan struct{}) bool {
	if end == killed {
		cmd.Process.Kill()
		select {
		case <-ended:
			return true
		case <-time.After(l.toolLimit / 10):
		}
	}
	done := l.stalls.add(d.path, d.image, d.tenant,
		fmt.Sprintf("%s (process %d) has not ended", cmd.Args[0], cmd.Process.Pid))
	go func() {
		<-ended
		done()
	}()
	return false
}

// awaitProgress waits for the end of a process. awaitProgress returns an error if the driver has to
// give up the process: ctx has ended, or the process has made no progress for limit.
func awaitProgress(ctx context.Context, ended <-chan struct{}, pid int, limit time.Duration) error {
	last, since := progressOf(pid), time.Now()
	look := time.NewTicker(limit / 10)
	defer look.Stop()
	for {
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
		if now := progressOf(pid); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > limit {
			return fmt.Errorf("no progress for %s", limit)
		}
	}
}

// progressOf returns a text that changes when a process uses CPU time, reads or writes:
// proc_pid_stat(5), proc_pid_io(5).
func progressOf(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	io, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, fields, _ := strings.Cut(string(stat), ") ") // the name of the program may contain spaces
	const userTime, systemTime = 11, 12             // indexes of the fields after the name
	if f := strings.Fields(fields); len(f) > systemTime {
		return f[userTime] + " " + f[systemTime] + " " + string(io)
	}
	return string(io)
}
