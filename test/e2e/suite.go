package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
)

// The programs that are made for the suite, of tools/suite.
const (
	ginkgo      = "ginkgo"
	suiteBinary = "suite.test" // ginkgo wants that ending
	agnhost     = "agnhost"
)

// programs builds them, which takes minutes the first time, and returns the directory that has them.
func programs(ctx context.Context) (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", errors.New("this was built with -trimpath: it doesn't know where its sources are")
	}
	return components.BuildTools(ctx, os.Stderr, filepath.Join(filepath.Dir(file), "tools"), map[string]components.Tool{
		ginkgo:      {Module: "suite", Package: "github.com/onsi/ginkgo/v2/ginkgo"},
		suiteBinary: {Module: "suite", Package: ".", Test: true},
		agnhost:     {Module: "suite", Package: "k8s.io/kubernetes/test/images/agnhost"},
	})
}

// checkDriver returns what is wrong with a configuration's driver file, and the files that it names: what the suite would say, after minutes.
func (c config) checkDriver(ctx context.Context, bin string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, suiteBinary), "-repo-root="+c.dir, "-driver="+filepath.Join(c.dir, driverFile), "-list-images")
	out, err := cmd.CombinedOutput()
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n") // then come all of its flags
		return fmt.Errorf("%s: %w: %s", c.dir, err, first)
	}
	return nil
}

// suite runs specs of one configuration.
type suite struct {
	config  config
	bin     string // where the programs are
	kubectl kubectl.Kubectl
	key     string // of SSH; empty if there is none
	procs   int
}

// The specs of drivers that driver files describe, as the program has others too, and those of them that may have no others beside
// them.
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

// selections returns what a run of a scope consists of. Kubernetes marks specs that must run alone; ginkgo knows of [Serial] only.
func (s suite) selections(scope string) []selection {
	left := s.config.leftOut(s.key != "")
	if scope == smoke {
		return []selection{{"smoke", external + `.*(` + strings.Join(s.config.Smoke, "|") + `)`, append([]string{alone}, left...), s.procs}}
	}
	return []selection{
		{"parallel", external, append([]string{alone}, left...), s.procs},
		{"serial", external + `.*(` + alone + `)`, left, 1},
	}
}

// limit is on a selection. It takes a quarter of an hour where this was written.
const limit = 3 * time.Hour

// run runs the specs, and writes ginkgo's report and log into dir. That specs fail is no error: the report says so.
func (s suite) run(ctx context.Context, sel selection, dir string) (o outcome, cpu float64, err error) {
	args := []string{
		"run", "--procs=" + strconv.Itoa(sel.procs), "--timeout=" + limit.String(), "--no-color", "--keep-going", "--silence-skips",
		"--output-dir=" + dir, "--json-report=" + s.config.name + "." + sel.name + ".ginkgo.json", "--focus=" + sel.focus,
	}
	for _, p := range sel.skip {
		args = append(args, "--skip="+p)
	}
	provider := "skeleton"
	if s.key != "" { // some specs skip themselves with providers whose nodes, they think, can't be entered
		provider = "local"
	}
	args = append(args, filepath.Join(s.bin, suiteBinary), "--",
		"-kubeconfig="+s.kubectl.Kubeconfig(), "-provider="+provider, "-repo-root="+s.config.dir,
		"-driver="+filepath.Join(s.config.dir, driverFile))
	path := filepath.Join(dir, s.config.name+"."+sel.name+".ginkgo.json")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // an earlier run's would be taken for this one's
		return o, 0, err
	}
	log, err := os.Create(filepath.Join(dir, s.config.name+"."+sel.name+".log"))
	if err != nil {
		return o, 0, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, ginkgo), args...)
	cmd.Env = append(s.kubectl.Environment(), "KUBE_SSH_KEY_PATH="+s.key, "KUBE_SSH_USER=root")
	cmd.Stdout, cmd.Stderr = log, log
	// In a group of its own, so that a terminal's Ctrl-C reaches it once: the second would keep specs from tidying up. All of the
	// group gets it, as ginkgo tells its processes nothing.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 2 * time.Minute
	failed := cmd.Run()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what has outlived it; mostly nobody
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

// unmatched returns the patterns that match no spec: there was one when they were written.
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

// suiteVersions returns the versions of what the suite is made of. Tests' programs don't say; those that are built with them do.
func suiteVersions(bin string) (map[string]string, error) {
	versions := map[string]string{}
	for name, program := range map[string]string{"suite": agnhost, "ginkgo": ginkgo} {
		info, err := buildinfo.ReadFile(filepath.Join(bin, program))
		if err != nil {
			return nil, err
		}
		versions[name], versions["go"] = info.Main.Version, info.GoVersion
	}
	return versions, nil
}
