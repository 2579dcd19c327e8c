package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/storagesuite"
	"github.com/causeway-csi/causeway/test/cluster/windows"
)

// checkDriver checks a driver definition and the files that it names. checkDriver returns the
// notes. The error has all mistakes.
func (c config) checkDriver(ctx context.Context, bin string) (notes []string, err error) {
	var out, mistakes bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(bin, storagesuite.Binary), "-check", "-driver="+c.definition)
	cmd.Stdout, cmd.Stderr = &out, &mistakes
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, fmt.Errorf("invalid driver definition:\n%s", bytes.TrimSpace(mistakes.Bytes()))
	}
	return slices.Collect(strings.FieldsFuncSeq(out.String(), func(r rune) bool { return r == '\n' })), err
}

// suite runs specs of a configuration.
type suite struct {
	config  config
	cluster features
	bin     string // where the programs are
	kubectl kubectl.Kubectl
	key     string // of SSH; empty if there is none
	procs   int
}

// The specs of drivers that driver files describe, as the program has others too, and those of them
// that may have no others beside them.
const (
	external = `External.Storage`
	alone    = `\[Serial\]|\[Disruptive\]`
)

// selection is which specs to run.
type selection struct {
	name  string // of its files
	focus string
	skip  []string
	procs int
}

// selections returns the parts of a run of a scope. Kubernetes marks specs that must run alone;
// ginkgo knows of [Serial] only.
func (s suite) selections(scope string) []selection {
	left := s.config.leftOut(s.cluster)
	beside := append([]string{alone}, left...)
	some := external + `.*(` + strings.Join(s.config.Smoke, "|") + `)`
	switch {
	case scope == full:
		return []selection{
			{"parallel", external, beside, s.procs},
			{"serial", external + `.*(` + alone + `)`, left, 1},
		}
	case scope == focus && s.procs == 1: // nothing runs beside a spec that must run alone
		return []selection{{focus, some, left, 1}}
	}
	return []selection{{scope, some, beside, s.procs}}
}

// limit is on a selection. It takes a quarter of an hour where this was written.
const limit = 3 * time.Hour

// run runs the specs, and writes ginkgo's report and log into dir. That specs fail is no error: the
// report has the reason.
func (s suite) run(ctx context.Context, sel selection, dir string) (o outcome, cpu float64, err error) {
	args := []string{
		"run", "--procs=" + strconv.Itoa(sel.procs), "--timeout=" + limit.String(), "--no-color", "--keep-going",
		"--silence-skips",
		"--output-dir=" + dir, "--json-report=" + s.config.name + "." + sel.name + ".ginkgo.json",
		"--focus=" + sel.focus,
	}
	for _, p := range sel.skip {
		args = append(args, "--skip="+p)
	}
	provider := "skeleton"
	if s.key != "" { // some specs skip themselves for providers whose nodes they cannot enter
		provider = "local"
	}
	args = append(args, filepath.Join(s.bin, storagesuite.Binary), "--",
		"-kubeconfig="+s.kubectl.Kubeconfig(), "-provider="+provider, "-repo-root="+s.config.dir,
		"-driver="+s.config.definition,
		// Nodes for Windows have a taint, with which the suite would wait for them to lose it.
		"-non-blocking-taints=node-role.kubernetes.io/control-plane,"+windows.Taint.Key)
	path := filepath.Join(dir, s.config.name+"."+sel.name+".ginkgo.json")
	// results of an earlier run could be taken for those of this run
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return o, 0, err
	}
	log, err := os.Create(filepath.Join(dir, s.config.name+"."+sel.name+".log"))
	if err != nil {
		return o, 0, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, storagesuite.Ginkgo), args...)
	cmd.Env = append(s.kubectl.Environment(), "KUBE_SSH_KEY_PATH="+s.key, "KUBE_SSH_USER=root")
	cmd.Stdout, cmd.Stderr = log, log
	// In a group of its own, so that a terminal's Ctrl-C reaches it once: the second would keep
	// specs from tidying up. All of the group gets it, as ginkgo tells its processes nothing.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 2 * time.Minute
	failed := cmd.Run()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // processes that outlived it; mostly none
	}
	if cmd.ProcessState != nil {
		cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	if err := ctx.Err(); err != nil {
		return o, cpu, err
	}
	o, err = readReport(path)
	if err != nil {
		return o, cpu, fmt.Errorf("ginkgo: %w; %w; its log is %s", failed, err, log.Name())
	}
	if failed != nil {
		o.wrong = append(o.wrong, fmt.Sprintf("ginkgo: %v; its log is %s", failed, log.Name()))
	}
	return o, cpu, nil
}

// unmatched returns the patterns that match no spec: the specs were renamed or removed.
func unmatched(patterns []string, o outcome) []string {
	var none []string
next:
	for _, p := range patterns {
		re := regexp.MustCompile(p)
		for _, s := range o.all {
			if re.MatchString(s.Name) {
				continue next
			}
		}
		none = append(none, p)
	}
	return none
}

// suiteVersions returns the versions of the suite's modules. Test programs have no such data;
// programs built with them do.
func suiteVersions(bin string) (map[string]string, error) {
	versions := map[string]string{}
	for name, program := range map[string]string{"suite": storagesuite.Agnhost, "ginkgo": storagesuite.Ginkgo} {
		info, err := buildinfo.ReadFile(filepath.Join(bin, program))
		if err != nil {
			return nil, err
		}
		versions[name], versions["go"] = info.Main.Version, info.GoVersion
	}
	return versions, nil
}
