package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/internal/prereq"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/shares"
	"github.com/causeway-csi/causeway/test/cluster/storagesuite"
	"github.com/causeway-csi/causeway/test/e2e/result"
)

// run is a run of this program.
type run struct {
	options  options
	provider provider.Provider
	configs  []config
	installs bool

	dir      string // for files that go at the end
	kubectl  kubectl.Kubectl
	bin      string
	key      string // of SSH, where the provider lets this program into the nodes
	versions map[string]string
	nodes    int             // Linux nodes that pods can run on
	server   *smbtest.Server // nil: the configurations have no shares
}

// all brings the cluster up, runs the suite with each configuration, and takes the cluster down.
func (r *run) all(ctx context.Context) (err error) {
	start := time.Now()
	if r.dir, err = os.MkdirTemp("", "causeway-e2e-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	if err := os.MkdirAll(r.options.report, 0o755); err != nil {
		return err
	}
	if err := r.build(ctx); err != nil {
		return err
	}
	if err := r.forget(); err != nil {
		return err
	}
	// a cluster that an earlier run has kept may have another driver, or a server that has ended
	if !r.options.keep || r.configs[0].cluster.Shares {
		if err := r.provider.Down(ctx); err != nil {
			return err
		}
	}
	say("starting the cluster")
	up := false
	defer func() {
		if err != nil && (up || r.options.keep) { // Up removes the logs of a failed start: its error has their ends
			err = errors.Join(err, r.logs(context.WithoutCancel(ctx)))
		}
		if !r.options.keep {
			err = errors.Join(err, r.down(context.WithoutCancel(ctx)))
		}
	}()
	if err := r.provider.Up(ctx, r.nodesOf(r.configs[0].cluster)); err != nil {
		return err
	}
	up = true
	inside, stop := context.WithCancel(ctx) // the SSH servers end before the cluster
	defer stop()
	if err := r.prepare(inside); err != nil {
		return err
	}
	say("ready for the suite after %.0f s", time.Since(start).Seconds())
	bad := 0
	for i := range r.options.runs {
		for _, c := range r.configs {
			good, err := r.one(inside, c, i+1)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if !good {
				bad++
			}
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d runs are not as they should be; the results are in %s", bad,
			r.options.runs*len(r.configs), r.options.report)
	}
	say("all is as it should be, after %.0f s; the results are in %s", time.Since(start).Seconds(), r.options.report)
	return nil
}

// nodesOf returns the options of the cluster of a configuration.
func (r *run) nodesOf(c cluster) provider.Options {
	o := provider.Options{Nodes: r.options.nodes, Keep: r.options.keep, Log: os.Stderr}
	if len(c.Guests) > 0 {
		o.Nodes, o.Guests = 1, c.Guests
	}
	return o
}

// build installs and builds the programs of the suite, and has the suite look at the driver files.
func (r *run) build(ctx context.Context) (err error) {
	if r.configs[0].cluster.Shares {
		if err := prereq.Install(ctx, os.Stderr, shares.Packages); err != nil {
			return err
		}
	}
	say("building the suite")
	if r.bin, err = storagesuite.Programs(ctx, os.Stderr, storagesuite.Ginkgo, storagesuite.Binary,
		storagesuite.Agnhost); err != nil {
		return err
	}
	for _, c := range r.configs {
		notes, err := c.checkDriver(ctx, r.bin)
		if err != nil {
			return err
		}
		for _, n := range notes {
			say("note: %s", n)
		}
	}
	return nil
}

