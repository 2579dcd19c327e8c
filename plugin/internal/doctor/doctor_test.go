package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

const (
	node1       = "causeway-node-1"
	controller1 = "causeway-controller-6d-1"
	controller2 = "causeway-controller-6d-2"
)

func examine(t *testing.T, c *fake.Cluster) Report {
	t.Helper()
	v, err := cluster.Gather(context.Background(), c.Clients().Client, cluster.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	r := Run(v, Checks())
	for _, fast := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		if skewed := skew(v, fast); !reflect.DeepEqual(skewed, r) {
			t.Errorf("with a clock of the operator that is %s fast: %+v, want %+v", fast, skewed, r)
		}
	}
	return r
}

// skew returns the report of the same state by a machine with another clock.
func skew(v *cluster.View, fast time.Duration) Report {
	move := func(d time.Duration) {
		v.Now, v.ServerAhead = v.Now.Add(d), v.ServerAhead-d
		for _, d2 := range v.Drivers {
			for _, p := range d2.Pods() {
				p.DriverReady.Ahead -= d
			}
		}
	}
	move(fast)
	defer move(-fast)
	return Run(v, Checks())
}

func TestAClusterWithoutADriver(t *testing.T) {
	_, err := cluster.Gather(context.Background(), fake.Fresh().Clients().Client, cluster.Selection{})
	if err == nil || !strings.Contains(err.Error(), "kubectl causeway doctor --pre checks a cluster before") {
		t.Error(err)
	}
}

func TestAHealthyClusterHasNoFinding(t *testing.T) {
	r := examine(t, fake.Healthy())
	if len(r.Findings) > 0 || len(r.NotChecked) > 0 || r.Code() != CodeHealthy || r.Checks != len(Checks()) {
		t.Errorf("%+v", r)
	}
}

// claim is a claim of the class causeway-hostpath, with its volume if it is bound.
func claim(c *fake.Cluster, name string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	class := "causeway-hostpath"
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:   corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
		Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	c.Add(claim)
	return claim
}

// volume is a PersistentVolume on node-1.
func volume(c *fake.Cluster, name string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: fake.Driver, VolumeHandle: "h"}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: fake.Driver + "/node", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1"}}}}}}}},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
	c.Add(pv)
	return pv
}

// pendingPod is a pod that waits for claims.
func pendingPod(c *fake.Cluster, claims ...string) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app", CreationTimestamp: fake.Ago(5 * time.Minute)},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, claim := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	c.Add(p)
}

// unschedulableApp gives the pod app a condition that no event repeats.
func unschedulableApp(c *fake.Cluster, text string) {
	p := fake.Get[*corev1.Pod](c, "app")
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable, Message: text, LastTransitionTime: fake.Ago(time.Hour)})
}

// notReadySince is the condition of a pod that was ready before.
func notReadySince(ago time.Duration) corev1.PodCondition {
	return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: fake.Ago(ago)}
}

// endingPod is a pod with a claim on node-1 whose grace period ended some time ago.
func endingPod(c *fake.Cluster, claim string, ago time.Duration) {
	pendingPod(c, claim)
	p, end := fake.Get[*corev1.Pod](c, "app"), fake.Ago(ago)
	p.DeletionTimestamp, p.Finalizers, p.Spec.NodeName, p.Status.Phase = &end, []string{"a/b"}, "node-1", corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

// keptPod is a pod with the claim c1 whose containers and grace period have ended, and which has a
// finalizer.
func keptPod(c *fake.Cluster, phase corev1.PodPhase, grace int64) *corev1.Pod {
	claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
	endingPod(c, "c1", 3*time.Minute)
	p := fake.Get[*corev1.Pod](c, "app")
	p.DeletionGracePeriodSeconds, p.Status.Phase = &grace, phase
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	return p
}

// ephemeral adds a generic ephemeral volume to the pod app, with its claim and the name of its
// PersistentVolume.
func ephemeral(c *fake.Cluster, name, pv string) *corev1.PersistentVolumeClaim {
	p := fake.Get[*corev1.Pod](c, "app")
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}})
	claim := claim(c, "app-"+name, corev1.ClaimBound)
	claim.Spec.VolumeName = pv
	return claim
}

// scheduledPod is a pod with the claim c1 that was made 20 minutes ago, and got its node some time
// ago.
func scheduledPod(c *fake.Cluster, ago time.Duration, others ...string) {
	claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
	pendingPod(c, append(others, "c1")...)
	p := fake.Get[*corev1.Pod](c, "app")
	p.CreationTimestamp, p.Spec.NodeName = fake.Ago(20*time.Minute), "node-1"
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
		LastTransitionTime: fake.Ago(ago)}}
}

func waiting(p *corev1.Pod, reason, message string) {
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	p.Status.ContainerStatuses[0].Ready = false
}

// grows is a claim of 1 GiB that asks for 2 GiB, and has a condition since some time.
func grows(c *fake.Cluster, kind corev1.PersistentVolumeClaimConditionType, ago time.Duration, message string) {
	claim := claim(c, "c1", corev1.ClaimBound)
	claim.Spec.VolumeName = volume(c, "pv-1").Name
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: kind, Status: corev1.ConditionTrue,
		LastTransitionTime: fake.Ago(ago), Message: message}}
}

// snapshot is a VolumeSnapshot without a content, and the class of the driver. The class name "" is
// that of no class.
func snapshot(c *fake.Cluster, class string, age time.Duration, status map[string]any) {
	spec := map[string]any{"source": map[string]any{"persistentVolumeClaimName": "c1"}}
	if class != "" {
		spec["volumeSnapshotClassName"] = class
	}
	s := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": map[string]any{"namespace": "default", "name": "s1"}, "spec": spec, "status": status}}
	s.SetCreationTimestamp(fake.Ago(age))
	c.Custom = append(c.Custom, s)
	for name, driver := range map[string]string{"ours": fake.Driver, "other": "other.example.com"} {
		c.Custom = append(c.Custom, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1",
			"kind": "VolumeSnapshotClass", "metadata": map[string]any{"name": name}, "driver": driver, "deletionPolicy": "Delete"}})
	}
	claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
}

