//go:build !windows

package regular

import "syscall"

// noWait makes open(2) return at once where the path has a FIFO without a writer, or a file with a
// lease. Its result must not become the controlling terminal.
const noWait = syscall.O_NONBLOCK | syscall.O_NOCTTY
