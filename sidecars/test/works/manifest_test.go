package works

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/sidecars/test/rig"
	"github.com/causeway-csi/causeway/test/cluster/components"
)

// printed is the output of csi-sidecars manifest.
type printed struct {
	text       string
	deployment *appsv1.Deployment
	daemonSet  *appsv1.DaemonSet // nil without a driver
}

// printManifest runs csi-sidecars manifest, and decodes each document.
func printManifest(t *testing.T, args ...string) (p printed) {
	t.Helper()
	text := must(exec.CommandContext(t.Context(), world.binary, append([]string{"manifest"}, args...)...).Output())(t)
	p.text = string(text)
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		one, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var o runtime.Object
		if err == nil {
			o, _, err = scheme.Codecs.UniversalDeserializer().Decode(one, nil, nil)
		}
		if err != nil {
			t.Fatalf("%q prints a document that is no object: %v\n%s", args, err, one)
		}
		switch o := o.(type) {
		case *appsv1.Deployment:
			p.deployment = o
		case *appsv1.DaemonSet:
			p.daemonSet = o
		}
	}
	if p.deployment == nil {
		t.Fatalf("%q prints no Deployment", args)
	}
	return p
}

// apply gives objects to the API server as strictly as kubectl can: an unknown field and a warning
// are errors.
func apply(t *testing.T, objects string, more ...string) (string, error) {
	t.Helper()
	bin := must(components.Build(t.Context(), os.Stderr, "kubectl"))(t)
	args := append([]string{"apply", "--server-side", "--validate=strict", "--warnings-as-errors", "-f", "-"}, more...)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+world.Kubeconfig(), "HOME="+t.TempDir())
	cmd.Stdin = strings.NewReader(objects)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// makeNamespace makes a namespace with a Pod Security level that pods must have, and that warns of
// workloads without it.
func makeNamespace(t *testing.T, name, level string) {
	t.Helper()
	labels := map[string]string{"pod-security.kubernetes.io/enforce": level, "pod-security.kubernetes.io/warn": level}
	must(world.Kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, created))(t)
}

func TestTheAPIServerTakesPrintedManifests(t *testing.T) {
	t.Parallel()
	makeNamespace(t, "printed-leases", "restricted")
	for name, args := range map[string][]string{
		"all": {"--driver=all.printed.example", "--leader-election", "--enable-capacity",
			"--capacity-ownerref-level=2", "--driver-secrets"},
		"few": {"--driver=few.printed.example", "--controllers=provisioner,resizer", "--driver-attach=false",
			"--timeout=30s"},
		"elsewhere": {"--driver=elsewhere.printed.example", "--controllers=*,snapshot-controller", "--leader-election",
			"--leader-election-namespace=printed-leases"},
		"no-cluster": {"--driver=no-cluster.printed.example", "--controllers=livenessprobe", "--driver-attach=false",
			"--kubelet-dir=/data/kubelet"},
		"long": {"--driver=" + strings.Repeat("long.", 12) + "one", "--controllers=attacher",
			"--name=" + strings.Repeat("n", 52)},
		"snapshots": {"--controllers=snapshot-controller", "--leader-election"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := "printed-" + name
			makeNamespace(t, namespace, "privileged")
			p := printManifest(t, append(args, "--namespace="+namespace)...)
			for range 2 { // the second time nothing changes
				if out, err := apply(t, p.text); err != nil ||
					strings.Count(out, "serverside-applied") != strings.Count(p.text, "\nkind: ") {
					t.Errorf("kubectl apply: %v\n%s\nof\n%s", err, out, p.text)
				}
			}
			if (p.daemonSet == nil) != (name == "snapshots") {
				t.Errorf("%q prints the DaemonSet %v", args, p.daemonSet)
			}
		})
	}
}