// faults are faults with the check that must find them, and words of the cause, evidence or remedy.
// An unknown fault in the same check would have other words.
var faults = map[string]struct {
	inject func(c *fake.Cluster)
	check  string
	words  []string
}{
	"an old API server": {func(c *fake.Cluster) { c.Version = "v1.30.9" }, "api-server-version", []string{"too old", "v1.30.9"}},
	"no CSIDriver": {func(c *fake.Cluster) { fake.Remove[*storagev1.CSIDriver](c, "") }, "csidriver",
		[]string{"CSIDriver is missing", fake.Driver}},
	"a CSIDriver that wants attachments": {func(c *fake.Cluster) {
		yes := true
		fake.Get[*storagev1.CSIDriver](c, fake.Driver).Spec.AttachRequired = &yes
	}, "csidriver", []string{"attachRequired: true"}},
	"a CSIDriver without pod information": {func(c *fake.Cluster) {
		fake.Get[*storagev1.CSIDriver](c, fake.Driver).Spec.PodInfoOnMount = nil
	}, "csidriver", []string{"podInfoOnMount"}},
	"no CRDs of snapshots": {func(c *fake.Cluster) { delete(c.Groups, "snapshot.storage.k8s.io") }, "snapshot-crds",
		[]string{"snapshot.storage.k8s.io are missing", "the nodes hold 2 snapshots", "install the CRDs", "restore them from a backup"}},
	"old CRDs": {func(c *fake.Cluster) { c.Groups["snapshot.storage.k8s.io"] = []string{"v1alpha1", "v1beta1"} }, "snapshot-crds",
		[]string{"too old", "v1beta1"}},
	"a class of another driver": {func(c *fake.Cluster) {
		fake.Get[*storagev1.StorageClass](c, "causeway-hostpath").Provisioner = "hostpath.csi.causeway.example"
	}, "storage-classes", []string{"causeway-hostpath", "does not exist: its claims stay Pending\n"}},
	"a missing right": {func(c *fake.Cluster) {
		c.Denied = func(a authorizationv1.ResourceAttributes) bool {
			return a.Resource == "persistentvolumes" && a.Verb == "create"
		}
	}, "rights", []string{"causeway/causeway-controller", "create persistentvolumes"}},
	"no controller": {func(c *fake.Cluster) { fake.Remove[*appsv1.Deployment](c, "") }, "workloads", []string{"controller is missing"}},
	"a controller with 0 replicas": {func(c *fake.Cluster) {
		fake.Get[*appsv1.Deployment](c, "causeway-controller").Spec.Replicas = new(int32)
	}, "workloads", []string{"scaled to 0", "--replicas=2"}},
	"no DaemonSet": {func(c *fake.Cluster) { fake.Remove[*appsv1.DaemonSet](c, "") }, "workloads", []string{"no DaemonSet"}},
	"a node without a pod": {func(c *fake.Cluster) {
		fake.Remove[*corev1.Pod](c, node1)
		fake.Get[*appsv1.DaemonSet](c, "causeway-node").Status.CurrentNumberScheduled = 1
	}, "workloads", []string{"1 of 2 pods exist"}},
	"Pod Security": {func(c *fake.Cluster) {
		fake.Remove[*corev1.Pod](c, node1)
		c.Event("DaemonSet", fake.Namespace, "causeway-node", "FailedCreate",
			`Error creating: pods "causeway-node-x" is forbidden: violates PodSecurity "baseline:latest": privileged`)
	}, "admission", []string{"Pod Security", "label --overwrite namespace causeway"}},
	"a webhook": {func(c *fake.Cluster) {
		fake.Remove[*corev1.Pod](c, controller1)
		c.Event("ReplicaSet", fake.Namespace, "causeway-controller-6d", "FailedCreate", `admission webhook "x" denied the request: no`)
	}, "admission", []string{"admission policy", "denied"}},
	"a crash loop": {func(c *fake.Cluster) {
		p := fake.Get[*corev1.Pod](c, node1)
		waiting(p, "CrashLoopBackOff", "back-off")
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 2,
			Message: "driver: flag provided but not defined: -no-such"}
	}, "pods", []string{"exit code 2", "does not accept its command line"}},
	"a state directory that cannot be written": {func(c *fake.Cluster) {
		p := fake.Get[*corev1.Pod](c, node1)
		waiting(p, "CrashLoopBackOff", "back-off")
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1,
			Message: "--state-dir: mkdir /var/lib/kubelet/plugins/x: read-only file system"}
	}, "pods", []string{"the state directory cannot be made or written", "disk of the kubelet's directory"}},
	"the kubelet elsewhere": {func(c *fake.Cluster) {
		p := fake.Get[*corev1.Pod](c, node1)
		p.Status.Phase = corev1.PodPending
		c.Event("Pod", fake.Namespace, node1, "FailedMount", `MountVolume.SetUp failed for volume "registration" : hostPath type check failed, /var/lib/k3s/kubelet/plugins_registry is not a directory, unable to determine its type: path does not exist`)
	}, "pods", []string{"kubelet's directory is elsewhere", "kubeletDir"}},
	"no directory": {func(c *fake.Cluster) {
		p := fake.Get[*corev1.Pod](c, node1)
		p.Status.Phase = corev1.PodPending
		c.Event("Pod", fake.Namespace, node1, "FailedMount", `hostPath type check failed, /var/lib/causeway is not a directory, unable to determine its type: path does not exist`)
	}, "pods", []string{"a directory is missing", "mount the disk of the node there", "/var/lib/causeway"}},
	"no secret": {func(c *fake.Cluster) {
		fake.Get[*corev1.Pod](c, node1).Status.Phase = corev1.PodPending
		c.Event("Pod", fake.Namespace, node1, "FailedMount", `MountVolume.SetUp failed for volume "certs" : secret "causeway-nodes-tls" not found`)
	}, "pods", []string{"a secret does not exist", "causeway-nodes-tls"}},
	"no image": {func(c *fake.Cluster) {
		waiting(fake.Get[*corev1.Pod](c, node1), "ImagePullBackOff", `Back-off pulling image "ghcr.io/x"`)
	}, "pods", []string{"cannot pull an image", "ghcr.io/x"}},
	"an unschedulable pod": {func(c *fake.Cluster) {
		p := fake.Get[*corev1.Pod](c, controller2)
		p.Status.Phase, p.Spec.NodeName = corev1.PodPending, ""
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/2 nodes are available: Insufficient memory"}}
	}, "pods", []string{"enough cpu or memory", "Insufficient memory"}},
	"a lost root": {func(c *fake.Cluster) {
		c.Answer(node1, "driver", "/readyz", 503, "the root /var/lib/causeway has no identity.json, but 2b1e was served here: is its disk mounted?")
	}, "driver-ready", []string{"root is lost", "--lost-roots", "on node-1"}},
	"volumes without their identity": {func(c *fake.Cluster) {
		c.Answer(node1, "driver", "/readyz", 503, `the root /var/lib/causeway has no identity.json and is not empty: it contains "groups", `+
			`and 2b1e was served here: is its disk mounted? If these are its volumes, delete nothing, and copy /x to identity.json`)
	}, "driver-ready", []string{"volumes of this driver without their identity", "delete nothing", "root-identity"}},
	"a foreign root": {func(c *fake.Cluster) {
		c.Answer(node1, "driver", "/readyz", 503, `the root /var/lib/causeway belongs to node "node-9"`)
	}, "driver-ready", []string{"root is foreign", "node-9"}},
	"a missing root": {func(c *fake.Cluster) {
		c.Answer(node1, "driver", "/readyz", 503, `stat /var/lib/causeway: no such file or directory: the root must exist`)
	}, "driver-ready", []string{"--root is missing"}},
	"a stalled disk": {func(c *fake.Cluster) {
		c.Answer(node1, "driver", "/readyz", 503, `the storage has not answered for 7s`)
	}, "driver-ready", []string{"stalls"}},
	"a socket without rights": {func(c *fake.Cluster) {
		c.Answer(controller1, "sidecars", "/readyz", 503, "Cannot open the driver's socket /csi/csi.sock: permission denied")
	}, "sidecars-ready", []string{"may not open the driver's socket"}},
	"a registrar without a directory": {func(c *fake.Cluster) {
		c.Answer(node1, "sidecars", "/readyz", 503, "node-driver-registrar: Cannot register the driver: /registration: no such file or directory")
		fake.Get[*storagev1.CSINode](c, "node-1").Spec.Drivers = nil
	}, "sidecars-ready", []string{"not registered", "/registration"}},
	"two versions": {func(c *fake.Cluster) {
		fake.Get[*corev1.Pod](c, node1).Spec.Containers[0].Image = "ghcr.io/causeway-csi/driver:v0.9.0"
	}, "versions", []string{"v0.9.0: causeway-node-1", "complete the update: kubectl -n causeway rollout status daemonset/causeway-node"}},
	"workloads of two versions": {func(c *fake.Cluster) {
		for _, name := range []string{node1, "causeway-node-2"} {
			fake.Get[*corev1.Pod](c, name).Spec.Containers[0].Image = "ghcr.io/causeway-csi/driver:v0.9.0"
		}
		fake.Get[*appsv1.DaemonSet](c, "causeway-node").Spec.Template.Spec.Containers[0].Image = "ghcr.io/causeway-csi/driver:v0.9.0"
	}, "versions", []string{"v0.9.0: causeway-node-1", "apply the chart again"}},
	"a dead node": {func(c *fake.Cluster) {
		n := fake.Get[*corev1.Node](c, "node-1")
		n.Status.Conditions[0].Status, n.Status.Conditions[0].Message = corev1.ConditionUnknown, "Kubelet stopped posting node status."
		n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}}
	}, "nodes", []string{"Node/node-1", "stopped posting", "unreachable"}},
	"no registration": {func(c *fake.Cluster) { fake.Get[*storagev1.CSINode](c, "node-2").Spec.Drivers = nil }, "registration",
		[]string{"Node/node-2", "does not know the driver"}},
	"a volume on a node that is gone": {func(c *fake.Cluster) {
		volume(c, "pv-1").Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] = "node-9"
	}, "forgotten-volumes", []string{"Node/node-9", "pv-1"}},
	"a wrong clock": {func(c *fake.Cluster) {
		for _, pod := range []string{node1, controller1} {
			a := c.Pods.Answers[pod+":9809/readyz"]
			a.Ahead = -5 * time.Minute
			c.Pods.Answers[pod+":9809/readyz"] = a
		}
	}, "clocks", []string{"Node/node-1", "is 5m0s behind that of the API server"}},
	"unreadable records": {func(c *fake.Cluster) { c.Metric(node1, "causeway_unreadable_records 2") }, "storage-metrics",
		[]string{"cannot be read", "causeway_unreadable_records 2"}},
	"stalled copies": {func(c *fake.Cluster) { c.Metric(node1, "causeway_stalled_copies 1") }, "storage-metrics",
		[]string{"copies hang in the kernel", "holds the lock of a file", "or the filesystem stalls", "dmesg"}},
	"helpers exhausted": {func(c *fake.Cluster) {
		c.Metric(node1, `causeway_helpers{pool="freeze"} 64`)
		c.Metric(node1, `causeway_storage_conditions{reason="HelpersExhausted"} 1`)
	}, "storage-metrics", []string{"HelpersExhausted", `pool="freeze"`}},
	"helpers that are busy": {func(c *fake.Cluster) {
		c.Metric(node1, `causeway_helpers{pool="copy"} 40`)
		c.Metric(node1, `causeway_storage_conditions{reason="HelpersExhausted"} 0`)
	}, "storage-metrics", []string{"helper processes are busy or hang", `pool="copy"`}},
	"a panic": {func(c *fake.Cluster) { c.Metric(node1, "causeway_background_panics_total 1") }, "storage-metrics", []string{"panicked"}},
	"a job that waits": {func(c *fake.Cluster) { c.Metric(node1, `causeway_slot_wait_seconds{resource="copy"} 700`) }, "storage-metrics",
		[]string{"wait for a slot", "700 s"}},
	"trash that stays": {func(c *fake.Cluster) {
		c.Metric(node1, "causeway_trash_entries 1")
		c.Metric(node1, `causeway_storage_conditions{reason="TrashStuck"} 1`)
	}, "storage-metrics", []string{"TrashStuck"}},
	"an incomplete object that stays": {func(c *fake.Cluster) {
		c.Metric(node1, `causeway_storage_conditions{reason="SweepFailed"} 1`)
	}, "storage-metrics", []string{"SweepFailed", "unmount everything below <root>/staging", "chattr -i", "delete nothing there"}},
	"a full disk": {func(c *fake.Cluster) { c.Metric(node1, "causeway_storage_free_bytes 1e+08") }, "storage-space", []string{"StorageAlmostFull"}},
	"an almost full disk": {func(c *fake.Cluster) { c.Metric(node1, "causeway_storage_free_bytes 7e+08") }, "storage-space",
		[]string{"StorageAlmostFull"}},
	"no inodes": {func(c *fake.Cluster) { c.Metric(node1, "causeway_storage_free_inodes 2") }, "storage-space",
		[]string{"StorageInodesExhausted", "2 of 1000000"}},
	"few inodes": {func(c *fake.Cluster) { c.Metric(node1, "causeway_storage_free_inodes 4e+04") }, "storage-space",
		[]string{"twentieth of the inodes"}},
	"a share that is away": {func(c *fake.Cluster) {
		c.Metric(controller1, `causeway_share_up{source="//server/share"} 0`)
	}, "shares", []string{"//server/share", "cannot use the share"}},
	"a sick volume": {func(c *fake.Cluster) {
		c.Answer(controller1, "sidecars", "/metrics", 200, `csi_sidecars_volume_health_abnormal{driver_name="x",namespace="default",persistentvolumeclaim="c1",status="Degraded"} 1
`)
		c.Event("PersistentVolumeClaim", "default", "c1", "VolumeConditionAbnormal", "Degraded (SizeNotEnforced): quotas are off")
	}, "volume-health", []string{"default/c1", "Degraded", "quotas are off", "size of the directory is not enforced", "prjquota"}},
	"a damaged identity": {func(c *fake.Cluster) {
		c.Answer(node1, "driver", "/readyz", 503, "identity.json of the root: damaged record: unexpected end of JSON input")
	}, "driver-ready", []string{"first verify that the disk is that of this node", "<root>/volumes", "root-identity"}},
	"a pod without an end": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
		endingPod(c, "c1", 3*time.Minute)
		c.Metric(node1, `causeway_csi_calls_total{method="NodeUnpublishVolume",code="FailedPrecondition"} 7`)
		c.Metric(node1, `causeway_csi_calls_total{method="NodeUnpublishVolume",code="OK"} 9`)
		c.Metric("causeway-node-2", `causeway_csi_calls_total{method="NodeUnpublishVolume",code="Unavailable"} 8`)
	}, "pods-that-end", []string{"Pod/default/app", "on node node-1, terminating for 3m", "containers that run: main", "crictl ps -a",
		"since the start of the driver: NodeUnpublishVolume failed 7 times with code = FailedPrecondition\non the node:",
		"logs " + node1 + " -c driver"}},
	"a volume that is not on its node": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
		pendingPod(c, "c1")
		c.Event("Pod", "default", "app", "FailedMount", `rpc error: code = NotFound desc = volume h`)
	}, "pods-with-volumes", []string{"does not exist on its node", "look for the directory", "bring the disk back; only if"}},
	"a volume beside one of another driver and a ConfigMap": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
		pendingPod(c, "c1", "ebs")
		c.Event("Pod", "default", "app", "FailedMount", `MountVolume.SetUp failed for volume "pv-1" : rpc error: code = NotFound desc = volume h`)
		fake.Get[*corev1.Event](c, "event-"+strconv.Itoa(len(c.Objects)-1)).LastTimestamp = fake.Ago(5 * time.Minute)
		c.Event("Pod", "default", "app", "FailedMount", `MountVolume.NewMounter initialization failed for volume "pvc-ebs" : rpc error: code = Internal desc = x`)
		c.Event("Pod", "default", "app", "FailedMount", `MountVolume.SetUp failed for volume "config" : configmap "x" not found`)
	}, "pods-with-volumes", []string{"does not exist on its node"}},
	"a pod that may not run on the node of its volume": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
		pendingPod(c, "c1")
		unschedulableApp(c, "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "+
			"1 node(s) didn't match PersistentVolume's node affinity.")
	}, "pods-with-volumes", []string{"Pod/default/app", "they are on another node", "PersistentVolume's node affinity"}},
	"a pod with a volume that has no PersistentVolume": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = "pv-1"
		pendingPod(c, "c1")
		unschedulableApp(c, "0/2 nodes are available: 2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s).")
	}, "pods-with-volumes", []string{"cannot be scheduled", "non-existent"}},
	"an inline volume that cannot be mounted": {func(c *fake.Cluster) {
		pendingPod(c)
		fake.Get[*corev1.Pod](c, "app").Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: fake.Driver}}}}
		c.Event("Pod", "default", "app", "FailedMount", `MountVolume.SetUp failed for volume "scratch" : rpc error: code = DeadlineExceeded desc = x`)
	}, "pods-with-volumes", []string{"cannot serve the call"}},
	"a rejected update": {func(c *fake.Cluster) {
		fake.Get[*appsv1.Deployment](c, "causeway-controller").Status.Conditions = []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue}}
		c.Event("ReplicaSet", fake.Namespace, "causeway-controller-7f", "FailedCreate", `admission webhook "x" denied the request: no`)
	}, "admission", []string{"admission policy", "denied"}},
	"a partition beside a node that is not ready for long": {func(c *fake.Cluster) {
		fake.Get[*corev1.Pod](c, node1).Status.Conditions[0] = notReadySince(time.Hour)
		c.Metric(controller1, `causeway_router_peers{state="silent"} 1`)
		c.Answer(controller1, "driver", "/readyz", 200, "ok: 1 of 2 nodes answer\nnode-2 (10.0.0.2:9810): connection refused")
	}, "router", []string{"does not reach a node", "node-2"}},
	"a storage whose health cannot be read": {func(c *fake.Cluster) {
		c.Metric(node1, `causeway_storage_conditions{reason="NoAnswer"} 1`)
	}, "storage-metrics", []string{"NoAnswer", "dmesg", "SMB server"}},
	"a share that is full": {func(c *fake.Cluster) {
		c.Metric(controller1, `causeway_storage_conditions{reason="ShareFull"} 1`)
	}, "storage-metrics", []string{"ShareFull", "extend its filesystem"}},
	"a condition of another backend": {func(c *fake.Cluster) {
		c.Metric(node1, `causeway_storage_conditions{reason="PoolOffline"} 1`)
	}, "storage-metrics", []string{"the storage has the condition PoolOffline"}},
	"a stage that hangs": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
		pendingPod(c, "c1")
		c.Event("Pod", "default", "app", "FailedMount", `rpc error: code = DeadlineExceeded desc = context deadline exceeded`)
	}, "pods-with-volumes", []string{"cannot serve the call"}},
	"a delete that hangs": {func(c *fake.Cluster) {
		volume(c, "pv-1").Status.Phase = corev1.VolumeReleased
		c.Event("PersistentVolume", "", "pv-1", "VolumeFailedDelete", `rpc error: code = DeadlineExceeded desc = context deadline exceeded`)
	}, "deletes", []string{"cannot be deleted", "cannot serve the call"}},
	"a delete with texts that vary": {func(c *fake.Cluster) {
		volume(c, "pv-1").Status.Phase = corev1.VolumeReleased
		for _, text := range []string{"x", "y"} {
			c.Event("PersistentVolume", "", "pv-1", "VolumeFailedDelete", `rpc error: code = Unavailable desc = node node-2 does not answer: `+text)
		}
		fake.Get[*corev1.Event](c, "event-"+strconv.Itoa(len(c.Objects)-2)).LastTimestamp = fake.Ago(5 * time.Minute)
	}, "deletes", []string{"cannot be deleted", "is away", ": y"}},
	"a sick volume without an event": {func(c *fake.Cluster) {
		c.Answer(controller1, "sidecars", "/metrics", 200, `csi_sidecars_volume_health_abnormal{driver_name="x",namespace="default",persistentvolumeclaim="c1",status="DataLoss"} 1
`)
	}, "volume-health", []string{"default/c1", "DataLoss", "not healthy"}},
	"a silent node": {func(c *fake.Cluster) {
		c.Metric(controller1, `causeway_router_peers{state="silent"} 1`)
		c.Answer(controller1, "driver", "/readyz", 200, "ok: 1 of 2 nodes answer\nnode-2 (10.0.0.2:9810): connection refused")
	}, "router", []string{"does not reach a node", "node-2 (10.0.0.2:9810)"}},
	"an expired certificate": {func(c *fake.Cluster) {
		c.Metric(controller1, `causeway_router_peers{state="silent"} 2`)
		c.Answer(controller1, "driver", "/readyz", 200, "ok: 0 of 2 nodes answer\n10.0.0.2:9810: refused our certificate: remote error: tls: expired certificate")
	}, "router", []string{"a certificate has expired", "renew"}},
	"a certificate of another CA": {func(c *fake.Cluster) {
		c.Metric(controller1, `causeway_router_peers{state="silent"} 2`)
		c.Answer(controller1, "driver", "/readyz", 200, "ok: 0 of 2 nodes answer\n10.0.0.2:9810: refused our certificate: remote error: tls: unknown certificate authority")
	}, "router", []string{"do not belong together"}},
	"a certificate with a wrong name": {func(c *fake.Cluster) {
		c.Metric(controller1, `causeway_router_peers{state="silent"} 2`)
		c.Answer(controller1, "driver", "/readyz", 200, "ok: 0 of 2 nodes answer\n10.0.0.2:9810: refused our certificate: remote error: tls: bad certificate")
	}, "router", []string{"its name or its usage is wrong"}},
	"a silent node without an address": {func(c *fake.Cluster) {
		c.Metric(controller1, `causeway_router_peers{state="silent"} 1`)
		c.Answer(controller1, "driver", "/readyz", 200, "ok: 1 of 2 nodes answer\nnode-2 (10.0.0.2:9810): it has no address now")
	}, "router", []string{"does not reach a node", "node-2 (10.0.0.2:9810)"}},
	"a node twice": {func(c *fake.Cluster) { c.Metric(controller1, `causeway_router_peers{state="twice"} 2`) }, "router",
		[]string{"several addresses"}},
	"no DNS": {func(c *fake.Cluster) { c.Metric(controller1, `causeway_router_discovery_up 0`) }, "router",
		[]string{"look up", "if the Service is missing, apply the chart again"}},
	"a certificate at its end": {func(c *fake.Cluster) {
		c.Metric(node1, "causeway_peer_certificate_expiry_timestamp_seconds 1000")
	}, "certificates", []string{"has expired", "1970"}},
	"a certificate that ends in two minutes": {func(c *fake.Cluster) {
		c.Metric(node1, "causeway_peer_certificate_expiry_timestamp_seconds "+strconv.Itoa(int(time.Now().Add(2*time.Minute).Unix())))
	}, "certificates", []string{"expires in 0 days"}},
	"a certificate near its end": {func(c *fake.Cluster) {
		c.Metric(node1, "causeway_peer_certificate_expiry_timestamp_seconds "+
			resource.NewQuantity(time.Now().Add(80*time.Hour).Unix(), resource.DecimalSI).AsDec().String())
	}, "certificates", []string{"expires in 3 days"}},
	"no lease": {func(c *fake.Cluster) {
		fake.Remove[*coordinationv1.Lease](c, "csi-sidecars-hostpath-csi-causeway-dev")
	}, "leaders", []string{"no leader", "does not exist"}},
	"an old lease": {func(c *fake.Cluster) {
		old := metav1.NewMicroTime(time.Now().Add(-3 * time.Minute))
		fake.Get[*coordinationv1.Lease](c, "csi-sidecars-hostpath-csi-causeway-dev").Spec.RenewTime = &old
	}, "leaders", []string{"no leader", "last renewed"}},
	"two leaders": {func(c *fake.Cluster) {
		c.Answer(controller2, "sidecars", "/metrics", 200, "csi_sidecars_controller_up{controller=\"provisioner\"} 1\n")
	}, "leaders", []string{controller1 + ", " + controller2, "compare the clocks", "--leader-election is on"}},
	"two leaders without an election": {func(c *fake.Cluster) {
		c.Answer(controller2, "sidecars", "/metrics", 200, "csi_sidecars_build_info 1\ncsi_sidecars_controller_up{controller=\"provisioner\"} 1\n")
		all := fake.Get[*appsv1.Deployment](c, "causeway-controller").Spec.Template.Spec.Containers
		for i := range all {
			all[i].Args = slices.DeleteFunc(all[i].Args, func(a string) bool { return strings.HasPrefix(a, "--leader-election") })
		}
	}, "leaders", []string{controller1 + ", " + controller2, "restore --leader-election"}},
	"two installations": {func(c *fake.Cluster) {
		other := fake.Get[*appsv1.Deployment](c, "causeway-controller").DeepCopy()
		other.Namespace = "other"
		c.Add(other)
	}, "one-installation", []string{"namespace causeway: the driver on 2 nodes, Deployment/causeway-controller; 6 volumes and 2 snapshots on the 2 nodes that answer\n",
		"namespace other: the driver on 0 nodes, Deployment/causeway-controller", "holds no volumes and no snapshots", "must keep its name"}},
	"no capacity": {func(c *fake.Cluster) { fake.Remove[*storagev1.CSIStorageCapacity](c, "csisc-node-2") }, "capacity",
		[]string{"Node/node-2", "not published"}},
	"a copy without an end": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(20 * time.Minute)
		c.EventSince(20*time.Minute, "PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = Aborted desc = copying`)
	}, "claims", []string{"copying"}},
	"a copy without an end whose texts vary": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(20 * time.Minute)
		c.EventSince(16*time.Minute, "PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = DeadlineExceeded desc = x`)
		fake.Get[*corev1.Event](c, "event-"+strconv.Itoa(len(c.Objects)-1)).LastTimestamp = fake.Ago(16 * time.Minute)
		c.EventSince(time.Minute, "PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = Aborted desc = copying 2`)
	}, "claims", []string{"copying 2"}},
	"a copy without an end whose events are combined": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(20 * time.Minute)
		c.EventSince(16*time.Minute, "PersistentVolumeClaim", "default", "c1", "ProvisioningFailed",
			`(combined from similar events): rpc error: code = Aborted desc = copying`)
	}, "claims", []string{"copying"}},
	"a copy without an end with a series of events": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(20 * time.Minute)
		c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = Aborted desc = copying`)
		e := fake.Get[*corev1.Event](c, "event-"+strconv.Itoa(len(c.Objects)-1))
		e.LastTimestamp, e.EventTime = metav1.Time{}, metav1.NewMicroTime(fake.Ago(16*time.Minute).Time)
		e.Series = &corev1.EventSeries{Count: 9, LastObservedTime: metav1.NewMicroTime(fake.Ago(time.Minute).Time)}
	}, "claims", []string{"copying"}},
	"a stage that waits for a copy without an end": {func(c *fake.Cluster) {
		scheduledPod(c, 20*time.Minute)
		c.EventSince(16*time.Minute, "Pod", "default", "app", "FailedMount", `rpc error: code = Aborted desc = volume h is being copied`)
	}, "pods-with-volumes", []string{"is being copied"}},
	"a failed mount whose events are combined, beside a volume of another driver": {func(c *fake.Cluster) {
		scheduledPod(c, 20*time.Minute, "ebs")
		c.EventSince(time.Minute, "Pod", "default", "app", "FailedMount",
			`(combined from similar events): MountVolume.SetUp failed for volume "pv-1" : rpc error: code = NotFound desc = volume h`)
	}, "pods-with-volumes", []string{"does not exist on its node"}},
	"an ephemeral volume that cannot be mounted": {func(c *fake.Cluster) {
		pendingPod(c)
		ephemeral(c, "scratch", volume(c, "pv-1").Name)
		c.Event("Pod", "default", "app", "FailedMount", `MountVolume.SetUp failed for volume "pv-1" : rpc error: code = NotFound desc = volume h`)
	}, "pods-with-volumes", []string{"does not exist on its node"}},
	"a pod with an ephemeral volume without an end": {func(c *fake.Cluster) {
		endingPod(c, "", 3*time.Minute)
		fake.Get[*corev1.Pod](c, "app").Spec.Volumes = nil
		ephemeral(c, "scratch", volume(c, "pv-1").Name)
	}, "pods-that-end", []string{"Pod/default/app", "on node node-1, terminating for 3m"}},
	"no room for a pod, for a long time": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending)
		pendingPod(c, "c1")
		unschedulableApp(c, "0/2 nodes are available: 2 node(s) did not have enough free storage.")
	}, "pods-with-volumes", []string{"Pod/default/app", "no node has space", "enough free storage"}},
	"a wrong parameter": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending)
		c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = InvalidArgument desc = unknown parameter "knid"`)
	}, "claims", []string{"a parameter", `"knid"`, "delete the class and make it again with the right value", "the claim is retried"}},
	"a wrong filesystem type": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending)
		c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = InvalidArgument desc = create volume "v": invalid argument: `+
			`not the filesystem expected: invalid filesystem type "zfs": must be one of btrfs, ext4, xfs`)
	}, "claims", []string{"the filesystem type of the class is not possible", "another csi.storage.k8s.io/fstype", "a bound claim keeps"}},
	"a wrong access mode": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending)
		c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = InvalidArgument desc = invalid argument: `+
			`invalid access mode MULTI_NODE_MULTI_WRITER: must be SINGLE_NODE_…, because the volume is on the storage of one node`)
	}, "claims", []string{"the access mode of the claim is not possible", "with another access mode"}},
	"few files": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(time.Second)
		c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", "rpc error: code = Unavailable desc = not available now: open /x: too many open files")
	}, "claims", []string{"too few files", "raise the limit"}},
	"a topology without a node": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending)
		c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = ResourceExhausted desc = none of the 2 nodes is in any topology that the volume may have`)
	}, "claims", []string{"the topology of the claim", "allowedTopologies"}},
	"a claim for a node without the driver": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending)
		c.EventSince(3*time.Minute, "PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", "error generating accessibility requirements: no topology key found for node node-1")
	}, "claims", []string{"not registered on the node", "see the pod of the driver"}},
	"an overlap of directories": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending)
		c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = FailedPrecondition desc = the directories of two volumes overlap`)
	}, "claims", []string{"overlaps", "subDir"}},
	"an obstructed path": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
		pendingPod(c, "c1")
		c.Event("Pod", "default", "app", "FailedMount", `rpc error: code = FailedPrecondition desc = the path of the data is obstructed: a FIFO`)
	}, "pods-with-volumes", []string{"obstructed", "remove the obstacle"}},
	"a class of attributes that is rejected": {func(c *fake.Cluster) {
		class := "fast"
		claim := claim(c, "c1", corev1.ClaimBound)
		claim.Spec.VolumeName, claim.Spec.VolumeAttributesClassName = volume(c, "pv-1").Name, &class
		c.Event("PersistentVolumeClaim", "default", "c1", "VolumeModifyFailed", "rpc error: code = InvalidArgument desc = discard is for images")
	}, "modifications", []string{"VolumeAttributesClass fast", "make another VolumeAttributesClass"}},
	"no room": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimPending)
		c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = ResourceExhausted desc = 5 bytes`)
	}, "claims", []string{"has room"}},
	"a wrong password": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
		pendingPod(c, "c1")
		c.Event("Pod", "default", "app", "FailedMount", `MountVolume.MountDevice failed for volume "pv-1" : rpc error: code = Unauthenticated desc = log in to //server/share: logon failure`)
	}, "pods-with-volumes", []string{"rejects the credentials"}},
	"a mapping conflict": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
		pendingPod(c, "c1")
		c.Event("Pod", "default", "app", "FailedMount", `rpc error: code = FailedPrecondition desc = //server/share is mapped with another user, and Windows permits one user for a server (error 1219): use`)
	}, "pods-with-volumes", []string{"as another user"}},
	"a driver that does not run": {func(c *fake.Cluster) {
		claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
		pendingPod(c, "c1")
		c.EventSince(3*time.Minute, "Pod", "default", "app", "FailedMount", `MountVolume.SetUp failed for volume "pv-1" : rpc error: code = Unavailable desc = `+
			`connection error: desc = "transport: Error while dialing: dial unix /var/lib/kubelet/plugins/x/csi.sock: connect: connection refused"`)
	}, "pods-with-volumes", []string{"does not run on the node, or its socket", "see the pod of the driver"}},
	"a driver of shares that is not permitted": {func(c *fake.Cluster) {
		driver := &fake.Get[*appsv1.Deployment](c, "causeway-controller").Spec.Template.Spec.Containers[0]
		driver.Args = append(driver.Args, "--backend=smb")
		volume(c, "pv-1").Status.Phase = corev1.VolumeReleased
		c.Event("PersistentVolume", "", "pv-1", "VolumeFailedDelete", `rpc error: code = PermissionDenied desc = remove the directory`)
	}, "deletes", []string{"the SMB server rejects the credentials"}},
	"a delete that fails": {func(c *fake.Cluster) {
		volume(c, "pv-1").Status.Phase = corev1.VolumeReleased
		c.Event("PersistentVolume", "", "pv-1", "VolumeFailedDelete", `rpc error: code = Unavailable desc = node node-2 does not answer: x`)
		fake.Get[*corev1.Event](c, "event-"+strconv.Itoa(len(c.Objects)-1)).FirstTimestamp = fake.Ago(5 * time.Minute)
	}, "deletes", []string{"cannot be deleted", "is away"}},
	"a snapshot that fails": {func(c *fake.Cluster) {
		c.Custom = append(c.Custom, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1",
			"kind": "VolumeSnapshotContent", "metadata": map[string]any{"name": "s1"}, "spec": map[string]any{"driver": fake.Driver},
			"status": map[string]any{"error": map[string]any{"message": "rpc error: code = FailedPrecondition desc = cannot copy it at a point in time"}}}})
	}, "snapshots", []string{"VolumeSnapshotContent/s1", "cannot be made"}},
	"no snapshot controller": {func(c *fake.Cluster) { snapshot(c, "ours", 3*time.Minute, map[string]any{}) }, "unbound-snapshots",
		[]string{"VolumeSnapshot/default/s1", "no snapshot controller works", "snapshotController.enabled"}},
	"no snapshot controller and no class": {func(c *fake.Cluster) { snapshot(c, "", 3*time.Minute, map[string]any{}) }, "unbound-snapshots",
		[]string{"VolumeSnapshot/default/s1", "no snapshot controller works"}},
	"a snapshot of a claim that does not exist": {func(c *fake.Cluster) {
		snapshot(c, "ours", 3*time.Minute, map[string]any{"error": map[string]any{
			"message": "Failed to create snapshot content with error cannot get claim from snapshot"}})
		fake.Remove[*corev1.PersistentVolumeClaim](c, "c1")
	}, "unbound-snapshots", []string{"VolumeSnapshot/default/s1", "the claim of the snapshot does not exist", "cannot get claim", "make the claim"}},
	"a snapshot class that does not exist": {func(c *fake.Cluster) {
		const text = `Failed to get snapshot class with error volumesnapshotclass "gone" not found`
		snapshot(c, "gone", 3*time.Minute, map[string]any{"error": map[string]any{"message": text}})
		c.Event("VolumeSnapshot", "default", "s1", "GetSnapshotClassFailed", text)
	}, "unbound-snapshots", []string{"VolumeSnapshot/default/s1", "the snapshot has no class", `"gone" not found`}},
	"no default snapshot class, without an event": {func(c *fake.Cluster) {
		snapshot(c, "", time.Hour, map[string]any{"error": map[string]any{
			"message": "Failed to set default snapshot class with error cannot find default snapshot class"}})
	}, "unbound-snapshots", []string{"VolumeSnapshot/default/s1", "the snapshot has no class", "cannot find default"}},
	"an expansion that fails": {func(c *fake.Cluster) {
		claim := claim(c, "c1", corev1.ClaimBound)
		claim.Spec.VolumeName = volume(c, "pv-1").Name
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		c.Event("PersistentVolumeClaim", "default", "c1", "VolumeResizeFailed", "rpc error: code = OutOfRange desc = no space left on device")
	}, "expansions", []string{"from 1Gi to 2Gi"}},
	"a growth on the node without an event": {func(c *fake.Cluster) {
		grows(c, corev1.PersistentVolumeClaimNodeResizeError, 3*time.Minute, `rpc error: code = FailedPrecondition desc = grow volume "h": `+
			`in use: without CAP_SYS_RESOURCE it can be grown only when it is staged again: operation not permitted`)
	}, "expansions", []string{"from 1Gi to 2Gi: the filesystem in use cannot grow", "it grows when it is staged again"}},
	"a growth in the controller without an event": {func(c *fake.Cluster) {
		grows(c, corev1.PersistentVolumeClaimControllerResizeError, 3*time.Minute, "rpc error: code = OutOfRange desc = insufficient capacity")
	}, "expansions", []string{"from 1Gi to 2Gi", "smaller size"}},
}

