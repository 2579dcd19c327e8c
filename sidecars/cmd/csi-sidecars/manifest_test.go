package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// example is the driver of the tests.
const example = "--driver=disk.csi.example.com"

// printed returns the output of csi-sidecars manifest.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	text, complaint, code := runs(t, append([]string{"manifest"}, args...)...)
	if code != 0 {
		t.Fatalf("%q ends with %d: %s", args, code, complaint)
	}
	return text
}

// find returns the only object of type T.
func find[T runtime.Object](t *testing.T, text string) (found T) {
	t.Helper()
	n := 0
	for document := range strings.SplitSeq(text, "\n---\n") {
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if typed, ok := o.(T); ok {
			found, n = typed, n+1
		}
	}
	if n != 1 {
		t.Fatalf("there are %d objects %T in\n%s", n, found, text)
	}
	return found
}

// container returns the container of a name.
func container(t *testing.T, pod corev1.PodSpec, name string) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no container %s in %v", name, pod.Containers)
	}
	return pod.Containers[i]
}

var blocks = regexp.MustCompile("(?s)```sh\ncsi-sidecars manifest (.*?)\n```.*```yaml\n(.*)```\n")

// TestTheManifestPageIsTrue compares the objects in docs/how-to/sidecars-manifests.md with the
// output of the command on that page, or writes them.
func TestTheManifestPageIsTrue(t *testing.T) {
	const path = "../../../docs/how-to/sidecars-manifests.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := blocks.FindSubmatchIndex(page)
	if m == nil {
		t.Fatalf("%s has no command followed by its output", path)
	}
	want := printed(t, strings.Fields(strings.ReplaceAll(string(page[m[2]:m[3]]), "\\\n", " "))...)
	if os.Getenv("CAUSEWAY_GENERATE") != "" {
		if err := os.WriteFile(path, slices.Concat(page[:m[4]], []byte(want), page[m[5]:]), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(page[m[4]:m[5]]) != want {
		t.Errorf("%s does not have what its command prints: run make generate-manifest", path)
	}
}

// lines are command lines of csi-sidecars manifest that must work.
var lines = [][]string{
	{example},
	{example, "--controllers=attacher", "--http-endpoint=:9000"},
	{example, "--controllers=provisioner,resizer", "--driver-attach=false", "--leader-election", "--timeout", "30s",
		"--provisioner-timeout=1m", "--feature-gates=Topology=true"},
	{example, "--controllers=*,snapshot-controller", "--leader-election", "--leader-election-namespace=leases",
		"--namespace=disk", "--enable-capacity", "--capacity-ownerref-level=2"},
	{example, "--controllers=livenessprobe", "--driver-attach=false", "--health-port=9810",
		"--kubelet-dir=/data/kubelet"},
	{"--controllers=snapshot-controller", "--namespace=kube-system", "--leader-election"},
}

func TestTheArgumentsOfPrintedContainersAreRead(t *testing.T) {
	for _, line := range lines {
		text := printed(t, line...)
		args := container(t, find[*appsv1.Deployment](t, text).Spec.Template.Spec, "csi-sidecars").Args
		if err := command().Check(args); err != nil {
			t.Errorf("%q prints %q: %v", line, args, err)
		}
		if !strings.Contains(strings.Join(line, " "), "--driver=") {
			continue
		}
		args = container(t, find[*appsv1.DaemonSet](t, text).Spec.Template.Spec, "csi-sidecars-node").Args
		if err := command().Check(args); err != nil { // csi-sidecars has all flags of csi-sidecars-node
			t.Errorf("%q prints %q: %v", line, args, err)
		}
	}
}

// The order is kept, as are flags without a prefix; a name for a set of controllers is replaced by
// the controllers, which the printed rights are for.
func TestTheDeploymentHasTheArgumentsAsGiven(t *testing.T) {
	text := printed(t, example, "--v=4", "--controllers=*,-attacher,-livenessprobe", "--driver-attach=false",
		"--timeout", "30s", "--leader-election", "--strict-topology=false", "--provisioner-timeout=1m", "--name=disk")
	args := container(t, find[*appsv1.Deployment](t, text).Spec.Template.Spec, "csi-sidecars").Args
	want := []string{"--controllers=provisioner,resizer,snapshotter,health-monitor", "--csi-address=/csi/csi.sock",
		"--http-endpoint=:8080",
		"--v=4", "--timeout=30s", "--leader-election", "--strict-topology=false", "--provisioner-timeout=1m"}
	if !slices.Equal(args, want) {
		t.Errorf("the arguments are %q, want %q", args, want)
	}
}

func TestTheManifestHasTheRightsThatRBACPrints(t *testing.T) {
	for _, line := range lines {
		shared := slices.DeleteFunc(slices.Clone(line), func(a string) bool {
			return strings.HasPrefix(a, "--driver=") || strings.HasPrefix(a, "--kubelet-dir=")
		})
		rights, complaint, code := runs(t,
			append([]string{"rbac", "--name=disk", "--service-account=account"}, shared...)...)
		if code != 0 {
			t.Fatal(complaint)
		}
		text := printed(t, append(line, "--name=disk", "--service-account=account")...)
		if rights != "" && !strings.Contains(text, "---\n"+rights+"---\n") {
			t.Errorf("%q does not print\n%s", line, rights)
		}
	}
}

func TestProbesFindTheirPorts(t *testing.T) {
	for _, c := range []struct {
		args          string
		driver, ports int32 // 0: the driver's container has no probe
	}{
		{"", 9808, 8080},
		{"--livenessprobe-health-port=9810 --http-endpoint=:9000", 9810, 9000},
		{"--health-port=0", 0, 8080},
		{"--controllers=*,-livenessprobe", 0, 8080},
	} {
		pod := find[*appsv1.Deployment](t, printed(t, append(strings.Fields(c.args), example)...)).Spec.Template.Spec
		driver, ours := container(t, pod, "driver"), container(t, pod, "csi-sidecars")
		if (driver.LivenessProbe == nil) != (c.driver == 0) || driver.LivenessProbe != nil &&
			driver.LivenessProbe.HTTPGet.Port.IntVal != c.driver {
			t.Errorf("%s: the driver's probe is %+v, want port %d", c.args, driver.LivenessProbe, c.driver)
		}
		if ours.Ports[0].ContainerPort != c.ports ||
			!slices.Contains(ours.Args, fmt.Sprintf("--http-endpoint=:%d", c.ports)) {
			t.Errorf("%s: csi-sidecars has ports %+v and arguments %q, want %d", c.args, ours.Ports, ours.Args, c.ports)
		}
		if ours.LivenessProbe.HTTPGet.Path != "/healthz" || ours.ReadinessProbe.HTTPGet.Path != "/readyz" ||
			ours.LivenessProbe.HTTPGet.Port.StrVal != ours.Ports[0].Name {
			t.Errorf("%s: the probes are %+v and %+v", c.args, ours.LivenessProbe, ours.ReadinessProbe)
		}
	}
}

// The flags permit an operation that a probe with a shorter timeout than livenessprobe, or a
// SIGKILL before the end of the process, would interrupt.
func TestTheTimesOfTheManifestFollowTheFlags(t *testing.T) {
	text := printed(t, example, "--livenessprobe-probe-timeout=30s", "--shutdown-timeout=60s")
	deployment, nodes := find[*appsv1.Deployment](t, text).Spec.Template.Spec, find[*appsv1.DaemonSet](t,
		text).Spec.Template.Spec
	for name, pod := range map[string]corev1.PodSpec{"Deployment": deployment, "DaemonSet": nodes} {
		if got := container(t, pod, "driver").LivenessProbe.TimeoutSeconds; got != 32 {
			t.Errorf("%s: the driver's probe waits for %d s, want 32", name, got)
		}
	}
	if args := container(t, nodes, "csi-sidecars-node").Args; !slices.Contains(args,
		"--livenessprobe-probe-timeout=30s") {
		t.Errorf("csi-sidecars-node has %q", args)
	}
	if grace := deployment.TerminationGracePeriodSeconds; grace == nil || *grace != 70 {
		t.Errorf("the grace period is %v, want 70 s", grace)
	}
	if plain := find[*appsv1.Deployment](t, printed(t, example)).Spec.Template.Spec; plain.TerminationGracePeriodSeconds != nil || container(t, plain, "driver").LivenessProbe.TimeoutSeconds != 5 {
		t.Errorf("without the flags: %+v", plain)
	}
	for _, off := range []string{"--livenessprobe-health-port=", "--livenessprobe-health-port=:0"} {
		if p := container(t, find[*appsv1.Deployment](t, printed(t, example, off)).Spec.Template.Spec,
			"driver").LivenessProbe; p != nil {
			t.Errorf("%s: the driver has the probe %+v of a port that is closed", off, p)
		}
	}
}

func TestTheCSIDriverMatchesTheFlags(t *testing.T) {
	for args, want := range map[string][2]bool{
		"":                      {true, false},
		"--driver-attach=false": {false, false},
		"--enable-capacity":     {true, true},
		"--provisioner-enable-capacity=false --enable-capacity": {true, false},
	} {
		o := find[*storagev1.CSIDriver](t, printed(t, append(strings.Fields(args), example)...))
		if got := [2]bool{*o.Spec.AttachRequired, *o.Spec.StorageCapacity}; o.Name != "disk.csi.example.com" ||
			got != want {
			t.Errorf("%s: %s has attachRequired and storageCapacity %v, want %v", args, o.Name, got, want)
		}
	}
}

// Without an election two processes would both work: the old pod has to end first.
func TestReplicasAreElectedOrThereIsOne(t *testing.T) {
	one, two := find[*appsv1.Deployment](t, printed(t, example)), find[*appsv1.Deployment](t,
		printed(t, example, "--leader-election"))
	if *one.Spec.Replicas != 1 || one.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Errorf("without election: %d replicas, %s", *one.Spec.Replicas, one.Spec.Strategy.Type)
	}
	if *two.Spec.Replicas != 2 || two.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		t.Errorf("with election: %d replicas, %s", *two.Spec.Replicas, two.Spec.Strategy.Type)
	}
}

