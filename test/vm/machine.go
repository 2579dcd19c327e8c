package main

import (
	"context"
	_ "embed" // the policy of SELinux
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/internal/qemu"
)

const module = "github.com/causeway-csi/causeway/"

// machine is the content of the guest.
type machine struct {
	dir    string // of our own, for all that is made
	kernel qemu.Kernel
	initrd string // path of an archive
	smb    string // of smbtest.EnvRemote, as the guest sees it

	selinux bool
}

// prepare makes all that the guest needs.
func (m *machine) prepare(ctx context.Context, metapackage string, suites []suite) error {
	var err error
	if m.kernel, err = qemu.FindKernel(ctx, os.Stdout, metapackage); err != nil {
		return err
	}
	m.initrd = filepath.Join(m.dir, "initrd")
	out, err := os.Create(m.initrd)
	if err != nil {
		return err
	}
	defer out.Close()
	a := qemu.NewArchive(out)
	for _, add := range []func(context.Context, *qemu.Archive, []suite) error{
		m.addTests, m.addModules, addPrograms, m.addPolicy,
	} {
		if err := add(ctx, a, suites); err != nil {
			return err
		}
	}
	return a.End()
}

// addTests builds the init and the tests. The init reads from a file which tests to run.
func (m *machine) addTests(ctx context.Context, a *qemu.Archive, suites []suite) error {
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
		a.File(name, content)
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
	a.File("/tests/list", []byte(list.String()))
	a.File("/tests/disks", []byte(strings.Join(disks, " ")))
	a.File("/tests/smb", []byte(m.smb))
	return nil
}

// addModules adds the modules of the kernel, and a list of them in the order in which they can be
// loaded.
func (m *machine) addModules(ctx context.Context, a *qemu.Archive, _ []suite) error {
	order, err := m.kernel.Order(ctx, modules)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, mod := range order {
		name := path.Join("/modules", mod.Name)
		a.File(name, mod.Content)
		fmt.Fprintln(&list, name)
	}
	a.File("/modules/list", []byte(list.String()))
	return nil
}

// policy is the policy of a guest with SELinux.
//
//go:embed selinux.conf
var policy []byte

// addPolicy adds the compiled policy, for a guest with SELinux.
func (m *machine) addPolicy(ctx context.Context, a *qemu.Archive, _ []suite) error {
	if !m.selinux {
		return nil
	}
	source, compiled := filepath.Join(m.dir, "policy.conf"), filepath.Join(m.dir, "policy")
	if err := os.WriteFile(source, policy, 0o600); err != nil {
		return err
	}
	const version = "31" // Linux 4.13: newer kernels load older versions
	if err := qemu.Command(ctx, "checkpolicy", "-M", "-U", "allow", "-c", version, "-o", compiled, source); err != nil {
		return err
	}
	content, err := os.ReadFile(compiled)
	if err == nil {
		a.File("/selinux/policy", content)
	}
	return err
}

// addPrograms adds programs of this machine with their libraries.
func addPrograms(_ context.Context, a *qemu.Archive, _ []suite) error {
	added := map[string]bool{}
	for _, p := range programs {
		file, err := exec.LookPath(p)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		a.File("/bin/"+p, content)
		if err := qemu.AddLibraries(a, content, added); err != nil {
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
		a.File(name, content)
	}
	return nil
}
