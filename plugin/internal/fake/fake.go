// Package fake is a healthy installation on two nodes, for tests.
package fake

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// Names of the installation.
const (
	Driver    = "hostpath.csi.causeway.dev"
	Namespace = "causeway"
)

// Cluster is a cluster whose objects a test may change before it makes a client.
type Cluster struct {
	Objects []kruntime.Object // typed
	Custom  []*unstructured.Unstructured
	Groups  map[string][]string // versions of CRDs
	Version string
	Pods    *Pods
	Denied  func(authorizationv1.ResourceAttributes) bool
	// Refuse makes the lists and reads of a resource fail.
	Refuse map[string]error
	// Ends is a pod of the driver that is deleted after the first list of the driver's pods.
	Ends string
	Raw  map[string]string // answers of the API server by path; all others are forbidden
	// Admit is asked for the dry run of a pod.
	Admit func(*corev1.Pod) error
	// OnPod gives a new pod its status, as a kubelet does.
	OnPod func(*corev1.Pod) corev1.PodStatus
}

// Pods answers for the pods of a cluster.
type Pods struct {
	mu      sync.Mutex
	Answers map[string]cluster.Answer // by pod:port/path
	OnExec  func(pod, container string, command []string, out io.Writer) error
	Execs   [][]string
	Hangs   string // pod in which commands do not end
}

// Get implements cluster.Pods.
func (p *Pods) Get(_ context.Context, pod *corev1.Pod, port int32, path string) cluster.Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.Answers[fmt.Sprintf("%s:%d%s", pod.Name, port, path)]
	if !ok {
		return cluster.Answer{Err: fmt.Errorf("connection refused: %s:%d%s", pod.Name, port, path)}
	}
	return a
}

// Exec implements cluster.Pods.
func (p *Pods) Exec(ctx context.Context, pod *corev1.Pod, container string, command []string, out io.Writer) error {
	p.mu.Lock()
	p.Execs = append(p.Execs, command)
	p.mu.Unlock()
	if pod.Name == p.Hangs {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if p.OnExec == nil {
		return fmt.Errorf("exec in %s/%s: %v: not permitted", pod.Name, container, command)
	}
	return p.OnExec(pod.Name, container, command, out)
}

// Root returns the directory of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// manifests returns the objects of files of deploy/linux.
func manifests(files ...string) (all []kruntime.Object) {
	decoder := serializer.NewCodecFactory(scheme.Scheme).UniversalDeserializer()
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(Root(), "deploy", "linux", file))
		if err != nil {
			panic(err)
		}
		for _, doc := range strings.Split(string(data), "\n---\n") {
			object, _, err := decoder.Decode([]byte(doc), nil, nil)
			if kruntime.IsNotRegisteredError(err) {
				continue // classes of snapshots
			}
			if err != nil {
				panic(fmt.Errorf("%s: %w", file, err))
			}
			all = append(all, object)
		}
	}
	return all
}

// Ago returns a time in the past.
func Ago(d time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-d)) }

// Healthy returns a healthy cluster, made of the manifests that the chart renders.
func Healthy() *Cluster {
	c := &Cluster{Version: "v1.37.1", Pods: &Pods{Answers: map[string]cluster.Answer{}}, Refuse: map[string]error{},
		Groups: map[string][]string{"snapshot.storage.k8s.io": {"v1"}, "groupsnapshot.storage.k8s.io": {"v1"}}}
	for _, o := range manifests("controller.yaml", "node.yaml", "csidriver.yaml", "classes.yaml", "rbac.yaml") {
		switch w := o.(type) {
		case *appsv1.Deployment:
			w.UID, w.CreationTimestamp = "deployment", Ago(time.Hour)
			w.Status = appsv1.DeploymentStatus{Replicas: 2, ReadyReplicas: 2}
			for i := range 2 {
				c.pod(fmt.Sprintf("causeway-controller-6d-%d", i+1), fmt.Sprintf("node-%d", i+1), w.Spec.Template)
			}
		case *appsv1.DaemonSet:
			w.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, CurrentNumberScheduled: 2, NumberReady: 2}
			for i := range 2 {
				c.pod(fmt.Sprintf("causeway-node-%d", i+1), fmt.Sprintf("node-%d", i+1), w.Spec.Template)
			}
		}
		c.Objects = append(c.Objects, o)
	}
	for _, name := range []string{"node-1", "node-2"} {
		c.node(name)
	}
	holder := "causeway-controller-6d-1_7c0f"
	now := metav1.NowMicro()
	c.Objects = append(c.Objects, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "csi-sidecars-hostpath-csi-causeway-dev"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &now}})
	return c
}

