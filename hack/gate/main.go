//go:build unix

// Command gate runs the suites of CI in two lanes, as .ci/run does. A suite that fails interrupts
// the other lane. The end of the output is a summary with the duration of each suite. At the limit
// of CAUSEWAY_CI_SECONDS, the running suites are interrupted, and the program fails.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// standardLimit is less than the time after which CI ends a run without its output.
const standardLimit = 5100

func main() {
	// SIGPIPE: otherwise this program would end before its suites if nothing reads its output.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP,
		syscall.SIGPIPE)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	limit, err := parseLimit(os.Getenv("CAUSEWAY_CI_SECONDS"))
	if err != nil {
		return err
	}
	lanes, left, err := thisMachine().plan()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "causeway-gate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	start := time.Now()
	g := &gate{out: os.Stdout, dir: dir, limit: time.After(limit), grace: time.Minute}
	results, err := g.run(ctx, lanes, ownSteps)
	if err == nil {
		err = unchanged(ctx)
	}
	for _, l := range left {
		g.print("\n== left out: %s", l)
	}
	g.summary(results, time.Since(start), err)
	return err
}

// parseLimit parses a number of seconds.
func parseLimit(text string) (time.Duration, error) {
	if text == "" {
		return standardLimit * time.Second, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("invalid CAUSEWAY_CI_SECONDS %q: must be a number of seconds", text)
	}
	return time.Duration(n) * time.Second, nil
}

// unchanged returns an error if the suites have changed the sources.
func unchanged(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "git", "status", "--porcelain").CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		return errors.Join(err, fmt.Errorf("the suites have changed the sources: %s", out))
	}
	return nil
}

// machine has the properties of a machine that decide which suites run.
type machine struct {
	root       bool
	groupsOne  bool // control groups of version 1
	debian     bool // for amd64
	noClusters bool // CAUSEWAY_NO_CLUSTER is set
	noCopy     bool // the folder containercopy was removed
}

func thisMachine() machine {
	release, _ := os.ReadFile("/etc/os-release") // missing: not Debian
	_, groupsErr := os.Stat("/sys/fs/cgroup/memory")
	_, copyErr := os.Stat("containercopy")
	return machine{root: os.Geteuid() == 0, groupsOne: groupsErr == nil, noCopy: errors.Is(copyErr, fs.ErrNotExist),
		noClusters: os.Getenv("CAUSEWAY_NO_CLUSTER") != "",
		debian:     runtime.GOARCH == "amd64" && strings.Contains("\n"+string(release), "\nID=debian\n")}
}

// ownSteps is the number of the first steps of the first lane that the second does not take: those
// that compile for Windows follow one another, as each needs several GB, after the long ones.
const ownSteps = 5

// plan returns the steps of the two lanes, and the suites that this machine cannot run. The first
// lane computes. The suites of the second lane wait, for emulators and for events in clusters. When
// they have ended, the second lane takes suites from the end of the first.
func (m machine) plan() (lanes [][]step, left []string, err error) {
	compute := targets("test", "test-sidecars", "test-images", "lint", "vet", "demo")
	if m.noCopy {
		left = append(left, "make test-copy: the folder containercopy was removed")
	} else {
		compute = append(append(compute, targets("test-copy")...), step{"./hack/without-containercopy"})
	}
	compute = append(compute, targets("test-plugin", "docs", "test-release", "test-rules", "fuzz FUZZTIME=2s",
		"race-smoke")...)
	var wait []step
	if m.debian {
		wait = targets("test-vm", "test-wine")
	} else {
		left = append(left, "make test-vm and make test-wine need Debian's packages for amd64")
	}
	switch {
	case m.noClusters:
		compute = append(compute, targets("own-driver")...)
		left = append(left, "the clusters: CAUSEWAY_NO_CLUSTER is set")
	case m.root && m.groupsOne:
		wait = append(wait, targets("clusters SCENARIOS=--only=demo,quickstart,attached,own-driver")...)
	default:
		return nil, nil, errors.New("a cluster on this machine needs root and control groups of version 1; " +
			"to leave it out, set CAUSEWAY_NO_CLUSTER=1")
	}
	return [][]step{compute, wait}, left, nil
}

// targets returns a step for each target of the Makefile.
func targets(names ...string) []step {
	var all []step
	for _, name := range names {
		all = append(all, append(step{"make"}, strings.Fields(name)...))
	}
	return all
}
