package doctor

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// before has the checks before an installation.
type before struct{ cluster.Plan }

// ChecksBefore returns all checks before an installation.
func ChecksBefore(p cluster.Plan) []Check {
	b := before{p}
	type sources = []cluster.Source
	return []Check{
		{"api-server-version", sources{cluster.Version}, serverVersion},
		{"crds", sources{cluster.Groups}, b.crds},
		{"namespace", sources{cluster.TheNamespace}, b.namespace},
		{"dry-run", sources{cluster.DryRun}, b.dryRun},
		{"quota", sources{cluster.Quotas, cluster.Nodes}, b.quota},
		{"name", sources{cluster.CSIDrivers, cluster.CSINodes, cluster.Workloads}, b.name},
		{"default-class", sources{cluster.Classes}, b.defaultClass},
		{"node-state", sources{cluster.Nodes}, b.nodeState},
		{"node-kernel", sources{cluster.Nodes}, b.nodeKernel},
		{"node-platform", sources{cluster.Nodes}, b.nodePlatform},
		{"server-features", sources{cluster.Features}, b.serverFeatures},
		{"kubelet-features", sources{cluster.Kubelets}, b.kubeletFeatures},
		{"node-root", sources{cluster.Roots}, b.nodeRoot},
		{"node-modules", sources{cluster.Modules}, b.nodeModules},
		{"kubelet-root", sources{cluster.KubeletRoots}, b.kubeletRoot},
	}
}

// crds compares the CRDs of snapshots with the cases of docs/how-to/install.md.
func (b before) crds(v *cluster.View) []Finding {
	object := func(group string) string { return "CRDs of " + group }
	snapshots, groups := cluster.SnapshotVersion.Group, cluster.GroupVersion.Group
	has := func(group string) bool { return len(v.Groups[group]) > 0 }
	served := func(group string) string {
		return fmt.Sprintf("the API server serves %s of %s", strings.Join(v.Groups[group], ", "), group)
	}
	old := func(group, setting string) Finding {
		return Finding{Severity: Error, Object: object(group), Cause: "the CRDs are too old: the driver needs v1",
			Evidence: served(group), Remedy: "upgrade the CRDs and the snapshot controller, or set " + setting +
				" to false", Page: pageCRDs}
	}
	switch {
	case !has(snapshots) && !has(groups):
		return []Finding{{Severity: Note, Object: object(snapshots), Cause: "the cluster has none: Helm creates " +
			"them; set snapshotController.enabled", Page: pageCRDs}}
	case has(snapshots) && !v.Serves(cluster.SnapshotVersion):
		return []Finding{old(snapshots, "hostpath.snapshotClass.create and hostpath.groupSnapshotClass.create")}
	case has(groups) && !v.Serves(cluster.GroupVersion):
		return []Finding{old(groups, "hostpath.groupSnapshotClass.create")}
	case !has(groups):
		return []Finding{{Severity: Warning, Object: object(groups), Cause: "the cluster has CRDs of snapshots, " +
			"and none of group snapshots", Evidence: served(snapshots) + ", and nothing of " + groups,
			Remedy: "install with --skip-crds and hostpath.groupSnapshotClass.create=false", Page: pageCRDs}}
	case !has(snapshots):
		return []Finding{{Severity: Error, Object: object(snapshots), Cause: "the cluster has CRDs of group " +
			"snapshots, and none of snapshots", Evidence: served(groups) + ", and nothing of " + snapshots,
			Remedy: "install the CRDs of snapshots, and a snapshot controller", Page: pageCRDs}}
	}
	return []Finding{{Severity: Note, Object: object(snapshots), Cause: "the cluster has them: install with " +
		"--skip-crds, and check that it has a snapshot controller", Page: pageCRDs}}
}

const enforceLabel = "pod-security.kubernetes.io/enforce"

