package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/deploy/images/oci"
	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// testName is the cluster of these tests.
const testName = "harness"

// TestMain makes this test's binary the cluster's init processes, and a program that calls Up and
// can be killed.
func TestMain(m *testing.M) {
	Main()
	if options := os.Getenv("CLUSTER_UP"); options != "" {
		var o provider.Options
		err := json.Unmarshal([]byte(options), &o)
		c, err2 := New(testName)
		if err = errors.Join(err, err2); err == nil {
			o.Log = os.Stderr
			err = c.Up(context.Background(), o)
		}
		fmt.Println("up:", err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// cluster returns the tests' cluster, which is not up, and is taken down in the end.
func cluster(t *testing.T) *Cluster {
	t.Helper()
	c, err := New(testName)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, c) })
	down(t, c)
	return c
}

// down takes the cluster down, and looks whether anything is left.
func down(t *testing.T, c *Cluster) {
	t.Helper()
	if err := c.End(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestACluster(t *testing.T) {
	c := cluster(t)
	ctx := t.Context()
	o := provider.Options{Nodes: 2, Windows: 1, Log: os.Stderr}
	if err := c.Up(ctx, o); err != nil {
		t.Fatal(err)
	}
	t.Run("up again finds it", func(t *testing.T) {
		before, err := c.inits()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Up(ctx, o); err != nil {
			t.Fatal(err)
		}
		after, err := c.inits()
		if err != nil {
			t.Fatal(err)
		}
		if len(before) != 3 || !slices.Equal(before, after) {
			t.Errorf("the init processes were %v, and are %v", before, after)
		}
	})
	t.Run("up with other nodes is an error", func(t *testing.T) {
		if err := c.Up(ctx, provider.Options{Nodes: 3, Windows: 1, Log: os.Stderr}); err == nil ||
			!strings.Contains(err.Error(), "not 3") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a lent cluster is checked only", func(t *testing.T) { lend(t, c) })
	t.Run("its nodes", func(t *testing.T) {
		var said bytes.Buffer
		if err := c.Status(ctx, &said); err != nil {
			t.Fatal(err)
		}
		for _, node := range []string{"node-1 ", "node-2 ", "windows-1 "} {
			line := ""
			for l := range strings.Lines(said.String()) {
				if strings.HasPrefix(l, node) {
					line = l
				}
			}
			if !strings.Contains(line, " Ready ") {
				t.Errorf("%sisn't ready:\n%s", node, &said)
			}
		}
	})
	t.Run("an image is loaded into each", func(t *testing.T) {
		const ref = "example.com/causeway/test:v1"
		tar := filepath.Join(t.TempDir(), "image.tar")
		image := oci.Image{Platform: "linux/amd64",
			Layers: [][]oci.File{{{Path: "/file", Mode: 0o644, Content: []byte("x")}}}}
		if _, err := oci.Write(tar, ref, image); err != nil {
			t.Fatal(err)
		}
		if err := c.Load(ctx, tar); err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes(t, c) {
			if out := on(t, n, "ctr", "-n", "k8s.io", "images", "ls", "-q"); !strings.Contains(out, ref) {
				t.Errorf("%s has %s", n.Name, out)
			}
		}
	})
	t.Run("logs", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "logs")
		if err := c.Logs(ctx, dir); err != nil {
			t.Fatal(err)
		}
		for _, pattern := range []string{"plane/*/kube-apiserver.log", "node-2/components/kubelet.log",
			"node-*/pods/kube-system_coredns-*/coredns/0.log"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil || len(found) == 0 {
				t.Errorf("no %s, %v", pattern, err)
				continue
			}
			if info, err := os.Stat(found[0]); err != nil || info.Size() == 0 {
				t.Errorf("%s is empty, or %v", found[0], err)
			}
		}
	})
	t.Run("a node cannot change this machine's programs, and sees no other's disk", func(t *testing.T) {
		n := nodes(t, c)[0]
		for _, path := range []string{"/usr/x", "/etc/x", "/bin/x"} {
			if _, err := n.Run(ctx, "touch", path); err == nil || !strings.Contains(err.Error(), "Read-only") {
				t.Errorf("touch %s: %v", path, err)
			}
		}
		if out, err := n.Run(ctx, "ls", Root+"/"+testName+"/nodes"); err != nil || strings.TrimSpace(out) != n.Name {
			t.Errorf("of the nodes' directories it sees %q, %v", out, err)
		}
	})
	t.Run("the kernel's settings are left as they are", func(t *testing.T) {
		const setting = "/proc/sys/kernel/keys/root_maxkeys"
		before, err := os.ReadFile(setting)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.WriteFile(setting, before, 0) })
		if err := os.WriteFile(setting, []byte("999999"), 0); err != nil {
			t.Fatal(err)
		}
		n := nodes(t, c)[0]
		if err := n.Kill("kubelet"); err != nil {
			t.Fatal(err)
		}
		if out := on(t, n, "cat", setting); out != "1000000\n" {
			t.Errorf("the kubelet is shown %q", out)
		}
		await.NoError(t, "the next kubelet runs, which begins by looking", func() error {
			_, err := n.Run(ctx, "busybox", "wget", "-q", "-O-", "http://127.0.0.1:10248/healthz")
			return err
		})
		if now, err := os.ReadFile(setting); err != nil || string(now) != "999999\n" {
			t.Errorf("it is %q, %v", now, err)
		}
	})
	t.Run("a command ends with its context", func(t *testing.T) { checkCancel(t, nodes(t, c)[0]) })
	t.Run("a program that is killed is back", func(t *testing.T) {
		n := nodes(t, c)[0]
		for _, program := range []string{"containerd", "kubelet", "kube-proxy"} {
			if err := awaitFile(ctx, c.node(n.Name).pid(program)); err != nil {
				t.Fatal(err)
			}
			was := on(t, n, "cat", c.node(n.Name).pid(program))
			if err := n.Kill(program); err != nil {
				t.Fatal(err)
			}
			await.NoError(t, program+" is back", func() error {
				is, err := n.Run(ctx, "cat", c.node(n.Name).pid(program))
				if err == nil && is == was {
					err = fmt.Errorf("it has PID %s still", was)
				}
				return err
			})
		}
	})
	t.Run("a node is switched off and on", func(t *testing.T) {
		n := nodes(t, c)[1]
		addresses := hardware(t, c, n)
		on(t, n, "sh", "-c", "echo kept > "+StorageDir+"/file; echo lost > /run/file")
		if err := n.PowerOff(ctx); err != nil {
			t.Fatal(err)
		}
		if now := hardware(t, c, n); now[0] != addresses[0] {
			t.Errorf("with a node the bridge's hardware address went from %s to %s: who remembers it does not find "+
				"the plane", addresses[0], now[0])
		}
		if _, err := n.Run(ctx, "true"); err == nil {
			t.Error("a command runs on a node that is off")
		}
		if err := c.Status(ctx, &bytes.Buffer{}); err == nil {
			t.Error("the status is good while a node is off")
		}
		if err := c.Up(ctx, o); err == nil || !strings.Contains(err.Error(), "node-2 does not run") {
			t.Errorf("up, while a node is off: %v", err)
		}
		if err := n.PowerOn(ctx, false); err != nil {
			t.Fatal(err)
		}
		if out := awaitOn(t, n, "ls", "-A", StorageDir); out != "" {
			t.Errorf("without its disk it has %q", out)
		}
		if err := n.PowerOff(ctx); err != nil {
			t.Fatal(err)
		}
		if err := n.PowerOn(ctx, true); err != nil {
			t.Fatal(err)
		}
		if out := awaitOn(t, n, "cat", StorageDir+"/file"); out != "kept\n" {
			t.Errorf("its disk has %q", out)
		}
		if now := hardware(t, c, n); !slices.Equal(now, addresses) {
			t.Errorf("the hardware addresses are %q, and were %q", now, addresses)
		}
		if _, err := n.Run(ctx, "cat", "/run/file"); err == nil {
			t.Error("its /run has outlived it")
		}
	})
	t.Run("a loop device that does not go by itself", func(t *testing.T) { // as kubelets have them for block volumes
		n := nodes(t, c)[1]
		on(t, n, "sh", "-c", "truncate -s 1M "+StorageDir+"/block && losetup -f "+StorageDir+"/block")
		if err := n.PowerOff(ctx); err != nil {
			t.Fatal(err)
		}
		if left, err := c.leftLoops(); err != nil || len(left) < 3 {
			t.Errorf("got %q, %v: want two disks, as one is held, and that device", left, err)
		}
	})
	t.Run("the leftovers list each kind of object", func(t *testing.T) {
		left, err := c.Leftovers()
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{"directory ", "network device ", "process ", "control group ", "loop device "} {
			if !slices.ContainsFunc(left, func(s string) bool { return strings.HasPrefix(s, what) }) {
				t.Errorf("no %sin %q", what, left)
			}
		}
	})
}