func TestEachFaultIsNamed(t *testing.T) {
	checks := map[string]bool{}
	for name, tc := range faults {
		t.Run(name, func(t *testing.T) {
			c := fake.Healthy()
			tc.inject(c)
			r := examine(t, c)
			i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Check == tc.check })
			if i < 0 || r.Code() != CodeFindings {
				t.Fatalf("%s finds nothing: %+v", tc.check, r)
			}
			f := r.Findings[i]
			all := strings.Join([]string{f.Object, f.Cause, f.Evidence, f.Remedy}, "\n")
			for _, w := range tc.words {
				if !strings.Contains(all, w) {
					t.Errorf("%q is not in %+v", w, f)
				}
			}
			for _, f := range r.Findings {
				if f.Cause == "" || f.Evidence == "" || f.Remedy == "" || f.Object == "" || f.Page == "" || f.Severity == "" {
					t.Errorf("a part is missing: %+v", f)
				}
			}
		})
		checks[tc.check] = true
	}
	for _, c := range Checks() {
		if !checks[c.Name] {
			t.Errorf("no fault is injected for the check %s", c.Name)
		}
	}
}

// Events stay for an hour. One about a claim that is bound by now is no finding, and neither is a
// claim that waits for its first pod.
func TestWhatIsOverIsNoFinding(t *testing.T) {
	c := fake.Healthy()
	claim(c, "bound", corev1.ClaimBound)
	claim(c, "waits", corev1.ClaimPending)
	claim(c, "old", corev1.ClaimPending)
	c.Event("PersistentVolumeClaim", "default", "bound", "ProvisioningFailed", "rpc error: code = Unavailable desc = x")
	c.Event("PersistentVolumeClaim", "default", "old", "ProvisioningFailed", "rpc error: code = Unavailable desc = x")
	e := fake.Get[*corev1.Event](c, "event-"+strconv.Itoa(len(c.Objects)-1))
	e.LastTimestamp = fake.Ago(time.Hour)
	c.Event("DaemonSet", fake.Namespace, "causeway-node", "FailedCreate", "violates PodSecurity")
	young := fake.Get[*corev1.Pod](c, node1)
	young.CreationTimestamp = fake.Ago(time.Second)
	fake.Get[*storagev1.CSINode](c, "node-1").Spec.Drivers = nil
	if r := examine(t, c); len(r.Findings) > 0 {
		t.Errorf("%+v", r.Findings)
	}
}

