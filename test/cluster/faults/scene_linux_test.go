package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// patience is the limit of commands that wait. It is no measure: the provisioner repeats its calls
// with growing pauses, a node is given up after 20 s, and the other pod leads 20 s after the death
// of the leader.
const patience = 3 * time.Minute

// scene is a test: a namespace of its own, in a healthy cluster.
type scene struct {
	*testing.T
	namespace string
	program   string // kubectl causeway, once it is built
}

// begin waits until all is well, and has the test's end see to it that it is again.
func begin(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, namespace: strings.ToLower(t.Name())}
	s.Cleanup(s.end)
	s.repair() // the test before may have failed to
	s.well()
	s.apart(install.Namespace, "app.kubernetes.io/name=causeway-controller")
	s.apart("kube-system", "app=coredns")
	s.kubectl("create", "namespace", s.namespace)
	s.until("pods are let in", func() error { _, err := s.try("get", "serviceaccount", "default"); return err })
	return s
}

// end repairs the cluster, deletes all objects of the test, and checks for leftovers.
func (s *scene) end() {
	if s.Failed() {
		s.why()
	}
	s.repair()
	// Sooner than by the namespace's end alone, which looks for them ever more rarely.
	s.kubectl("delete", "pods,volumesnapshots,pvc", "--all", "--timeout="+patience.String())
	s.kubectl("delete", "namespace", s.namespace, "--ignore-not-found", "--timeout="+patience.String())
	s.well()
	s.until("no PersistentVolume and no content of a snapshot is left", func() error {
		return empty(s.try("get", "pv,volumesnapshotcontents", "-o", "name"))
	})
	for _, n := range nodes {
		s.nothingOn(n)
	}
}

// repair undoes the faults of a test on nodes.
func (s *scene) repair() {
	for _, n := range nodes {
		_, err := s.shell(n, "mountpoint -q "+local.StorageDir)
		if err != nil || n.Reconnect(s.anyhow()) != nil {
			s.must(n.PowerOff(s.anyhow()))
			s.must(n.PowerOn(s.anyhow(), true))
		}
		for _, program := range []string{"containerd", "kubelet"} {
			if err := n.Release(program); err != nil && !errors.Is(err, os.ErrNotExist) {
				s.Error(err)
			}
		}
		s.until(n.Name+" is known", func() error { _, err := s.try("uncordon", n.Name); return err })
	}
}

// well waits until all is ready, and the scheduler knows of room on all nodes.
func (s *scene) well() {
	s.Helper()
	s.ready()
	s.until("there is room for both classes on both nodes", func() error {
		sizes, err := s.try("-n", install.Namespace, "get", "csistoragecapacities", "-o",
			"jsonpath={.items[*].capacity}")
		if got := strings.Fields(sizes); err == nil && (len(got) != 2*len(nodes) || slices.Contains(got, "0")) {
			err = fmt.Errorf("there is %q", got)
		}
		return err
	})
}

// ready waits until all nodes are, and all of the driver.
func (s *scene) ready() {
	s.Helper()
	for _, n := range nodes {
		s.until(n.Name+" is ready", func() error {
			return same("True", s.value("node/"+n.Name, `{.status.conditions[?(@.type=="Ready")].status}`))
		})
	}
	for _, w := range []string{"kube-system deployment/coredns", "causeway daemonset/causeway-node",
		"causeway deployment/causeway-controller"} {
		in, what, _ := strings.Cut(w, " ")
		s.until(what+" is ready", func() error {
			_, err := s.try("-n", in, "rollout", "status", what, "--timeout=5s")
			return err
		})
	}
}

// apart spreads the pods with a label over nodes. They are all on one node where the other node was
// away: Kubernetes moves no pods, and a test of a missing node would depend on the tests before.
func (s *scene) apart(namespace, label string) {
	s.Helper()
	s.until(label+" is on all nodes", func() error {
		out, err := s.try("-n", namespace, "get", "pods", "-l", label, "--field-selector=status.phase=Running", "-o",
			`jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name}{"\n"}{end}`)
		if err != nil {
			return err
		}
		at := map[string]string{}
		for line := range strings.Lines(out) {
			node, pod, _ := strings.Cut(strings.TrimSpace(line), " ")
			at[node] = pod
		}
		if len(at) == 1 {
			for _, pod := range at {
				s.kubectl("-n", namespace, "delete", "pod", pod, "--ignore-not-found")
			}
			s.ready()
		}
		if len(at) != len(nodes) {
			err = fmt.Errorf("they are at %v", at)
		}
		return err
	})
}

// nothingOn waits until a node has nothing of the driver: no volume, no part of a volume, no mount
// and no loop device.
func (s *scene) nothingOn(n local.Node) {
	s.Helper()
	s.until("nothing is on the disk of "+n.Name, func() error {
		return empty(s.shell(n, "cd "+local.StorageDir+" && find volumes snapshots groups staging trash -mindepth 1 "+
			"-maxdepth 1"))
	})
	s.until("there are no mounts of volumes on "+n.Name, func() error {
		return empty(s.shell(n, `awk '$2 ~ "/kubernetes.io[~/]csi/" {print $2}' /proc/mounts`))
	})
	// All loop devices of this machine are seen on a node: those count that are on its own disk.
	s.until("there are no loop devices on the disk of "+n.Name, func() error {
		return empty(s.shell(n, "losetup -ln -O BACK-MAJ:MIN,NAME,BACK-FILE | grep \"^ *$(mountpoint -d "+local.StorageDir+") \" || true"))
	})
}

