package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

func nodeChecks() []Check {
	return []Check{
		{"nodes", []cluster.Source{cluster.Nodes, cluster.PodList, cluster.NodeLeases}, nodes},
		{"registration", []cluster.Source{cluster.CSINodes, cluster.PodList}, registration},
		{"forgotten-volumes", []cluster.Source{cluster.Nodes, cluster.Volumes}, nodesOfVolumes},
		{"clocks", []cluster.Source{cluster.PodList}, clocks},
	}
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func firstFew(names []string, n int) string {
	if len(names) <= n {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), len(names)-n)
}

// nodes finds nodes with a pod of the driver that are not ready. A dead node and a node that the
// network separates look the same. The pods of a Node object that was deleted exist until the
// garbage collector of pods deletes them.
func nodes(v *cluster.View) (all []Finding) {
	seen := map[string]bool{}
	for _, d := range v.Drivers {
		for _, p := range d.Pods() {
			name := p.Spec.NodeName
			if name == "" || seen[name] {
				continue
			}
			seen[name] = true
			node := v.Node(name)
			if node == nil || cluster.NodeReady(node) || v.ServerNow().Sub(node.CreationTimestamp.Time) < patience {
				continue
			}
			all = append(all, Finding{Severity: Error, Object: "Node/" + name,
				Cause:    "the node is away: it is down, its kubelet does not run, or the network is cut",
				Evidence: nodeEvidence(v, node),
				Remedy:   "bring the node back; if it is gone for good, replace it", Page: pageFailures})
		}
	}
	return all
}

func nodeEvidence(v *cluster.View, n *corev1.Node) string {
	var lines []string
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			lines = append(lines, fmt.Sprintf("Ready: %s since %s: %s", c.Status, c.LastTransitionTime.UTC().Format(
				time.RFC3339), c.Message))
		}
	}
	for _, t := range n.Spec.Taints {
		lines = append(lines, "taint "+t.ToString())
	}
	i := slices.IndexFunc(v.NodeLeases, func(l coordinationv1.Lease) bool { return l.Name == n.Name })
	if i >= 0 && v.NodeLeases[i].Spec.RenewTime != nil {
		lines = append(lines, "last lease "+v.NodeLeases[i].Spec.RenewTime.UTC().Format(time.RFC3339))
	}
	return strings.Join(lines, "\n")
}

// registration finds nodes with a pod of the driver whose kubelet does not know the driver.
func registration(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.NodePods() {
			name := p.Spec.NodeName
			node := v.Node(name)
			if name == "" || p.DeletionTimestamp != nil || v.ServerNow().Sub(p.CreationTimestamp.Time) < patience ||
				node == nil || !cluster.NodeReady(node) || p.Status.Phase != corev1.PodRunning {
				continue
			}
			i := slices.IndexFunc(v.CSINodes, func(n storagev1.CSINode) bool { return n.Name == name })
			if i >= 0 && slices.ContainsFunc(v.CSINodes[i].Spec.Drivers,
				func(c storagev1.CSINodeDriver) bool { return c.Name == d.Name }) {
				continue
			}
			evidence := "CSINode/" + name + " has no entry " + d.Name
			if i < 0 {
				evidence = "there is no CSINode/" + name
			}
			if a := p.SidecarsReady; p.Asked && a.Err == nil && a.Status != 200 {
				evidence += "\n" + a.Body
			}
			all = append(all, Finding{Severity: Error, Object: "Node/" + name,
				Cause:    "the kubelet of the node does not know the driver: pods with volumes do not start there",
				Evidence: evidence,
				Remedy: fmt.Sprintf("kubectl -n %s logs %s -c csi-sidecars-node; the kubelet's root may be "+
					"elsewhere (kubeletDir)", p.Namespace, p.Name),
				Page: pageSidecars})
		}
	}
	return all
}

// nodesOfVolumes finds volumes on nodes that are not in the cluster.
func nodesOfVolumes(v *cluster.View) (all []Finding) {
	gone := map[string][]string{}
	for i := range v.Volumes {
		pv := &v.Volumes[i]
		if pv.Spec.CSI == nil {
			continue
		}
		if d := v.Driver(pv.Spec.CSI.Driver); d == nil || !d.Routed() {
			continue
		}
		for _, name := range cluster.NodesOf(pv) {
			if v.Node(name) == nil && !slices.ContainsFunc(v.Nodes, func(n corev1.Node) bool {
				return n.Labels[pv.Spec.CSI.Driver+"/node"] == name
			}) {
				gone[name] = append(gone[name], pv.Name)
			}
		}
	}
	for _, name := range sorted(gone) {
		all = append(all, Finding{Severity: Warning, Object: "Node/" + name,
			Cause:    "PersistentVolumes are on a node that is not in the cluster",
			Evidence: "PersistentVolumes " + firstFew(gone[name], 5),
			Remedy: "bring the node or its disks back; only if the data is lost for good, name the node in " +
				"hostpath.forgottenNodes, and then delete the claims, as on the page", Page: pageReplace})
	}
	return all
}

// maxSkew is the difference between two clocks that certificates and leases do not tolerate for
// long. A date in HTTP has whole seconds, and an answer takes its time.
const maxSkew = 30 * time.Second

// clocks compares the clocks of nodes with that of the API server, by the header Date.
func clocks(v *cluster.View) (all []Finding) {
	if !v.ServerDated {
		return nil
	}
	seen := map[string]bool{}
	for _, d := range v.Drivers {
		for _, p := range d.Pods() {
			a := p.DriverReady
			if !p.Asked || a.Err != nil || !a.Dated || seen[p.Spec.NodeName] {
				continue
			}
			seen[p.Spec.NodeName] = true
			if skew := a.Ahead - v.ServerAhead; skew.Abs() > maxSkew {
				direction := "ahead of"
				if skew < 0 {
					direction = "behind"
				}
				all = append(all, Finding{Severity: Warning, Object: "Node/" + p.Spec.NodeName,
					Cause: "the clock of the node and that of the API server differ: certificates look expired " +
						"or not yet valid",
					Evidence: fmt.Sprintf("the clock of the node is %s %s that of the API server", skew.Abs(),
						direction),
					Remedy: "synchronize the clock of the node (NTP)", Page: pageCerts})
			}
		}
	}
	return all
}