const noNetwork = "network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady"

// freshNode makes node-2 a node that became ready some time ago, and pulls the image of its pod.
func freshNode(c *fake.Cluster, ready time.Duration) {
	n, p := fake.Get[*corev1.Node](c, "node-2"), fake.Get[*corev1.Pod](c, "causeway-node-2")
	n.CreationTimestamp, n.Status.Conditions[0].LastTransitionTime = fake.Ago(ready+time.Minute), fake.Ago(ready)
	p.CreationTimestamp, p.Status.Phase = fake.Ago(100*time.Second), corev1.PodPending
	p.Status.ContainerStatuses = nil
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	delete(c.Pods.Answers, "causeway-node-2:9809/readyz")
}

// warned adds a warning about the pod of node-2, with its last time.
func warned(c *fake.Cluster, reason, message string, ago time.Duration) *corev1.Event {
	c.Event("Pod", fake.Namespace, "causeway-node-2", reason, message)
	e := c.Objects[len(c.Objects)-1].(*corev1.Event)
	e.LastTimestamp = fake.Ago(ago)
	return e
}

// notRegisteredYet is the event of a kubelet that does not know the driver.
const notRegisteredYet = "MountVolume.MountDevice failed for volume \"pv-1\" : kubernetes.io/csi: attacher.MountDevice failed to create " +
	"newCsiDriverClient: driver name hostpath.csi.causeway.dev not found in the list of registered CSI drivers"

