package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
	"github.com/causeway-csi/causeway/plugin/internal/probe"
)

// site is a cluster with the facts of its nodes, and the planned installation.
type site struct {
	*fake.Cluster
	facts map[string]*probe.Facts
	plan  cluster.Plan
}

func goodSite() *site {
	s := &site{Cluster: fake.Fresh(), facts: map[string]*probe.Facts{}, plan: cluster.Plan{Namespace: fake.Namespace,
		Drivers: []string{fake.Driver}, Root: "/var/lib/causeway", Kubelet: "/var/lib/kubelet", Probe: &probe.Options{}}}
	for _, n := range []string{"node-1", "node-2"} {
		s.facts[n] = &probe.Facts{Kernel: "6.12.0", Root: probe.Directory, Content: probe.Empty, Filesystem: "xfs",
			ProjectQuotas: true, Modules: map[string]probe.State{"ext4": probe.Loaded, "xfs": probe.Loaded,
				"btrfs": probe.Available, "cifs": probe.Available, "loop": probe.Loaded},
			KubeletRoots: map[string]probe.State{"/var/lib/kubelet": probe.Own, "/var/lib/k0s/kubelet": probe.Absent}}
	}
	s.plan.Ask = func(_ context.Context, _ kubernetes.Interface, node string, _ probe.Options) (probe.Facts, error) {
		if s.facts[node] == nil {
			return probe.Facts{}, errors.New("image busybox: ErrImagePull")
		}
		return *s.facts[node], nil
	}
	return s
}

func (s *site) examine() Report {
	v := cluster.GatherBefore(context.Background(), s.Clients().Client, s.plan)
	return Run(v, ChecksBefore(s.plan))
}

// node changes the information about a node.
func (s *site) node(name string, change func(i *corev1.NodeSystemInfo)) {
	change(&fake.Get[*corev1.Node](s.Cluster, name).Status.NodeInfo)
}

func forbidden(text string) func(*corev1.Pod) error {
	return func(p *corev1.Pod) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, p.Name, errors.New(text))
	}
}

func quota(hard string, scopes ...corev1.ScopedResourceSelectorRequirement) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: fake.Namespace, Name: "limits"},
		Spec:   corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse(hard)}},
		Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}}}
	if len(scopes) > 0 {
		q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: scopes}
	}
	return q
}

type faultBefore struct {
	inject func(s *site)
	check  string
	words  []string
}

func examineBefore(t *testing.T, tc faultBefore) Report {
	t.Helper()
	s := goodSite()
	tc.inject(s)
	return s.examine()
}