// forget removes the results of earlier runs, of which this run may replace only a part.
func (r *run) forget() error {
	for _, c := range r.configs {
		for _, dir := range []string{"", "run-*"} {
			old, err := filepath.Glob(filepath.Join(r.options.report, dir, c.name+".json"))
			if err != nil {
				return err
			}
			for _, file := range old {
				if err := os.Remove(file); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// prepare gives the cluster everything that the suite and the driver need.
func (r *run) prepare(ctx context.Context) (err error) {
	if r.kubectl, err = kubectl.New(ctx, r.provider, r.dir); err != nil {
		return err
	}
	if err := r.serveShares(r.configs[0].cluster); err != nil {
		return fmt.Errorf("SMB server: %w", err)
	}
	driver := "unknown" // it is its owner's
	if r.installs {
		if driver, err = r.install(ctx); err != nil {
			return err
		}
	}
	if r.options.cluster.Provider != "existing" { // which can pull them
		say("loading the suite's images")
		if err := storagesuite.Load(ctx, r.provider, r.bin); err != nil {
			return err
		}
	}
	if c, ok := r.provider.(*local.Cluster); ok {
		if err := r.enter(ctx, c); err != nil {
			return err
		}
	}
	if r.versions, err = r.readVersions(ctx); err != nil {
		return err
	}
	r.versions["driver"] = driver
	nodes, err := r.kubectl.Run(ctx, "get", "nodes", "-l", "kubernetes.io/os=linux", "-o", "json")
	if err != nil {
		return err
	}
	r.nodes, err = schedulable([]byte(nodes))
	return err
}

// schedulable returns how many nodes of a list the suite takes: those that are ready and keep no
// pods away.
func schedulable(list []byte) (int, error) {
	var nodes core.NodeList
	if err := json.Unmarshal(list, &nodes); err != nil {
		return 0, err
	}
	n := 0
	for _, node := range nodes.Items {
		ready := slices.ContainsFunc(node.Status.Conditions, func(c core.NodeCondition) bool {
			return c.Type == core.NodeReady && c.Status == core.ConditionTrue
		})
		tainted := slices.ContainsFunc(node.Spec.Taints,
			func(t core.Taint) bool { return t.Effect != core.TaintEffectPreferNoSchedule })
		if ready && !tainted && !node.Spec.Unschedulable {
			n++
		}
	}
	return n, nil
}

// install installs the driver, and returns its versions. With --keep an installed driver stays.
func (r *run) install(ctx context.Context) (string, error) {
	if r.options.keep {
		if _, err := r.kubectl.Run(ctx, "-n", install.Namespace, "get", "daemonset", "causeway-node"); err == nil {
			return "unknown", nil
		}
	}
	if c, ok := r.provider.(*local.Cluster); ok && r.server != nil {
		return commit(ctx), shares.Install(ctx, c, r.kubectl, r.server, os.Stderr)
	}
	return commit(ctx), install.Driver(ctx, r.provider, r.kubectl, os.Stderr)
}

// enter lets the suite into a local cluster's nodes.
func (r *run) enter(ctx context.Context, c *local.Cluster) error {
	all, err := c.Nodes()
	if err != nil {
		return err
	}
	r.key, err = serveSSH(ctx, all, r.dir)
	return err
}

// readVersions returns the versions of all that takes part, but for the driver.
func (r *run) readVersions(ctx context.Context) (map[string]string, error) {
	versions, err := suiteVersions(r.bin)
	if err != nil {
		return nil, err
	}
	out, err := r.kubectl.Run(ctx, "version", "-o", "json")
	if err != nil {
		return nil, err
	}
	var v struct{ ServerVersion struct{ GitVersion string } }
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		return nil, err
	}
	versions["kubernetes"] = v.ServerVersion.GitVersion
	if out, err = r.kubectl.Run(ctx, "get", "nodes", "-l", "kubernetes.io/os=linux", "-o",
		"jsonpath={range .items[*]}{.status.nodeInfo.kernelVersion} "+
			"{.status.nodeInfo.containerRuntimeVersion}{'\\n'}{end}"); err != nil {
		return nil, err
	}
	var kernels, runtimes []string
	for line := range strings.Lines(out) {
		kernel, runtime, _ := strings.Cut(strings.TrimSpace(line), " ")
		kernels, runtimes = append(kernels, kernel), append(runtimes, runtime)
	}
	for name, all := range map[string][]string{"kernel": kernels, "runtime": runtimes} {
		slices.Sort(all)
		versions[name] = strings.Join(slices.Compact(all), ", ")
	}
	return versions, nil
}

// commit returns the commit of these sources, or "unknown" without git.
func commit(ctx context.Context) string {
	_, file, _, _ := runtime.Caller(0)
	cmd := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
	cmd.Dir = filepath.Dir(file)
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// one runs the suite with a configuration, writes the result, and reports whether it is good.
func (r *run) one(ctx context.Context, c config, number int) (bool, error) {
	dir := r.options.report
	if r.options.runs > 1 {
		dir = filepath.Join(dir, "run-"+strconv.Itoa(number))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	there, err := r.remains(ctx, c.driver) // a cluster that is used has volumes of its own
	if err != nil {
		return false, err
	}
	res := result.Result{
		Configuration: c.name, Driver: c.driver, Scope: r.options.scope(), Provider: r.options.cluster.Provider,
		Nodes: r.nodes,
		Procs: r.options.procs, Start: time.Now().UTC().Truncate(time.Second), Versions: maps.Clone(r.versions),
		Problems: []string{},
	}
	cluster := features{ssh: r.key != "", nodes: r.nodes}
	last, err := r.specs(ctx, c, cluster, number, dir, &res)
	if err != nil {
		return false, err
	}
	for _, p := range unmatched(slices.Concat(c.Smoke, c.leftOut(cluster)), last) {
		res.Problems = append(res.Problems, "a pattern matches no spec: "+p)
	}
	if r.options.scope() == smoke {
		for _, p := range unmatched(c.Smoke, outcome{all: passed(res.Specs)}) {
			res.Problems = append(res.Problems, "no spec passed that this pattern of smoke is for: "+p)
		}
	}
	judge(&res, c.expected, cluster, last.all)
	if err := r.left(ctx, c.driver, there); err != nil {
		res.Problems = append(res.Problems, err.Error())
	}
	tell(res, c.unlisted)
	return len(res.Problems) == 0, res.Write(filepath.Join(dir, c.name+".json"))
}

// specs runs the selected specs, completes the result, and returns the outcome of the last part.
func (r *run) specs(ctx context.Context, c config, f features, number int, dir string,
	res *result.Result) (last outcome, err error) {
	s := suite{config: c, cluster: f, bin: r.bin, kubectl: r.kubectl, key: r.key, procs: r.options.procs}
	start, before := time.Now(), machine()
	for _, sel := range s.selections(res.Scope) {
		say("%s, run %d of %d: %s specs", c.name, number, r.options.runs, sel.name)
		o, cpu, err := s.run(ctx, sel, dir)
		if err != nil {
			return last, err
		}
		res.Specs, res.CPU.Suite, last = append(res.Specs, o.ran...), res.CPU.Suite+cpu, o
		res.Problems = append(res.Problems, o.wrong...)
	}
	res.Seconds = time.Since(start).Seconds()
	if res.Provider != "existing" {
		res.CPU.Machine = machine() - before
	}
	return last, nil
}

// passed returns the specs that did.
func passed(specs []result.Spec) (all []result.Spec) {
	for _, s := range specs {
		if s.State == result.Passed {
			all = append(all, s)
		}
	}
	return all
}

// tell prints a result: its counts, its problems and, if no expected.yaml explains them, why specs
// were skipped.
func tell(r result.Result, unlisted bool) {
	n := r.Counts
	say("%s: %d selected, %d passed, %d skipped, %d failed, %d left out; %.0f s; %.0f s of CPU, of which the suite "+
		"%.0f",
		r.Configuration, n.Selected, n.Passed, n.Skipped, n.Failed, n.LeftOut, r.Seconds, r.CPU.Machine, r.CPU.Suite)
	for _, p := range r.Problems {
		say("  %s", p)
	}
	if !unlisted {
		return
	}
	for _, line := range skipReasons(r.Specs) {
		say("  skipped: %s", line)
	}
}

// skipReasons returns the suite's reasons for skipped specs, each with the number of specs, most
// first.
func skipReasons(specs []result.Spec) (lines []string) {
	counts := map[string]int{}
	for _, s := range specs {
		if s.State == result.Skipped {
			counts[s.Message]++
		}
	}
	reasons := slices.SortedFunc(maps.Keys(counts),
		func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) })
	for _, reason := range reasons {
		lines = append(lines, fmt.Sprintf("%d: %s", counts[reason], reason))
	}
	return lines
}

// patience is the time in which a cluster must be empty again: late deletes take time.
const patience = 90 * time.Second

// left returns an error if a volume or snapshot is left of the specs, which delete theirs.
func (r *run) left(ctx context.Context, driver string, before []string) error {
	for deadline := time.Now().Add(patience); ; {
		left, err := r.remains(ctx, driver)
		left = slices.DeleteFunc(left, func(o string) bool { return slices.Contains(before, o) })
		switch {
		case err != nil:
			return fmt.Errorf("look for what is left: %w", err)
		case len(left) == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("left of the specs: %s", strings.Join(left, ", "))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// remains returns the driver's objects, and on a local cluster the content of its nodes' disks.
func (r *run) remains(ctx context.Context, driver string) (left []string, err error) {
	for kind, path := range map[string]string{
		"pv": "{range .items[?(@.spec.csi.driver==%q)]}pv/{.metadata.name} {end}", "volumesnapshotcontents": "{range " +
			".items[?(@.spec.driver==%q)]}volumesnapshotcontent/{.metadata.name} {end}",
		"volumegroupsnapshotcontents": "{range " +
			".items[?(@.spec.driver==%q)]}volumegroupsnapshotcontent/{.metadata.name} {end}",
	} {
		out, err := r.kubectl.Run(ctx, "get", kind, "-o", "jsonpath="+fmt.Sprintf(path, driver))
		if err != nil {
			if strings.Contains(err.Error(), "the server doesn't have a resource type") {
				continue
			}
			return nil, err
		}
		left = append(left, strings.Fields(out)...)
	}
	if r.server != nil {
		files, err := r.onShare()
		if err != nil {
			return nil, err
		}
		mounts, err := r.onGuests(ctx, driver)
		return slices.Concat(left, files, mounts), err
	}
	c, ok := r.provider.(*local.Cluster)
	if !ok || !r.installs {
		return left, nil
	}
	all, err := c.Nodes()
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		find := []string{"find"}
		for _, dir := range []string{"volumes", "snapshots", "groups", "staging", "trash"} {
			find = append(find, local.StorageDir+"/"+dir)
		}
		out, err := n.Run(ctx, append(find, "-mindepth", "1", "-maxdepth", "1")...)
		if err != nil {
			return nil, err
		}
		for _, f := range strings.Fields(out) {
			left = append(left, n.Name+":"+f)
		}
	}
	return left, nil
}

// logs writes the cluster's, which say why something failed.
func (r *run) logs(ctx context.Context) error {
	dir := filepath.Join(r.options.report, "cluster-logs")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	say("writing the cluster's logs into %s", dir)
	return r.provider.Logs(ctx, dir)
}

// down ends the cluster, and looks at the machine.
func (r *run) down(ctx context.Context) error {
	say("ending the cluster")
	var err error
	if r.server != nil {
		err = r.server.Close()
	}
	if c, ok := r.provider.(*local.Cluster); ok {
		return errors.Join(err, c.End(ctx))
	}
	return errors.Join(err, r.provider.Down(ctx))
}

// machine returns the CPU time in seconds that this machine has spent since its start. Without
// /proc that is 0.
func machine() float64 {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	var ticks float64
	for i, field := range strings.Fields(line) { // cpu user nice system idle iowait irq softirq steal …: proc(5)
		switch i {
		case 1, 2, 3, 6, 7:
			n, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return 0
			}
			ticks += n
		}
	}
	const hertz = 100 // of user space, for any kernel
	return ticks / hertz
}

func say(format string, args ...any) {
	fmt.Printf(time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}