// why reports the state of the cluster when a test has failed.
func (s *scene) why() {
	for _, args := range [][]string{
		{"get", "nodes,pods", "-A", "-o", "wide"},
		{"-n", s.namespace, "get", "pvc,volumesnapshots"},
		{"get", "pv,volumesnapshotcontents"},
		{"-n", install.Namespace, "get", "csistoragecapacities", "-o",
			"custom-columns=CLASS:.storageClassName,NODE:.nodeTopology.matchLabels,ROOM:.capacity"},
		{"events", "-A", "--types=Warning"},
	} {
		out, err := kube.Run(s.anyhow(), args...)
		s.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	pods, _ := kube.Run(s.anyhow(), "-n", install.Namespace, "get", "pods", "-o", "name")
	for _, pod := range strings.Fields(pods) {
		for _, container := range containers(pod) {
			for _, which := range []string{"--previous=true", "--previous=false"} {
				if out, err := kube.Run(s.anyhow(), "-n", install.Namespace, "logs", pod, "-c", container, "--tail=40",
					which); err == nil {
					s.Logf("the end of the log of %s of %s, %s:\n%s", container, pod, which, out)
				}
			}
		}
	}
}

// containers returns the containers of a pod of the driver.
func containers(pod string) []string {
	if strings.Contains(pod, "controller") {
		return []string{"driver", "csi-sidecars"}
	}
	return []string{"driver", "csi-sidecars-node"}
}

// until waits for an event.
func (s *scene) until(event string, so func() error) {
	s.Helper()
	start := time.Now()
	await.NoError(s, event, so)
	if took := time.Since(start); took > 2*time.Second { // the steps that take a test's time
		s.Logf("%4.1f s: %s", took.Seconds(), event)
	}
}

// anyhow is a context for steps that must run even after the end of the test.
func (s *scene) anyhow() context.Context { return context.WithoutCancel(s.Context()) }

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// try runs kubectl in the test's namespace, if the arguments name no other.
func (s *scene) try(args ...string) (string, error) {
	out, err := kube.Run(s.anyhow(),
		append([]string{"--namespace=" + s.namespace, "--request-timeout=60s"}, args...)...)
	return strings.TrimSpace(out), err
}

// kubectl is try for commands that must work.
func (s *scene) kubectl(args ...string) string {
	s.Helper()
	out, err := s.try(args...)
	s.must(err)
	return out
}

// value returns a field of an object, by a JSONPath, or that it cannot be had.
func (s *scene) value(object, path string) string {
	out, err := s.try("get", object, "-o", "jsonpath="+path)
	if err != nil {
		return err.Error()
	}
	return out
}

func (s *scene) apply(objects ...string) {
	s.Helper()
	s.must(kube.Apply(s.anyhow(), strings.Join(objects, "---\n"), "--namespace="+s.namespace))
}

// in runs a shell command in a pod, and returns the output.
func (s *scene) in(pod, line string) string {
	s.Helper()
	return s.kubectl("exec", pod, "--", "sh", "-c", line)
}

// shell runs a shell command on a node, and returns the output.
func (s *scene) shell(n local.Node, line string) (string, error) {
	out, err := n.Run(s.anyhow(), "sh", "-c", line)
	return strings.TrimSpace(out), err
}

// on is shell for commands that must work.
func (s *scene) on(n local.Node, line string) string {
	s.Helper()
	out, err := s.shell(n, line)
	s.must(err)
	return out
}

// runs waits until pods are ready.
func (s *scene) runs(pods ...string) {
	s.Helper()
	for _, p := range pods {
		s.until("pod "+p+" is ready", func() error {
			return same("True", s.value("pod/"+p, `{.status.conditions[?(@.type=="Ready")].status}`))
		})
	}
}

// nodeOf returns the node that a pod is on.
func (s *scene) nodeOf(pod string) local.Node {
	s.Helper()
	return s.named(s.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}"))
}

func (s *scene) named(name string) local.Node {
	s.Helper()
	for _, n := range nodes {
		if n.Name == name {
			return n
		}
	}
	s.Fatalf("there is no node %q", name)
	return local.Node{}
}

// handle returns the ID of a claim's volume.
func (s *scene) handle(claim string) string {
	s.Helper()
	return s.kubectl("get", "pv", s.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}"), "-o",
		"jsonpath={.spec.csi.volumeHandle}")
}

// says waits until an event of an object has certain words.
func (s *scene) says(object, words string) {
	s.Helper()
	kind, name, _ := strings.Cut(object, "/")
	s.until("there is an event of "+object+" with "+words, func() error {
		out, err := s.try("get", "events", "-A", "--field-selector=involvedObject.kind="+kind+",involvedObject.name="+name, "-o", `jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		if err == nil && !strings.Contains(out, words) {
			err = fmt.Errorf("there are:\n%s", out)
		}
		return err
	})
}

func (s *scene) same(what, want, got string) {
	s.Helper()
	if err := same(want, got); err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

func same(want, got string) error {
	if got != want {
		return fmt.Errorf("%q, want %q", got, want)
	}
	return nil
}

func empty(out string, err error) error {
	if out = strings.TrimSpace(out); err == nil && out != "" {
		err = fmt.Errorf("there is:\n%s", out)
	}
	return err
}