// faultsBefore are faults with the check that must find them, and words of the finding or the note.
var faultsBefore = map[string]faultBefore{
	"an old API server": {func(s *site) { s.Version = "v1.30.9" }, "api-server-version", []string{"v1.30.9"}},
	"no CRDs": {func(s *site) { clear(s.Groups) }, "crds", []string{
		"cluster has none", "snapshotController.enabled"}},
	"CRDs": {func(*site) {}, "crds", []string{"cluster has them", "--skip-crds"}},
	"no CRDs of groups": {func(s *site) { delete(s.Groups, "groupsnapshot.storage.k8s.io") }, "crds",
		[]string{"none of group snapshots", "hostpath.groupSnapshotClass.create=false"}},
	"only CRDs of groups": {func(s *site) { delete(s.Groups, "snapshot.storage.k8s.io") }, "crds", []string{"none of snapshots"}},
	"old CRDs of groups":  {func(s *site) { s.Groups["groupsnapshot.storage.k8s.io"] = []string{"v1beta1"} }, "crds", []string{"too old", "v1beta1"}},
	"old CRDs": {func(s *site) { s.Groups["snapshot.storage.k8s.io"] = []string{"v1beta1"} }, "crds",
		[]string{"too old", "hostpath.snapshotClass.create and"}},
	"no namespace": {func(s *site) { fake.Remove[*corev1.Namespace](s.Cluster, "") }, "namespace",
		[]string{"kubectl create namespace causeway && kubectl label namespace causeway pod-security.kubernetes.io/enforce=privileged"}},
	"a namespace at its end": {func(s *site) {
		now := fake.Ago(0)
		n := fake.Get[*corev1.Namespace](s.Cluster, fake.Namespace)
		n.DeletionTimestamp, n.Finalizers = &now, []string{"kubernetes"}
	}, "namespace", []string{"is being deleted"}},
	"a label of Pod Security": {func(s *site) {
		fake.Get[*corev1.Namespace](s.Cluster, fake.Namespace).Labels[enforceLabel] = "baseline"
	}, "namespace", []string{"=baseline", "label --overwrite namespace causeway"}},
	"Pod Security": {func(s *site) { s.Admit = forbidden(`violates PodSecurity "baseline:latest": privileged`) }, "dry-run",
		[]string{"Pod Security", "namespace causeway "}},
	"priority classes": {func(s *site) {
		s.Admit = forbidden("insufficient quota to match these scopes: [{PriorityClass In [system-node-critical]}]")
	},
		"dry-run", []string{"resourceQuota.create"}},
	"a policy": {func(s *site) {
		s.Admit = func(*corev1.Pod) error { return errors.New(`admission webhook "x" denied the request: no hostPath`) }
	}, "dry-run", []string{"admission policy"}},
	"an unknown rejection": {func(s *site) { s.Admit = func(*corev1.Pod) error { return apierrors.NewBadRequest("strange") } },
		"dry-run", []string{"rejects a pod", "strange"}},
	"a quota for all pods": {func(s *site) { s.Add(quota("4")) }, "quota", []string{"ResourceQuota/limits", "pods: 4, used 1; the driver has 4 pods"}},
	"a quota of a class": {func(s *site) {
		s.Add(quota("4", corev1.ScopedResourceSelectorRequirement{ScopeName: "PriorityClass", Operator: "In", Values: []string{"system-node-critical"}}))
	}, "quota", []string{"too small"}},
	"a CSIDriver": {func(s *site) {
		s.Add(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: fake.Driver, Annotations: map[string]string{
			"meta.helm.sh/release-name": "r1", "meta.helm.sh/release-namespace": "storage"}}})
	}, "name", []string{"installed already", "of Helm release r1 in namespace storage"}},
	"an installation": {func(s *site) { s.Cluster = fake.Healthy() }, "name", []string{"runs in namespace causeway", "node-1, node-2"}},
	"a registration": {func(s *site) {
		fake.Get[*storagev1.CSINode](s.Cluster, "node-2").Spec.Drivers = []storagev1.CSINodeDriver{{Name: fake.Driver}}
	}, "name", []string{"kubelets of node-2"}},
	"no default class": {func(*site) {}, "default-class", []string{"no default class"}},
	"a default class": {func(s *site) {
		s.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "cloud", Annotations: map[string]string{
			"storageclass.kubernetes.io/is-default-class": "true"}}})
	}, "default-class", []string{"StorageClass/cloud"}},
	"a node that is not ready": {func(s *site) {
		fake.Get[*corev1.Node](s.Cluster, "node-1").Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "no network"}
	}, "node-state", []string{"Node/node-1", "no network"}},
	"a taint": {func(s *site) {
		fake.Get[*corev1.Node](s.Cluster, "node-1").Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	}, "node-state", []string{"gpu:NoSchedule", "tolerate"}},
	"labels of no node": {func(s *site) {
		s.plan.NodeSelector, s.plan.Probe = labels.SelectorFromSet(labels.Set{"disk": "yes"}), nil
	}, "node-state", []string{"selects no node", "labels disk=yes", "kubectl label node", "--node-selector"}},
	"a quota for some nodes": {func(s *site) {
		s.plan.NodeSelector = labels.SelectorFromSet(labels.Set{"kubernetes.io/os": "linux"})
		s.Add(quota("4"))
	}, "quota", []string{"one on each Linux node with the labels kubernetes.io/os=linux and 2 of the controller"}},
	"an old kernel":             {func(s *site) { s.node("node-2", func(i *corev1.NodeSystemInfo) { i.KernelVersion = "5.7.19-x" }) }, "node-kernel", []string{"5.7.19-x", "5.8"}},
	"a kernel without a number": {func(s *site) { s.node("node-2", func(i *corev1.NodeSystemInfo) { i.KernelVersion = "?" }) }, "node-kernel", []string{"kernel ?"}},
	"an old kernel for shares": {func(s *site) {
		s.plan.SMB = true
		s.node("node-2", func(i *corev1.NodeSystemInfo) { i.KernelVersion = "5.10.0" })
	}, "node-kernel", []string{"5.11", "for shares"}},
	"an architecture": {func(s *site) {
		for _, n := range []string{"node-1", "node-2"} {
			s.node(n, func(i *corev1.NodeSystemInfo) { i.Architecture = "riscv64" })
		}
	}, "node-platform", []string{"linux/riscv64", "Node/node-1, Node/node-2"}},
	"an old kubelet": {func(s *site) { s.node("node-1", func(i *corev1.NodeSystemInfo) { i.KubeletVersion = "v1.30.1" }) }, "node-platform", []string{"v1.30.1"}},
	"an old containerd on Windows": {func(s *site) {
		s.node("node-1", func(i *corev1.NodeSystemInfo) {
			i.OperatingSystem, i.ContainerRuntimeVersion, i.KernelVersion = "windows", "containerd://1.6.20", "10.0.20348.1"
		})
	}, "node-platform", []string{"containerd://1.6.20"}},
	"a gate of the API server": {func(s *site) {
		s.Raw["/metrics"] = "kubernetes_feature_enabled{name=\"RecoverVolumeExpansionFailure\",stage=\"ALPHA\"} 0\n"
	}, "server-features", []string{"RecoverVolumeExpansionFailure", "smaller size"}},
	"no VolumeAttributesClass": {func(s *site) {
		s.Raw["/metrics"] = "kubernetes_feature_enabled{name=\"VolumeAttributesClass\",stage=\"BETA\"} 0\n"
	},
		"server-features", []string{"must stay empty"}},
	"a gate of a kubelet": {func(s *site) {
		s.Raw["/api/v1/nodes/node-2/proxy/configz"] = `{"kubeletconfig":{"featureGates":{"RecoverVolumeExpansionFailure":false}}}`
	}, "kubelet-features", []string{"Node/node-2", "RecoverVolumeExpansionFailure=false"}},
	"no root":               {func(s *site) { *s.facts["node-2"] = without(*s.facts["node-2"], probe.Absent) }, "node-root", []string{"Node/node-2", "mkdir -p /var/lib/causeway"}},
	"a file as root":        {func(s *site) { *s.facts["node-2"] = without(*s.facts["node-2"], probe.Other) }, "node-root", []string{"no directory"}},
	"foreign files":         {func(s *site) { s.facts["node-1"].Content = probe.Foreign }, "node-root", []string{"another program", "delete nothing"}},
	"an older installation": {func(s *site) { s.facts["node-1"].Content = probe.Served }, "node-root", []string{"earlier installation"}},
	"a read-only root":      {func(s *site) { s.facts["node-1"].ReadOnlyMounts = true }, "node-root", []string{"read-only", "mounted ro"}},
	"no quotas":             {func(s *site) { s.facts["node-1"].ProjectQuotas = false }, "node-root", []string{"without prjquota"}},
	"reflinks of xfs":       {func(*site) {}, "node-root", []string{"reflink=1 was not checked"}},
	"ext4":                  {func(s *site) { s.facts["node-1"].Filesystem = "ext4" }, "node-root", []string{"no reflinks"}},
	"btrfs":                 {func(s *site) { s.facts["node-1"].Filesystem = "btrfs" }, "node-root", []string{"snapshots share blocks"}},
	"tmpfs":                 {func(s *site) { s.facts["node-1"].Filesystem = "tmpfs" }, "node-root", []string{"not that of a disk"}},
	"another filesystem":    {func(s *site) { s.facts["node-1"].Filesystem = "zfs" }, "node-root", []string{"neither quotas nor reflinks"}},
	"no loop devices":       {func(s *site) { s.facts["node-1"].Modules["loop"] = probe.Missing }, "node-modules", []string{"no module loop"}},
	"loop is not loaded":    {func(s *site) { s.facts["node-1"].Modules["loop"] = probe.Available }, "node-modules", []string{"modprobe loop"}},
	"no ext4":               {func(s *site) { s.facts["node-1"].Modules["ext4"] = probe.Missing }, "node-modules", []string{"no module ext4"}},
	"no btrfs":              {func(s *site) { s.facts["node-1"].Modules["btrfs"] = probe.Missing }, "node-modules", []string{"fsType btrfs"}},
	"no cifs": {func(s *site) {
		s.plan.SMB = true
		s.facts["node-1"].Modules["cifs"] = probe.Missing
	}, "node-modules", []string{"shares cannot be mounted"}},
	"the kubelet elsewhere": {func(s *site) {
		s.facts["node-1"].KubeletRoots = map[string]probe.State{"/var/lib/kubelet": probe.Absent, "/var/lib/k0s/kubelet": probe.Own}
	}, "kubelet-root", []string{"Node/node-1", "set kubeletDir to /var/lib/k0s/kubelet"}},
	"the kubelet in an unknown place": {func(s *site) { s.facts["node-1"].KubeletRoots["/var/lib/kubelet"] = probe.Absent },
		"kubelet-root", []string{"none of /var/lib/k0s/kubelet, /var/lib/kubelet"}},
}