// node adds a node with everything that belongs to it.
func (c *Cluster) node(name string) {
	capacity, now := resource.MustParse("5Gi"), metav1.NowMicro()
	labels := map[string]string{"kubernetes.io/os": "linux", Driver + "/node": name}
	c.Objects = append(c.Objects,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo: corev1.NodeSystemInfo{KernelVersion: "6.12.0", OperatingSystem: "linux", Architecture: "amd64",
				ContainerRuntimeVersion: "containerd://2.1.0", KubeletVersion: "v1.37.1"}}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: Driver, NodeID: name}}}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: name},
			Spec: coordinationv1.LeaseSpec{RenewTime: &now}},
		&storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "csisc-" + name,
			Labels: map[string]string{"csi.storage.k8s.io/drivername": Driver}},
			StorageClassName: "causeway-hostpath", Capacity: &capacity,
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{Driver + "/node": name}}})
}

// pod adds a pod with its answers.
func (c *Cluster) pod(name, node string, t corev1.PodTemplateSpec) {
	p := &corev1.Pod{ObjectMeta: *t.ObjectMeta.DeepCopy(), Spec: *t.Spec.DeepCopy()}
	p.Namespace, p.Name, p.Spec.NodeName, p.CreationTimestamp = Namespace, name, node, Ago(time.Hour)
	p.UID = types.UID(name)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
		Status: corev1.ConditionTrue}}}
	for _, one := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: one.Name,
			Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	}
	c.Objects = append(c.Objects, p)
	c.Answer(name, "driver", "/readyz", 200, "ok\n")
	c.Answer(name, "sidecars", "/readyz", 200, "ok\n")
	expiry := fmt.Sprintf("causeway_peer_certificate_expiry_timestamp_seconds %d\n", time.Now().Add(
		300*24*time.Hour).Unix())
	if strings.Contains(name, "controller") {
		c.Answer(name, "driver", "/readyz", 200, "ok: 2 of 2 nodes answer\n")
		c.Answer(name, "driver", "/metrics", 200, expiry+`causeway_router_peers{state="answers"} 2
causeway_router_peers{state="silent"} 0
causeway_router_peers{state="twice"} 0
causeway_router_discovery_up 1
`)
		leads := 0
		if strings.HasSuffix(name, "-1") {
			leads = 1
		}
		c.Answer(name, "sidecars", "/metrics", 200, fmt.Sprintf(
			"csi_sidecars_build_info{version=\"dev\"} 1\n"+
				"csi_sidecars_controller_up{controller=\"provisioner\"} %d\n", leads))
		return
	}
	c.Answer(name, "driver", "/metrics", 200, expiry+`causeway_volumes 3
causeway_snapshots 1
causeway_unreadable_records 0
causeway_stalled_copies 0
causeway_helpers{pool="copy"} 0
causeway_slot_wait_seconds{resource="copy"} 0
causeway_background_panics_total 0
causeway_trash_entries 0
causeway_trash_errors_total 0
causeway_storage_size_bytes 8e+09
causeway_storage_free_bytes 6e+09
causeway_storage_available_bytes 5e+09
causeway_storage_inodes 1e+06
causeway_storage_free_inodes 9e+05
causeway_promised_bytes 1e+09
`)
	c.Answer(name, "sidecars", "/metrics", 200, "csi_sidecars_controller_up{controller=\"livenessprobe\"} 1\n")
}

