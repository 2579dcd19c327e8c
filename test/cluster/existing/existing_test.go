package existing

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/internal/readiness/readytest"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// cluster returns the cluster of a kubeconfig file, and its log.
func cluster(t *testing.T, o Options) (*Cluster, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	o.Log = &log
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c, &log
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

func TestAClusterThatIsThere(t *testing.T) {
	server := readytest.Start(t)
	c, log := cluster(t, Options{Kubeconfig: server.Plane.Kubeconfig()})
	ctx := t.Context()
	wants(t, c.Status(ctx, log), "no nodes")

	server.Node(t, "good-1", "linux", nil)
	server.Node(t, "good-2", "linux", nil)
	server.Node(t, "windows", "windows", nil)
	wants(t, c.Status(ctx, log))
	server.Node(t, "cordoned", "linux", func(n *core.Node) { n.Spec.Unschedulable = true })
	server.Node(t, "tainted", "linux", func(n *core.Node) {
		n.Spec.Taints = []core.Taint{{Key: "dedicated", Value: "db", Effect: core.TaintEffectNoSchedule}}
	})
	server.Node(t, "silent", "linux", func(n *core.Node) { n.Status.Conditions = nil })
	log.Reset()
	wants(t, c.Status(ctx, log), "silent", "has not said")
	for _, want := range []string{"Kubernetes v1.37.", "node good-1: linux/", "node windows: windows/", "cordoned\n",
		"node silent: linux/, kubelet , not ready\n"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("status: got\n%swant %q in it", log, want)
		}
	}

	wants(t, c.Up(ctx, provider.Options{Nodes: 2}))
	got := server.Nodes()
	slices.Sort(got)
	if !slices.Equal(got, []string{"good-1", "good-2"}) {
		t.Errorf("pods were tried on %v, want the two good nodes", got)
	}
	server.NoPods(t)
	wants(t, c.Up(ctx, provider.Options{Nodes: 3}), "2 Linux nodes", "not 3", "cordoned", "dedicated=db:NoSchedule",
		"silent: its kubelet")
	wants(t, c.Up(ctx, provider.Options{Nodes: 1, Windows: 1}), "Windows")
	wants(t, c.Up(ctx, provider.Options{}), "at least 1")
	if got := server.Nodes(); len(got) != 0 {
		t.Errorf("pods were tried on %v, want none", got)
	}

	server.Say(core.PodStatus{Phase: core.PodFailed, Reason: "Evicted", ContainerStatuses: []core.ContainerStatus{
		{Name: "try", State: core.ContainerState{Terminated: &core.ContainerStateTerminated{ExitCode: 7,
			Reason: "Error"}}},
	}})
	wants(t, c.Up(ctx, provider.Options{Nodes: 1}), "a pod on good-", "Evicted", "ended with 7: Error")
	server.NoPods(t)
	server.Say(core.PodStatus{Phase: core.PodPending, ContainerStatuses: []core.ContainerStatus{
		{Name: "try", State: core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "ImagePullBackOff",
			Message: "no such host"}}},
	}})
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	wants(t, c.Up(short, provider.Options{Nodes: 1}), "deadline exceeded", "ImagePullBackOff no such host")
	server.NoPods(t)

	log.Reset()
	wants(t, c.Down(ctx))
	if !strings.Contains(log.String(), "runs on") {
		t.Errorf("got %q, want that it runs on", log)
	}
	wants(t, c.Status(ctx, log), "silent")

	server.Plane.StopAPIServer()
	wants(t, c.Up(ctx, provider.Options{Nodes: 1}), "ask the API server at https://127.0.0.1")
	wants(t, c.Status(ctx, log), "ask the API server at https://127.0.0.1")
}

// twoContexts is a kubeconfig whose authority is in a file beside it.
const twoContexts = `apiVersion: v1
kind: Config
current-context: this
contexts:
- {name: this, context: {cluster: this, user: this}}
- {name: other, context: {cluster: other, user: other}}
clusters:
- {name: this, cluster: {server: "https://this.example.com", certificate-authority: ca.crt}}
- {name: other, cluster: {server: "https://other.example.com"}}
users:
- {name: this, user: {token: for-this}}
- {name: other, user: {token: for-other}}
`