// States of a healthy cluster that look like faults.
func TestAHealthyClusterMayBeBusy(t *testing.T) {
	content := func(created metav1.Time) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
			"metadata": map[string]any{"name": "s1"}, "spec": map[string]any{"driver": fake.Driver},
			"status": map[string]any{"error": map[string]any{"message": "rpc error: code = DeadlineExceeded desc = context deadline exceeded"}}}}
		o.SetCreationTimestamp(created)
		return o
	}
	started := func(c *fake.Cluster, ago time.Duration) {
		c.Metric(controller1, `causeway_share_up{source="//server/share"} 0`)
		c.Metric(controller1, "process_start_time_seconds "+strconv.Itoa(int(time.Now().Add(-ago).Unix())))
	}
	for name, inject := range map[string]func(c *fake.Cluster){
		"an error of the trash in the past": func(c *fake.Cluster) {
			c.Metric(node1, "causeway_trash_entries 1")
			c.Metric(node1, "causeway_trash_errors_total 7")
		},
		"a volume that is copied": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(10 * time.Minute)
			c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = Aborted desc = copying`)
		},
		"a snapshot that is copied": func(c *fake.Cluster) { c.Custom = append(c.Custom, content(fake.Ago(10*time.Minute))) },
		"a promised root":           func(c *fake.Cluster) { c.Metric(node1, "causeway_storage_available_bytes 0") },
		"a root without a number of inodes": func(c *fake.Cluster) {
			c.Metric(node1, "causeway_storage_inodes 0")
			c.Metric(node1, "causeway_storage_free_inodes 0")
		},
		"an update": func(c *fake.Cluster) {
			c.Metric(controller1, `causeway_router_peers{state="silent"} 1`)
			fake.Get[*corev1.Pod](c, node1).CreationTimestamp = fake.Ago(10 * time.Second)
			volume(c, "pv-1").Status.Phase = corev1.VolumeReleased
			c.Event("PersistentVolume", "", "pv-1", "VolumeFailedDelete", `rpc error: code = Unavailable desc = node node-2 does not answer: x`)
			claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(time.Minute)
			c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = Unavailable desc = node node-2 does not answer: x`)
		},
		"a node that was removed": func(c *fake.Cluster) {
			fake.Remove[*corev1.Node](c, "node-2")
			c.Metric(controller1, `causeway_router_peers{state="silent"} 1`)
			c.Answer(controller1, "driver", "/readyz", 200, "ok: 1 of 2 nodes answer\nnode-2 (10.0.0.2:9810): it has no address now")
		},
		"a scale-down by 40 nodes": func(c *fake.Cluster) { unreachedNodes(c, 0, 40) },
		"an update of a node that has a new address, and does not answer there yet": func(c *fake.Cluster) {
			p := fake.Get[*corev1.Pod](c, "causeway-node-2")
			p.CreationTimestamp, p.Status.PodIPs = fake.Ago(10*time.Second), []corev1.PodIP{{IP: "10.0.0.9"}}
			unreachedNodes(c, 1, 1, "10.0.0.9:9810: connection refused", "node-2 (10.0.0.2:9810): it has no address now")
		},
		"a node without a pod in an update": func(c *fake.Cluster) {
			fake.Remove[*corev1.Pod](c, "causeway-node-2")
			unreachedNodes(c, 0, 1, "node-2 (10.0.0.2:9810): it has no address now")
		},
		"a node that the DaemonSet no longer selects": func(c *fake.Cluster) {
			fake.Remove[*corev1.Pod](c, "causeway-node-2")
			fake.Get[*appsv1.DaemonSet](c, "causeway-node").Status.DesiredNumberScheduled = 1
			unreachedNodes(c, 0, 1, "node-2 (10.0.0.2:9810): it has no address now")
		},
		"a pod on a node that was removed a moment ago": func(c *fake.Cluster) {
			fake.Remove[*corev1.Node](c, "node-2")
			unreachedNodes(c, 1, 0, "node-2 (10.0.0.2:9810): connection refused")
		},
		"a pod that was deleted before it had a node": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			unschedulableApp(c, "0/2 nodes are available: 2 node(s) did not have enough free storage.")
			p, end := fake.Get[*corev1.Pod](c, "app"), fake.Ago(time.Minute)
			p.DeletionTimestamp, p.Finalizers = &end, []string{"a/b"}
		},
		"a pod that ends on a node that was removed": func(c *fake.Cluster) {
			fake.Remove[*corev1.Node](c, "node-2")
			p, end := fake.Get[*corev1.Pod](c, "causeway-node-2"), fake.Ago(0)
			p.DeletionTimestamp, p.Finalizers = &end, []string{"a/b"}
			unreachedNodes(c, 1, 0, "node-2 (10.0.0.2:9810): connection refused")
		},
		"a node that starts": func(c *fake.Cluster) {
			n := fake.Get[*corev1.Node](c, "node-2")
			n.CreationTimestamp, n.Status.Conditions[0].Status = fake.Ago(time.Minute), corev1.ConditionFalse
		},
		"a pod of a new node that pulls its image": func(c *fake.Cluster) {
			p := fake.Get[*corev1.Pod](c, "causeway-node-2")
			p.CreationTimestamp, p.Status.Phase = fake.Ago(time.Minute), corev1.PodPending
			p.Status.Conditions[0].Status = corev1.ConditionFalse
			delete(c.Pods.Answers, "causeway-node-2:9809/readyz")
		},
		"a pod of a fresh node that had no network": func(c *fake.Cluster) {
			freshNode(c, 40*time.Second)
			warned(c, "NetworkNotReady", noNetwork, time.Minute)
		},
		"a pod of a fresh node that had no network until a second ago": func(c *fake.Cluster) {
			freshNode(c, time.Second)
			ready := fake.Get[*corev1.Node](c, "node-2").Status.Conditions[0].LastTransitionTime
			warned(c, "NetworkNotReady", noNetwork, 0).LastTimestamp = ready
		},
		"a claim whose class did not exist": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimPending)
			c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `storageclass.storage.k8s.io "causeway-hostpath" not found`)
		},
		"an expired lease of an earlier installation": func(c *fake.Cluster) {
			old := metav1.NewMicroTime(fake.Ago(90 * time.Second).Time)
			fake.Get[*coordinationv1.Lease](c, leaseName(fake.Driver)).Spec.RenewTime = &old
			for _, name := range []string{controller1, controller2} {
				fake.Get[*corev1.Pod](c, name).CreationTimestamp = fake.Ago(20 * time.Second)
			}
		},
		"a pod that had no room, and pulls its image": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			fake.Get[*corev1.Pod](c, "app").Spec.NodeName = "node-1"
			c.Event("Pod", "default", "app", "FailedScheduling", "0/2 nodes are available: 2 node(s) did not have enough free storage.")
		},
		"a pod with its volume that runs an init container": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			fake.Get[*corev1.Pod](c, "app").Status.InitContainerStatuses = []corev1.ContainerStatus{
				{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			c.Event("Pod", "default", "app", "FailedMount", notRegisteredYet)
		},
		"a pod with its volume that pulls its image": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			fake.Get[*corev1.Pod](c, "app").Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
			c.Event("Pod", "default", "app", "FailedMount", notRegisteredYet)
		},
		"classes that bind immediately": func(c *fake.Cluster) {
			for _, class := range []string{"causeway-hostpath", "causeway-hostpath-image"} {
				immediate := storagev1.VolumeBindingImmediate
				fake.Get[*storagev1.StorageClass](c, class).VolumeBindingMode = &immediate
			}
			fake.Remove[*storagev1.CSIStorageCapacity](c, "csisc-node-2")
		},
		"a certificate that cert-manager renews": func(c *fake.Cluster) {
			c.Metric(node1, "causeway_peer_certificate_expiry_timestamp_seconds "+strconv.Itoa(int(time.Now().Add(25*24*time.Hour).Unix())))
		},
		"a driver that starts again": func(c *fake.Cluster) {
			c.Answer(node1, "driver", "/readyz", 503, "the driver is starting\n")
			fake.Get[*corev1.Pod](c, node1).Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "driver",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: fake.Ago(time.Minute)}}}}
		},
		"a rollout of two nodes": func(c *fake.Cluster) {
			c.Metric(controller1, `causeway_router_peers{state="silent"} 2`)
			fake.Get[*corev1.Pod](c, node1).CreationTimestamp = fake.Ago(10 * time.Second)
			fake.Get[*corev1.Pod](c, "causeway-node-2").Status.Conditions[0] = notReadySince(time.Minute)
		},
		"an update to another version": func(c *fake.Cluster) {
			fake.Get[*corev1.Pod](c, node1).Spec.Containers[0].Image = "ghcr.io/causeway-csi/driver:v0.9.0"
			fake.Get[*corev1.Pod](c, "causeway-node-2").CreationTimestamp = fake.Ago(time.Minute)
		},
		"a pod that has failed, and was replaced": func(c *fake.Cluster) {
			old := fake.Get[*corev1.Pod](c, controller2).DeepCopy()
			old.Name, old.UID, old.Status.Phase = "causeway-controller-old", "old", corev1.PodFailed
			old.Spec.Containers[0].Image = "ghcr.io/causeway-csi/driver:v0.9.0"
			c.Add(old)
		},
		"sidecars that a secret has delayed": func(c *fake.Cluster) {
			c.Answer(controller1, "sidecars", "/readyz", 503, "waiting for the API server")
			statuses := fake.Get[*corev1.Pod](c, controller1).Status.ContainerStatuses
			for i := range statuses {
				statuses[i].State.Running = &corev1.ContainerStateRunning{StartedAt: fake.Ago(10 * time.Second)}
			}
		},
		"a volume of another driver that cannot be mounted": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1", "ebs")
			c.Event("Pod", "default", "app", "FailedMount", `MountVolume.MountDevice failed for volume "pvc-ebs" : rpc error: code = NotFound desc = volume x`)
			c.Event("Pod", "default", "app", "FailedMount", `Unable to attach or mount volumes: unmounted volumes=[ebs]: timed out waiting for the condition`)
			unschedulableApp(c, "0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.")
		},
		"an ephemeral volume of another driver that cannot be mounted": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			class := "ebs"
			ephemeral(c, "ebs", "pvc-ebs").Spec.StorageClassName = &class
			c.Event("Pod", "default", "app", "FailedMount", `MountVolume.MountDevice failed for volume "pvc-ebs" : rpc error: code = NotFound desc = volume x`)
			c.Event("Pod", "default", "app", "FailedMount", `Unable to attach or mount volumes: unmounted volumes=[ebs]: timed out waiting for the condition`)
			unschedulableApp(c, "0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.")
		},
		"a claim that waited for its pod, and is restored": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(20 * time.Minute)
			c.EventSince(3*time.Minute, "PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = DeadlineExceeded desc = x`)
			c.EventSince(time.Minute, "PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = Aborted desc = copying`)
		},
		"a claim that waited for its class, and is restored": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(20 * time.Minute)
			c.EventSince(20*time.Minute, "PersistentVolumeClaim", "default", "c1", "ProvisioningFailed",
				`storageclass.storage.k8s.io "causeway-hostpath" not found`)
			fake.Get[*corev1.Event](c, "event-"+strconv.Itoa(len(c.Objects)-1)).LastTimestamp = fake.Ago(18 * time.Minute)
			c.EventSince(time.Minute, "PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = Aborted desc = copying`)
		},
		"a pod that waited for a node whose driver was replaced": func(c *fake.Cluster) {
			scheduledPod(c, time.Minute)
			c.EventSince(time.Minute, "Pod", "default", "app", "FailedMount", notRegisteredYet)
		},
		"a pod that waited for a volume of another driver, and then for ours": func(c *fake.Cluster) {
			scheduledPod(c, 20*time.Minute, "ebs")
			c.EventSince(20*time.Minute, "Pod", "default", "app", "FailedMount", `MountVolume.SetUp failed for volume "pvc-ebs" : rpc error: code = Unavailable desc = x`)
			c.EventSince(time.Minute, "Pod", "default", "app", "FailedMount", `MountVolume.SetUp failed for volume "pv-1" : rpc error: code = Unavailable desc = x`)
		},
		"an update, seen by a node whose clock is behind": func(c *fake.Cluster) {
			scheduledPod(c, time.Minute)
			c.EventSince(3*time.Minute, "Pod", "default", "app", "FailedMount", notRegisteredYet)
		},
		"a pod that has succeeded, and that a finalizer keeps": func(c *fake.Cluster) { keptPod(c, corev1.PodSucceeded, 0) },
		"a pod that has failed, and that a finalizer keeps": func(c *fake.Cluster) {
			keptPod(c, corev1.PodFailed, 0)
			c.Event("Pod", "default", "app", "BackOff", "Back-off restarting failed container main")
		},
		"no ConfigMap": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			c.Event("Pod", "default", "app", "FailedMount", `MountVolume.SetUp failed for volume "config" : configmap "x" not found`)
		},
		"a call of a sidecar that was replaced": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(time.Minute)
			c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", "rpc error: code = Canceled desc = context canceled")
		},
		"the health of a volume whose driver was replaced": func(c *fake.Cluster) {
			c.Answer(controller1, "sidecars", "/metrics", 200, `csi_sidecars_volume_health_abnormal{namespace="default",persistentvolumeclaim="c1",status="Inaccessible"} 1
`)
			claim(c, "c1", corev1.ClaimBound)
			fake.Get[*corev1.Pod](c, node1).CreationTimestamp = fake.Ago(10 * time.Second)
		},
		"a node whose driver was replaced": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(time.Minute)
			c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed",
				"error generating accessibility requirements: no topology key found for node node-1")
			claim(c, "c2", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-2").Name
			pendingPod(c, "c2")
			fake.Get[*corev1.Pod](c, "app").CreationTimestamp = fake.Ago(time.Minute)
			c.Event("Pod", "default", "app", "FailedMount", notRegisteredYet)
		},
		"a stage during a copy": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			c.Event("Pod", "default", "app", "FailedMount", `rpc error: code = Aborted desc = volume h is being copied: it can be mounted later`)
		},
		"a growth and a class during an update": func(c *fake.Cluster) {
			class := "fast"
			claim := claim(c, "c1", corev1.ClaimBound)
			claim.Spec.VolumeName, claim.Spec.VolumeAttributesClassName = volume(c, "pv-1").Name, &class
			claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
			for _, reason := range []string{"VolumeResizeFailed", "VolumeModifyFailed"} {
				c.Event("PersistentVolumeClaim", "default", "c1", reason, `rpc error: code = Unavailable desc = node node-2 does not answer: x`)
			}
		},
		"a growth that just failed on the node": func(c *fake.Cluster) {
			grows(c, corev1.PersistentVolumeClaimNodeResizeError, time.Minute, "rpc error: code = Internal desc = x")
		},
		"a growth that goes on": func(c *fake.Cluster) {
			grows(c, corev1.PersistentVolumeClaimFileSystemResizePending, time.Hour, "waiting for a pod")
		},
		"a pod that just ended its grace period": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			endingPod(c, "c1", time.Minute)
		},
		"a lease that was just released": func(c *fake.Cluster) {
			none := ""
			fake.Get[*coordinationv1.Lease](c, "csi-sidecars-hostpath-csi-causeway-dev").Spec.HolderIdentity = &none
		},
		"sidecars of upstream": func(c *fake.Cluster) {
			fake.Remove[*coordinationv1.Lease](c, "csi-sidecars-hostpath-csi-causeway-dev")
			for _, pod := range []string{controller1, controller2} {
				c.Answer(pod, "sidecars", "/metrics", 200, "csi_sidecar_operations_seconds_count 1\n")
			}
		},
		"pods that just started, and one that ends": func(c *fake.Cluster) {
			fake.Remove[*storagev1.CSIStorageCapacity](c, "csisc-node-2")
			fake.Get[*storagev1.CSINode](c, "node-2").Spec.Drivers = nil
			for _, name := range []string{"causeway-node-2", controller2} {
				fake.Get[*corev1.Pod](c, name).CreationTimestamp = fake.Ago(10 * time.Second)
				c.Answer(name, "sidecars", "/readyz", 503, "has not told its name yet")
			}
			fake.Get[*corev1.Pod](c, controller2).Status.Phase = corev1.PodPending
			end := fake.Ago(time.Minute)
			ends := fake.Get[*corev1.Pod](c, node1)
			ends.DeletionTimestamp, ends.Finalizers = &end, []string{"a/b"}
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			fake.Get[*corev1.Pod](c, "app").CreationTimestamp = fake.Ago(10 * time.Second)
			c.Event("Pod", "default", "app", "FailedMount", `rpc error: code = NotFound desc = volume h`)
			fake.Remove[*coordinationv1.Lease](c, "csi-sidecars-hostpath-csi-causeway-dev")
		},
		"a snapshot that was just made": func(c *fake.Cluster) { snapshot(c, "ours", time.Minute, map[string]any{}) },
		"a snapshot of another driver":  func(c *fake.Cluster) { snapshot(c, "other", time.Hour, map[string]any{}) },
		"a snapshot with a content": func(c *fake.Cluster) {
			snapshot(c, "ours", time.Hour, map[string]any{"boundVolumeSnapshotContentName": "x"})
		},
		"a snapshot of a claim that waits": func(c *fake.Cluster) {
			snapshot(c, "ours", time.Hour, map[string]any{"error": map[string]any{"message": "the PVC c1 is not yet bound"}})
		},
		"a router that just started": func(c *fake.Cluster) {
			c.Metric(controller1, `causeway_router_discovery_up 0`)
			fake.Get[*corev1.Pod](c, controller1).CreationTimestamp = fake.Ago(10 * time.Second)
			c.Metric(controller2, `causeway_router_discovery_up 0`)
			c.Metric(controller2, "process_start_time_seconds "+strconv.Itoa(int(time.Now().Add(-10*time.Second).Unix())))
		},
		"a node that just joined": func(c *fake.Cluster) {
			fake.Remove[*storagev1.CSIStorageCapacity](c, "csisc-node-2")
			fake.Get[*corev1.Pod](c, "causeway-node-2").CreationTimestamp = fake.Ago(time.Minute)
		},
		"a driver that just started": func(c *fake.Cluster) { started(c, time.Minute) },
	} {
		c := fake.Healthy()
		inject(c)
		if r := examine(t, c); len(r.Findings) > 0 || len(r.NotChecked) > 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for name, inject := range map[string]func(c *fake.Cluster){
		"a snapshot without an end": func(c *fake.Cluster) { c.Custom = append(c.Custom, content(fake.Ago(time.Hour))) },
		"a share":                   func(c *fake.Cluster) { started(c, time.Hour) },
		"a driver that starts for long": func(c *fake.Cluster) {
			c.Answer(node1, "driver", "/readyz", 503, "the driver is starting\n")
			fake.Get[*corev1.Pod](c, node1).Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "driver",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: fake.Ago(3 * time.Minute)}}}}
		},
		"a partition during an update": func(c *fake.Cluster) {
			c.Metric(controller1, `causeway_router_peers{state="silent"} 2`)
			fake.Get[*corev1.Pod](c, node1).CreationTimestamp = fake.Ago(10 * time.Second)
		},
		"a partition during an update of another node": func(c *fake.Cluster) {
			unreachedNodes(c, 1, 0, "node-2 (10.0.0.2:9810): connection refused")
			fake.Get[*corev1.Pod](c, node1).CreationTimestamp = fake.Ago(10 * time.Second)
		},
		"a silent node during a scale-down": func(c *fake.Cluster) {
			unreachedNodes(c, 1, 40, "node-2 (10.0.0.2:9810): connection refused")
		},
		"a node of the cluster without an address": func(c *fake.Cluster) {
			unreachedNodes(c, 0, 1, "node-2 (10.0.0.2:9810): it has no address now")
		},
		"a node with a new address that does not answer": func(c *fake.Cluster) {
			fake.Get[*corev1.Pod](c, "causeway-node-2").Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.9"}}
			unreachedNodes(c, 1, 1, "10.0.0.9:9810: wrong CA", "node-2 (10.0.0.2:9810): it has no address now")
		},
		"more nodes than the router names, with one cause": func(c *fake.Cluster) {
			unreachedNodes(c, 30, 0, "node-1 (10.0.0.1:9810): wrong CA", "node-2 (10.0.0.2:9810): wrong CA", "and 28 more")
		},
		"a fresh node without the directory": func(c *fake.Cluster) {
			freshNode(c, 40*time.Second)
			warned(c, "NetworkNotReady", noNetwork, time.Minute)
			warned(c, "FailedMount", "hostPath type check failed, /var/lib/causeway is not a directory", 30*time.Second)
		},
		"a fresh node without a sandbox": func(c *fake.Cluster) {
			freshNode(c, 40*time.Second)
			warned(c, "FailedCreatePodSandBox", "plugin type=\"x\" failed (add): no answer", 30*time.Second)
		},
		"a fresh node whose pod does not start for long": func(c *fake.Cluster) {
			freshNode(c, 4*time.Minute)
			fake.Get[*corev1.Pod](c, "causeway-node-2").CreationTimestamp = fake.Ago(5 * time.Minute)
			warned(c, "NetworkNotReady", noNetwork, 4*time.Minute+30*time.Second)
		},
		"another call that stays": func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			c.Event("Pod", "default", "app", "FailedMount", `rpc error: code = Aborted desc = another call for "h" is running`)
		},
		"a pod that has failed, and whose volume the kubelet has not unmounted": func(c *fake.Cluster) { keptPod(c, corev1.PodFailed, 30) },
		"a pod that has no finalizer": func(c *fake.Cluster) {
			p := keptPod(c, corev1.PodFailed, 0)
			p.Finalizers = nil
		},
		"a pod that has not ended": func(c *fake.Cluster) { keptPod(c, corev1.PodRunning, 0) },
		"a pod that has failed, with a container that runs": func(c *fake.Cluster) {
			keptPod(c, corev1.PodFailed, 0).Status.EphemeralContainerStatuses = []corev1.ContainerStatus{
				{Name: "debug", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		},
		"a lease without a holder": func(c *fake.Cluster) {
			none, old := "", metav1.NewMicroTime(time.Now().Add(-3*time.Minute))
			l := fake.Get[*coordinationv1.Lease](c, "csi-sidecars-hostpath-csi-causeway-dev")
			l.Spec.HolderIdentity, l.Spec.RenewTime = &none, &old
		},
	} {
		c := fake.Healthy()
		inject(c)
		if r := examine(t, c); len(r.Findings) != 1 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// unreachedNodes gives a router silent nodes, nodes without an address, and lines of /readyz. Below
// them the router names nodes that have left the cluster, 20 lines in all.
func unreachedNodes(c *fake.Cluster, silent, gone int, lines ...string) {
	c.Metric(controller1, `causeway_router_peers{state="silent"} `+strconv.Itoa(silent))
	c.Metric(controller1, `causeway_router_peers{state="gone"} `+strconv.Itoa(gone))
	all := append([]string{"ok: 2 of " + strconv.Itoa(2+silent+gone) + " nodes answer"}, lines...)
	for i := len(lines); i < min(gone+silent, 20) && gone > 1; i++ {
		all = append(all, "pool-"+strconv.Itoa(i)+" (10.0.1."+strconv.Itoa(i)+":9810): it has no address now")
	}
	if more := gone + silent - 20; more > 0 && gone > 0 {
		all = append(all, "and "+strconv.Itoa(more)+" more")
	}
	c.Answer(controller1, "driver", "/readyz", 200, strings.Join(all, "\n"))
}

// An expired certificate does not hide a node that is silent for another reason.
func TestEachCauseOfSilentNodesHasAFinding(t *testing.T) {
	c := fake.Healthy()
	unreachedNodes(c, 3, 0, "10.0.0.3:9810: refused our certificate: remote error: tls: expired certificate",
		"node-1 (10.0.0.1:9810): dial tcp 10.0.0.1:9810: i/o timeout",
		"node-2 (10.0.0.2:9810): refused our certificate: remote error: tls: expired certificate")
	r := examine(t, c)
	got := map[string]string{}
	for _, f := range r.Findings {
		got[f.Cause] = f.Evidence
	}
	expired, away := got["a certificate has expired, or a clock is wrong"], got["the router does not reach a node"]
	if len(r.Findings) != 2 || strings.Contains(expired, "timeout") || strings.Count(expired, "\n") != 1 ||
		!strings.Contains(expired, "10.0.0.3") || !strings.Contains(expired, "node-2 ") ||
		away != "node-1 (10.0.0.1:9810): dial tcp 10.0.0.1:9810: i/o timeout" {
		t.Errorf("%+v", r)
	}
}

// A node whose pod does not exist yet does not excuse another node.
func TestANodeWithoutAPodExcusesNoOther(t *testing.T) {
	c := fake.Healthy()
	fake.Get[*appsv1.DaemonSet](c, "causeway-node").Status.DesiredNumberScheduled = 3
	unreachedNodes(c, 1, 0, "node-2 (10.0.0.2:9810): connection refused")
	if r := examine(t, c); !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Check == "router" }) {
		t.Errorf("%+v", r)
	}
}