func (b before) namespace(v *cluster.View) []Finding {
	n := v.Before.Namespace
	if n == nil {
		return []Finding{{Severity: Warning, Object: "Namespace/" + b.Namespace, Cause: "the namespace does not exist",
			Evidence: "the API server has no such object", Remedy: fmt.Sprintf("kubectl create namespace %[1]s && "+
				"kubectl label namespace %[1]s %[2]s=privileged", b.Namespace, enforceLabel), Page: pageSteps}}
	}
	if n.DeletionTimestamp != nil {
		return []Finding{{Severity: Error, Object: "Namespace/" + n.Name, Cause: "the namespace is being deleted",
			Evidence: "deletionTimestamp: " + n.DeletionTimestamp.UTC().Format("2006-01-02T15:04:05Z"),
			Remedy:   "wait for its end, or choose another namespace", Page: pageSteps}}
	}
	level, ok := n.Labels[enforceLabel]
	if !ok || level == "privileged" {
		return nil // without a label the dry run shows the cluster's own default
	}
	return []Finding{{Severity: Error, Object: "Namespace/" + n.Name,
		Cause:    "Pod Security does not permit the pods of the driver, which are privileged",
		Evidence: "label " + enforceLabel + "=" + level,
		Remedy: fmt.Sprintf("kubectl label --overwrite namespace %s %s=privileged", b.Namespace,
			enforceLabel), Page: pageSteps}}
}

// dryRun judges the answer to a pod like that of the DaemonSet.
func (b before) dryRun(v *cluster.View) []Finding {
	text := v.Before.Rejected
	if text == "" {
		return nil
	}
	m, ok := explain(text, podMessages)
	if !ok {
		m = message{cause: "the API server rejects a pod like that of the driver", remedy: "see the message",
			page: "docs/how-to/install.md#privileges"}
	}
	return []Finding{{Severity: Error, Object: "Namespace/" + b.Namespace, Cause: m.cause, Evidence: text,
		Remedy: strings.ReplaceAll(m.remedy, "NAMESPACE", b.Namespace), Page: m.page}}
}

// quota finds a ResourceQuota that leaves too few pods: one on each selected Linux node, and those
// of the controller.
func (b before) quota(v *cluster.View) (all []Finding) {
	const controllers = 2
	needed := int64(controllers)
	for i := range v.Nodes {
		if runsDriver(&v.Nodes[i]) {
			needed++
		}
	}
	for i := range v.Before.Quotas {
		q := &v.Before.Quotas[i]
		if !countsCritical(q) {
			continue
		}
		for _, resource := range []corev1.ResourceName{corev1.ResourcePods, "count/pods"} {
			hard, ok := q.Spec.Hard[resource]
			used := q.Status.Used[resource]
			if !ok || hard.Value()-used.Value() >= needed {
				continue
			}
			all = append(all, Finding{Severity: Error, Object: "ResourceQuota/" + q.Name,
				Cause: "the quota of the namespace is too small for the pods of the driver",
				Evidence: fmt.Sprintf("%s: %s, used %s; the driver has %d pods, one on each Linux node%s and %d of "+
					"the controller", resource, hard.String(), used.String(), needed, b.withLabels(), controllers),
				Remedy: "raise the quota, or choose another namespace", Page: pageInstall})
		}
	}
	return all
}

// withLabels returns the selector of the nodes as a part of a sentence.
func (b before) withLabels() string {
	if b.NodeSelector == nil || b.NodeSelector.Empty() {
		return ""
	}
	return " with the labels " + b.NodeSelector.String()
}

// countsCritical reports whether a quota counts pods of the class system-node-critical.
func countsCritical(q *corev1.ResourceQuota) bool {
	if len(q.Spec.Scopes) > 0 {
		return false // BestEffort, Terminating and their opposites are not judged
	}
	if q.Spec.ScopeSelector == nil {
		return true
	}
	return slices.ContainsFunc(q.Spec.ScopeSelector.MatchExpressions,
		func(r corev1.ScopedResourceSelectorRequirement) bool {
			return r.ScopeName == corev1.ResourceQuotaScopePriorityClass &&
				(r.Operator == corev1.ScopeSelectorOpExists || r.Operator == corev1.ScopeSelectorOpIn &&
					slices.Contains(r.Values, "system-node-critical"))
		})
}

