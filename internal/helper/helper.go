// Package helper runs work in processes of its own, which the caller can give up.
//
// Some system calls wait in the kernel for another process, and no signal ends the wait: FIFREEZE
// waits for each write that has begun, FICLONE for the lock of an inode. A tenant decides how long
// that takes: a write whose source page comes from a hung NFS mount lasts until the server
// answers. A process with a thread in such a call cannot be killed; its descriptors stay open and
// its locks stay held.
//
// So the driver makes these calls in a helper: the driver's own binary, started again. A helper
// has no listener, no lock of a storage root and no descriptors but those of its work. The driver
// stops waiting for it at any time. A helper that was given up, and one whose driver has died,
// makes no further system call on tenant data: it is killed, or exits, as soon as the call in the
// kernel returns. Only a Task with Outlives goes on, to undo its work.
//
// Helpers that are idle are used again, because the start of a process costs more than most of the
// work.
package helper

import (
	"errors"
	"os"
	"sync/atomic"
)

// processName is argv[0] of a helper. A caller that can choose argv[0] can run any program, so
// the name gives nobody a right.
const processName = "causeway-helper"

// Task is one kind of work.
type Task struct {
	Name string

	// Run does the work, in the helper. Its result is encoded as JSON; nil is fine.
	Run func(job *Job) (result any, err error)

	// Errors are sentinels that errors.Is finds in Run's error on the caller's side too, beside
	// errno values, context errors and errors.ErrUnsupported, which are always found.
	Errors []error

	// Background says that the helper leaves the processors to the driver and to pods: nice(2).
	Background bool

	// Outlives says that the helper completes Run when the driver has died or given the work up.
	// Otherwise the helper exits at that moment.
	Outlives bool
}

// Errors of a Session, returned wrapped.
var (
	// ErrDied: the helper ended in the middle of its work, or never started.
	ErrDied = errors.New("helper process died")
	// ErrTooMany: the limit of helpers is reached, because earlier ones hang.
	ErrTooMany = errors.New("too many helper processes")
)

// mainCalled reports that the program called Main. Without it, a second start of the program
// would do the program's own work.
var mainCalled atomic.Bool

// Main must be the first call of a program that uses a Pool, or of TestMain. In a helper it does
// not return. Elsewhere it does nothing. All programs of one executable must name the same tasks.
func Main(tasks ...[]Task) {
	mainCalled.Store(true)
	if len(os.Args) == 1 && os.Args[0] == processName {
		os.Exit(serve(tasks))
	}
}