func without(f probe.Facts, s probe.State) probe.Facts {
	f.Root, f.Content, f.Filesystem = s, "", ""
	return f
}

func TestAGoodClusterCanBeInstalled(t *testing.T) {
	r := goodSite().examine()
	if len(r.Findings) > 0 || len(r.NotChecked) > 0 || r.Code() != CodeHealthy || r.Checks != len(ChecksBefore(cluster.Plan{})) {
		t.Errorf("%+v", r)
	}
}

func TestEachFaultBeforeAnInstallationIsNamed(t *testing.T) {
	checks := map[string]bool{}
	for name, tc := range faultsBefore {
		t.Run(name, func(t *testing.T) {
			r := examineBefore(t, tc)
			found := false
			for _, f := range slices.Concat(r.Findings, r.Notes) {
				all := strings.Join([]string{f.Object, f.Cause, f.Evidence, f.Remedy}, "\n")
				found = found || f.Check == tc.check && !slices.ContainsFunc(tc.words, func(w string) bool {
					return !strings.Contains(all, w)
				})
				if f.Cause == "" || f.Object == "" || f.Page == "" || f.Severity != Note && (f.Evidence == "" || f.Remedy == "") {
					t.Errorf("a part is missing: %+v", f)
				}
			}
			if !found {
				t.Errorf("%s does not find %q: %+v", tc.check, tc.words, r)
			}
			for _, f := range r.Findings {
				if f.Check != tc.check && name != "an installation" {
					t.Errorf("another finding: %+v", f)
				}
			}
			if (len(r.Findings) > 0) != (r.Code() == CodeFindings) {
				t.Errorf("exit code %d with %d findings", r.Code(), len(r.Findings))
			}
		})
		checks[tc.check] = true
	}
	for _, c := range ChecksBefore(cluster.Plan{}) {
		if !checks[c.Name] {
			t.Errorf("no fault is injected for the check %s", c.Name)
		}
	}
}

