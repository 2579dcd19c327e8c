package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

var (
	//go:embed objects.yaml
	objects string
	//go:embed snapshot.yaml
	snapshot string
	//go:embed restore.yaml
	restore string
)

// play is a run of the demo in its cluster.
type play struct {
	ctx     context.Context
	kubectl kubectl.Kubectl
	cluster *local.Cluster
}

// all plays all steps, up to the first failure.
func (p play) all() error {
	for _, scene := range []func() error{p.driver, p.volumes, p.snapshot, p.expansion, p.replaced, p.gone} {
		if err := scene(); err != nil {
			return err
		}
	}
	return nil
}

// driver shows the pods of the driver, their nodes, and the capacity that the scheduler knows.
func (p play) driver() error {
	if err := p.show("-n", "causeway", "get", "pods", "-o", "wide"); err != nil {
		return err
	}
	if err := p.show("get", "nodes,csinodes"); err != nil {
		return err
	}
	return p.until("a capacity for each of 2 nodes and 2 classes", p.capacities)
}

// capacities returns an error unless each class of the chart has exactly one capacity for each
// node, with the topology of the node. Kubernetes' storage suite compares the number only for
// drivers with one topology key.
func (p play) capacities() error {
	got, err := p.values("get", "csistoragecapacities", "-A", "-o",
		`jsonpath={range .items[*]}{.storageClassName}{.nodeTopology.matchLabels}{.capacity}{"\n"}{end}`)
	if err != nil {
		return err
	}
	want := map[string]bool{}
	for _, class := range []string{"causeway-hostpath", "causeway-hostpath-image"} {
		for _, node := range []string{"node-1", "node-2"} {
			want[fmt.Sprintf(`%s{"hostpath.csi.causeway.dev/node":%q,"hostpath.csi.causeway.dev/os":"linux"}`,
				class, node)] = true
		}
	}
	for _, capacity := range got {
		end := strings.LastIndex(capacity, "}") + 1
		if !want[capacity[:end]] || end == len(capacity) {
			return fmt.Errorf("unexpected, twice, or without a size: %s in %q", capacity, got)
		}
		delete(want, capacity[:end])
	}
	if len(want) > 0 {
		return fmt.Errorf("there are only %q", got)
	}
	return nil
}

// volumes has two pods write to two kinds of volumes, on both nodes.
func (p play) volumes() error {
	say("Two pods, each with a directory and a disk image on the node that the scheduler chose")
	if err := p.apply(objects); err != nil {
		return err
	}
	if err := p.show("rollout", "status", "statefulset/demo", "--timeout=120s"); err != nil {
		return err
	}
	if err := p.show("get", "pods,pvc", "-o", "wide"); err != nil {
		return err
	}
	nodes, err := p.values("get", "pods", "-l", "app=demo", "-o", "jsonpath={.items[*].spec.nodeName}")
	if err != nil {
		return err
	}
	if len(nodes) != 2 || nodes[0] == nodes[1] {
		return fmt.Errorf("the pods are on %q, not on two nodes", nodes)
	}
	for _, pod := range []string{"demo-0", "demo-1"} {
		if _, err := p.in(pod, "echo I am "+pod+" > /directory/file && echo first > /image/file && sync"); err != nil {
			return err
		}
		if err := p.expect(pod, "cat /directory/file", "I am "+pod); err != nil {
			return err
		}
	}
	return nil
}

// snapshot takes a snapshot of a volume in use, and restores it beside the volume.
func (p play) snapshot() error {
	say("A snapshot of the image of demo-0 while the pod writes, and a pod with a restored volume")
	if err := p.apply(snapshot); err != nil {
		return err
	}
	if err := p.show("wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/before",
		"--timeout=60s"); err != nil {
		return err
	}
	if _, err := p.in("demo-0", "echo second > /image/file && sync"); err != nil {
		return err
	}
	if err := p.apply(restore); err != nil {
		return err
	}
	if err := p.show("wait", "--for=condition=Ready", "pod/restored", "--timeout=120s"); err != nil {
		return err
	}
	if err := p.expect("restored", "cat /image/file", "first"); err != nil {
		return err
	}
	if err := p.expect("demo-0", "cat /image/file", "second"); err != nil {
		return err
	}
	nodes, err := p.values("get", "pods", "demo-0", "restored", "-o", "jsonpath={.items[*].spec.nodeName}")
	if err != nil {
		return err
	}
	if len(nodes) != 2 || nodes[0] != nodes[1] {
		return fmt.Errorf("the restore and its source are on %q: the snapshot is on one node", nodes)
	}
	fmt.Printf("The scheduler placed the pod with the restored volume on %s, the node of the snapshot.\n", nodes[0])
	return nil
}

// expansion doubles a volume while a pod uses it.
func (p play) expansion() error {
	say("The image of demo-1 grows to twice its size while the pod uses it")
	before, err := p.blocks("demo-1")
	if err != nil {
		return err
	}
	if err := p.show("patch", "pvc", "image-demo-1", "-p",
		`{"spec":{"resources":{"requests":{"storage":"600Mi"}}}}`); err != nil {
		return err
	}
	if err := p.show("wait", "--for=jsonpath={.status.capacity.storage}=600Mi", "pvc/image-demo-1",
		"--timeout=120s"); err != nil {
		return err
	}
	after, err := p.blocks("demo-1")
	if err != nil {
		return err
	}
	fmt.Printf("df in the pod: %d KiB, then %d KiB\n", before, after)
	if after < before*18/10 {
		return fmt.Errorf("the pod's filesystem has grown from %d to %d KiB only", before, after)
	}
	return p.expect("demo-1", "cat /image/file", "first")
}

