package helper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	linkFD    = 3  // the helper's end of the link
	gcPercent = 40 // helpers run on nodes, whose memory is the pods'

	backgroundNice = 10 // above the driver's: a tenth of the driver's weight

	maxStack = 2 << 10 // bytes of a panic's stack in an error
	// maxWaiting is the number of messages that may wait for a task. The tasks' protocols have at
	// most a few under way; more is a defect.
	maxWaiting = 16
)

var (
	errDriverGone = errors.New("the driver is gone")
	errEnded      = errors.New("the task has ended")
)

// serve runs tasks, one at a time, until the driver closes its end of the link or dies.
func serve(tables [][]Task) (code int) {
	// The signals that end the driver's session or process group are not meant for helpers.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	debug.SetGCPercent(gcPercent)
	l, err := newLink(linkFD)
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		return 2
	}
	h := &worker{link: l, tables: tables, incoming: make(chan frame, maxWaiting)}
	if raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		h.nice = 20 - raw // as the system call has it
	}
	h.life, h.end = context.WithCancelCause(context.Background())
	go h.read()
	for f := range h.incoming {
		if err := h.run(f); err != nil {
			fmt.Fprintln(os.Stderr, "helper:", err)
			return 2
		}
		if h.life.Err() != nil || h.spent {
			return 0
		}
	}
	return 0
}

// Job is a run of a Task, in the helper.
type Job struct {
	// Context ends when the driver has died or given the job up. Only a Task with Outlives lives
	// to see that.
	Context context.Context

	// Files are the descriptors that the caller passed, in their order. They are closed when Run
	// returns.
	Files []*os.File

	request  json.RawMessage
	link     *link
	incoming <-chan frame

	mu    sync.Mutex
	ended bool
}

// Request decodes the caller's request into v.
func (j *Job) Request(v any) error { return json.Unmarshal(j.request, v) }

// Send sends a message to the caller. After the end of Run it fails.
func (j *Job) Send(message any) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended {
		return errEnded
	}
	return j.link.send(frame{Kind: kindMessage}, message, nil)
}

// end sends the result of Run.
func (j *Job) end(f frame, result any) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	return j.link.send(f, result, nil)
}

// Receive waits for a message of the caller and decodes it into v, which may be nil. The caller
// of Receive closes the files that came with the message. Receive fails when the driver is gone.
func (j *Job) Receive(v any) ([]*os.File, error) {
	f, ok := <-j.incoming
	if !ok {
		return nil, context.Cause(j.Context)
	}
	if v == nil || len(f.Body) == 0 {
		return f.files, nil
	}
	return f.files, json.Unmarshal(f.Body, v)
}

// worker is a helper process.
type worker struct {
	link     *link
	tables   [][]Task
	incoming chan frame // closed when the driver is gone
	life     context.Context
	end      context.CancelCauseFunc

	nice  int  // niceness of the driver
	spent bool // the process cannot be used again

	mu      sync.Mutex
	lasting bool // a task with Outlives runs
}

// read delivers frames. When the driver is gone it exits the process, even while a task waits in
// the kernel, unless that task outlives the driver.
func (h *worker) read() {
	for {
		f, err := h.link.receive()
		if err != nil {
			h.driverGone(fmt.Errorf("%w: %w", errDriverGone, err))
			return
		}
		select {
		case h.incoming <- f:
		default:
			fmt.Fprintln(os.Stderr, "helper: too many messages wait for the task")
			os.Exit(2)
		}
	}
}

func (h *worker) driverGone(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(why)
	close(h.incoming)
	if !h.lasting {
		os.Exit(0) // with the lock, so that no task starts
	}
}

// run runs the task of a frame and sends its result. An error is a broken link or protocol.
func (h *worker) run(f frame) error {
	task, ok := find(h.tables, f.Task)
	if f.Kind != kindRun || !ok {
		return fmt.Errorf("unexpected message %q, task %q", f.Kind, f.Task)
	}
	h.setLasting(task.Outlives)
	job := &Job{Context: h.life, Files: f.files, request: f.Body, link: h.link, incoming: h.incoming}
	if task.Background {
		setNice(h.nice + backgroundNice)
	}
	result, err := guarded(task, job)
	if task.Background {
		h.spent = setNice(h.nice) != nil // only root may take the niceness back
	}
	closeAll(f.files)        // before the caller learns of the end: it may want to unmount them
	if h.life.Err() != nil { // no receiver is left
		return nil
	}
	h.setLasting(false)
	return job.end(frame{Kind: kindEnd, Err: encodeError(err, task.Errors)}, result)
}

func (h *worker) setLasting(lasting bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lasting = lasting
}

// setNice sets the niceness of all threads: a helper is a process group of its own.
func setNice(nice int) error { return unix.Setpriority(unix.PRIO_PGRP, 0, nice) }

// guarded makes a panic of the task an error.
func guarded(task Task, job *Job) (result any, err error) {
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			result, err = nil, fmt.Errorf("panic in helper task %s: %v: %s", task.Name, v,
				stack[:min(len(stack), maxStack)])
		}
	}()
	return task.Run(job)
}

func find(tables [][]Task, name string) (Task, bool) {
	for _, table := range tables {
		for _, t := range table {
			if t.Name == name {
				return t, true
			}
		}
	}
	return Task{}, false
}

// OpenDirs opens directories for reading that are open as paths only (O_PATH). The caller closes
// them. On btrfs, that waits for a lock that a tenant can hold, so only helpers do so.
func OpenDirs(dirs []*os.File) (opened []*os.File, err error) {
	for _, d := range dirs {
		fd, err := unix.Openat(int(d.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(opened)
			return nil, &fs.PathError{Op: "open", Path: d.Name(), Err: err}
		}
		opened = append(opened, os.NewFile(uintptr(fd), d.Name()))
	}
	return opened, nil
}
