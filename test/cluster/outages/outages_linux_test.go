package outages

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/outages/records"
	"github.com/causeway-csi/causeway/test/cluster/shares"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// TestOutages: writers on nodes with two kernels, and with both values of outage, go on after each
// outage without a restart, and every durable record is on the server's disk, byte for byte.
func TestOutages(t *testing.T) {
	s := &scene{T: t}
	var err error
	s.server, err = shares.Serve(cluster, filepath.Join(t.TempDir(), "smb"))
	s.must(err)
	t.Cleanup(func() {
		if err := s.server.Close(); err != nil {
			t.Error(err)
		}
	})
	s.must(shares.Install(t.Context(), cluster, kube, s.server, os.Stderr))
	s.loadWriter()
	_, err = kube.Run(t.Context(), "create", "namespace", namespace)
	s.must(err)
	for _, n := range guests {
		for _, class := range []string{shares.Class, shares.WaitClass} {
			name := n.Name + "-" + class
			w := &writer{name: name, claim: name, class: class, node: n}
			s.begin(w)
			s.writers = append(s.writers, w)
		}
	}
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) { s.with(t).survive(o) })
	}
	t.Run("the controller's leader dies", func(t *testing.T) { s.with(t).failOver() })
	t.Run("the password changes", func(t *testing.T) { s.with(t).password() })
	t.Run("the directory of a volume is recreated", func(t *testing.T) { s.with(t).recreate() })
	t.Run("volumes move from csi-driver-smb", func(t *testing.T) { s.with(t).migrate() })
	t.Run("a node is drained while the server is frozen", func(t *testing.T) { s.with(t).drain() })
}

// outage is an event that writers live through.
type outage struct {
	name string
	of   func(*scene)
	// cut is the time in which no fsync can succeed, less a tenth: the clocks of guests are slow.
	// An outage that does not happen is a failure.
	cut time.Duration
	// errors are those that a writer may see, with outage: error and with outage: wait.
	errors, wait []string
}

// Errors of writers whose connection ends. EAGAIN and EBADF are those of a call that the kernel's
// client made with the handle of the former connection. The next call succeeds.
var (
	soft = []string{"resource temporarily unavailable", "bad file descriptor", "host is down"}
	hard = soft[:2]
)

var outages = []outage{
	{name: "nothing happens for 30 s", of: func(*scene) { pauseForOutage(30 * time.Second) }},
	{"the server restarts", (*scene).restart, 0, soft, hard},
	{"the server refuses connections for 30 s", (*scene).refuse, 27 * time.Second, soft, hard},
	{"the server's machine is gone for 90 s", (*scene).gone, 81 * time.Second, soft, hard},
	{"the server freezes for 60 s", (*scene).freeze, 54 * time.Second, soft, hard},
	{"the nodes lose their network for 60 s", (*scene).cut, 54 * time.Second, soft, hard},
	{name: "the driver's pods are killed", of: (*scene).killDriver},
	{name: "the driver is upgraded and rolled back", of: (*scene).upgrade},
}

// survive causes an outage. Each writer must then continue in the same pod, and all of its durable
// records must exist.
func (s *scene) survive(o outage) {
	begin := time.Now()
	o.of(s)
	end := time.Now()
	for _, w := range s.writers {
		all := s.writes(w, end)
		s.verify(w, all)
		s.stays(w)
		seen := records.Since(all, begin)
		s.report(o.name, w, seen)
		if seen.Silence < o.cut {
			s.Errorf("%s: the longest time without a durable record is %v, want %v at least", w.name, seen.Silence, o.cut)
		}
		permitted := o.errors
		if w.class == shares.WaitClass {
			permitted = o.wait
		}
		for _, e := range seen.Errors {
			if !slices.Contains(permitted, e) {
				s.Errorf("%s: the error is %q, which is none of %q", w.name, e, permitted)
			}
		}
	}
}

// with returns the scene of a subtest.
func (s *scene) with(t *testing.T) *scene {
	return &scene{t, s.server, s.writers}
}

// report prints a row of the table of outages.
func (s *scene) report(outage string, w *writer, f records.Effect) {
	s.Logf("| %s | %s | %s | %s | %.1f s | %.1f s |", outage, w.node.Name, w.class, strings.Join(f.Errors, ", "),
		f.Failing.Seconds(), f.Silence.Seconds())
}

// pauseForOutage waits for the time of an outage.
func pauseForOutage(d time.Duration) { time.Sleep(d) }

func (s *scene) restart() {
	s.must(s.server.Kill())
	s.must(s.server.Restart())
}

func (s *scene) refuse() {
	s.must(s.server.Kill())
	pauseForOutage(30 * time.Second)
	s.must(s.server.Restart())
}

// gone drops all packets between the nodes and the server.
func (s *scene) gone() {
	drop := fmt.Sprintf(`table ip gone {
	chain out { type filter hook output priority 0; ip daddr %[1]s tcp dport %[2]d drop; }
	chain in { type filter hook input priority 0; ip saddr %[1]s tcp sport %[2]d drop; }
}`, s.server.Address, s.server.Port)
	for _, n := range guests {
		s.on(n, "nft -f - <<'END'\n"+drop+"\nEND")
	}
	pauseForOutage(90 * time.Second)
	for _, n := range guests {
		s.on(n, "nft delete table ip gone")
	}
}