func TestWrongManifestLinesNameTheRemedy(t *testing.T) {
	long := strings.Repeat("x", 64)
	for _, c := range []struct{ name, args, remedy string }{
		{"no driver", "", "--driver is missing: give the name"},
		{"a driver with capital letters", "--driver=Disk.example.com", "lower-case letters"},
		{"a driver that ends with a dot", "--driver=disk.", "such as disk.csi.example.com"},
		{"a driver with a path", "--driver=../disk", "such as disk.csi.example.com"},
		{"a long name of a driver", "--driver=" + long, "at most 63"},
		{"a driver for no controller", example + " --controllers=snapshot-controller",
			"none of the controllers snapshot-controller talks to a driver"},
		{"the registrar", example + " --controllers=*,node-driver-registrar --kubelet-registration-path=/x",
			"runs in the DaemonSet"},
		{"nothing attaches", example + " --controllers=provisioner", "add it, or --driver-attach=false"},
		{"a name that is too long for pods", "--driver=" + long[:53], "set a shorter --name"},
		{"a name with a dot", example + " --name=a.b", `invalid --name "a.b"`},
		{"a namespace with a slash", example + " --namespace=a/b", `invalid --namespace "a/b"`},
		{"leases in no namespace", example + " --namespace=disk --leader-election --leader-election-namespace=A",
			`invalid --leader-election-namespace "A"`},
		{"an account with a capital letter", example + " --service-account=A", `invalid --service-account "A"`},
		{"no image", example + " --driver-image=", "must be the name of an image"},
		{"a directory that is relative", example + " --kubelet-dir=kubelet", "must be an absolute path"},
		{"a directory with a slash at its end", example + " --kubelet-dir=/k/", "without a slash at its end"},
		{"a path that no socket can have", example + " --kubelet-dir=/" + long + long, "use a shorter directory"},
		{"the socket", example + " --csi-address=/x", "always /csi/csi.sock"},
		{"a kubeconfig", example + " --kubeconfig=/x", "uses its service account"},
		{"a controller on each node", example + " --provisioner-node-deployment", "manifest prints a Deployment"},
		{"a port at one address", example + " --http-endpoint=127.0.0.1:8080", "must be a colon and a port"},
		{"two on one port", example + " --livenessprobe-health-port=8080", "choose another"},
		{"the old name of a flag", example + " --metrics-address=:1", "use --http-endpoint"},
		{"all mistakes at once", example + " --name=A --kubelet-dir=x", "--kubelet-dir"},
		{"all mistakes at once", example + " --name=A --kubelet-dir=x", "--name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, complaint, code := runs(t, append([]string{"manifest"}, strings.Fields(c.args)...)...)
			if code != 2 || text != "" || !strings.Contains(complaint, c.remedy) {
				t.Errorf("%s: code %d, %q, %q, want %q in it", c.args, code, complaint, text, c.remedy)
			}
		})
	}
}