// otherNode adds a node without the label disk=yes, which cannot run the driver.
func (s *site) otherNode() {
	for _, n := range []string{"node-1", "node-2"} {
		fake.Get[*corev1.Node](s.Cluster, n).Labels["disk"] = "yes"
	}
	n := fake.Get[*corev1.Node](s.Cluster, "node-1").DeepCopy()
	n.Name, n.Labels, n.Spec.Taints = "other", nil, []corev1.Taint{{Key: "control-plane", Effect: corev1.TaintEffectNoSchedule}}
	n.Status.NodeInfo.KernelVersion, n.Status.NodeInfo.KubeletVersion = "5.4.0", "v1.30.1"
	s.Add(n, quota("5"))
	facts := without(*s.facts["node-1"], probe.Absent)
	facts.Modules = map[string]probe.State{"loop": probe.Missing, "ext4": probe.Loaded, "xfs": probe.Loaded, "btrfs": probe.Loaded}
	facts.KubeletRoots = map[string]probe.State{"/var/lib/kubelet": probe.Absent, "/var/lib/k0s/kubelet": probe.Own}
	s.facts["other"] = &facts
}

// TestTheNodeSelectorLimitsAllChecksOfNodes: a node that never runs the driver has faults of all
// checks.
func TestTheNodeSelectorLimitsAllChecksOfNodes(t *testing.T) {
	s := goodSite()
	s.otherNode()
	r := s.examine()
	for _, check := range []string{"quota", "node-kernel", "node-platform", "node-root", "node-modules", "kubelet-root"} {
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Check == check }) {
			t.Errorf("without a selector %s finds nothing: %+v", check, r)
		}
	}
	if len(r.NotChecked) != 1 || r.NotChecked[0].Check != "kubelet-features" {
		t.Errorf("without a selector: %+v", r.NotChecked)
	}
	ask := s.plan.Ask
	s.plan.Ask = func(ctx context.Context, k kubernetes.Interface, node string, o probe.Options) (probe.Facts, error) {
		if node == "other" {
			t.Error("a pod on a node without the label")
		}
		return ask(ctx, k, node, o)
	}
	for _, selector := range []string{"disk=yes", "disk in (yes, ssd), kubernetes.io/os", "disk"} {
		parsed, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		s.plan.NodeSelector = parsed
		r := s.examine()
		if len(r.Findings) > 0 || len(r.NotChecked) > 0 || r.Code() != CodeHealthy {
			t.Errorf("%s: %+v", selector, r)
		}
		for _, n := range r.Notes {
			if strings.Contains(n.Object, "Node/other") || n.Check == "node-root" && n.Object != "Node/node-1, Node/node-2" {
				t.Errorf("%s: %+v", selector, n)
			}
		}
	}
}

