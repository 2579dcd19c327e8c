package kind

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	kind "sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/kind/pkg/cluster/nodes"
	"sigs.k8s.io/kind/pkg/exec"

	"github.com/causeway-csi/causeway/test/cluster/internal/readiness/readytest"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// fakeNode records its commands.
type fakeNode struct {
	name, role string
	ran        []string // command lines, with their input
	Err        error    // of every command
}

func (n *fakeNode) String() string               { return n.name }
func (n *fakeNode) Role() (string, error)        { return n.role, nil }
func (n *fakeNode) IP() (v4, v6 string, _ error) { return "", "", nil }
func (n *fakeNode) SerialLogs(io.Writer) error   { return nil }

func (n *fakeNode) Command(name string, args ...string) exec.Cmd {
	return &fakeCommand{node: n, line: strings.Join(append([]string{name}, args...), " ")}
}

func (n *fakeNode) CommandContext(_ context.Context, name string, args ...string) exec.Cmd {
	return n.Command(name, args...)
}

type fakeCommand struct {
	node *fakeNode
	line string
	in   io.Reader
	out  io.Writer
}

func (c *fakeCommand) Run() error {
	if c.node.Err != nil {
		return c.node.Err
	}
	line := c.line
	if c.in != nil {
		read, err := io.ReadAll(c.in)
		if err != nil {
			return err
		}
		line += " < " + string(read)
	}
	if c.line == "containerd config dump" {
		io.WriteString(c.out, "version = 3\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'overlayfs'\n")
	}
	c.node.ran = append(c.node.ran, line)
	return nil
}

func (c *fakeCommand) SetEnv(...string) exec.Cmd      { return c }
func (c *fakeCommand) SetStdin(r io.Reader) exec.Cmd  { c.in = r; return c }
func (c *fakeCommand) SetStdout(w io.Writer) exec.Cmd { c.out = w; return c }
func (c *fakeCommand) SetStderr(w io.Writer) exec.Cmd { return c }

// fakeEngine makes nodes of nothing.
type fakeEngine struct {
	workers    int          // of clusters that it creates
	path       string       // where the kubeconfig is to be
	kubeconfig []byte       // the content
	nodes      []nodes.Node // there are
	Err        error        // of Create, when the nodes are there
	told       []string     // the actions
	create     func()       // before Create returns
}

func (e *fakeEngine) Create(name string, _ ...kind.CreateOption) error {
	e.told = append(e.told, "create "+name)
	e.nodes = append(e.nodes, &fakeNode{name: name + "-control-plane", role: "control-plane"})
	for i := range e.workers {
		e.nodes = append(e.nodes, &fakeNode{name: name + "-worker" + string(rune('1'+i)), role: "worker"})
	}
	if e.create != nil {
		e.create()
	}
	return errors.Join(e.Err, os.WriteFile(e.path, e.kubeconfig, 0o600))
}

func (e *fakeEngine) Delete(name, kubeconfig string) error {
	e.told = append(e.told, "delete "+name+" "+filepath.Base(kubeconfig))
	e.nodes = nil
	return nil
}

func (e *fakeEngine) ListInternalNodes(string) ([]nodes.Node, error) { return e.nodes, nil }

func (e *fakeEngine) CollectLogs(name, dir string) error {
	e.told = append(e.told, "logs "+name+" "+dir)
	return nil
}

// done fails the test if something else was done since it was asked last.
func (e *fakeEngine) done(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(e.told, want) {
		t.Errorf("got %q, want %q", e.told, want)
	}
	e.told = nil
}

// ran returns the command lines of the nodes of a role.
func (e *fakeEngine) ran(role string) []string {
	var all []string
	for _, n := range e.nodes {
		if n := n.(*fakeNode); n.role == role {
			all = append(all, n.ran...)
		}
	}
	return all
}

func fakeCluster(t *testing.T) (*Cluster, *fakeEngine) {
	dir := filepath.Join(t.TempDir(), "kind", "trial")
	e := &fakeEngine{workers: 2, path: filepath.Join(dir, "kubeconfig")}
	return &Cluster{name: "trial", dir: dir, log: &logger{}, engine: e}, e
}