// name finds other drivers of the same names.
func (b before) name(v *cluster.View) (all []Finding) {
	for _, name := range b.Drivers {
		var evidence []string
		for _, d := range v.Drivers {
			if d.Name == name {
				evidence = append(evidence, fmt.Sprintf("Causeway runs in namespace %s, release %q", d.Namespace,
					d.Release))
			}
		}
		for _, c := range v.CSIDrivers {
			if c.Name == name {
				evidence = append(evidence, "CSIDriver/"+name+" exists"+owner(c))
			}
		}
		var nodes []string
		for _, n := range v.CSINodes {
			if slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name }) {
				nodes = append(nodes, n.Name)
			}
		}
		if len(nodes) > 0 {
			evidence = append(evidence, "it is registered with the kubelets of "+firstFew(nodes, 3))
		}
		if len(evidence) > 0 {
			all = append(all, Finding{Severity: Error, Object: name, Cause: "a driver of this name is installed " +
				"already: two installations would act on the same objects", Evidence: strings.Join(evidence, "\n"),
				Remedy: "use doctor without --pre for this installation; uninstall it, or give the new one another " +
					"driverName", Page: pageObjects})
		}
	}
	return all
}

// owner returns the Helm release of an object, for evidence.
func owner(c storagev1.CSIDriver) string {
	release := c.Annotations["meta.helm.sh/release-name"]
	if release == "" {
		return ", of no Helm release"
	}
	return fmt.Sprintf(", of Helm release %s in namespace %s", release, c.Annotations["meta.helm.sh/release-namespace"])
}

func (b before) defaultClass(v *cluster.View) []Finding {
	for _, c := range v.Classes {
		if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return []Finding{{Severity: Note, Object: "StorageClass/" + c.Name, Cause: "it is the default class, and " +
				"stays it: the classes of the chart are no default", Page: pageObjects}}
		}
	}
	return []Finding{{Severity: Note, Object: "StorageClasses", Cause: "the cluster has no default class, and the " +
		"chart makes none without default: true", Page: pageObjects}}
}

// gate is a feature gate that should be on.
type gate struct {
	name, effect string
	severity     Severity
}

// gates were off by default in some release from 1.31 on.
var gates = []gate{
	{"RecoverVolumeExpansionFailure", "a claim whose expansion failed cannot be set to a smaller size", Warning},
	{"VolumeAttributesClass", "hostpath.volumeAttributesClasses of the chart must stay empty", Note},
}

func (g gate) finding(object, evidence string) Finding {
	return Finding{Severity: g.severity, Object: object, Cause: "the feature gate " + g.name + " is off: " + g.effect,
		Evidence: evidence, Remedy: "enable the gate, or upgrade Kubernetes to 1.34", Page: pageVersions}
}

func (b before) serverFeatures(v *cluster.View) (all []Finding) {
	for _, g := range gates {
		if on, known := v.Before.Features[g.name]; known && !on {
			all = append(all, g.finding("API server", fmt.Sprintf("kubernetes_feature_enabled{name=%q} 0", g.name)))
		}
	}
	return all
}

func (b before) kubeletFeatures(v *cluster.View) []Finding {
	return perNode(v, func(n *corev1.Node) (all []Finding) {
		for _, g := range gates {
			if on, set := v.Before.Kubelets[n.Name].FeatureGates[g.name]; set && !on && g.severity != Note {
				all = append(all, g.finding("", "featureGates of the kubelet: "+g.name+"=false"))
			}
		}
		return all
	})
}

// olderThan reports whether a version is older, or cannot be parsed.
func olderThan(have, want string) bool {
	parsed, err := version.ParseGeneric(have)
	return err != nil || parsed.LessThan(version.MustParseGeneric(want))
}
