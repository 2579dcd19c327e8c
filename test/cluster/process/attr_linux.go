package process

import "syscall"

// dieWithParent makes the kernel kill the child when the thread that starts it ends; os/exec sees to it that one which
// is gone before the child asked for that counts too. A group of its own keeps a terminal's Ctrl-C from it: this process
// decides when its children end.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
