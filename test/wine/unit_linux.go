package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// tags and flags of programs that run under Wine: see internal/winetest.
var wineBuild = []string{"-tags=winetest,grpcnotrace", "-ldflags=-checklinkname=0"}

// quietly runs a program under Wine with its output in a file. The first program of a prefix starts
// services that inherit its output and outlive it, and go test waits for the end of the output.
const quietly = `out=$(mktemp "$WINEPREFIX/drive_c/causeway-test/out.XXXXXX") || exit 1; ` +
	`wine "$@" >"$out" 2>&1; code=$?; cat "$out"; rm "$out"; exit $code`

// windows is the environment of a build for Windows.
var windows = []string{"GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0"}

// sanityOnLinux runs csi-sanity on Linux, for comparison.
func sanityOnLinux(ctx context.Context, p *prefix) (*outcome, error) {
	on, err := test(ctx, p.command(ctx, "go", "test", "-json", "-count=1", "-timeout=0", "-run=^TestSanity$",
		module+sanityPackage))
	if err != nil {
		return nil, err
	}
	o := on[module+sanityPackage]
	if o == nil || o.action != "pass" || o.specs[required].passed == "" {
		if o != nil {
			o.printFailures()
		}
		return nil, fmt.Errorf("csi-sanity failed on Linux, or did not run with %q", required)
	}
	return o, nil
}

// runUnitTests runs the unit tests under Wine. linux is the outcome of sanityOnLinux.
func runUnitTests(ctx context.Context, p *prefix, linux *outcome) (*row, error) {
	if err := os.MkdirAll(p.path(ownDir), 0o700); err != nil {
		return nil, err
	}
	start := time.Now()
	args := append([]string{"test", "-json", "-count=1", "-timeout=0", "-exec=sh -c '" + quietly + "' sh"},
		wineBuild...)
	for _, name := range packages {
		args = append(args, module+name)
	}
	cmd := p.command(ctx, "go", args...)
	// The tests of real mounts are for Linux. CI demands them with this variable.
	cmd.Env = append(append(cmd.Env, windows...), "CAUSEWAY_MUST_MOUNT=")
	wine, err := test(ctx, cmd)
	if err != nil {
		return nil, err
	}
	result := newRow("own", "none", "unit tests under Wine")
	for _, name := range packages {
		if o := wine[module+name]; o != nil {
			fmt.Printf("%-4s %-40s %3d tests passed, %d skipped\n", o.action, name, o.passed, len(o.skips))
			o.printFailures()
			result.add(name, o)
		}
	}
	if err := judge(packages, wine, linux); err != nil {
		return nil, err
	}
	result.Seconds = time.Since(start).Seconds()
	o := wine[module+sanityPackage]
	fmt.Println("csi-sanity under Wine, as on Linux:", o.summary)
	for _, c := range slices.Sorted(maps.Keys(o.specs)) {
		fmt.Printf("  %s: %s passed, %s do not apply\n", c, o.specs[c].passed, o.specs[c].skipped)
	}
	return result, nil
}

// test runs go test -json. A failure of a test is no error.
func test(ctx context.Context, cmd *exec.Cmd) (map[string]*outcome, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	outcomes, unread := read(&out)
	if len(outcomes) == 0 || unread != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[:2], " "), errors.Join(err, unread), errs.Bytes())
	}
	if err != nil { // such as the compiler's messages
		os.Stderr.Write(errs.Bytes())
	}
	return outcomes, nil
}

// printFailures prints the output of the tests that failed, or of a package that failed without
// one.
func (o *outcome) printFailures() {
	failed := o.failed
	if len(failed) == 0 && o.action == "pass" {
		return
	}
	for _, name := range append(failed, "") {
		for _, line := range o.output[name] {
			fmt.Print("    ", line)
		}
	}
}