func (s *scene) freeze() {
	s.must(s.server.Silence())
	pauseForOutage(time.Minute)
	s.must(s.server.Resume())
}

func (s *scene) cut() {
	for _, n := range guests {
		s.must(n.Cut(s.anyhow()))
	}
	pauseForOutage(time.Minute)
	for _, n := range guests {
		s.must(n.Reconnect(s.anyhow()))
	}
}

// killDriver kills the driver's processes on the nodes, then deletes its pods.
func (s *scene) killDriver() {
	before := s.nodePods()
	for _, n := range guests {
		// Helper processes have the name of the driver too. Their parent is the driver.
		s.on(n, `for p in $(pidof driver); do read -r _ _ _ parent _ </proc/$p/stat
			case $(cat /proc/$parent/comm) in containerd-shim*) kill -9 $p;; esac; done`)
	}
	s.nodePodsReplace(before)
	before = s.nodePods()
	s.driver("delete", "pods", "-l", nodeLabel, "--grace-period=0", "--force")
	s.nodePodsReplace(before)
}

const nodeLabel = "app.kubernetes.io/name=causeway-smb-node"

// nodePods returns, by node, the UID of the driver's pod and the restarts of its containers.
func (s *scene) nodePods() map[string]string {
	s.Helper()
	out, err := kube.Run(s.anyhow(), "--namespace="+install.Namespace, "get", "pods", "-l", nodeLabel, "-o",
		`jsonpath={range .items[*]}{.spec.nodeName} {.metadata.uid} {.status.containerStatuses[*].restartCount} `+
			`{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	s.must(err)
	all := map[string]string{}
	for line := range strings.Lines(out) {
		node, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if life, ready := strings.CutSuffix(rest, " True"); ready {
			all[node] = life
		}
	}
	return all
}

// nodePodsReplace waits until each node has a ready pod, or ready containers, that it had not
// before.
func (s *scene) nodePodsReplace(before map[string]string) {
	s.Helper()
	await.NoError(s, "there are other pods of the driver", func() error {
		now := s.nodePods()
		for _, n := range guests {
			if now[n.Name] == "" || now[n.Name] == before[n.Name] {
				return fmt.Errorf("%s has %q, before %q", n.Name, now[n.Name], before[n.Name])
			}
		}
		return nil
	})
}

func (s *scene) upgrade() {
	helm, err := install.NewHelm(s.anyhow(), os.Stderr, kube)
	s.must(err)
	for _, args := range [][]string{
		{"upgrade", "causeway", chart.Directory(), "--reuse-values", "--wait", "--timeout=300s",
			"--set-string=smb.node.podAnnotations.outages=upgraded"},
		{"rollback", "causeway", "--wait", "--timeout=300s"},
	} {
		before := s.nodePods()
		_, err := helm.Run(s.anyhow(), args...)
		s.must(err)
		s.nodePodsReplace(before)
	}
}

// password changes the password of the server, and in the Secrets. Linux before 6.9 keeps the old
// password: there the pods are deleted before their sessions end, as docs/how-to/smb.md says.
func (s *scene) password() {
	counts := map[string]int{}
	for _, n := range guests {
		counts[n.Name] = s.publishes(n)
	}
	begin := time.Now()
	s.must(s.server.SetPassword("an,other"))
	for _, name := range []string{shares.ControllerSecret, shares.NodesSecret} {
		s.must(shares.WriteSecret(s.anyhow(), kube, name, s.server))
	}
	for _, n := range guests {
		await.NoError(s, "the kubelet of "+n.Name+" publishes its volumes again", func() error {
			if got := s.publishes(n); got < counts[n.Name]+4 {
				return fmt.Errorf("%d calls, %d before", got, counts[n.Name])
			}
			return nil
		})
	}
	for _, w := range s.writers { // sessions with the old password continue
		s.verify(w, s.writes(w, time.Now()))
	}
	old := guests[0].Name
	for _, w := range s.writers {
		if w.node.Name == old {
			s.end(w)
		}
	}
	s.restart()
	restarted := time.Now()
	for _, w := range s.writers {
		if w.node.Name == old {
			s.begin(w)
		} else {
			s.stays(w)
		}
		all := s.writes(w, restarted)
		s.verify(w, all)
		s.report("the password changes", w, records.Since(all, begin))
	}
}

// publishes returns the number of successful calls of NodePublishVolume on a node.
func (s *scene) publishes(n local.Node) int {
	s.Helper()
	out := s.on(n, `wget -q -O- http://127.0.0.1:9819/metrics | grep 'causeway_csi_calls_total{.*NodePublishVolume' | `+
		`grep '"OK"' || true`)
	count := 0
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		s.must(err)
		count += int(n)
	}
	return count
}