// Answer sets the answer of a port of a pod: driver or sidecars.
func (c *Cluster) Answer(pod, port, path string, status int, body string) {
	number := map[string]int{"driver": 9809, "sidecars": 9811}[port]
	c.Pods.Answers[fmt.Sprintf("%s:%d%s", pod, number, path)] = cluster.Answer{Status: status, Body: body, Dated: true}
}

// Metric replaces the line of a metric in the answer of a driver.
func (c *Cluster) Metric(pod, line string) {
	key := pod + ":9809/metrics"
	a := c.Pods.Answers[key]
	name := line[:strings.LastIndex(line, " ")]
	lines := slices.DeleteFunc(strings.Split(a.Body, "\n"), func(l string) bool {
		return strings.HasPrefix(l,
			name+" ")
	})
	a.Body = strings.Join(append([]string{line}, lines...), "\n")
	c.Pods.Answers[key] = a
}

// Get returns the object of a type with a name.
func Get[O metav1.Object](c *Cluster, name string) O {
	for _, o := range c.Objects {
		if typed, ok := o.(O); ok && typed.GetName() == name {
			return typed
		}
	}
	panic("no object " + name)
}

// Remove removes the objects of a type with a name, or all of the type.
func Remove[O metav1.Object](c *Cluster, name string) {
	c.Objects = slices.DeleteFunc(c.Objects, func(o kruntime.Object) bool {
		typed, ok := o.(O)
		return ok && (name == "" || typed.GetName() == name)
	})
}

// Add adds objects.
func (c *Cluster) Add(objects ...kruntime.Object) { c.Objects = append(c.Objects, objects...) }

// Event adds a warning about an object.
func (c *Cluster) Event(kind, namespace, name, reason, message string) {
	c.Add(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("event-%d", len(
		c.Objects))},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name}, Type: "Warning",
		Reason:  reason,
		Message: message, LastTimestamp: Ago(time.Minute)})
}

// EventSince adds a warning about an object that occurs since some time.
func (c *Cluster) EventSince(ago time.Duration, kind, namespace, name, reason, message string) {
	c.Event(kind, namespace, name, reason, message)
	e, _ := c.Objects[len(c.Objects)-1].(*corev1.Event)
	e.FirstTimestamp = Ago(ago)
}

// lists are the kinds of the dynamic client.
var lists = map[schema.GroupVersionResource]string{
	{Group: "", Version: "v1",
		Resource: "persistentvolumes"}: "PersistentVolumeList",
	{Group: "", Version: "v1",
		Resource: "persistentvolumeclaims"}: "PersistentVolumeClaimList",
	{Group: "", Version: "v1", Resource: "pods"}:       "PodList",
	{Group: "", Version: "v1", Resource: "services"}:   "ServiceList",
	{Group: "", Version: "v1", Resource: "configmaps"}: "ConfigMapList",
	{Group: "", Version: "v1", Resource: "secrets"}:    "SecretList",
	{Group: "", Version: "v1",
		Resource: "serviceaccounts"}: "ServiceAccountList",
	{Group: "", Version: "v1", Resource: "events"}:          "EventList",
	{Group: "", Version: "v1", Resource: "nodes"}:           "NodeList",
	{Group: "apps", Version: "v1", Resource: "deployments"}: "DeploymentList",
	{Group: "apps", Version: "v1", Resource: "daemonsets"}:  "DaemonSetList",
	{Group: "apps", Version: "v1", Resource: "replicasets"}: "ReplicaSetList",
	{Group: "networking.k8s.io", Version: "v1",
		Resource: "networkpolicies"}: "NetworkPolicyList",
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}: "LeaseList",
	{Group: "policy", Version: "v1",
		Resource: "poddisruptionbudgets"}: "PodDisruptionBudgetList",
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}:        "RoleList",
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}: "RoleBindingList",
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}: "ClusterRoleList",
	{Group: "rbac.authorization.k8s.io", Version: "v1",
		Resource: "clusterrolebindings"}: "ClusterRoleBindingList",
	{Group: "storage.k8s.io", Version: "v1",
		Resource: "csistoragecapacities"}: "CSIStorageCapacityList",
	{Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}:     "CSIDriverList",
	{Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"}:       "CSINodeList",
	{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}: "StorageClassList",
	{Group: "storage.k8s.io", Version: "v1",
		Resource: "volumeattachments"}: "VolumeAttachmentList",
	{Group: "snapshot.storage.k8s.io", Version: "v1",
		Resource: "volumesnapshotcontents"}: "VolumeSnapshotContentList",
	{Group: "snapshot.storage.k8s.io", Version: "v1",
		Resource: "volumesnapshots"}: "VolumeSnapshotList",
	{Group: "snapshot.storage.k8s.io", Version: "v1",
		Resource: "volumesnapshotclasses"}: "VolumeSnapshotClassList",
	{Group: "groupsnapshot.storage.k8s.io", Version: "v1",
		Resource: "volumegroupsnapshotcontents"}: "VolumeGroupSnapshotContentList",
	{Group: "groupsnapshot.storage.k8s.io", Version: "v1",
		Resource: "volumegroupsnapshots"}: "VolumeGroupSnapshotList",
	{Group: "groupsnapshot.storage.k8s.io", Version: "v1",
		Resource: "volumegroupsnapshotclasses"}: "VolumeGroupSnapshotClassList",
}

