package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/qemu"
)

// memory of the guest, in MiB. It is taken from the machine as the guest writes to it.
const memory = "2048"

func supported() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the guest is an amd64, and runs this machine's programs, which are for %s", runtime.GOARCH)
	}
	// A SIGKILL of go run, or of another parent, does not reach this process.
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0)
}

// disks makes a file for each disk, and returns the options of QEMU for them.
func (m *machine) disks() (options []string, err error) {
	const size = 64 << 20 // bytes
	options = []string{"-device", "virtio-scsi-pci"}
	for _, name := range disks {
		file := filepath.Join(m.dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return nil, err
		}
		if err := os.Truncate(file, size); err != nil {
			return nil, err
		}
		options = append(options, "-drive", "format=raw,if=none,id="+name+"-file,file="+file,
			"-device", name+",drive="+name+"-file,serial="+name)
	}
	return options, nil
}

// boot runs the guest, prints its output, and returns its result. The guest has ended on return,
// and ends with this process in any case.
func (m *machine) boot(ctx context.Context, limit time.Duration) (results string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest took longer than %s", limit))
	defer cancel()
	file := filepath.Join(m.dir, "results")
	attached, err := m.disks()
	if err != nil {
		return "", err
	}
	parameters := qemu.Append
	if m.selinux {
		parameters += " security=selinux selinux=1 enforcing=0"
	}
	cmd := exec.CommandContext(ctx, qemu.Emulator, slices.Concat(qemu.Machine(), attached, []string{
		"-m", memory, "-kernel", m.kernel.Image, "-initrd", m.initrd, "-append", parameters,
		"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=",
		"-serial", "stdio", "-serial", "file:" + file,
	})...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// It ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// a terminal's signals are ours to pass on
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	failed := cmd.Run()
	if ctx.Err() != nil {
		failed = context.Cause(ctx)
	}
	written, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if failed != nil {
		lines := strings.Split(strings.TrimSpace(string(written)), "\n")
		failed = fmt.Errorf("%s: %w; the last that the tests said: %q", qemu.Emulator, failed, lines[len(lines)-1])
	}
	return string(written), errors.Join(failed, err)
}
