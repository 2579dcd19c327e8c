// Package components builds the programs that a test cluster is made of, from the modules under
// test/cluster/tools, and keeps them in the user's cache.
package components

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/flock"
	"github.com/causeway-csi/causeway/test/cluster/process"
)

// component is where a program comes from.
type component struct {
	module string // a directory of test/cluster/tools
	pkg    string
	flags  func(ctx context.Context, dir string) (string, error) // of the linker, beside those all have
}

// table has every component by name. Each package has a tool directive in its module's go.mod, or
// is that module's own.
var table = map[string]component{
	"containerd": {"node", "github.com/containerd/containerd/v2/cmd/containerd", containerdVersion},
	"containerd-shim-runc-v2": {"node", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
		containerdVersion},
	"ctr":                     {"node", "github.com/containerd/containerd/v2/cmd/ctr", containerdVersion},
	"dns":                     {"dns", ".", nil},
	"etcd":                    {"etcd", "go.etcd.io/etcd/server/v3", nil},
	"host-local":              {"node", "github.com/containernetworking/plugins/plugins/ipam/host-local", nil},
	"kube-apiserver":          {"kube", "k8s.io/kubernetes/cmd/kube-apiserver", kubeVersion},
	"kube-controller-manager": {"kube", "k8s.io/kubernetes/cmd/kube-controller-manager", kubeVersion},
	"kube-proxy":              {"kube", "k8s.io/kubernetes/cmd/kube-proxy", kubeVersion},
	"kube-scheduler":          {"kube", "k8s.io/kubernetes/cmd/kube-scheduler", kubeVersion},
	"kubectl":                 {"kube", "k8s.io/kubernetes/cmd/kubectl", kubeVersion},
	"kubelet":                 {"kube", "k8s.io/kubernetes/cmd/kubelet", kubeVersion},
	"kwok":                    {"kwok", ".", nil},
	"loopback":                {"node", "github.com/containernetworking/plugins/plugins/main/loopback", nil},
	"pause":                   {"pause", ".", nil},
	"ptp":                     {"node", "github.com/containernetworking/plugins/plugins/main/ptp", nil},
}

// recipe is a part of the cache's key: change it when the same modules are to be built in another
// way.
const recipe = "1: CGO_ENABLED=0 -trimpath -s -w"

// unused is the time for which unused programs are kept.
const unused = 30 * 24 * time.Hour

// Names returns the components that there are.
func Names() []string { return slices.Sorted(maps.Keys(table)) }

// Build returns a directory of the user's cache with the named components, and builds missing
// components, which takes minutes. It passes the output of the compiler to log. A machine runs a
// single build at a time, for all processes. The go command is that in PATH, which under go run and
// go test is the running one. Errors: that of the context; a component that is not in Names.
func Build(ctx context.Context, log io.Writer, names ...string) (string, error) {
	for _, n := range names {
		if _, ok := table[n]; !ok {
			return "", fmt.Errorf("build %q: the components are %s", n, strings.Join(Names(), ", "))
		}
	}
	tools, err := tools(ctx)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	b := builder{table: table, tools: tools, cache: filepath.Join(cache, "causeway", "components"), log: log}
	return b.build(ctx, names)
}

// Tool is a program of some other module.
type Tool struct {
	Module  string // the directory of a module that has the program as a tool, or as its own
	Package string
	Test    bool   // the program is the package's tests
	Tags    string // build tags, with commas
	CGO     bool   // the program needs a C compiler
}

// BuildTools is Build for programs outside of a cluster: those of the modules below dir. tools has
// all of their names.
func BuildTools(ctx context.Context, log io.Writer, dir string, all map[string]Tool) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	b := builder{table: map[string]component{}, tests: map[string]bool{}, tags: map[string]string{},
		cgo: map[string]bool{}, tools: dir, cache: filepath.Join(cache, "causeway", "components"), log: log}
	for name, t := range all {
		b.table[name] = component{module: t.Module, pkg: t.Package}
		b.tests[name], b.cgo[name] = t.Test, t.CGO
		if t.Tags != "" {
			b.tags[name] = t.Tags
		}
	}
	return b.build(ctx, slices.Sorted(maps.Keys(all)))
}

// builder builds components into a cache.
type builder struct {
	table map[string]component
	tests map[string]bool   // which of them are the tests of a package
	tags  map[string]string // build tags, by name
	cgo   map[string]bool   // which of them need a C compiler
	tools string            // the directory of the tools' modules
	cache string
	log   io.Writer
}

// build returns the directory that has the named components, all of which are in the table.
func (b builder) build(ctx context.Context, names []string) (string, error) {
	dir, err := b.directory(ctx)
	if err != nil {
		return "", err
	}
	now := time.Now()
	os.Chtimes(dir, now, now) // for prune; a missing directory is made below
	if len(missing(dir, names)) == 0 {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, b.alone(ctx, dir, names)
}

// missing returns those of names that dir lacks.
func missing(dir string, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		_, err := os.Stat(filepath.Join(dir, n))
		return err == nil
	})
}

// alone builds the components of names that are missing in dir, under the lock of builds.
func (b builder) alone(ctx context.Context, dir string, names []string) error {
	unlock, err := flock.Wait(ctx, filepath.Join(b.cache, "lock"), func() {
		fmt.Fprintln(b.log, "components: waiting for another process that builds")
	})
	if err != nil {
		return err
	}
	defer unlock()
	b.prune(dir)
	for _, n := range missing(dir, names) { // looked at again: the lock's last holder may have built them
		if err := b.one(ctx, dir, n); err != nil {
			return fmt.Errorf("build %s: %w", n, err)
		}
	}
	return nil
}