// wants fails the test if an error has not all of the words. Without words there must be none.
func wants(t *testing.T, err error, words ...string) {
	t.Helper()
	if len(words) == 0 {
		if err != nil {
			t.Error(err)
		}
		return
	}
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("got %v, want %q in an error", err, w)
		}
	}
}

func TestLifeOfACluster(t *testing.T) {
	server := readytest.Start(t)
	server.Node(t, "trial-control-plane", "linux", func(n *core.Node) {
		n.Spec.Taints = []core.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: core.TaintEffectNoSchedule}}
	})
	server.Node(t, "trial-worker1", "linux", nil)
	server.Node(t, "trial-worker2", "linux", nil)
	c, e := fakeCluster(t)
	var err error
	if e.kubeconfig, err = os.ReadFile(server.Plane.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	var log bytes.Buffer
	two := provider.Options{Nodes: 2, Log: &log}

	wants(t, c.Down(ctx)) // there is none
	e.done(t)
	wants(t, c.Load(ctx, "a.tar"), "does not run")
	wants(t, c.Status(ctx, &log), "does not run")
	wants(t, c.Logs(ctx, "logs"), "does not run")

	e.create = func() { c.log.V(0).Infof("at %s", "work"); c.log.V(1).Info("not to be told") }
	wants(t, c.Up(ctx, two))
	e.done(t, "create trial")
	if got := server.Nodes(); len(got) != 2 || slices.Contains(got, "trial-control-plane") {
		t.Errorf("pods were tried on %v, want the two workers", got)
	}
	server.NoPods(t)
	if got := append(e.ran("worker"), e.ran("control-plane")...); !slices.Equal(got,
		slices.Repeat([]string{"mkdir -p /var/lib/causeway"}, 3)) {
		t.Errorf("got %q, want the directory on each node", got)
	}
	if !strings.HasPrefix(log.String(), "kind: at work\ncluster trial: 2 nodes are ready") {
		t.Errorf("got log %q", log.String())
	}

	wants(t, c.Up(ctx, two)) // repeating it is fine
	wants(t, c.Up(ctx, provider.Options{Nodes: 3, Log: &log}), "with 2 nodes, not 3", "down")
	e.done(t)
	wants(t, c.Status(ctx, &log))
	got, err := c.Kubeconfig(ctx)
	if err != nil || !bytes.Equal(got, e.kubeconfig) {
		t.Errorf("got %d bytes, %v, want the kubeconfig", len(got), err)
	}
	wants(t, c.Logs(ctx, "dir"))
	e.done(t, "logs trial dir")
	testLoad(t, c, e)

	e.nodes[1].(*fakeNode).Err = errors.New("it has ended")
	wants(t, c.Up(ctx, two), "trial-worker1", "it has ended", "down")
	e.done(t)

	for range 2 { // repeating it is fine
		wants(t, c.Down(ctx))
	}
	e.done(t, "delete trial kubeconfig")
	if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
		t.Errorf("got %v, want no directory", err)
	}
}

func testLoad(t *testing.T, c *Cluster, e *fakeEngine) {
	for _, n := range e.nodes {
		n.(*fakeNode).ran = nil
	}
	tar := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(tar, []byte("image"), 0o600); err != nil {
		t.Fatal(err)
	}
	wants(t, c.Load(t.Context(), tar, tar))
	for _, n := range e.nodes {
		imports := slices.DeleteFunc(n.(*fakeNode).ran,
			func(line string) bool { return !strings.Contains(line, "images import") })
		if len(imports) != 2 || !strings.HasSuffix(imports[1], " < image") {
			t.Errorf("%s: got %q, want the two archives", n, imports)
		}
	}
	wants(t, c.Load(t.Context(), tar+"0"), tar+"0")
	ended, end := context.WithCancel(t.Context())
	end()
	wants(t, c.Load(ended, tar), "canceled")
}

func TestUpRefuses(t *testing.T) {
	c, e := fakeCluster(t)
	wants(t, c.Up(t.Context(), provider.Options{}), "at least 1")
	wants(t, c.Up(t.Context(), provider.Options{Nodes: 1, Windows: 1}), "Windows", "--provider=local")
	e.done(t)
}

func TestAFailedUpLeavesNothing(t *testing.T) {
	c, e := fakeCluster(t)
	e.Err = errors.New("no space")
	wants(t, c.Up(t.Context(), provider.Options{Nodes: 2}), "no space")
	e.done(t, "create trial", "delete trial kubeconfig")
	if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
		t.Errorf("got %v, want no directory", err)
	}
}

