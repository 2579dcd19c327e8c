// Package helper runs tasks in processes of their own, which the caller can give up.
//
// Some system calls wait in the kernel for another process, and no signal ends the wait: FIFREEZE
// waits for each write that has begun, FICLONE for the lock of an inode. A tenant decides how long
// that takes: a write whose source page comes from a stalled NFS mount lasts until the server
// answers. A process with a thread in such a call cannot be killed; its descriptors stay open and
// its locks stay held.
//
// So the driver makes these calls in a helper: the driver's own binary, started again. A helper has
// no listener, no lock of a storage root and no descriptors except those of its task. The driver
// can stop waiting for it at any time. A helper that was given up, and a helper whose driver has
// died, makes no further system call on tenant data: it is killed, or exits, when the call in the
// kernel returns. Only a Task with Outlives continues, to undo its changes.
//
// Idle helpers are used again, because the start of a process costs more than most tasks.
package helper

import (
	"errors"
	"os"
	"sync/atomic"
)

// processName is argv[0] of a helper. A caller that can choose argv[0] can run any program, so the
// name grants no right.
const processName = "causeway-helper"

// Task is a kind of task.
type Task struct {
	Name string

	// Run runs the task, in the helper. Its result is encoded as JSON; nil is fine.
	Run func(job *Job) (result any, err error)

	// Errors are sentinels that errors.Is finds in Run's error on the caller's side too, beside
	// errno values, context errors and errors.ErrUnsupported, which are always found.
	Errors []error

	// Background makes the helper leave the processors to the driver and to pods: nice(2).
	Background bool

	// Outlives makes the helper complete Run after the driver has died or given the task up.
	// Without it the helper exits at that moment.
	Outlives bool
}

// Errors of a Session, returned wrapped.
var (
	// ErrDied: the helper ended during its task, or never started.
	ErrDied = errors.New("helper process died")
	// ErrTooMany: the limit of helpers is reached, because earlier ones hang.
	ErrTooMany = errors.New("too many helper processes")
)

// mainCalled records that the program called Main. Without that call, a second start of the program
// would run the program itself.
var mainCalled atomic.Bool

// Main must be the first call of a program that uses a Pool, or of TestMain. In a helper it does
// not return. Elsewhere it does nothing. All programs of one executable must name the same tasks.
func Main(tasks ...[]Task) {
	mainCalled.Store(true)
	if len(os.Args) == 1 && os.Args[0] == processName {
		os.Exit(serve(tasks))
	}
}
