package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// attackerEnv names, in the environment of an attacker, its attack.
const attackerEnv = "CAUSEWAY_HOSTILE_ATTACKER"

// The user of an attacker: a pod without capabilities.
const nobody = 65534

// attacker is a process of a tenant.
type attacker struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// newAttacker starts an attacker, and returns when it is at work.
func newAttacker(what string, args ...string) (*attacker, error) {
	a := &attacker{cmd: exec.Command("/proc/self/exe", args...)}
	a.cmd.Env = []string{attackerEnv + "=" + what}
	a.cmd.Stderr = os.Stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL,
	}
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if a.stdin, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		a.end()
		return nil, fmt.Errorf("attacker %s %v: %w", what, args, err)
	}
	return a, nil
}

// end ends the attacker.
func (a *attacker) end() {
	a.cmd.Process.Kill()
	a.cmd.Wait()
}

// attackerMain does not return in the process of an attacker.
func attackerMain() {
	what := os.Getenv(attackerEnv)
	if what == "" {
		return
	}
	err := errors.ErrUnsupported
	switch what {
	case "leases":
		err = holdLeases(os.Args[1], os.Args[2])
	case "deep":
		err = makeDeep(os.Args[1], os.Args[2])
	}
	if err == nil {
		fmt.Println("at work")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, "attacker:", err)
	os.Exit(1)
}

// holdLeases makes files in a directory and takes a write lease on each, which it never gives up.
func holdLeases(dir, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGIO) // the request to give a lease up
	for i := range n {
		fd, err := unix.Open(filepath.Join(dir, fmt.Sprint("leased-", i)), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC,
			0o600)
		if err != nil {
			return err
		}
		if _, err := unix.Write(fd, []byte("data")); err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
			return fmt.Errorf("F_SETLEASE: %w", err)
		}
	}
	return nil
}

// makeDeep makes a tree of that many levels in a directory.
func makeDeep(dir, levels string) error {
	n, err := strconv.Atoi(levels)
	if err != nil {
		return err
	}
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range n {
		if err != nil {
			return err
		}
		if err := unix.Mkdirat(at, "d", 0o700); err != nil {
			return err
		}
		next, failed := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		at, err = next, failed
	}
	return err
}

// peerPID returns the process that serves the other end of a Unix socket.
func peerPID(c net.Conn) (pid int) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// namespaceOf returns the namespace of a volume by its name: all hostile volumes belong to the same
// tenant.
func namespaceOf(name string) string {
	prefix, _, _ := strings.Cut(name, "-")
	return prefix
}