// A pod may end before, while and after it is asked.
func TestAPodThatEndsDuringAnUpdateIsNoFinding(t *testing.T) {
	const name = "causeway-node-2"
	for when, end := range map[string]func(c *fake.Cluster){
		"before the list": func(c *fake.Cluster) {
			p, end := fake.Get[*corev1.Pod](c, name), fake.Ago(0)
			p.DeletionTimestamp, p.Finalizers = &end, []string{"a/b"}
		},
		"after the list": func(c *fake.Cluster) {
			c.Ends = name
			maps.DeleteFunc(c.Pods.Answers, func(port string, _ cluster.Answer) bool { return strings.HasPrefix(port, name+":") })
		},
		"after its first answer": func(c *fake.Cluster) {
			c.Ends = name
			delete(c.Pods.Answers, name+":9809/metrics")
		},
		"after its answers":      func(c *fake.Cluster) { c.Ends = name },
		"while it is not ready":  func(c *fake.Cluster) { c.Ends = name; c.Answer(name, "driver", "/readyz", 503, "ends") },
		"before its replacement": func(c *fake.Cluster) { fake.Remove[*corev1.Pod](c, name) },
	} {
		c := fake.Healthy()
		c.Metric(controller1, `causeway_router_peers{state="silent"} 1`)
		fake.Remove[*storagev1.CSIStorageCapacity](c, "csisc-node-2")
		if r := examine(t, c); len(r.Findings) != 2 {
			t.Errorf("%s: with the pod: %+v, want findings of router and capacity", when, r)
		}
		end(c)
		if r := examine(t, c); len(r.Findings)+len(r.NotChecked) > 0 {
			t.Errorf("%s: %+v", when, r)
		}
	}
}

