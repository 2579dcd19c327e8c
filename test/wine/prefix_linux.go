package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/causeway-csi/causeway/internal/prereq"
)

// prefix is a directory with the state of a Windows machine. It is kept for the next run.
type prefix struct {
	dir  string
	lock *os.File
}

// openPrefix installs Wine if it is missing, and makes the prefix if it is new.
func openPrefix(ctx context.Context) (*prefix, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("the tests run Windows programs for amd64, and this machine is an %s", runtime.GOARCH)
	}
	if err := prereq.Install(ctx, os.Stdout, "wine"); err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	p := &prefix{dir: filepath.Join(cache, "causeway", "wine")}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	// The end of a run ends all programs of the prefix.
	if p.lock, err = os.Create(p.dir + ".lock"); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(p.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another run uses %s: %w", p.dir, err), p.lock.Close())
	}
	if err := p.prepare(ctx); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// prepare makes the parts of the prefix that are missing.
func (p *prefix) prepare(ctx context.Context) error {
	made := filepath.Join(p.dir, "made-by-causeway")
	if _, err := os.Stat(made); errors.Is(err, fs.ErrNotExist) {
		fmt.Println("wine: making", p.dir)
		cmd := p.command(ctx, "wine", "wineboot", "-i")
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("wineboot: %w: %s", err, out))
		}
		if err := os.WriteFile(made, nil, 0o600); err != nil {
			return err
		}
	}
	// Wine 8 does not have this DLL, in which the runtime of Go finds random numbers. Wine 10 has.
	const dll = "bcryptprimitives.dll"
	file, content := p.path(`C:\windows\system32\`+dll), forwarder(dll, "ProcessPrng", "advapi32.SystemFunction036")
	if info, err := os.Stat(file); err == nil && info.Size() > int64(2*len(content)) {
		return p.clear()
	}
	return errors.Join(os.WriteFile(file, content, 0o600), p.clear())
}

// clear removes the files of former runs, if one was killed.
func (p *prefix) clear() error {
	temp, err := filepath.Glob(p.path(`C:\users\*\Temp\*`))
	for _, path := range append(temp, p.path(`C:\causeway-links`), p.path(ownDir)) {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// path returns the path outside of Wine of a file on the drive C.
func (p *prefix) path(windows string) string {
	return filepath.Join(p.dir, "drive_c", strings.ReplaceAll(strings.TrimPrefix(windows, "C:"), `\`, "/"))
}

// command returns a command for programs of the prefix. Its end, or that of ctx, is not the end of
// the programs that it has started: see close.
func (p *prefix) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DISPLAY=") }),
		"WINEPREFIX="+p.dir, "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml=")
	// A terminal's signals are for this program, which ends the others.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second // for a program that holds the output open
	return cmd
}

// close ends all programs of the prefix, and its server.
func (p *prefix) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := p.command(ctx, "wineserver", "-k").CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(out) == 0 { // no server was running
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("end the programs of Wine: %w: %s", err, out)
	}
	return errors.Join(err, p.clear(), p.lock.Close())
}