// TestASelectorOfNoLinuxNodeIsNotSilent: no pod is started, and no check of nodes passes.
func TestASelectorOfNoLinuxNodeIsNotSilent(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(n *corev1.Node)
		findings int
		code     int
	}{
		"no node":           {func(n *corev1.Node) { n.Labels = nil }, 1, CodeFindings},
		"a virtual kubelet": {func(n *corev1.Node) { n.Labels["type"] = "virtual-kubelet" }, 1, CodeFindings},
		"a Windows node": {func(n *corev1.Node) {
			n.Status.NodeInfo.OperatingSystem, n.Status.NodeInfo.KernelVersion = "windows", "10.0.20348.1"
		}, 0, CodeNotChecked},
	} {
		s := goodSite()
		s.plan.NodeSelector = labels.SelectorFromSet(labels.Set{"disk": "yes"})
		n := fake.Get[*corev1.Node](s.Cluster, "node-1")
		n.Labels["disk"] = "yes"
		tc.change(n)
		s.plan.Ask = func(_ context.Context, _ kubernetes.Interface, node string, _ probe.Options) (probe.Facts, error) {
			t.Errorf("%s: a pod on %s", name, node)
			return probe.Facts{}, nil
		}
		r := s.examine()
		if len(r.Findings) != tc.findings || len(r.NotChecked) != 3 || r.Code() != tc.code {
			t.Errorf("%s: %+v", name, r)
		}
		for _, n := range r.NotChecked {
			if want := probed("no Linux node is selected")[n.Check]; want == "" || !strings.Contains(n.Reason, want) {
				t.Errorf("%s: %+v", name, n)
			}
		}
	}
}