// An up may be killed at any moment. The next up finds the leftovers, and so does down.
func TestAnUpThatIsKilled(t *testing.T) {
	for _, moment := range []struct {
		name string
		come func(c *Cluster) bool
	}{
		{"when the plane has started", func(c *Cluster) bool { _, err := c.init(""); return err == nil }},
		{"when a node has started", func(c *Cluster) bool { _, err := c.init("node-1"); return err == nil }},
		{"when the data disks are mounted",
			func(c *Cluster) bool { left, err := c.leftLoops(); return err == nil && len(left) > 0 }},
		{"when the API server answers", func(c *Cluster) bool { return exists(c.ready()) }},
	} {
		t.Run(moment.name, func(t *testing.T) {
			c := cluster(t)
			killUp(t, c, provider.Options{Nodes: 2}, moment.come)
			if all, err := c.inits(); err != nil || len(all) == 0 {
				t.Fatalf("nothing runs, so that nothing is tested: %v, %v", all, err)
			}
		})
	}
	t.Run("when a guest starts its programs", func(t *testing.T) {
		needsGuests(t)
		c := cluster(t)
		killUp(t, c, provider.Options{Nodes: 1, Guests: []string{"6.1"}}, func(c *Cluster) bool {
			log, err := os.ReadFile(c.node("guest-1").log("console"))
			return err == nil && bytes.Contains(log, []byte("its network is there"))
		})
		if left, err := c.leftProcesses(); err != nil ||
			!slices.ContainsFunc(left, func(s string) bool { return strings.Contains(s, "qemu-system") }) {
			t.Fatalf("no guest runs, so that nothing is tested: %q, %v", left, err)
		}
	})
	t.Run("and is done again", func(t *testing.T) {
		c := cluster(t)
		killUp(t, c, provider.Options{Nodes: 2}, func(c *Cluster) bool { return exists(c.ready()) })
		old, err := c.init("")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Up(t.Context(), provider.Options{Nodes: 2, Log: os.Stderr}); err != nil {
			t.Fatal(err)
		}
		if is, err := c.init(""); err != nil || is == old {
			t.Errorf("the plane is %v, %v, as it was: a part of a start that was killed", is, err)
		}
	})
}