// recreate removes the directory of a volume on the server and makes it again. A new pod uses it.
func (s *scene) recreate() {
	for _, n := range guests {
		name := "recreated-" + n.Name
		pod := claim(name, shares.Class) + fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  terminationGracePeriodSeconds: 1
  containers:
  - name: shell
    image: %[3]s
    command: [sleep, "100000"]
    volumeMounts: [{name: volume, mountPath: /volume}]
  volumes: [{name: volume, persistentVolumeClaim: {claimName: %[1]s}}]
`, name, n.Name, testimages.Busybox)
		ready := func() {
			s.must(kube.Apply(s.anyhow(), pod, "--namespace="+namespace))
			await.NoError(s, name+" is ready", func() error {
				return s.is("True", "pod", name, `{.status.conditions[?(@.type=="Ready")].status}`)
			})
		}
		ready()
		s.kubectl("exec", name, "--", "sh", "-c", "echo old > /volume/file")
		dir := filepath.Join(shares.Directory(s.server), s.get("pvc", name, "{.spec.volumeName}"))
		s.must(os.RemoveAll(dir))
		s.must(os.Mkdir(dir, 0o777))
		s.must(os.Chmod(dir, 0o777))
		_, err := kube.Run(s.anyhow(), "--namespace="+namespace, "exec", name, "--", "ls", "/volume")
		if err == nil || !strings.Contains(err.Error(), "Stale file handle") {
			s.Errorf("%s: the pod of before lists the directory: %v", n.Name, err)
		}
		if out := s.kubectl("exec", name, "--", "sh", "-c", "echo new > /volume/file && cat /volume/file"); out != "new" {
			s.Errorf("%s: the pod of before reads %q", n.Name, out)
		}
		s.kubectl("delete", "pod", name)
		ready()
		if out := s.kubectl("exec", name, "--", "sh", "-c", "ls /volume && echo newer > /volume/file"); out != "file" {
			s.Errorf("%s: a new pod sees %q", n.Name, out)
		}
		if content, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(content) != "newer\n" {
			s.Errorf("%s: the server has %q, %v", n.Name, content, err)
		}
		s.kubectl("delete", "pod,pvc", name)
	}
}

// drain drains a node while the server is frozen, and lets the server answer after a minute. A
// process with a write under way cannot end before. The mounts of the staging paths stay until
// then, too: the kubelet examines these paths before NodeUnstageVolume, and waits for the server.
func (s *scene) drain() {
	begin := time.Now()
	n := guests[1]
	var drained []*writer
	for _, w := range s.writers {
		if w.node.Name == n.Name {
			drained = append(drained, w)
		}
	}
	s.must(s.server.Silence())
	ended := make(chan error, 1)
	go func() {
		_, err := kube.Run(s.anyhow(), "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
			"--timeout="+livetest.Patience.String())
		ended <- err
	}()
	resume := sync.OnceFunc(func() { s.must(s.server.Resume()) })
	s.Cleanup(func() {
		resume()
		kube.Run(s.anyhow(), "uncordon", n.Name)
	})
	await.NoError(s, n.Name+" is unschedulable", func() error {
		return s.is("true", "node", n.Name, "{.spec.unschedulable}")
	})
	for _, w := range drained {
		await.True(s, "the drain has deleted "+w.name+", which writes", func() bool {
			return s.get("pod", w.name, "{.metadata.deletionTimestamp}") != ""
		})
	}
	pauseForOutage(time.Minute)
	resume()
	resumed := time.Now()
	s.must(<-ended)
	s.Logf("drained %.1f s after the server answers", time.Since(resumed).Seconds())
	await.NoError(s, "there are no mounts of shares on "+n.Name, func() error {
		if out := s.on(n, "grep ' cifs ' /proc/mounts || true"); out != "" {
			return fmt.Errorf("there are:\n%s", out)
		}
		return nil
	})
	s.Logf("no mounts %.1f s after the server answers", time.Since(resumed).Seconds())
	s.kubectl("uncordon", n.Name)
	for _, w := range drained {
		s.begin(w)
	}
	for _, w := range s.writers {
		all := s.writes(w, time.Now())
		s.verify(w, all)
		s.report("a node is drained while the server is frozen", w, records.Since(all, begin))
	}
}

// on runs a shell command on a node, and returns the output.
func (s *scene) on(n local.Node, line string) string {
	s.Helper()
	out, err := n.Run(s.anyhow(), "sh", "-c", line)
	s.must(err)
	return strings.TrimSpace(out)
}

// driver runs kubectl in the namespace of the driver.
func (s *scene) driver(args ...string) {
	s.Helper()
	_, err := kube.Run(s.anyhow(), append([]string{"--namespace=" + install.Namespace}, args...)...)
	s.must(err)
}

func (s *scene) driverIsReady() {
	s.Helper()
	s.driver("rollout", "status", "daemonset/causeway-smb-node", "--timeout="+livetest.Patience.String())
	s.driver("rollout", "status", "deployment/causeway-smb-controller", "--timeout="+livetest.Patience.String())
}