// Tenants choose the names of files, and these are in messages.
func TestTenantsDoNotChooseTheCause(t *testing.T) {
	for text, want := range map[string]string{
		`Degraded (CopyFailed): failed at "a; DataLoss (VolumeNotFound): b": lease`:       "Degraded CopyFailed",
		`Degraded (CopyFailed): failed at "a; Degraded (VolumeNotFound)": lease`:          "Degraded CopyFailed",
		`DataLoss (DataMissing): gone; Degraded (CopyFailed): failed at "VolumeNotFound"`: "Degraded CopyFailed",
		`Inaccessible (DataUnreadable): a; b; Degraded (SizeNotEnforced)`:                 "Degraded SizeNotEnforced",
		`DataLoss (DataMissing)`:                 "DataLoss DataMissing",
		`VolumeNotFound: Degraded (CopyFailed)`:  "Degraded ",
		`x; Degraded (VolumeNotFound): y`:        "Degraded ",
		`Degraded (CopyFailed) (VolumeNotFound)`: "Degraded ",
	} {
		status, reason, _ := strings.Cut(want, " ")
		if got, _ := reasonIn(text, status); got != reason {
			t.Errorf("%s: %s", text, got)
		}
		if got, ok := reasonIn(text, "Unknown"); ok {
			t.Errorf("%s: Unknown has the reason %s", text, got)
		}
	}
	if got, ok := reasonIn(`Degraded (CopyFailed): failed at "a; DataLoss (VolumeNotFound): b"`, "DataLoss"); ok {
		t.Errorf("a name of a file is the reason %s", got)
	}
	const copied = `rpc error: code = FailedPrecondition desc = copy "x/none of the 2 nodes is in any topology that the volume may ` +
		`have/node n does not answer: refused our certificate": `
	const lost = `"x/is missing: restore it from a backup/\" is missing: restore it from a backup": `
	for text, want := range map[string]string{
		`rpc error: code = Internal desc = copy ` + lost + `input/output error`:                    pageAnyCall,
		`rpc error: code = Aborted desc = create snapshot "s": prepare ` + lost + `x`:              pageSnapshot,
		`rpc error: code = Internal desc = copy "x/is missing: restore it from a backup/` + "\\":   pageAnyCall, // cut
		`rpc error: code = Internal desc = copy "//s/NT_STATUS_ACCESS_DENIED": input/output error`: pageAnyCall,
		`rpc error: code = Internal desc = copy "no space left": input/output error`:               pageAnyCall,
		`rpc error: code = Internal desc = /x/volumes/h/data is missing: restore it from a backup`: pageVolume,
		`failed to take: "rpc error: code = Internal desc = copy \"is missing: restore it from a ` +
			`backup/\\\"is missing: restore it from a backup\": input/output error"`: pageAnyCall,
		`failed to take: "rpc error: code = FailedPrecondition desc = copy \"a\\\"b\": no progress for 1m0s at \"x\""`: pageSnapshot,
		`rpc error: code = Unavailable desc = the server does not answer`:                                              pageAnyCall,
		`rpc error: code = InvalidArgument desc = unknown parameter "x"`:                                               "page",
		`rpc error: code = Unauthenticated desc = x`:                                                                   "page",
		`rpc error: code = FailedPrecondition desc = volume pvc-1219 is mounted by pod 1219`:                           pagePodStart,
		copied + "a process holds a lease on the file and does not release it":                                         pageConsistency,
		copied + "directory tree is too deep":                                                                          pageConsistency,
		copied + "no progress for 1m0s":                                                                                pageSnapshot,
		`rpc error: code = Internal desc = copy "node n does not answer": input/output error`:                          pageAnyCall,
		`rpc error: code = Unavailable desc = //s/share: the server does not answer: timeout`:                          pagePending,
		`rpc error: code = Unavailable desc = a device does not answer: /dev/loop3`:                                    pagePodStart,
		`rpc error: code = Unavailable desc = mount volume v: filesystem check not completed: e2fsck: killed`:          pagePodStart,
		copied + `directory "a" has "B" and "b", which the server takes for one name: rename one of them`:              pageSMB + "#snapshots-and-clones",
		`rpc error: code = Unavailable desc = node node-2 (10.0.0.2:9810) does not answer: x`:                          pageRouter,
		`rpc error: code = Unavailable desc = no node that answers holds it: not all nodes ans`:                        pageRouter,
	} {
		if f := called(nil, "x", "x", text, "page"); f.Page != want {
			t.Errorf("%s: %+v", text, f)
		}
	}
}

// The texts are those of internal/router/view.go.
func TestMessagesOfTheRouter(t *testing.T) {
	const twice, unknown, away, nowhere = "several addresses report the same node", "does not know the nodes yet", "is away", "no node holds the volume"
	for text, want := range map[string][2]string{
		"several addresses report this node: 10.0.0.2:9810, 10.0.0.3:9810":                                           {twice, "end the wrong driver"},
		"not all nodes answer: several addresses report the same node: 10.0.0.2:9810, 10.0.0.3:9810":                 {twice, "end the wrong driver"},
		"no node answers in a/node=n: not all nodes answer: n-2 (a:1): x; several addresses report the same node: a": {twice, "end the wrong driver"},
		"no node that answers holds it: not all nodes answer: several addresses report the same node: a, b":          {twice, "end the wrong driver"},
		"the nodes are not known yet: lookup causeway-nodes: no such host":                                           {unknown, "check DNS and the Service"},
		"no node that answers holds it: the nodes are not known yet: their addresses are being looked up":            {unknown, "check DNS and the Service"},
		"no node answers in a/node=n: the nodes are not known yet: timeout":                                          {unknown, "check DNS and the Service"},
		"none of the 3 nodes holds it, and all of them answer: if its node is gone for good, name it in --forg":      {nowhere, "only if its data is lost for good"},
		"node node-2 (10.0.0.2:9810) does not answer: connection refused":                                            {away, "only if its data is lost for good"},
		"not all nodes answer: 10.0.0.2:9810: connection refused":                                                    {away, "bring the node back; only if"},
		"no node that answers holds it: not all nodes answer: 10.0.0.2:9810: timeout":                                {away, "bring the node back; only if"},
		"the group is not made on all of its nodes yet: node n (a:1) does not answer: several addresses report":      {away, "bring the node back; only if"},
	} {
		for _, id := range []string{"volume ID a6mbhnpn9nc1: ", "source volume ID a6m: ", "snapshot ID a6m: "} {
			if f := called(nil, "x", "x", "rpc error: code = Unavailable desc = "+id+text, "page"); !strings.Contains(f.Cause, want[0]) {
				t.Errorf("%s%s: %+v", id, text, f)
			}
		}
		f := called(nil, "x", "x", "rpc error: code = Unavailable desc = "+text, "page")
		if !strings.Contains(f.Cause, want[0]) || !strings.Contains(f.Remedy, want[1]) || f.Page != pageRouter {
			t.Errorf("%s: %+v", text, f)
		}
		if named := strings.Contains(f.Remedy, "forgottenNodes"); named != (want[0] == away || want[0] == nowhere) {
			t.Errorf("%s: %s", text, f.Remedy)
		}
		if nowhere == want[0] && !strings.HasPrefix(f.Remedy, "bring back its node") {
			t.Errorf("%s: %s", text, f.Remedy)
		}
	}
}

// Only a pod shows that a volume is not on its node.
func TestCodesOfOtherCalls(t *testing.T) {
	c := fake.Healthy()
	claim(c, "c1", corev1.ClaimPending)
	c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", `rpc error: code = NotFound desc = snapshot s`)
	claim(c, "c2", corev1.ClaimPending)
	c.Event("PersistentVolumeClaim", "default", "c2", "ProvisioningFailed", `rpc error: code = OutOfRange desc = 5 bytes`)
	r := examine(t, c)
	if len(r.Findings) != 2 {
		t.Fatalf("%+v", r.Findings)
	}
	for _, f := range r.Findings {
		if f.Page != pagePending || strings.Contains(f.Remedy, "delete the claim") || strings.Contains(f.Cause, "on its node") {
			t.Errorf("%+v", f)
		}
	}
}