// untyped returns a typed object for the dynamic client.
func untyped(o kruntime.Object) *unstructured.Unstructured {
	content, err := kruntime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		panic(err)
	}
	u := &unstructured.Unstructured{Object: content}
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		panic(err)
	}
	u.SetGroupVersionKind(kinds[0])
	return u
}

// Clients are the clients of a cluster, with the fakes behind them.
type Clients struct {
	cluster.Client
	Kube    *kubefake.Clientset
	Dynamic *dynamicfake.FakeDynamicClient
}

// Clients returns clients of the cluster.
func (c *Cluster) Clients() *Clients {
	kube := kubefake.NewClientset(c.Objects...)
	discovery := kube.Discovery().(*fakediscovery.FakeDiscovery)
	discovery.FakedServerVersion = &version.Info{GitVersion: c.Version}
	kube.Resources = []*metav1.APIResourceList{{GroupVersion: "v1"}, {GroupVersion: "storage.k8s.io/v1"}}
	for group, versions := range c.Groups {
		for _, v := range versions {
			kube.Resources = append(kube.Resources, &metav1.APIResourceList{GroupVersion: group + "/" + v})
		}
	}
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		review.Status.Allowed = c.Denied == nil || !c.Denied(*review.Spec.ResourceAttributes)
		return true, review, nil
	})
	var objects []kruntime.Object
	for _, o := range c.Objects {
		objects = append(objects, untyped(o))
	}
	for _, o := range c.Custom {
		objects = append(objects, o)
	}
	dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(kruntime.NewScheme(), lists, objects...)
	refuse := func(a clienttesting.Action) (bool, kruntime.Object, error) {
		err := c.Refuse[a.GetResource().Resource]
		return err != nil, nil, err
	}
	kube.PrependReactor("list", "*", refuse)
	seen := 0
	kube.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		if a.GetNamespace() != Namespace || c.Ends == "" {
			return false, nil, nil
		}
		if seen++; seen == 2 {
			return false, nil, kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), Namespace, c.Ends)
		}
		return false, nil, nil
	})
	kube.PrependReactor("get", "*", refuse)
	dynamic.PrependReactor("list", "*", refuse)
	kube.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		return c.createPod(kube, a.(clienttesting.CreateActionImpl))
	})
	return &Clients{Client: cluster.Client{Kube: kube, Dynamic: dynamic, Pods: c.Pods, Raw: c.raw,
		Ahead: func() (time.Duration, bool) { return 0, true }}, Kube: kube, Dynamic: dynamic}
}