// one builds a component into dir, under another name until it is complete.
func (b builder) one(ctx context.Context, dir, name string) error {
	c := b.table[name]
	module := filepath.Join(b.tools, c.module)
	flags := "-s -w"
	if c.flags != nil {
		more, err := c.flags(ctx, module)
		if err != nil {
			return err
		}
		flags += " " + more
	}
	fmt.Fprintf(b.log, "components: building %s, which takes minutes the first time\n", name)
	start := time.Now()
	part := filepath.Join(dir, "."+name+".part")
	defer os.Remove(part) // there only after a failure
	build := []string{"build"}
	if b.tests[name] {
		build = []string{"test", "-c"}
	}
	if tags := b.tags[name]; tags != "" {
		build = append(build, "-tags="+tags)
	}
	cmd := goCommand(ctx, module, append(build, "-trimpath", "-ldflags", flags, "-o", part, c.pkg)...)
	if b.cgo[name] {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	cmd.Stdout, cmd.Stderr = b.log, b.log
	// A build whose parent is gone would continue beside the next build, without the lock.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = process.DieWithThread()
	if err := cmd.Run(); err != nil {
		return errors.Join(err, ctx.Err())
	}
	fmt.Fprintf(b.log, "components: built %s in %v\n", name, time.Since(start).Round(time.Second))
	return os.Rename(part, filepath.Join(dir, name))
}

// prune removes directories other than dir from the cache that were not used for long, as after a
// change of the modules. A failure only costs space.
func (b builder) prune(dir string) {
	entries, err := os.ReadDir(b.cache)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && e.IsDir() && e.Name() != filepath.Base(dir) && time.Since(info.ModTime()) > unused {
			os.RemoveAll(filepath.Join(b.cache, e.Name()))
		}
	}
}

// directory returns where the components are kept: in a directory that is named after all that they
// are made of.
func (b builder) directory(ctx context.Context) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, recipe)
	env, err := output(goCommand(ctx, b.tools, "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64",
		"GOEXPERIMENT"))
	if err != nil {
		return "", err
	}
	fmt.Fprintln(sum, env)
	for _, name := range slices.Sorted(maps.Keys(b.tags)) {
		fmt.Fprintln(sum, name, b.tags[name])
	}
	var files []string
	for _, pattern := range []string{"*/go.???", "*/*.go", "*/*/*.go"} { // each in order
		some, err := fs.Glob(os.DirFS(b.tools), pattern)
		if err != nil {
			return "", err
		}
		files = append(files, some...)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(b.tools, f))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", f, len(data), data)
	}
	return filepath.Join(b.cache, fmt.Sprintf("%.16x", sum.Sum(nil))), nil
}

// kubeVersion returns the linker's flags for the version of Kubernetes' programs, which otherwise
// only their own build scripts set. Clients and servers compare versions. The commit is unknown.
func kubeVersion(ctx context.Context, dir string) (string, error) {
	version, err := moduleVersion(ctx, dir, "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	part := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(part) != 3 {
		return "", fmt.Errorf("k8s.io/kubernetes has the version %q", version)
	}
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, v := range [][2]string{
			{"gitVersion", version}, {"gitMajor", part[0]}, {"gitMinor", part[1]},
			{"gitTreeState", "clean"}, {"gitCommit", strings.Repeat("0", 40)},
		} {
			flags = append(flags, fmt.Sprintf("-X %s.%s=%s", pkg, v[0], v[1]))
		}
	}
	return strings.Join(flags, " "), nil
}

// containerdVersion returns the linker's flag that tells containerd its version, which it names to
// the kubelet.
func containerdVersion(ctx context.Context, dir string) (string, error) {
	const module = "github.com/containerd/containerd/v2"
	version, err := moduleVersion(ctx, dir, module)
	return fmt.Sprintf("-X %s/version.Version=%s", module, version), err
}

// moduleVersion returns the version at which the module in dir needs another.
func moduleVersion(ctx context.Context, dir, module string) (string, error) {
	return output(goCommand(ctx, dir, "list", "-m", "-f", "{{.Version}}", module))
}

// tools returns the directory of the tools' modules, which is beside this package's. The compiler
// has recorded that path, except with -trimpath. Then the go command finds it, if the working
// directory is in a module that needs this one.
func tools(ctx context.Context) (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dir := filepath.Join(filepath.Dir(filepath.Dir(file)), "tools")
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		}
	}
	dir, err := output(goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}",
		"github.com/causeway-csi/causeway/test/cluster"))
	if err != nil {
		return "", fmt.Errorf("find the components' modules: %w", err)
	}
	return filepath.Join(dir, "tools"), nil
}

// goCommand returns a go command that runs in dir and builds for this machine. The content of
// GOFLAGS is for other builds: -race needs C, -mod=vendor a missing folder. At the end of ctx the
// command gets a signal, so that it also ends its compilers.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	if dir != "" {
		cmd.Env = append(cmd.Env, "GOFLAGS=-modcacherw", "GOWORK=off") // no workspace has the tools' modules
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// output runs cmd and returns its output. An error has the text of its standard error.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