// replaced replaces a pod, which gets its volumes again: on the same node, as they are there.
func (p play) replaced() error {
	say("demo-1 is deleted while its node takes no pods: it waits, though the other node has room, and comes back to " +
		"its data")
	node, err := p.kubectl.Run(p.ctx, "get", "pod", "demo-1", "-o", "jsonpath={.spec.nodeName}")
	if err != nil {
		return err
	}
	if err := p.show("cordon", node); err != nil {
		return err
	}
	if err := p.show("delete", "pod", "demo-1", "--timeout=60s"); err != nil {
		return err
	}
	if err := p.until("its successor",
		func() error { _, err := p.kubectl.Run(p.ctx, "get", "pod", "demo-1"); return err }); err != nil {
		return err
	}
	if err := p.show("wait", "--for=condition=PodScheduled=false", "pod/demo-1", "--timeout=60s"); err != nil {
		return err
	}
	if err := p.show("uncordon", node); err != nil {
		return err
	}
	if err := p.show("wait", "--for=condition=Ready", "pod/demo-1", "--timeout=120s"); err != nil {
		return err
	}
	if err := p.expect("demo-1", "cat /directory/file", "I am demo-1"); err != nil {
		return err
	}
	return p.expect("demo-1", "cat /image/file", "first")
}

// gone deletes all objects, and verifies that the nodes' disks are empty.
func (p play) gone() error {
	say("Everything is deleted, also the data on the nodes' disks")
	steps := [][]string{
		{"delete", "pod/restored", "service/demo", "statefulset/demo", "--timeout=60s"},
		{"wait", "--for=delete", "pod", "-l", "app=demo", "--timeout=60s"},
		{"delete", "pvc", "--all", "--timeout=60s"},
		{"delete", "volumesnapshot", "--all", "--timeout=60s"},
		{"wait", "--for=delete", "pv", "--all", "--timeout=60s"},
		{"delete", "storageclass/demo-xfs"},
	}
	for _, s := range steps {
		if err := p.show(s...); err != nil {
			return err
		}
	}
	nodes, err := p.cluster.Nodes()
	if err != nil {
		return err
	}
	for _, n := range nodes {
		err := p.until("no volumes on "+n.Name, func() error {
			left, err := n.Run(p.ctx, "find", local.StorageDir+"/volumes", local.StorageDir+"/snapshots", "-mindepth",
				"1", "-maxdepth", "1")
			if err == nil && left != "" {
				err = fmt.Errorf("there are:\n%s", left)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// show runs kubectl, and shows the command and its output.
func (p play) show(args ...string) error {
	quoted := make([]string, len(args))
	for i, a := range args {
		if quoted[i] = a; strings.ContainsAny(a, " {}\"'*") {
			quoted[i] = "'" + a + "'"
		}
	}
	fmt.Println("$ kubectl", strings.Join(quoted, " "))
	cmd := p.kubectl.Command(p.ctx, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		p.why()
		return fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// why shows the objects that explain a pod that does not start.
func (p play) why() {
	for _, args := range [][]string{{"get", "pods,pvc", "-A", "-o", "wide"}, {"events", "-A", "--types=Warning"}} {
		if out, err := p.kubectl.Run(context.WithoutCancel(p.ctx), args...); err == nil {
			fmt.Println(out)
		}
	}
}

// apply shows the file of the objects, and applies it.
func (p play) apply(objects string) error {
	cmd := p.kubectl.Command(p.ctx, "apply", "-f", "-")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(objects), os.Stdout, os.Stderr
	fmt.Println("$ kubectl apply -f -")
	return cmd.Run()
}

// values returns the words that kubectl prints.
func (p play) values(args ...string) ([]string, error) {
	out, err := p.kubectl.Run(p.ctx, args...)
	return strings.Fields(out), err
}

// in runs a line of shell in a pod, and returns its output, without space around it.
func (p play) in(pod, line string) (string, error) {
	out, err := p.kubectl.Run(p.ctx, "exec", pod, "--", "sh", "-c", line)
	return strings.TrimSpace(out), err
}

// expect shows a line of shell in a pod, and its output, which must be want.
func (p play) expect(pod, line, want string) error {
	got, err := p.in(pod, line)
	if err != nil {
		return err
	}
	fmt.Printf("$ kubectl exec %s -- %s\n%s\n", pod, line, got)
	if got != want {
		return fmt.Errorf("%s in %s prints %q, not %q", line, pod, got, want)
	}
	return nil
}

// blocks returns how many KiB the filesystem of a pod's image has.
func (p play) blocks(pod string) (int, error) {
	out, err := p.in(pod, "df -k /image | awk 'NR==2 {print $2}'")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// until waits up to a minute until something is so.
func (p play) until(what string, so func() error) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := so()
		if err == nil || p.ctx.Err() != nil {
			return p.ctx.Err()
		}
		if time.Now().After(deadline) {
			p.why()
			return fmt.Errorf("not so after a minute: %s: %w", what, err)
		}
	}
}
