package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

const root = local.StorageDir

// well waits until all pods are ready and have metrics.
func (p *prometheus) well() {
	p.Helper()
	for _, w := range []string{"daemonset/causeway-node", "deployment/causeway-controller"} {
		await.NoError(p, w+" is ready", func() error {
			_, err := p.try("-n", install.Namespace, "rollout", "status", w, "--timeout=5s")
			return err
		})
	}
	await.NoError(p, "there are metrics of all pods, and a leader", func() error {
		for expr, want := range map[string]string{"count(up == 1)": "8", "count(up)": "8", "count(causeway_ready == 1)": "2",
			`sum(csi_sidecars_controller_up{controller="provisioner"})`: "1",
			`max(causeway_router_peers{state="answers"})`:               "2", "count(csi_sidecars_ready == 1)": "4"} {
			got, err := p.Query(expr)
			if err == nil && (len(got) != 1 || got[0].Value[1] != want) {
				err = fmt.Errorf("%s is %v, want %s", expr, got, want)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// volume makes a claim on the first node, whose pod writes a file, and returns the ID of the
// volume.
func (p *prometheus) volume(name string) (id string) {
	p.Helper()
	p.must(kube.Apply(p.anyhow(), fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: causeway-hostpath
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  containers:
  - name: writer
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, "echo data > /data/marker-%[1]s && sleep 3600"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: %[1]s}}
`, name, nodes[0].Name)))
	await.NoError(p, "pod "+name+" is ready", func() error {
		_, err := p.try("wait", "pod/"+name, "--for=condition=Ready", "--timeout=5s")
		return err
	})
	volume := p.must2(p.try("get", "pvc", name, "-o", "jsonpath={.spec.volumeName}"))
	return p.must2(p.try("get", "pv", volume, "-o", "jsonpath={.spec.csi.volumeHandle}"))
}

// remove deletes the pod and the claim of volume.
func (p *prometheus) remove(name string) {
	p.Helper()
	p.must2(p.try("delete", "pod", name, "--now", "--ignore-not-found"))
	p.must2(p.try("delete", "pvc", name))
}

// replacePods replaces the driver's pod of a node.
func (p *prometheus) replacePods(n local.Node) {
	p.Helper()
	p.must2(p.try("-n", install.Namespace, "delete", "pod", "-l", "app.kubernetes.io/name=causeway-node",
		"--field-selector=spec.nodeName="+n.Name))
}

// on runs a shell command on a node.
func (p *prometheus) on(n local.Node, line string) {
	p.Helper()
	p.must2(n.Run(p.anyhow(), "sh", "-c", line))
}

// anyhow is a context for steps that must run even after the end of the test.
func (p *prometheus) anyhow() context.Context { return context.WithoutCancel(p.Context()) }

func (p *prometheus) try(args ...string) (string, error) {
	out, err := kube.Run(p.anyhow(), append([]string{"--request-timeout=60s"}, args...)...)
	return strings.TrimSpace(out), err
}

func (p *prometheus) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *prometheus) must2(out string, err error) string {
	p.Helper()
	p.must(err)
	return out
}

// kubectl is try for commands that must work.
func (p *prometheus) kubectl(args ...string) string {
	p.Helper()
	return p.must2(p.try(args...))
}

func (p *prometheus) apply(objects ...string) {
	p.Helper()
	p.must(kube.Apply(p.anyhow(), strings.Join(objects, "---\n")))
}

// saved returns an object of the namespace of the driver, or of none, in compact JSON, without the
// fields of the server.
func (p *prometheus) saved(kind, name string) string {
	p.Helper()
	text := p.kubectl("-n", install.Namespace, "get", kind, name, "-o", "json")
	var object map[string]any
	p.must(json.Unmarshal([]byte(text), &object))
	delete(object, "status")
	metadata := object["metadata"].(map[string]any)
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"} {
		delete(metadata, field)
	}
	compact, err := json.Marshal(object)
	p.must(err)
	return string(compact)
}

// replace replaces an object, or creates it. A CSIDriver has to be made again: some of its fields
// cannot change.
func (p *prometheus) replace(object string) (err error) {
	ways := [][]string{{"replace"}, {"create"}}
	if strings.Contains(object, `"kind":"CSIDriver"`) {
		ways = [][]string{{"replace", "--force"}}
	}
	for _, way := range ways {
		cmd := kube.Command(p.anyhow(), append(way, "--filename=-")...)
		cmd.Stdin = strings.NewReader(object)
		out, failure := cmd.CombinedOutput()
		if failure == nil {
			return nil
		}
		err = errors.Join(err, fmt.Errorf("kubectl %s: %w: %.500s", way[0], failure, out))
	}
	return err
}

// restore is replace until it works.
func (p *prometheus) restore(object string) {
	p.Helper()
	await.NoError(p, "an object is restored", func() error { return p.replace(object) })
}

// without deletes an object until the repair.
func (s *scene) without(kind, name string) {
	s.Helper()
	object := s.saved(kind, name)
	s.later(func() { s.restore(object) })
	s.kubectl("-n", install.Namespace, "delete", kind, name)
}

// edit replaces a text in an object, as compact JSON, until the repair.
func (s *scene) edit(kind, name, from, to string) {
	s.Helper()
	object := s.saved(kind, name)
	edited := strings.ReplaceAll(object, from, to)
	if edited == object {
		s.Fatalf("%s is not in %s", from, object)
	}
	s.later(func() { s.restore(object) })
	s.must(s.replace(edited))
}

// patch changes an object by a JSON patch until the repair.
func (s *scene) patch(kind, name, patch string) {
	s.Helper()
	object := s.saved(kind, name)
	s.later(func() { s.restore(object) })
	s.kubectl("-n", install.Namespace, "patch", kind, name, "--type=json", "-p", patch)
}

// deleteOne deletes one of the driver's pods with a label, on the second node if there is one.
func (s *scene) deleteOne(label string) {
	s.Helper()
	names := strings.Fields(s.kubectl("-n", install.Namespace, "get", "pods", "-l", label, "--sort-by=.spec.nodeName",
		"-o", "jsonpath={.items[*].metadata.name}"))
	if len(names) == 0 {
		s.Fatalf("there is no pod with %s", label)
	}
	s.kubectl("-n", install.Namespace, "delete", "pod", names[len(names)-1])
}

// otherImages gives the nodes the images of another version.
func (s *scene) otherImages() {
	s.Helper()
	images, err := install.MakeImages(s.anyhow(), os.Stderr, s.TempDir(), "other")
	s.must(err)
	s.must(images.Load(s.anyhow(), os.Stderr, cluster))
}
