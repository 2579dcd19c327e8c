package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
)

// Command runs a program. The error has its output. On Linux the program ends when this process is
// killed.
func Command(ctx context.Context, name string, args ...string) error {
	return commandIn(ctx, "", name, args...)
}

// commandIn is Command in a directory.
func commandIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.SysProcAttr = dir, dieWithThread()
	runtime.LockOSThread() // the program ends with this thread
	defer runtime.UnlockOSThread()
	return run(ctx, cmd)
}

func run(ctx context.Context, cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out)))
	}
	return nil
}
