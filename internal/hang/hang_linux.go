// Package hang makes processes that hold locks of a filesystem for as long as a test likes, as a
// tenant can: a system call waits for a page of its caller's memory that does not come. A tenant
// has such a page in a mapping of a file on a stalled NFS or FUSE mount; here userfaultfd(2) plays
// the server.
package hang

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Env names, in the environment of a process that hangs, the system call: write or getdents. The
// process is a program that calls Main, with a path as its argument. It prints a line when it
// hangs, and completes the call at the end of its standard input.
const Env = "CAUSEWAY_TEST_HANG"

// Main must be called first in TestMain, or in main. In a process that hangs it does not return.
func Main() {
	if how := os.Getenv(Env); how != "" {
		fmt.Fprintln(os.Stderr, "hang:", run(how, os.Args[1]))
		os.Exit(1)
	}
}

// Process is a process that hangs in a system call.
type Process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// Write starts a process that hangs in write(2) to the file at path, which it makes where it is
// missing. The process holds the file's inode lock, and the filesystem cannot be frozen.
func Write(t testing.TB, path string) *Process { return start(t, "write", path) }

// Readdir starts a process that hangs in getdents64(2) of the directory at path. The process holds
// the directory's inode lock, shared.
func Readdir(t testing.TB, path string) *Process { return start(t, "getdents", path) }

func start(t testing.TB, how, path string) *Process {
	t.Helper()
	p, err := Start(how, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// Start is Write, or Readdir, for a program that is no test. Start returns when the process hangs.
func Start(how, path string) (*Process, error) {
	p := &Process{cmd: exec.Command("/proc/self/exe", path)}
	p.cmd.Env = append(os.Environ(), Env+"="+how)
	p.cmd.Stderr = os.Stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		p.Kill()
		return nil, fmt.Errorf("a process that hangs in %s of %s: %w", how, path, err)
	}
	return p, nil
}

// Release lets the system call complete, and waits for the end of the process.
func (p *Process) Release() {
	p.stdin.Close()
	p.cmd.Wait()
}

// Kill ends the process, which interrupts the system call. Later calls do nothing.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// From include/uapi/linux/userfaultfd.h of Linux.
const (
	uffdAPI         = 0xaa
	uffdioAPI       = 0xc018aa3f
	uffdioRegister  = 0xc020aa00
	uffdioZeropage  = 0xc020aa04
	registerMissing = 1
	uffdMessage     = 32 // bytes
)

// run makes a system call with a page that stays absent until standard input ends.
func run(how, path string) error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	start := uint64(uintptr(unsafe.Pointer(&page[0])))
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return fmt.Errorf("userfaultfd: %w", errno)
	}
	api := struct{ api, features, ioctls uint64 }{api: uffdAPI}
	register := struct{ start, length, mode, ioctls uint64 }{start, uint64(len(page)), registerMissing, 0}
	if err := ioctl(fd, uffdioAPI, unsafe.Pointer(&api)); err != nil {
		return fmt.Errorf("UFFDIO_API: %w", err)
	}
	if err := ioctl(fd, uffdioRegister, unsafe.Pointer(&register)); err != nil {
		return fmt.Errorf("UFFDIO_REGISTER: %w", err)
	}
	done := make(chan error)
	go func() { done <- touch(how, path, page) }()
	if _, err := unix.Read(int(fd), make([]byte, uffdMessage)); err != nil { // the fault
		return fmt.Errorf("read a fault: %w", err)
	}
	fmt.Println("it hangs")
	io.Copy(io.Discard, os.Stdin)
	zero := struct {
		start, length, mode uint64
		zeroed              int64
	}{start, uint64(len(page)), 0, 0}
	if err := ioctl(fd, uffdioZeropage, unsafe.Pointer(&zero)); err != nil {
		return fmt.Errorf("UFFDIO_ZEROPAGE: %w", err)
	}
	if err := <-done; err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// touch makes the system call.
func touch(how, path string, page []byte) error {
	runtime.LockOSThread()
	if how == "getdents" {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = unix.Getdents(fd, page)
		}
		return err
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err == nil {
		_, err = unix.Write(fd, page)
	}
	return err
}

func ioctl(fd, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
