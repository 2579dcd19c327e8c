package process

import "syscall"

// DieWithThread asks the kernel to kill a child when the thread that starts it ends, as all threads
// do when this process is killed. The starting goroutine must be locked to that thread until the
// child has ended. os/exec handles a parent that was gone before the child could ask. A process
// group of its own keeps a terminal's Ctrl-C from the child: this process decides when it ends.
func DieWithThread() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
