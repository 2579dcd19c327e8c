// Command guest is the init of the guest of test/vm: it loads modules of the kernel, runs tests,
// and turns the machine off. The other side reads the result from the second serial port.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "this is the init of the guest of test/vm, and turns the machine off")
		os.Exit(1)
	}
	if err := run(); err != nil {
		fmt.Println("vm:", err)
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		panic(err)
	}
}

func run() error {
	if err := mount(); err != nil {
		return err
	}
	if err := loadPolicy(); err != nil {
		return err
	}
	results, err := os.OpenFile("/dev/ttyS1", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer results.Close()
	if err := loadModules(); err != nil {
		return err
	}
	if err := network(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	smb, err := lines("/tests/smb")
	if err != nil {
		return err
	}
	disks, err := lines("/tests/disks")
	if err != nil {
		return err
	}
	list, err := lines("/tests/list")
	if err != nil {
		return err
	}
	for _, line := range list {
		f := strings.Split(line, "\t")
		suite := f[1] + "#" + f[2] // test/vm expects the package and the pattern without spaces
		fmt.Fprintf(results, "vm: begin %s\n", suite)
		fmt.Printf("\n== %s -run %s\n", f[1], f[2])
		exit := test(io.MultiWriter(os.Stdout, results), disks[0], smb[0], f[0], f[2])
		fmt.Fprintf(results, "\nvm: end %s %s\n", suite, exit)
	}
	_, err = fmt.Fprintln(results, "vm: done")
	return err
}

func mount() error {
	if err := os.Symlink("bin", "/sbin"); err != nil { // mount(8) runs /sbin/mount.cifs
		return err
	}
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""}, {"tmpfs", "/tmp", "size=75%"}, {"tmpfs",
			"/dev/shm", ""},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return nil
}

// loadPolicy gives SELinux its policy, if the guest has one.
func loadPolicy() error {
	policy, err := os.ReadFile("/selinux/policy")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	const at = "/sys/fs/selinux"
	if err := unix.Mount("selinuxfs", at, "selinuxfs", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	return os.WriteFile(at+"/load", policy, 0)
}

func loadModules() error {
	list, err := lines("/modules/list")
	if err != nil {
		return err
	}
	for _, name := range list {
		module, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := unix.InitModule(module, ""); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

// network gives the guest the address that QEMU's user network expects. The machine of the guest is
// 10.0.2.2 on the same network.
func network() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	for _, link := range []struct {
		name          string
		address, mask []byte
	}{
		{"lo", []byte{127, 0, 0, 1}, []byte{255, 0, 0, 0}},
		{"eth0", []byte{10, 0, 2, 15}, []byte{255, 255, 255, 0}},
	} {
		set := func(request uint, value func(*unix.Ifreq) error) error {
			ifr, err := unix.NewIfreq(link.name)
			if err == nil {
				err = value(ifr)
			}
			if err == nil {
				err = unix.IoctlIfreq(socket, request, ifr)
			}
			return err
		}
		if err := errors.Join(
			set(unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(link.address) }),
			set(unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(link.mask) }),
			set(unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error {
				r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
				return nil
			}),
		); err != nil {
			return fmt.Errorf("%s: %w", link.name, err)
		}
	}
	return nil
}

// test runs tests and returns "0", or how they ended: only a test that hangs meets the limit. disks
// are the serial numbers of the guest's disks, smb is the value of smbtest.EnvRemote.
func test(out io.Writer, disks, smb, program, pattern string) string {
	cmd := exec.Command(program, "-test.v", "-test.count=1", "-test.timeout=50m", "-test.run="+pattern)
	cmd.Dir = "/tmp"
	cmd.Env = []string{"PATH=/bin", "HOME=/tmp", "CAUSEWAY_MUST_MOUNT=1", "CAUSEWAY_TEST_DISKS=" + disks,
		"CAUSEWAY_TEST_SMB=" + smb}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return err.Error()
	}
	return "0"
}

func lines(file string) ([]string, error) {
	content, err := os.ReadFile(file)
	return strings.Split(strings.TrimSpace(string(content)), "\n"), err
}
