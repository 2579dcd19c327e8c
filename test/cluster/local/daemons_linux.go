package local

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/causeway-csi/causeway/test/cluster/process"
	"golang.org/x/sys/unix"
)

// pause is between a program's end and its next life.
const pause = 500 * time.Millisecond

// daemons keeps a node's programs running, and waits for the orphans that an init gets.
type daemons struct {
	mu   sync.Mutex
	mine map[int]bool // PIDs that a goroutine waits for
}

// run starts a program and starts it anew whenever it ends, unless it is held. Its log and its PID
// in the node are files.
func (d *daemons) run(own nodeFiles, name string, argv ...string) {
	go func() {
		for ; ; time.Sleep(pause) {
			if _, err := os.Stat(own.held(name)); err == nil {
				continue
			}
			if err := d.once(own, name, argv); err != nil {
				fmt.Fprintf(os.Stderr, "%s %s: %v\n", time.Now().Format(time.TimeOnly), name, err)
			}
		}
	}()
}

// once runs a program until it ends.
func (d *daemons) once(own nodeFiles, name string, argv []string) error {
	log, err := os.OpenFile(own.log(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	waited, err := d.start(cmd)
	if err != nil {
		return err
	}
	defer waited()
	if err := os.WriteFile(own.pid(name), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return err
	}
	err = cmd.Wait()
	os.Remove(own.pid(name))
	return fmt.Errorf("ended: %w", err)
}

// start starts a command that its caller waits for, and must not be reaped. The caller calls waited
// after Wait.
func (d *daemons) start(cmd *exec.Cmd) (waited func(), err error) {
	d.mu.Lock() // so that the reaper does not see a child that is missing in the table
	defer d.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d.mine[cmd.Process.Pid] = true
	return func() {
		d.mu.Lock()
		delete(d.mine, cmd.Process.Pid)
		d.mu.Unlock()
	}, nil
}

// reap waits for children without a waiting goroutine: processes of a program that ended, such as
// containerd's shims. From then on only start may start programs in this process: reap would
// take their ends.
func (d *daemons) reap() {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	for range died {
		for d.reapOne() {
			// a signal can stand for several children
		}
	}
}

// reapOne waits for a child that has ended and reports whether there may be more.
func (d *daemons) reapOne() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	pid := ended()
	if pid == 0 {
		return false
	}
	if d.mine[pid] { // its own goroutine is about to; others are looked at after it
		time.AfterFunc(10*time.Millisecond, func() { syscall.Kill(os.Getpid(), syscall.SIGCHLD) })
		return false
	}
	_, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return err == nil || err == unix.EINTR
}

// ended returns the PID of a child that has ended, which it leaves as it is, or 0.
func ended() int {
	// siginfo_t on 64-bit Linux: three ints and a gap, then the PID.
	var info [128]byte
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
		unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(info[16:]))
}

// tail returns the last lines of a log.
func tail(path string) string { return process.Tail(path, 20) }