// The comment in the output shows which Pod Security levels are needed.
func TestPrintedPodsHaveTheirPodSecurityLevel(t *testing.T) {
	t.Parallel()
	p := printManifest(t, "--driver=level.printed.example", "--name=level")
	alone := printManifest(t, "--controllers=snapshot-controller", "--name=level")
	user, notRoot := int64(65532), true
	alone.deployment.Spec.Template.Spec.Containers[0].SecurityContext.RunAsUser = &user
	alone.deployment.Spec.Template.Spec.Containers[0].SecurityContext.RunAsNonRoot = &notRoot
	for _, c := range []struct {
		what  string
		spec  corev1.PodSpec
		level string // the strictest that admits the pod
	}{
		{"a pod of the Deployment", p.deployment.Spec.Template.Spec, "baseline"},
		{"a pod of the DaemonSet", p.daemonSet.Spec.Template.Spec, "privileged"},
		{"csi-sidecars without a driver, for another user than root", alone.deployment.Spec.Template.Spec,
			"restricted"},
	} {
		levels := []string{"privileged", "baseline", "restricted"}
		for i, level := range levels {
			refused := i > slices.Index(levels, c.level)
			namespace := fmt.Sprintf("level-%s-%s", c.level, level)
			makeNamespace(t, namespace, level)
			must(world.Kube.CoreV1().ServiceAccounts(namespace).Create(t.Context(),
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: c.spec.ServiceAccountName}}, created))(t)
			_, err := world.Kube.CoreV1().Pods(namespace).Create(t.Context(),
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "it"},
					Spec: c.spec}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if !refused && err != nil || refused &&
				(err == nil || !strings.Contains(err.Error(), "violates PodSecurity")) {
				t.Errorf("%s where Pod Security is %s: %v, want it refused: %v", c.what, level, err, refused)
			}
		}
	}
	if out, err := apply(t, strings.Replace(p.text, "priorityClassName:", "priorityClass:", 1),
		"--dry-run=server"); err == nil || !strings.Contains(out, "priorityClass") {
		t.Errorf("an unknown field is accepted: %v %s", err, out)
	}
	if out, err := apply(t, strings.ReplaceAll(p.text, "namespace: default", "namespace: level-baseline-baseline"),
		"--dry-run=server"); err == nil || !strings.Contains(out, "would violate PodSecurity") {
		t.Errorf("a warning is accepted: %v %s", err, out)
	}
}

// The process has the arguments, the environment and the service account of the Deployment, as the
// API server returns it. Only the places that are the test's differ: the socket's path and the
// addresses of ports.
func TestThePrintedDeploymentProvisions(t *testing.T) {
	t.Parallel()
	const name, namespace, zone = "printed", "sidecars-printed", "a"
	makeNamespace(t, namespace, "privileged")
	dir := filepath.Join(world.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	driver := must(rig.NewDriver(dir,
		rig.DriverOptions{Name: driverOf(name), Nodes: []string{node}, Topology: true}))(t)
	if err := makeZone(t.Context(), driver.Name, zone, node); err != nil {
		t.Fatal(err)
	}
	p := printManifest(t, "--driver="+driver.Name, "--namespace="+namespace, "--controllers="+all+",livenessprobe",
		"--leader-election",
		"--livenessprobe-health-port=9898", "--enable-capacity", "--capacity-ownerref-level=2", "--capacity-poll-interval=1s", "--kube-api-capacity-qps=100")
	if out, err := apply(t, p.text); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	deployment := must(world.Kube.AppsV1().Deployments(namespace).Get(t.Context(), p.deployment.Name,
		metav1.GetOptions{}))(t)
	s := startPrinted(t, driver, podOf(t, deployment))
	l := newLab(t, s, late)

	room := l.awaitRoom(1 << 50)
	if len(room.OwnerReferences) != 1 || room.OwnerReferences[0].UID != deployment.UID {
		t.Errorf("the owner of the capacity is %+v, not the Deployment %s", room.OwnerReferences, deployment.UID)
	}
	claim, volume := l.bound("claim", selected(name, zone))
	l.detach(l.attached(volume, nodeIn(driver.Name, zone)))
	l.remove(claim)
	l.checkDeleted(volume)
	lease := must(world.Kube.CoordinationV1().Leases(namespace).Get(t.Context(), "csi-sidecars-printed-csi-example",
		metav1.GetOptions{}))(t)
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		t.Error("the process works without its lease")
	}
	object := must(world.Kube.StorageV1().CSIDrivers().Get(t.Context(), driver.Name, metav1.GetOptions{}))(t)
	if !*object.Spec.AttachRequired || !*object.Spec.StorageCapacity ||
		!slices.Equal(object.Spec.VolumeLifecycleModes,
			[]storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}) {
		t.Errorf("the CSIDriver is %+v", object.Spec)
	}
}

// podOf makes the ReplicaSet and the pod that a cluster would make for a Deployment.
func podOf(t *testing.T, d *appsv1.Deployment) *corev1.Pod {
	t.Helper()
	set := must(world.Kube.AppsV1().ReplicaSets(d.Namespace).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name + "-1",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d,
				appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
	}, created))(t)
	return must(world.Kube.CoreV1().Pods(d.Namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name + "-1-2", Labels: d.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set,
				appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}},
		Spec: d.Spec.Template.Spec,
	}, created))(t)
}

