package qemu

import "syscall"

// dieWithThread asks the kernel to kill a child when the thread that starts it ends, as all threads
// do when this process is killed. The starting goroutine must be locked to that thread until the
// child has ended. A process group of its own keeps a terminal's Ctrl-C from the child: its context
// ends it.
func dieWithThread() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
