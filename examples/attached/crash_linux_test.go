package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
)

// stepEnv makes the test binary a single step of a controller: attach, detach or grow, with the
// directory of the cloud and a size in bytes as arguments.
const stepEnv = "ATTACHED_TEST_STEP"

// changes are the system calls at which a test kills a step: not ioctls that only look at a loop
// device, since their number depends on the devices of the machine. Before the step itself, the
// process calls getsid(2).
var changes = map[uint64]string{
	unix.SYS_WRITE: "write", unix.SYS_FSYNC: "fsync", unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_IOCTL: "ioctl",
	unix.SYS_RENAMEAT: "rename", unix.SYS_RENAMEAT2: "rename", unix.SYS_UNLINKAT: "unlink", unix.SYS_MKDIRAT: "mkdir",
}

// step takes the step of the arguments, with the disk of the name v and the first node.
func step(args []string) error {
	c, err := openCloud(args[1], backendtest.Nodes, 16, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	size, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	v := killed{storage: &storage{cloud: c}, id: idOf("disk-", "v"), node: backendtest.Nodes[0]}
	if _, err := unix.Getsid(0); err != nil {
		return err
	}
	return v.take(args[0], size)
}

// killed is a disk whose controller is killed.
type killed struct {
	*storage
	id, node string
}

func (k killed) take(step string, size int64) (err error) {
	ctx := context.Background()
	switch step {
	case "attach":
		_, err = k.Attach(ctx, k.id, backend.AttachOptions{Node: k.node, Capability: "alone"})
	case "detach":
		err = k.Detach(ctx, k.id, k.node, nil)
	case "grow":
		_, _, err = k.Expand(ctx, k.id, backend.ExpandOptions{Required: size})
	default:
		err = fmt.Errorf("invalid step %q: must be attach, detach or grow", step)
	}
	return err
}

// killAt runs a step in a process of its own, and kills it as it enters the nth change. It returns
// the name of that system call, or "" if the step has ended before.
func killAt(t *testing.T, n int, args ...string) string {
	t.Helper()
	runtime.LockOSThread() // ptrace(2) takes calls of the thread that traces only
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), stepEnv+"=1"), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Release()
	at, status, err := await(cmd.Process.Pid, n)
	if err != nil {
		cmd.Process.Kill()
		t.Fatal(err)
	}
	if at == "" && status.ExitStatus() != 0 {
		t.Fatalf("%q: exit status %d", args, status.ExitStatus())
	}
	return at
}

// await lets a traced process run until a thread enters the nth change after getsid, and kills the
// process then. It returns the name of the system call, or "", and the status of the process.
func await(pid, n int) (at string, status syscall.WaitStatus, err error) {
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil { // it has just started
		return "", status, fmt.Errorf("wait: %w", err)
	}
	if err := unix.PtraceSetOptions(pid,
		unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		return "", status, fmt.Errorf("PTRACE_SETOPTIONS: %w", err)
	}
	begun := false
	for thread, signal := pid, 0; ; {
		if at == "" {
			if err := unix.PtraceSyscall(thread, signal); err != nil && !errors.Is(err, unix.ESRCH) {
				return "", status, fmt.Errorf("PTRACE_SYSCALL: %w", err)
			}
		}
		// WNOTHREAD: processes that other threads of the test have started are not waited for.
		if thread, err = syscall.Wait4(-1, &status, syscall.WALL|unix.WNOTHREAD, nil); err != nil {
			return "", status, fmt.Errorf("wait: %w", err)
		}
		signal = 0
		switch {
		case status.Exited() || status.Signaled():
			if thread == pid {
				return at, status, nil
			}
		case at != "": // about to die
		case status.StopSignal() == syscall.SIGTRAP|0x80: // PTRACE_O_TRACESYSGOOD
			call, request, err := entered(thread)
			if err != nil {
				return "", status, err
			}
			begun = begun || call == unix.SYS_GETSID
			if changes[call] == "" || !begun || (call == unix.SYS_IOCTL && request == unix.LOOP_GET_STATUS64) {
				continue
			}
			if n--; n == 0 {
				at = changes[call]
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					return "", status, fmt.Errorf("kill: %w", err)
				}
			}
		case status.StopSignal() != syscall.SIGTRAP && status.StopSignal() != syscall.SIGSTOP:
			signal = int(status.StopSignal())
		}
	}
}

// none is no number of a system call.
const none = ^uint64(0)

