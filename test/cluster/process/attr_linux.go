package process

import "syscall"

// DieWithThread asks the kernel to kill a child when the thread that starts it ends, as all threads do when this process
// is killed. Whoever starts it must be locked to that thread until the child has ended. os/exec looks whether the parent
// was gone before the child could ask. A group of its own keeps a terminal's Ctrl-C from the child: this process decides
// when it ends.
func DieWithThread() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
