package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	module   = "github.com/causeway-csi/causeway/"
	emulator = "qemu-system-x86_64"
)

// machine is the content of the guest.
type machine struct {
	dir    string // of our own, for all that is made
	kernel kernel
	initrd string // path of an archive
	smb    string // of smbtest.EnvRemote, as the guest sees it
}

// program is a program that the guest needs, and the package of Debian that has it.
type program struct{ name, pkg string }

// prepare makes all that the guest needs.
func (m *machine) prepare(ctx context.Context, metapackage string, suites []suite) error {
	if err := supported(); err != nil {
		return err
	}
	// Where the programs are that make filesystems, and only root's shell looks.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return err
	}
	needed := append([]program{{emulator, "qemu-system-x86"}, {"xz", "xz-utils"}}, programs...)
	if err := install(ctx, needed); err != nil {
		return err
	}
	var err error
	if m.kernel, err = findKernel(ctx, metapackage); err != nil {
		return err
	}
	m.initrd = filepath.Join(m.dir, "initrd")
	out, err := os.Create(m.initrd)
	if err != nil {
		return err
	}
	defer out.Close()
	a := &archive{out: out}
	for _, add := range []func(context.Context, *archive, []suite) error{m.addTests, m.addModules, addPrograms} {
		if err := add(ctx, a, suites); err != nil {
			return err
		}
	}
	return a.end()
}

// install installs the packages of programs that are missing, if we may.
func install(ctx context.Context, programs []program) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.name); err != nil && !slices.Contains(missing, p.pkg) {
			missing = append(missing, p.pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("install these first: %s", strings.Join(missing, " "))
	}
	fmt.Println("vm: installing:", strings.Join(missing, " "))
	if err := command(ctx, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	return command(ctx, "apt-get", append([]string{"install", "-y", "-qq", "--no-install-recommends"}, missing...)...)
}

// command runs a program that says nothing if all is well.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	// systemctl starts no service of a package, such as smbd on the ports of this machine.
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_OFFLINE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out)))
	}
	return nil
}

// addTests builds the init and the tests. The init reads from a file which tests to run.
func (m *machine) addTests(ctx context.Context, a *archive, suites []suite) error {
	var list strings.Builder
	build := func(name string, args ...string) error {
		path := filepath.Join(m.dir, "program")
		cmd := exec.CommandContext(ctx, "go",
			append(args[:len(args)-1:len(args)-1], "-buildvcs=false", "-ldflags=-s -w", "-o", path,
				module+args[len(args)-1])...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out))
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		a.file(name, content)
		return os.Remove(path)
	}
	if err := build("/init", "build", "test/vm/guest"); err != nil {
		return err
	}
	for i, s := range suites {
		name := fmt.Sprintf("/tests/%d", i)
		if err := build(name, "test", "-c", s.Package); err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s\t%s\t%s\n", name, s.Package, s.Run)
	}
	a.file("/tests/list", []byte(list.String()))
	a.file("/tests/disks", []byte(strings.Join(disks, " ")))
	a.file("/tests/smb", []byte(m.smb))
	return nil
}

// addModules adds the modules of the kernel, and a list of them in the order in which they can be
// loaded.
func (m *machine) addModules(ctx context.Context, a *archive, _ []suite) error {
	order, err := m.kernel.order(ctx, modules)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, mod := range order {
		name := path.Join("/modules", mod.name)
		a.file(name, mod.content)
		fmt.Fprintln(&list, name)
	}
	a.file("/modules/list", []byte(list.String()))
	return nil
}

// addPrograms adds programs of this machine with their libraries.
func addPrograms(_ context.Context, a *archive, _ []suite) error {
	added := map[string]bool{}
	for _, p := range programs {
		file, err := exec.LookPath(p.name)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		a.file("/bin/"+p.name, content)
		if err := addLibraries(a, content, added); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, name := range settings {
		content, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		a.file(name, content)
	}
	return nil
}