// entered returns the number of the system call that a stopped thread is about to enter, or none,
// and the second argument of the call: PTRACE_GET_SYSCALL_INFO of ptrace(2), Linux 5.3.
func entered(thread int) (call, argument uint64, err error) {
	const getSyscallInfo, atEntry = 0x420e, 1
	var info [88]byte // struct ptrace_syscall_info
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(thread), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 && errno != unix.ESRCH { // ESRCH: another thread has ended the process
		return none, 0, fmt.Errorf("PTRACE_GET_SYSCALL_INFO: %w", errno)
	}
	if errno != 0 || info[0] != atEntry {
		return none, 0, nil
	}
	return binary.NativeEndian.Uint64(info[24:]), binary.NativeEndian.Uint64(info[40:]), nil
}

// TestAStepIsRepeatedAfterItsControllerWasKilled at each change that an attach, a detach or a
// growth makes.
func TestAStepIsRepeatedAfterItsControllerWasKilled(t *testing.T) {
	dir := cloudDir(t)
	s := reopen(t, dir)
	v, err := s.Create(t.Context(),
		backend.CreateOptions{Name: "v", Required: unit, Access: []backend.Access{{Block: true}}})
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, unit)
	rand.Read(data)
	image, size := filepath.Join(dir, disksDir, v.ID, imageName), int64(unit)
	if err := os.WriteFile(image, data, 0); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"attach": {"fsync", "ioctl", "rename", "write"},
		"detach": {"fsync", "ioctl", "rename", "write"},
		"grow":   {"fsync", "ftruncate", "ioctl"},
	} {
		seen := map[string]int{}
		for n := 1; ; n++ {
			k := killed{s, v.ID, backendtest.Nodes[0]}
			if name != "attach" {
				err = k.take("attach", 0)
			}
			if name == "grow" {
				size += unit
			}
			if err := errors.Join(err, s.Close()); err != nil {
				t.Fatal(err)
			}
			at := killAt(t, n, name, dir, fmt.Sprint(size))
			s = reopen(t, dir)
			k.storage = s
			if err := k.take(name, size); err != nil {
				t.Fatalf("%s after a kill at change %d, %s: %v", name, n, at, err)
			}
			if name == "grow" { // the new process has found the device; the test makes the cloud know that
				k.wantDevice(t, image, data, size)
				size += unit
				err = k.take(name, size)
			}
			if err != nil {
				t.Fatal(err)
			}
			if name != "detach" {
				k.wantDevice(t, image, data, size)
				err = k.take("detach", 0)
			}
			got, getErr := s.Get(t.Context(), v.ID, nil)
			if err := errors.Join(err, getErr); err != nil || len(got.Nodes) > 0 || got.Size != size ||
				len(devicesOf(t, image)) > 0 {
				t.Fatalf("detached after a kill at change %d, %s, it is %+v, %v, with the devices %q", n, at, got, err,
					devicesOf(t, image))
			}
			if at == "" {
				break
			}
			seen[at]++
		}
		t.Logf("%s was killed at %v", name, seen)
		if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
			t.Errorf("%s was killed at %q, want %q", name, got, want)
		}
	}
	if got, err := os.ReadFile(image); err != nil || int64(len(got)) != size || !bytes.HasPrefix(got, data) {
		t.Errorf("the image has %d bytes, %v, or other data", len(got), err)
	}
}

// wantDevice checks that the node has exactly one device of the disk, with its data and size.
func (k killed) wantDevice(t *testing.T, image string, data []byte, size int64) {
	t.Helper()
	d, err := k.cloud.Disk(t.Context(), k.id)
	if err != nil {
		t.Fatal(err)
	}
	l, err := findLoop(label(d.Serial, k.id, k.node))
	if err != nil {
		t.Fatal(err)
	}
	if devices := devicesOf(t, image); !slices.Equal(devices, []string{l.path}) ||
		!slices.Equal(d.Nodes, []string{k.node}) {
		t.Errorf("the disk is attached to %q as %q, want %s alone", d.Nodes, devices, l.path)
	}
	got, err := os.ReadFile(l.path)
	if err != nil || int64(len(got)) != size || !bytes.HasPrefix(got, data) {
		t.Errorf("the device has %d bytes, %v, want %d, or has other data", len(got), err, size)
	}
}

// devicesOf returns the loop devices that have an image.
func devicesOf(t *testing.T, image string) (devices []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if backing, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(backing)) == image {
			devices = append(devices, "/dev/"+strings.Split(file, "/")[3])
		}
	}
	return devices
}