// startPrinted starts csi-sidecars as a kubelet would start its container of a pod, and waits until
// all probes of the pod succeed. It must end in peace with the test.
func startPrinted(t *testing.T, driver *rig.Driver, pod *corev1.Pod) *sidecars {
	t.Helper()
	address, probe := freeport.Must(t), freeport.Must(t)
	s := &sidecars{driver: driver, namespace: pod.Namespace, url: "http://" + address}
	s.user = "system:serviceaccount:" + pod.Namespace + ":" + pod.Spec.ServiceAccountName
	c := containerOf(t, pod.Spec, "csi-sidecars")
	args := withHere(t, c.Args, map[string]string{"=/csi/csi.sock": "=" + driver.Socket, "=:8080": "=" + address,
		"=9898": "=" + probe})
	env := []string{"KUBECONFIG=" + must(world.ServiceAccountKubeconfig(t.Context(), pod.Namespace,
		pod.Spec.ServiceAccountName))(t)}
	for _, e := range c.Env {
		value, ok := map[string]string{"metadata.name": pod.Name,
			"metadata.namespace": pod.Namespace}[e.ValueFrom.FieldRef.FieldPath]
		if !ok {
			t.Fatalf("the test cannot resolve %+v", e)
		}
		env = append(env, e.Name+"="+value)
	}
	s.Process = must(rig.StartProcess(world.binary, env, args...))(t)
	go s.watch()
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	showLog(t, s)
	for _, url := range []string{
		s.url + c.LivenessProbe.HTTPGet.Path, s.url + c.ReadinessProbe.HTTPGet.Path,
		"http://" + probe + containerOf(t, pod.Spec, "driver").LivenessProbe.HTTPGet.Path,
	} {
		until(t, url+" succeeds", func(ctx context.Context) error {
			code, body, err := rig.Get(ctx, url)
			if err == nil && code != http.StatusOK {
				err = fmt.Errorf("it answers %d %s", code, body)
			}
			return err
		})
	}
	return s
}

func containerOf(t *testing.T, pod corev1.PodSpec, name string) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no container %s in %+v", name, pod.Containers)
	}
	return pod.Containers[i]
}

// withHere returns args with the ends that have another value on this machine. Each of these must
// be the end of an argument.
func withHere(t *testing.T, args []string, here map[string]string) []string {
	t.Helper()
	args = slices.Clone(args)
	for end, other := range here {
		n := 0
		for i, arg := range args {
			if before, ok := strings.CutSuffix(arg, end); ok {
				args[i] = before + other
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%d of the arguments %q end with %s", n, args, end)
		}
	}
	return args
}

// csi-sidecars has the two controllers of csi-sidecars-node, and runs with its arguments.
func TestThePrintedDaemonSetRegistersTheDriver(t *testing.T) {
	t.Parallel()
	const name = "printed-node"
	pod := printManifest(t, "--driver="+driverOf(name), "--namespace=sidecars-"+name).daemonSet.Spec.Template.Spec
	c := containerOf(t, pod, "csi-sidecars-node")
	hosts := map[string]string{} // the host's path at each mount
	for _, m := range c.VolumeMounts {
		hosts[m.MountPath] = pod.Volumes[slices.IndexFunc(pod.Volumes,
			func(v corev1.Volume) bool { return v.Name == m.Name })].HostPath.Path
	}
	probe := freeport.Must(t)
	s := launch(t, setup{name: name, command: withHere(t, c.Args, map[string]string{
		"csi-address=/csi/csi.sock": "csi-address=$SOCKET", "=/registration": "=$DIR", "=:8080": "=" + freeport.Must(t), "=9808": "=" + probe,
	})})
	conn := must(grpc.NewClient("unix://"+filepath.Join(filepath.Dir(s.driver.Socket), s.driver.Name+"-reg.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	info := awaitObject(t, "the registrar", "it answers", func(ctx context.Context) (*registration.PluginInfo, error) {
		return registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
	}, func(*registration.PluginInfo) bool { return true })
	if want := hosts["/csi"] + "/csi.sock"; info.GetEndpoint() != want ||
		hosts["/registration"] != "/var/lib/kubelet/plugins_registry" {
		t.Errorf("the kubelet is told %s and looks into %s; the socket is %s", info.GetEndpoint(),
			hosts["/registration"], want)
	}
	until(t, "the driver's probe succeeds", func(ctx context.Context) error {
		code, body, err := rig.Get(ctx, "http://"+probe+containerOf(t, pod, "driver").LivenessProbe.HTTPGet.Path)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("it answers %d %s", code, body)
		}
		return err
	})
}
