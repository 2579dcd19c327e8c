package switches

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// The classes of the chart.
const (
	directories = "causeway-hostpath"
	images      = "causeway-hostpath-image"
)

// scene is a test with a namespace of its own.
type scene struct {
	*testing.T
	namespace string
}

// begin makes the namespace, whose objects are deleted with the test.
func begin(t *testing.T) *scene {
	t.Helper()
	s := &scene{t, strings.ToLower(t.Name())}
	s.Cleanup(func() {
		if s.Failed() {
			s.why()
		}
		s.kubectl("delete", "pods,pvc", "--all", "--timeout="+livetest.Patience.String())
		s.kubectl("delete", "namespace", s.namespace, "--ignore-not-found", "--timeout="+livetest.Patience.String())
	})
	s.kubectl("create", "namespace", s.namespace)
	await.NoError(s, "there is a service account", func() error {
		_, err := s.try("get", "serviceaccount", "default")
		return err
	})
	return s
}

// why reports the state of the cluster when a test has failed.
func (s *scene) why() {
	for _, args := range [][]string{{"get", "pods,pvc", "-o", "wide"}, {"get", "events"},
		{"get", "csinodes", "-o", "yaml"},
		{"-n", "causeway", "get", "pods,csistoragecapacities", "-o", "wide"}} {
		out, err := s.try(args...)
		s.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
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
	out, err := kube.Run(s.anyhow(), append([]string{"--namespace=" + s.namespace}, args...)...)
	return strings.TrimSpace(out), err
}

// kubectl is try for commands that must work.
func (s *scene) kubectl(args ...string) string {
	s.Helper()
	out, err := s.try(args...)
	s.must(err)
	return out
}

// value returns a field of an object, by a JSONPath, or the error.
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

// on runs a shell command on a node, and returns the output.
func (s *scene) on(n local.Node, line string) string {
	s.Helper()
	out, err := n.Run(s.anyhow(), "sh", "-c", line)
	s.must(err)
	return strings.TrimSpace(out)
}

// runs waits until pods are ready.
func (s *scene) runs(pods ...string) {
	s.Helper()
	for _, p := range pods {
		await.NoError(s, "pod "+p+" is ready", func() error {
			return same("True", s.value("pod/"+p, `{.status.conditions[?(@.type=="Ready")].status}`))
		})
	}
}

// ends deletes pods and waits until they are gone.
func (s *scene) ends(pods ...string) {
	s.Helper()
	s.kubectl(append([]string{"delete", "pod", "--timeout=" + livetest.Patience.String()}, pods...)...)
}

func same(want, got string) error {
	if got != want {
		return fmt.Errorf("%q, want %q", got, want)
	}
	return nil
}

func (s *scene) same(what, want, got string) {
	s.Helper()
	if err := same(want, got); err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

func (s *scene) number(text string) int64 {
	s.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	s.must(err)
	return n
}

// claim returns a claim, with more of its metadata.
func claim(name, class, size, metadata string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s%s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: %s
  resources: {requests: {storage: %s}}
`, name, metadata, class, size)
}

// pod returns a pod that has each claim mounted at /<claim>, with more of its spec.
func pod(name, spec string, claims ...string) string {
	var mounts, volumes []string
	for _, c := range claims {
		mounts = append(mounts, fmt.Sprintf("{name: %s, mountPath: /%s}", c, c))
		volumes = append(volumes, fmt.Sprintf("{name: %s, persistentVolumeClaim: {claimName: %s}}", c, c))
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  %s
  containers:
  - name: it
    image: %s
    command: [sh, -c, "trap exit TERM; while :; do sleep 1 & wait $!; done"]
    volumeMounts: [%s]
  volumes: [%s]
`, name, spec, testimages.Busybox, strings.Join(mounts, ", "), strings.Join(volumes, ", "))
}

// only requires a node for a pod.
func only(n local.Node) string { return "nodeSelector: {kubernetes.io/hostname: " + n.Name + "}" }