// lend lends a cluster to another program, which needs no Windows node, and does not end it.
func lend(t *testing.T, c *Cluster) {
	t.Helper()
	before, err := c.inits()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(LentVariable, c.name)
	lent, err := New("another")
	if err != nil || !lent.Lent() {
		t.Fatalf("lent: %v, %v", lent.Lent(), err)
	}
	if err := lent.Up(t.Context(), provider.Options{Nodes: 2, Log: os.Stderr}); err != nil {
		t.Error(err)
	}
	if err := lent.Up(t.Context(), provider.Options{Nodes: 3, Log: os.Stderr}); err == nil ||
		!strings.Contains(err.Error(), "not 3") {
		t.Errorf("with more nodes: %v", err)
	}
	if err := errors.Join(lent.Down(t.Context()), lent.End(t.Context())); err != nil {
		t.Error(err)
	}
	if after, err := c.inits(); err != nil || !slices.Equal(before, after) {
		t.Errorf("the init processes were %v, and are %v, %v", before, after, err)
	}
}

// A program does not start a lent cluster.
func TestALentClusterMustRun(t *testing.T) {
	t.Setenv(LentVariable, "missing")
	c, err := New(testName)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Up(t.Context(), provider.Options{Nodes: 2, Log: os.Stderr}); err == nil ||
		!strings.Contains(err.Error(), LentVariable) {
		t.Errorf("the error is %v", err)
	}
}

// killUp kills a process that starts the cluster, at a moment.
func killUp(t *testing.T, c *Cluster, o provider.Options, moment func(*Cluster) bool) {
	t.Helper()
	options, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CLUSTER_UP="+string(options))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	runs := func() bool {
		select {
		case <-ended:
			t.Fatalf("it has ended before that: %s", &said)
		default:
		}
		return true
	}
	// Before up starts the plane, it builds the components and the disks of guests. On a fresh
	// machine it also installs programs and fetches a kernel. A wait that has lasted for long
	// pauses for longer, so the moment has a wait of its own.
	await.True(t, "up has started the plane", func() bool { return runs() && exists(c.planeLog()) })
	await.True(t, "the moment is there", func() bool { return runs() && moment(c) })
	cmd.Process.Kill()
	<-ended
	if exists(c.up()) {
		t.Fatal("it was done before it was killed")
	}
}

// hardware returns the hardware addresses of the plane's bridge and, if it is on, of a node. The
// node's port gets the lowest of addresses, which a bridge takes by itself.
func hardware(t *testing.T, c *Cluster, n Node) []string {
	t.Helper()
	plane, err := c.init("")
	if err != nil {
		t.Fatal(err)
	}
	// there is none of a node that is off
	inNetwork(t.Context(), plane.pid, "ip", "link", "set", n.port, "address", "02:00:00:00:00:00").Run()
	out, err := inNetwork(t.Context(), plane.pid, "ip", "-j", "link", "show", bridge).Output()
	if err != nil {
		t.Fatal(err)
	}
	var links []struct{ Address string }
	if err := json.Unmarshal(out, &links); err != nil || len(links) != 1 {
		t.Fatalf("%s: %v", out, err)
	}
	addresses := []string{links[0].Address}
	if out, err := n.Run(t.Context(), "cat", "/sys/class/net/eth0/address"); err == nil {
		addresses = append(addresses, strings.TrimSpace(out))
	}
	return addresses
}

func nodes(t *testing.T, c *Cluster) []Node {
	t.Helper()
	all, err := c.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// on returns the output of a command on a node.
func on(t *testing.T, n Node, argv ...string) string {
	t.Helper()
	out, err := n.Run(t.Context(), argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// awaitOn does it when the node has started so far that its kubelet runs.
func awaitOn(t *testing.T, n Node, argv ...string) string {
	t.Helper()
	if err := awaitFile(t.Context(), n.cluster.node(n.Name).pid("kubelet")); err != nil {
		t.Fatal(err)
	}
	return on(t, n, argv...)
}