// TestFactsWithoutHarmAreNoFinding: quotas and modules that the driver does not need.
func TestFactsWithoutHarmAreNoFinding(t *testing.T) {
	s := goodSite()
	s.Add(quota("4", corev1.ScopedResourceSelectorRequirement{ScopeName: "PriorityClass", Operator: "In", Values: []string{"batch"}}))
	other := quota("5")
	other.Name = "enough"
	s.Add(other)
	best := quota("1")
	best.Name, best.Spec.Scopes = "best-effort", []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	s.Add(best)
	s.facts["node-1"].Modules["cifs"] = probe.Unknown
	s.facts["node-2"].Modules["cifs"] = probe.Missing
	s.node("node-1", func(i *corev1.NodeSystemInfo) { i.KernelVersion, i.Architecture = "5.8", "arm64" })
	delete(fake.Get[*corev1.Namespace](s.Cluster, fake.Namespace).Labels, enforceLabel)
	virtual := fake.Get[*corev1.Node](s.Cluster, "node-1").DeepCopy()
	virtual.Name, virtual.Labels = "virtual", map[string]string{"type": "virtual-kubelet"}
	virtual.Status.NodeInfo = corev1.NodeSystemInfo{}
	s.Add(virtual)
	s.Raw["/api/v1/nodes/virtual/proxy/configz"] = `{"kubeletconfig":{}}`
	if r := s.examine(); len(r.Findings) > 0 || len(r.NotChecked) > 0 {
		t.Errorf("%+v", r)
	}
}

func TestWhatCannotBeReadBeforeIsNotChecked(t *testing.T) {
	refuse := func(resource string) func(*site) {
		return func(s *site) { s.Refuse[resource] = errors.New("no right") }
	}
	for name, tc := range map[string]struct {
		change func(s *site)
		want   map[string]string // reason by check; all others are checked
		left   int               // checks that run nevertheless, for the other nodes
	}{
		"namespaces": {refuse("namespaces"), map[string]string{"namespace": "no right", "dry-run": "no right"}, 0},
		"quotas":     {refuse("resourcequotas"), map[string]string{"quota": "no right"}, 0},
		"classes":    {refuse("storageclasses"), map[string]string{"default-class": "no right"}, 0},
		"CSIDrivers": {refuse("csidrivers"), map[string]string{"name": "no right"}, 0},
		"CSINodes":   {refuse("csinodes"), map[string]string{"name": "no right"}, 0},
		"workloads":  {refuse("daemonsets"), map[string]string{"name": "no right"}, 0},
		"metrics":    {func(s *site) { delete(s.Raw, "/metrics") }, map[string]string{"server-features": "forbidden"}, 0},
		"no gates":   {func(s *site) { s.Raw["/metrics"] = "up 1\n" }, map[string]string{"server-features": "has no kubernetes_feature_enabled"}, 0},
		"pods":       {func(s *site) { s.Admit = forbidden(`cannot create resource "pods"`) }, map[string]string{"dry-run": "cannot create resource"}, 0},
		"webhooks": {func(s *site) {
			s.Admit = func(*corev1.Pod) error { return apierrors.NewBadRequest("webhook x does not support dry run") }
		}, map[string]string{"dry-run": "dry run"}, 0},
		"a dead API":   {func(s *site) { s.Admit = func(*corev1.Pod) error { return errors.New("connection refused") } }, map[string]string{"dry-run": "refused"}, 0},
		"one configz":  {func(s *site) { delete(s.Raw, "/api/v1/nodes/node-2/proxy/configz") }, map[string]string{"kubelet-features": "not of all nodes: node-2: "}, 1},
		"configz":      {func(s *site) { s.Raw = map[string]string{"/metrics": s.Raw["/metrics"]} }, map[string]string{"kubelet-features": "and 1 more nodes"}, 0},
		"bad configz":  {func(s *site) { s.Raw["/api/v1/nodes/node-2/proxy/configz"] = "{}" }, map[string]string{"kubelet-features": "no kubeletconfig"}, 1},
		"no --nodes":   {func(s *site) { s.plan.Probe = nil }, probed("needs --nodes"), 0},
		"one image":    {func(s *site) { delete(s.facts, "node-1") }, probed("node-1: image busybox"), 3},
		"images":       {func(s *site) { clear(s.facts) }, probed("and 1 more nodes"), 0},
		"a link":       {func(s *site) { *s.facts["node-1"] = without(*s.facts["node-1"], probe.Link) }, map[string]string{"node-root": "symbolic link"}, 1},
		"a right":      {func(s *site) { *s.facts["node-1"] = without(*s.facts["node-1"], probe.Denied) }, map[string]string{"node-root": "may not read"}, 1},
		"the content":  {func(s *site) { s.facts["node-1"].Content = probe.Denied }, map[string]string{"node-root": "may not read"}, 1},
		"mounts":       {func(s *site) { s.facts["node-1"].Filesystem = "unknown" }, map[string]string{"node-root": "mounts"}, 1},
		"modules":      {func(s *site) { s.facts["node-1"].Modules["loop"] = probe.Unknown }, map[string]string{"node-modules": "loop is not loaded"}, 1},
		"a kubelet":    {func(s *site) { s.facts["node-1"].KubeletRoots["/var/lib/kubelet"] = probe.Link }, map[string]string{"kubelet-root": "/var/lib/kubelet: link"}, 1},
		"the API's ID": {func(s *site) { s.Refuse["nodes"] = errors.New("no right") }, nodesUnread(), 0},
	} {
		s := goodSite()
		tc.change(s)
		r := s.examine()
		if len(r.Findings) > 0 || len(r.NotChecked) != len(tc.want) || r.Code() != CodeNotChecked ||
			r.Checks != len(ChecksBefore(s.plan))-len(tc.want)+tc.left {
			t.Errorf("%s: %+v", name, r)
		}
		for _, n := range r.NotChecked {
			if want := tc.want[n.Check]; want == "" || !strings.Contains(n.Reason, want) {
				t.Errorf("%s: %+v, want %q", name, n, want)
			}
		}
	}
}