func TestUpEndsWithItsContext(t *testing.T) {
	c, e := fakeCluster(t)
	ctx, end := context.WithCancel(t.Context())
	e.create = end
	wants(t, c.Up(ctx, provider.Options{Nodes: 2}), "canceled")
	e.done(t, "create trial", "delete trial kubeconfig")
}

func TestUpRemovesTheRemainsOfAKilledCluster(t *testing.T) {
	c, e := fakeCluster(t)
	if err := os.MkdirAll(c.dir, 0o700); err != nil { // as start does before the nodes are made
		t.Fatal(err)
	}
	e.nodes = []nodes.Node{&fakeNode{name: "trial-control-plane", role: "control-plane"}}
	e.Err = errors.New("enough")
	wants(t, c.Up(t.Context(), provider.Options{Nodes: 2}), "enough")
	e.done(t, "delete trial kubeconfig", "create trial", "delete trial kubeconfig")
}

func TestAForeignClusterIsLeftAlone(t *testing.T) {
	c, e := fakeCluster(t)
	e.nodes = []nodes.Node{&fakeNode{name: "trial-control-plane", role: "control-plane"}}
	wants(t, c.Up(t.Context(), provider.Options{Nodes: 2}), "has not started", "kind delete cluster --name trial")
	wants(t, c.Down(t.Context()), "has not started")
	e.done(t)
	if len(e.nodes) != 1 {
		t.Error("its node is gone")
	}
}

func TestNewRefuses(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("KIND_EXPERIMENTAL_PROVIDER", "")
	_, err := New("trial")
	wants(t, err, "docker", "nerdctl", "finch", "podman", "PATH")
	_, err = New("Trial")
	wants(t, err, "Trial")
	t.Setenv("KIND_EXPERIMENTAL_PROVIDER", "rkt")
	_, err = New("trial")
	wants(t, err, "rkt", "podman")
}

// docker answers kind's commands as the engine does, and records them. Nodes seem to start, but do
// not exist.
const docker = `#!/bin/sh
echo "$*" >>"$ASKED"
case "$1" in
-v) echo "Docker version 1" ;;
info) echo '{"CgroupVersion":"2","MemoryLimit":true,"PidsLimit":true,"CPUShares":true}' ;;
network) echo "kind" ;;
logs) echo "Reached target Multi-User System." ;;
esac
`

// TestKindTakesTheConfiguration runs the real kind against an engine that runs nothing. It tests
// that kind accepts the configuration, not the result.
func TestKindTakesTheConfiguration(t *testing.T) {
	bin, home := t.TempDir(), t.TempDir()
	asked := filepath.Join(bin, "asked")
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(docker), 0o755); err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"PATH": bin + ":/bin:/usr/bin", "ASKED": asked, "HOME": home, "XDG_CACHE_HOME": "", "KUBECONFIG": "", "KIND_EXPERIMENTAL_PROVIDER": "",
	} {
		t.Setenv(k, v)
	}
	c, err := New("trial")
	if err != nil {
		t.Fatal(err)
	}
	wants(t, c.Up(t.Context(), provider.Options{Nodes: 2, Log: io.Discard}), "kind: ")
	lines, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--name trial-control-plane ", "--name trial-worker ", "--name trial-worker2 ",
		"kindest/node:v1.37."} {
		if !strings.Contains(string(lines), want) {
			t.Errorf("got\n%swant %q in it", lines, want)
		}
	}
	if _, err := os.Stat(filepath.Join(home, ".kube")); !os.IsNotExist(err) {
		t.Errorf("got %v, want that the user's kubeconfig is not touched", err)
	}
}

// Another user may make a cluster of that name after the check. It belongs to that user.
func TestAClusterThatCameMeanwhileIsNotDeleted(t *testing.T) {
	c, e := fakeCluster(t)
	e.Err = errors.New(`node(s) already exist for a cluster with the name "trial"`)
	wants(t, c.Up(t.Context(), provider.Options{Nodes: 2}), "already exist")
	e.done(t, "create trial")
	wants(t, c.Down(t.Context()), "has not started")
	e.done(t)
}
