package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Runner runs programs and helpers.
type Runner struct {
	Stalls  Stalls
	Helpers helper.Pool   // for system calls that a tenant can make stall
	Limit   time.Duration // the constant limit, or less in a test
}

// NewRunner returns a Runner of which no image is stalled.
func NewRunner() *Runner { return &Runner{Limit: limit} }

// limit is the time after which the driver gives up a program that makes no progress. A tenth
// of limit is the time between two checks of the progress. A killed program gets the same
// time to end, as a system call can stall.
const limit = 5 * time.Minute

// Disk is an image on which programs run.
type Disk struct {
	File   *os.File // the image, or its loop device
	Image  tree.Backing
	Path   string // of the image
	Tenant string // as Mount.Tenant
}

// ImageDisk returns a disk whose file is the image.
func ImageDisk(image *os.File) (Disk, error) {
	b, err := tree.BackingOf(image)
	return Disk{File: image, Image: b, Path: image.Name()}, err
}

// AbandonPolicy selects the end of a program that the driver gives up.
type AbandonPolicy bool

// The policies.
const (
	Kill      AbandonPolicy = true  // the driver kills the program
	LetFinish AbandonPolicy = false // the program runs on, as a kill could destroy the filesystem
)

// maxOutput is the number of bytes of a program's output in an error.
const maxOutput = 400

// Run runs a program with the disk as its last argument. Errors: those of output.
func (r *Runner) Run(ctx context.Context, d Disk, end AbandonPolicy, name string, args ...string) error {
	out, err := r.Output(ctx, d, end, nil, name, append(args, DiskPath)...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		out = bytes.ReplaceAll(bytes.TrimSpace(out), []byte(DiskPath), []byte(d.Path))
		return fmt.Errorf("%w: %s", err, out[max(0, len(out)-maxOutput):]) // the last lines have the reason
	}
	return err
}

// Paths in a program that output runs.
const (
	DiskPath = "/proc/self/fd/3" // the disk
	FilePath = "/proc/self/fd/4" // the first of files
)

// Output runs a program that can open a disk and files, and returns its standard output and
// standard error. The program has no input, so it cannot wait for an answer of a user. The image
// counts as stalled while a program that was given up still runs. Errors: errors.ErrUnsupported if
// the program is not installed; *exec.ExitError; ErrStalled if the program makes no progress, or an
// earlier program still runs on the image; those of ctx.
func (r *Runner) Output(
	ctx context.Context, d Disk, end AbandonPolicy, files []*os.File, name string, args ...string,
) ([]byte, error) {
	if err := errors.Join(ctx.Err(), r.Stalls.Check(d.Image)); err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.ExtraFiles = append([]*os.File{d.File}, files...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = r.Limit / 10 // for child processes that keep the output open
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
	why := awaitProgress(ctx, ended, cmd.Process.Pid, r.Limit)
	if why != nil && !r.endTool(d, end, cmd, ended) {
		return nil, fmt.Errorf("%w: %s on %s: %w", mounter.ErrStalled, name, d.Path, why)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case why != nil:
		return nil, fmt.Errorf("%w: %s on %s: %w", mounter.ErrStalled, name, d.Path, why)
	case err != nil:
		err = fmt.Errorf("%s: %w", name, err)
	}
	return out.Bytes(), err
}

// endTool ends a program that the driver gives up, and reports whether the program has ended. If it
// has not, the image counts as stalled until the program ends.
func (r *Runner) endTool(d Disk, end AbandonPolicy, cmd *exec.Cmd, ended <-chan struct{}) bool {
	if end == Kill {
		cmd.Process.Kill()
		select {
		case <-ended:
			return true
		case <-time.After(r.Limit / 10):
		}
	}
	done := r.Stalls.Add(d.Path, d.Image, d.Tenant,
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

// CloseFiles closes all files.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// HasCapability reports whether this process has the capability number, which must be below 32.
func HasCapability(number uint) bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&head, &caps[0]) == nil && caps[0].Effective&(1<<number) != 0
}