func probed(reason string) map[string]string {
	return map[string]string{"node-root": reason, "node-modules": reason, "kubelet-root": reason}
}

func nodesUnread() map[string]string {
	m := probed("no right")
	for _, c := range []string{"quota", "node-state", "node-kernel", "node-platform", "kubelet-features"} {
		m[c] = "no right"
	}
	return m
}

// Without a namespace, or in a namespace that rejects it, no pod is created.
func TestNoPodWithoutANamespaceThatAcceptsIt(t *testing.T) {
	for _, change := range []func(s *site){
		func(s *site) { fake.Remove[*corev1.Namespace](s.Cluster, "") },
		func(s *site) { s.Admit = forbidden("violates PodSecurity") },
		func(s *site) {
			for _, n := range []string{"node-1", "node-2"} {
				fake.Get[*corev1.Node](s.Cluster, n).Status.Conditions = nil
			}
		},
		func(s *site) {
			for _, n := range []string{"node-1", "node-2"} {
				s.node(n, func(i *corev1.NodeSystemInfo) { i.OperatingSystem = "windows" })
			}
		},
	} {
		s := goodSite()
		change(s)
		s.plan.Ask = func(_ context.Context, _ kubernetes.Interface, node string, _ probe.Options) (probe.Facts, error) {
			t.Errorf("a pod on %s", node)
			return probe.Facts{}, nil
		}
		s.examine()
	}
}

// The volumes on a root may be those of the driver that runs.
func TestVolumesOfWhichInstallation(t *testing.T) {
	for _, want := range []string{"volumes of an earlier installation", "volumes of this or an earlier installation"} {
		s := goodSite()
		s.facts["node-1"].Content = probe.Served
		if strings.Contains(want, "this") {
			s.Add(fake.Get[*appsv1.DaemonSet](fake.Healthy(), "causeway-node"))
		}
		if r := s.examine(); !slices.ContainsFunc(r.Notes, func(f Finding) bool { return strings.Contains(f.Cause, want) }) {
			t.Errorf("%s: %+v", want, r.Notes)
		}
	}
}
