package namespace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
)

// asProgram is set in the environment where this test's binary is to be the program below.
const asProgram = "CAUSEWAY_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "1":
		code := program()
		if code == cleanedUp { // the second signal of a terminal may arrive as late as this
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				fmt.Println(err)
				code = 1
			}
		}
		os.Exit(code)
	case "alone":
		os.Exit(parent())
	case "mounts":
		os.Exit(mounts())
	}
	os.Exit(m.Run())
}

const cleanedUp, noNamespace = 7, 8 // exit codes

// program cleans up when it gets SIGTERM: it prints a line, and ends after its parent has closed
// its input.
func program() int {
	if err := Enter(); err != nil {
		fmt.Println(err)
		return noNamespace
	}
	ctx := SignalContext()
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println("cleaning up")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		fmt.Println(err)
		return 1
	}
	return cleanedUp
}

// parent starts another program, which outlives it in another process group.
func parent() int {
	if err := EnterAlone(); err != nil {
		fmt.Println(err)
		return noNamespace
	}
	child := exec.Command("sleep", "600")
	child.Stdout = os.Stdout // open for as long as it lives
	if err := child.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", child.Process.Pid)); err != nil || os.Getpid() != 1 {
		fmt.Println("/proc is another namespace's:", err)
		return 1
	}
	fmt.Println("ready")
	select {}
}

func TestChildrenEndWithTheirProgram(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"=alone")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	said, _ := out.ReadString('\n')
	if said == "ready\n" {
		cmd.Process.Kill()
	}
	rest, err := io.ReadAll(out) // until no process has it open
	if err != nil || ctx.Err() != nil {
		t.Errorf("the child lives: %v, %v", err, ctx.Err())
	}
	switch cmd.Wait(); {
	case said == "ready\n" && len(rest) == 0:
	case cmd.ProcessState.ExitCode() == noNamespace:
		Skip(t, strings.TrimSpace(said))
	default:
		t.Errorf("it said %q and %q", said, rest)
	}
}

// mounts makes a mount in a namespace, and starts itself in the same namespace, and in another. Each
// run prints the mounts below the temporary directory.
func mounts() int {
	if err := Enter(); err != nil {
		fmt.Println(err)
		return noNamespace
	}
	if len(os.Args) > 1 {
		if err := syscall.Mount("none", os.Args[1], "tmpfs", 0, ""); err != nil {
			fmt.Println(err)
			return noNamespace
		}
	}
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(os.TempDir()))
	fmt.Println(len(found), "mounts", err)
	if len(os.Args) == 1 {
		return 0
	}
	for _, namespace := range []string{os.Getenv(inside), ""} {
		next := exec.Command(os.Args[0])
		next.Env = append(os.Environ(), inside+"="+namespace)
		next.Stdout, next.Stderr = os.Stdout, os.Stderr
		if err := next.Run(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return 0
}

func TestANamespaceHasNoMountsOfOtherTests(t *testing.T) {
	if os.Geteuid() != 0 {
		Skip(t, "the kernel locks the mounts that a user namespace inherits")
	}
	temp := t.TempDir()
	disk := filepath.Join(temp, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], disk)
	cmd.Env = append(os.Environ(), asProgram+"=mounts", "TMPDIR="+temp)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() == noNamespace {
		Skip(t, string(out))
	}
	if want := "1 mounts <nil>\n1 mounts <nil>\n0 mounts <nil>\n"; err != nil || string(out) != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
}

func TestWhoeverIsAskedToEndMayCleanUp(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !slices.Contains(signals(), os.Signal(s)) { // go test runs under nohup
			continue
		}
		t.Run(s.String()+" from a process", func(t *testing.T) { endWith(t, s, false) })
		t.Run(s.String()+" from a terminal", func(t *testing.T) { endWith(t, s, true) })
	}
}

// endWith sends a signal to a program in a namespace, or rather to the process that waits for it;
// as a terminal does, to both of them.
func endWith(t *testing.T, s syscall.Signal, both bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	said, err := out.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if said == "ready\n" {
		pid := cmd.Process.Pid
		if both {
			pid = -pid
		}
		if err := syscall.Kill(pid, s); err != nil {
			t.Error(err)
		}
		if last, err := out.ReadString('\n'); last != "cleaning up\n" {
			t.Errorf("after the signal it said %q, %v", last, err)
		}
		stdin.Close()
	}
	switch err := cmd.Wait(); cmd.ProcessState.ExitCode() {
	case cleanedUp:
	case noNamespace:
		Skip(t, strings.TrimSpace(said))
	default:
		t.Errorf("it ended with %v, after it said %q", err, said)
	}
}