func TestKubeconfig(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config")
	for name, content := range map[string]string{path: twoContexts, filepath.Join(dir, "ca.crt"): testCA} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ name, flag, env string }{
		{"named by a flag", path, ""},
		{"named by KUBECONFIG", "", path},
		{"the flag wins", path, "/nonexistent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", test.env)
			c, _ := cluster(t, Options{Kubeconfig: test.flag})
			data, err := c.Kubeconfig(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got, err := clientcmd.Load(data)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Contexts) != 1 || len(got.AuthInfos) != 1 || len(got.Clusters) != 1 ||
				strings.Contains(string(data), "for-other") {
				t.Errorf("got\n%s\nwant the current context alone", data)
			}
			if this := got.Clusters["this"]; this == nil || string(this.CertificateAuthorityData) != testCA ||
				this.CertificateAuthority != "" {
				t.Errorf("got %+v, want the authority's certificate in it", this)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(twoContexts, ", certificate-authority: ca.crt", "")),
		0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", "")
	for _, test := range []struct {
		name    string
		options Options
		want    []string // in the error
	}{
		{"no cluster is named", Options{}, []string{"--kubeconfig", "KUBECONFIG"}},
		{"there is no such file", Options{Kubeconfig: path + "0"}, []string{path + "0"}},
		{"a registry with a scheme", Options{Kubeconfig: path, Registry: "https://example.com/team"},
			[]string{"https://example.com/team"}},
		{"a registry without a host", Options{Kubeconfig: path, Registry: "team"}, []string{"team"}},
		{"a registry with a host", Options{Kubeconfig: path, Registry: "example.com/team/"}, nil},
		{"a registry on this machine", Options{Kubeconfig: path, Registry: "localhost:5000"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := New(test.options)
			wants(t, err, test.want...)
		})
	}
}

func TestLogs(t *testing.T) {
	ran := core.ContainerState{Running: &core.ContainerStateRunning{}}
	ended := core.ContainerState{Terminated: &core.ContainerStateTerminated{}}
	pod := func(namespace, name string) *core.Pod {
		return &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: name}, Status: core.PodStatus{
			InitContainerStatuses: []core.ContainerStatus{{Name: "init", State: ended}},
			ContainerStatuses: []core.ContainerStatus{
				{Name: "main", State: ran, LastTerminationState: ended},
				{Name: "waits", State: core.ContainerState{Waiting: &core.ContainerStateWaiting{}}},
			},
		}}
	}
	event := func(name string, minute int) *core.Event {
		return &core.Event{
			ObjectMeta: meta.ObjectMeta{Namespace: "one", Name: name}, Type: "Normal", Reason: "Because", Message: name,
			InvolvedObject: core.ObjectReference{Kind: "Pod", Name: "p"}, LastTimestamp: meta.Date(2026, 1, 1, 0,
				minute, 0, 0, time.UTC),
		}
	}
	c := &Cluster{
		options: Options{Namespaces: []string{"one"}},
		client: fake.NewClientset(pod("one", "p"), pod("two", "q"), event("a-later", 2), event("b-sooner", 1),
			&core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "two"}}),
	}
	dir := filepath.Join(t.TempDir(), "new")
	wants(t, c.Logs(t.Context(), dir))
	got := files(t, dir)
	if want := []string{"one/events.txt", "one/p/init.log", "one/p/main.log", "one/p/main.previous.log",
		"one/p/pod.yaml"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	events, err := os.ReadFile(filepath.Join(dir, "one", "events.txt"))
	want := "2026-01-01T00:01:00Z Normal Because Pod/p: b-sooner (x1)\n2026-01-01T00:02:00Z Normal Because Pod/p: " +
		"a-later (x1)\n"
	if err != nil || string(events) != want {
		t.Errorf("got %q, %v, want %q", events, err, want)
	}
	c.options.Namespaces = nil
	wants(t, c.Logs(t.Context(), dir))
	if got := files(t, dir); !slices.Contains(got, "two/q/main.log") {
		t.Errorf("got %v, want those of all namespaces", got)
	}
}

// TestLogsOfUnreachablePods takes a pod whose kubelet is not there.
func TestLogsOfUnreachablePods(t *testing.T) {
	server := readytest.Start(t)
	server.Say(core.PodStatus{Phase: core.PodRunning, ContainerStatuses: []core.ContainerStatus{
		{Name: "main", State: core.ContainerState{Running: &core.ContainerStateRunning{}}},
	}})
	server.Node(t, "node", "linux", nil)
	_, err := server.CoreV1().Pods("kube-system").Create(t.Context(), &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: "p"},
		Spec: core.PodSpec{
			NodeName: "node", Containers: []core.Container{{Name: "main",
				Image: "main"}}, AutomountServiceAccountToken: new(bool),
		},
	}, meta.CreateOptions{})
	wants(t, err)
	c, _ := cluster(t, Options{Kubeconfig: server.Plane.Kubeconfig(), Namespaces: []string{"kube-system"}})
	dir := t.TempDir()
	await.True(t, "logs are requested of the pod, and fail", func() bool {
		err = c.Logs(t.Context(), dir)
		return err != nil
	})
	wants(t, err, "log of main in kube-system/p")
	if got := files(t, dir); !slices.Contains(got, "kube-system/p/pod.yaml") {
		t.Errorf("got %v, want the pod too", got)
	}
}

// files returns the paths of all files below a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			all = append(all, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// A process in a pod has a cluster. A wrong name in KUBECONFIG does not mean that cluster.
func TestAKubeconfigThatIsNotThereIsNoOther(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	if c, err := New(Options{}); err == nil || !strings.Contains(err.Error(), "no current context") {
		t.Errorf("got %v, %v", c, err)
	}
}