// A StorageClass and a VolumeAttributesClass cannot be changed, a VolumeSnapshotClass can.
func TestRemediesOfRejectedValues(t *testing.T) {
	const text = `rpc error: code = InvalidArgument desc = unknown parameter "x"`
	for name, tc := range map[string]struct {
		inject              func(c *fake.Cluster)
		check, remedy, page string
	}{
		"snapshot": {func(c *fake.Cluster) {
			faults["a snapshot that fails"].inject(c)
			_ = unstructured.SetNestedField(c.Custom[0].Object, text, "status", "error", "message")
		}, "snapshots", "correct the VolumeSnapshotClass", pageSnapshot},
		"pod": {func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			c.Event("Pod", "default", "app", "FailedMount", "MountVolume.SetUp failed for volume \"pv-1\" : "+text)
		}, "pods-with-volumes", "to delete the old claim deletes its data", pagePodStart},
		"kubelet directory": {func(c *fake.Cluster) {
			claim(c, "c1", corev1.ClaimBound).Spec.VolumeName = volume(c, "pv-1").Name
			pendingPod(c, "c1")
			c.Event("Pod", "default", "app", "FailedMount", "MountVolume.MountDevice failed for volume \"pv-1\" : rpc error: "+
				"code = InvalidArgument desc = stage volume \"v\": mount /a at /x/kubelet/b: invalid path: \"/x/kubelet/b\" is not "+
				"below \"/var/lib/kubelet\"")
		}, "pods-with-volumes", "set kubeletDir", pagePodStart},
	} {
		c := fake.Healthy()
		tc.inject(c)
		f := examine(t, c).Findings
		if len(f) != 1 || f[0].Check != tc.check || !strings.Contains(f[0].Remedy, tc.remedy) || f[0].Page != tc.page {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// Errors of the provisioner about objects that a claim names, with the time for which they are to
// be expected, and words of the finding.
func TestErrorsOfObjectsThatAClaimNames(t *testing.T) {
	const source = `failed to provision volume with StorageClass "causeway-hostpath": error getting handle for DataSource Type `
	for text, tc := range map[string]struct {
		after time.Duration
		words []string
		page  string
	}{
		source + "VolumeSnapshot by Name s: requested volume size 1048576 is less than the size 4194304 for the source snapshot s": {0,
			[]string{"the claim is smaller than its source", "at least the size"}, pageSnapshot},
		source + "PersistentVolumeClaim by Name p: error, new PVC request must be greater than or equal in size to the specified PVC data source, requested 1 but source is 2": {0,
			[]string{"the claim is smaller than its source", "at least the size"}, pageSnapshot},
		source + `VolumeSnapshot by Name s: error getting snapshot s from api server: volumesnapshots.snapshot.storage.k8s.io "s" not found`: {patience,
			[]string{"the source of the claim does not exist", "another dataSource"}, pageSnapshot},
		source + `PersistentVolumeClaim by Name p: error getting PVC p (namespace "default") from api server: persistentvolumeclaim "p" not found`: {patience,
			[]string{"the source of the claim does not exist", "another dataSource"}, pageSnapshot},
		source + `VolumeSnapshot by Name s: snapshot s is not Ready`: {longCall, []string{"the source of the claim is not ready"}, pageSnapshot},
		source + `VolumeSnapshot by Name s: snapshot s not bound`:    {longCall, []string{"the source of the claim is not ready"}, pageSnapshot},
		`failed to provision volume with StorageClass "x": volumeattributesclasses.storage.k8s.io "fast" not found`: {patience,
			[]string{"the VolumeAttributesClass of the claim does not exist"}, pagePending},
		`failed to provision volume with StorageClass "x": error getting secret s in namespace causeway: secrets "s" is forbidden: User "system:serviceaccount:causeway:x" cannot get resource "secrets"`: {0,
			[]string{"a Secret that the controller may not read", "without these keys"}, "docs/reference/parameters.md"},
		`failed to provision volume with StorageClass "x": error getting secret s in namespace causeway: secrets "s" not found`: {patience,
			[]string{"the Secret that the class or the volume names does not exist"}, pagePending},
		`failed to provision volume with StorageClass "x": an unknown error`: {0, []string{"the reason is in the message", "\nsee the message"}, pagePending},
	} {
		for _, ago := range []time.Duration{tc.after - 30*time.Second, tc.after + 30*time.Second} {
			c := fake.Healthy()
			claim(c, "c1", corev1.ClaimPending).CreationTimestamp = fake.Ago(time.Hour)
			c.Event("PersistentVolumeClaim", "default", "c1", "ProvisioningFailed", text)
			e := fake.Get[*corev1.Event](c, "event-"+strconv.Itoa(len(c.Objects)-1))
			e.FirstTimestamp, e.LastTimestamp = fake.Ago(max(ago, 0)), fake.Ago(0)
			f := examine(t, c).Findings
			if ago > 0 && ago < tc.after {
				if len(f) > 0 {
					t.Errorf("%s, since %s: %+v", text, ago, f)
				}
				continue
			}
			if len(f) != 1 || f[0].Page != tc.page {
				t.Errorf("%s, since %s: %+v", text, ago, f)
				continue
			}
			for _, w := range tc.words {
				if !strings.Contains(f[0].Cause+"\n"+f[0].Remedy+"\n", w) {
					t.Errorf("%s: %q is not in %+v", text, w, f[0])
				}
			}
			if strings.Contains(f[0].Remedy, "see the message on the page") {
				t.Error(f[0].Remedy)
			}
		}
	}
	if f := called(nil, "x", "x", `MountVolume.MountDevice failed for volume "pv-1" : fetching NodeStageSecretRef causeway/s failed: `+
		`failed to find the secret s in the namespace causeway with error: secrets "s" not found`, "page", missingVolume, wrongMount, noSecret); !strings.Contains(f.Cause, "does not exist") {
		t.Errorf("%+v", f)
	}
}

// TestTheConditionOfAStatus: the reason comes from the status of the claim, or else from the newest
// event with the status of the metric.
func TestTheConditionOfAStatus(t *testing.T) {
	build := func(texts ...string) *fake.Cluster {
		c := fake.Healthy()
		c.Answer(controller1, "sidecars", "/metrics", 200, `csi_sidecars_volume_health_abnormal{namespace="default",persistentvolumeclaim="c1",status="Degraded"} 1
`)
		claim(c, "c1", corev1.ClaimBound)
		for i, text := range texts {
			c.Event("PersistentVolumeClaim", "default", "c1", "VolumeConditionAbnormal", text)
			fake.Get[*corev1.Event](c, "event-"+strconv.Itoa(len(c.Objects)-1)).LastTimestamp = fake.Ago(time.Duration(10-i) * time.Minute)
		}
		return c
	}
	expect := func(c *fake.Cluster, words ...string) {
		t.Helper()
		f := examine(t, c).Findings
		for _, w := range words {
			if len(f) != 1 || !strings.Contains(f[0].Cause+"\n"+f[0].Evidence, w) {
				t.Errorf("%s is not in %+v", w, f)
			}
		}
	}
	over := []string{"Degraded (CopyStalled): x", "Degraded (SizeNotEnforced): x", "Inaccessible (VolumeNotFound): x"}
	expect(build(over...), "SizeNotEnforced: the size of the directory is not enforced")
	c := build(over...)
	fake.Get[*corev1.PersistentVolumeClaim](c, "c1").Status.HealthStatus = &corev1.VolumeHealthStatus{
		HealthConditions: []corev1.VolumeHealthCondition{{Status: corev1.VolumeHealthInaccessible, Reason: "VolumeNotFound"},
			{Status: corev1.VolumeHealthDegraded, Reason: "CopyFailed", Message: "VolumeNotFound"}}}
	expect(c, "CopyFailed: the last snapshot or clone failed because of the volume's content", "Degraded (CopyFailed): VolumeNotFound")
	expect(build("Inaccessible (VolumeNotFound): x"), "cause is not known")
	expect(build("Degraded (NoAnswer): x"), "NoAnswer: two calls for the volume in a row had no answer")
	for name, c := range map[string]*fake.Cluster{"event": build("Degraded (NodeUnreachable): x"), "status": build()} {
		if name == "status" {
			fake.Get[*corev1.PersistentVolumeClaim](c, "c1").Status.HealthStatus = &corev1.VolumeHealthStatus{
				HealthConditions: []corev1.VolumeHealthCondition{{Status: corev1.VolumeHealthDegraded, Reason: "NodeUnreachable"}}}
		}
		if f := examine(t, c).Findings; len(f) > 0 {
			t.Errorf("a volume of a node that is away, by its %s: %+v", name, f)
		}
	}
	c = build(over...)
	c.Refuse["events"] = errors.New("forbidden: no right")
	expect(c, "cause is not known", "events could not be read: forbidden")
}

// TestConditionsOfAShareHaveItsRemedies: a share and a disk of a node have conditions with the same
// reason.
func TestConditionsOfAShareHaveItsRemedies(t *testing.T) {
	for smb, want := range map[bool]struct{ page, remedy string }{
		false: {pageVolume, "<root>/volumes"},
		true:  {pageSMB + "#conditions", "backup of the server"},
	} {
		c := fake.Healthy()
		if smb {
			args := &fake.Get[*appsv1.Deployment](c, "causeway-controller").Spec.Template.Spec.Containers[0].Args
			*args = append(*args, "--backend=smb")
		}
		c.Answer(controller1, "sidecars", "/metrics", 200, `csi_sidecars_volume_health_abnormal{namespace="default",`+
			`persistentvolumeclaim="c1",status="Inaccessible"} 1`+"\n")
		c.Event("PersistentVolumeClaim", "default", "c1", "VolumeConditionAbnormal",
			"Inaccessible (RecordUnreadable): x")
		f := slices.DeleteFunc(examine(t, c).Findings, func(f Finding) bool { return f.Check != "volume-health" })
		if len(f) != 1 || f[0].Page != want.page || !strings.Contains(f[0].Remedy, want.remedy) ||
			smb && strings.Contains(f[0].Cause+f[0].Remedy, "<root>") {
			t.Errorf("smb %t: %+v, want one of %+v", smb, f, want)
		}
	}
}

// The chart is installed without the classes of snapshots whose CRDs the cluster does not have.
func TestNoCRDsIsANote(t *testing.T) {
	const snapshots, groups = "snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io"
	for _, tc := range []struct {
		group    string
		versions []string
		smb      bool
		want     string // "": no note
	}{
		{snapshots, nil, false, "snapshot.storage.k8s.io are missing"},
		{snapshots, nil, true, "snapshot.storage.k8s.io are missing"},
		{groups, nil, false, "groupsnapshot.storage.k8s.io are missing"},
		{groups, []string{"v1beta2"}, false, "groupsnapshot.storage.k8s.io are too old"},
		{groups, nil, true, ""},
		{groups, []string{"v1beta2"}, true, ""},
	} {
		c := fake.Healthy()
		if delete(c.Groups, tc.group); len(tc.versions) > 0 {
			c.Groups[tc.group] = tc.versions
		}
		for _, pod := range []string{node1, "causeway-node-2"} {
			c.Metric(pod, "causeway_snapshots 0")
		}
		if tc.smb {
			args := &fake.Get[*appsv1.Deployment](c, "causeway-controller").Spec.Template.Spec.Containers[0].Args
			*args = append(*args, "--backend=smb")
		}
		var notes []string
		for _, f := range examine(t, c).Notes {
			notes = append(notes, f.Check+": "+f.Cause)
		}
		if got := strings.Join(notes, "\n"); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%+v: the notes are %q", tc, got)
		}
		for _, f := range examine(t, c).Findings {
			if f.Check == "snapshot-crds" {
				t.Errorf("%+v: %+v", tc, f)
			}
		}
	}
}

// A tenant can make a Deployment with the labels of this project. It is no driver, and no fault.
func TestAnInvalidDriverNameIsANote(t *testing.T) {
	c := fake.Healthy()
	own := fake.Get[*appsv1.Deployment](c, "causeway-controller").DeepCopy()
	own.Namespace, own.Name, own.Spec.Template.Spec.Containers[0].Args = "tenant", "own", []string{"--driver-name=../../x"}
	c.Add(own)
	r := examine(t, c)
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0].Cause, `Deployment/own of namespace tenant: "../../x"`) || r.Code() != CodeHealthy {
		t.Errorf("%+v", r)
	}
}

func TestHelpersThatWorkAreAWarning(t *testing.T) {
	for name, want := range map[string]Severity{"helpers exhausted": Error, "helpers that are busy": Warning} {
		c := fake.Healthy()
		faults[name].inject(c)
		if r := examine(t, c); len(r.Findings) != 1 || r.Findings[0].Severity != want {
			t.Errorf("%s: %+v", name, r.Findings)
		}
	}
}

func TestWhatCannotBeReadIsNotChecked(t *testing.T) {
	for what, check := range map[string]string{"nodes": "router", "csidrivers": "csidriver", "persistentvolumeclaims": "claims",
		"leases": "leaders", "csinodes": "registration", "events": "pods", "storageclasses": "storage-classes",
		"csistoragecapacities": "capacity", "volumesnapshotcontents": "snapshots",
		"volumesnapshots": "unbound-snapshots", "volumesnapshotclasses": "unbound-snapshots", "pods": "workloads"} {
		c := fake.Healthy()
		c.Refuse[what] = errors.New("forbidden: no right")
		r := examine(t, c)
		i := slices.IndexFunc(r.NotChecked, func(n NotChecked) bool { return n.Check == check })
		if i < 0 || !strings.Contains(r.NotChecked[i].Reason, "forbidden") || r.Code() != CodeNotChecked || len(r.Findings) > 0 {
			t.Errorf("%s: %+v", what, r)
		}
	}
	c := fake.Healthy()
	delete(c.Pods.Answers, node1+":9809/metrics")
	if r := examine(t, c); len(r.Findings) > 0 || len(r.NotChecked) != 1 || !strings.Contains(r.NotChecked[0].Reason, node1) ||
		r.Code() != CodeNotChecked {
		t.Errorf("a pod without an answer: %+v", r)
	}
}

func TestOutputs(t *testing.T) {
	r := Report{Checks: 2, Findings: []Finding{{Check: "c", Severity: Error, Object: "Node/x\x1b[2J", Cause: "cause", Evidence: "a\nb\x07",
		Remedy: "remedy", Page: "page"}}, NotChecked: []NotChecked{{"d", "no right"}}}
	var text bytes.Buffer
	data, err := json.Marshal(r)
	if err := errors.Join(r.Text(&text), err); err != nil {
		t.Fatal(err)
	}
	want := "error: c: \"Node/x\\x1b[2J\"\n  cause:    cause\n  evidence: a\n            \"b\\a\"\n  remedy:   remedy\n  page:     page\n\n" +
		"not checked: d: no right\n2 checks, 1 findings, 1 not checked\n"
	if text.String() != want {
		t.Errorf("got\n%s, want\n%s", text.String(), want)
	}
	var back Report
	if err := json.Unmarshal(data, &back); err != nil || back.Findings[0] != r.Findings[0] {
		t.Errorf("%v: %s", err, data)
	}
}

// TestPagesExist compares every page of a finding with the headings of the documentation.
func TestPagesExist(t *testing.T) {
	pages := map[string]bool{}
	for _, p := range []string{pageNotReady, pageNoStart, pageSidecars, pageRouter, pageStorage, pageVolume, pagePending, pagePodStart,
		pageSnapshot, pageDelete, pageAnyCall, pageInstall, pageDirectory, pageCRDs, pageSteps, pageObjects, pageRequires, pageCerts,
		pageRotation, pageFailures, pageReplace, pageLeaders} {
		pages[p] = true
	}
	for _, list := range [][]message{driverMessages, sidecarMessages, podMessages, callMessages, certificateMessages} {
		for _, m := range list {
			pages[cmp.Or(m.page, pagePodEnd)] = true
		}
	}
	for _, m := range append(slices.Concat(codeMessages, claimMessages), missingVolume, growsLater, wrongSnapshotClass, wrongAttributes, wrongMount, noSecret, noRight) {
		pages[cmp.Or(m.page, pagePodEnd)] = true
	}
	for _, r := range rows {
		pages[r.page] = true
		if text := r.cause + r.remedy; r.cause == "" || r.remedy == "" || strings.ContainsAny(text, "`|") ||
			strings.Contains(text, "](") || strings.Contains(text, "this section") {
			t.Errorf("the row %s: %s is %q, %q", r.heading, r.cell, r.cause, r.remedy)
		}
	}
	for _, l := range limits {
		pages[l.page] = true
	}
	for _, tc := range faults {
		c := fake.Healthy()
		tc.inject(c)
		for _, f := range examine(t, c).Findings {
			pages[f.Page] = true
		}
	}
	for _, tc := range faultsBefore {
		r := examineBefore(t, tc)
		for _, f := range slices.Concat(r.Findings, r.Notes) {
			pages[f.Page] = true
		}
	}
	for p := range pages {
		file, anchor, _ := strings.Cut(p, "#")
		data, err := os.ReadFile(filepath.Join(fake.Root(), file))
		if err != nil {
			t.Error(err)
			continue
		}
		found := anchor == ""
		for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(data), -1) {
			found = found || slug(m[1]) == anchor
		}
		if !found {
			t.Errorf("%s has no heading #%s", file, anchor)
		}
	}
}

// TestDriversMessagesAreThoseOfTheirRows: no earlier row has the message of a row.
func TestDriversMessagesAreThoseOfTheirRows(t *testing.T) {
	found := 0
	for _, r := range rows {
		if r.heading != "The driver is not ready" && r.heading != "The driver does not start" {
			continue
		}
		for _, text := range code.FindAllStringSubmatch(r.cell, -1) {
			found++
			if m, _ := explain(strings.ReplaceAll(text[1], "…", "2b1e"), driverMessages); m.cause != r.cause {
				t.Errorf("%s has the cause %q, want %q", text[1], m.cause, r.cause)
			}
		}
	}
	if found < 19 {
		t.Errorf("the page has %d messages", found)
	}
}
