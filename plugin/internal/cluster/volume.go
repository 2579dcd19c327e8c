package cluster

import (
	corev1 "k8s.io/api/core/v1"
)

// NodesOf returns the values of the topology key <driver>/node in the affinity of a volume.
func NodesOf(pv *corev1.PersistentVolume) (nodes []string) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil || pv.Spec.CSI == nil {
		return nil
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == pv.Spec.CSI.Driver+"/node" && e.Operator == corev1.NodeSelectorOpIn {
				nodes = append(nodes, e.Values...)
			}
		}
	}
	return nodes
}

// ClaimIn returns the name of the claim of a volume of a pod, or "". The claim of a generic
// ephemeral volume has the name POD-VOLUME.
func ClaimIn(p *corev1.Pod, vol *corev1.Volume) string {
	switch {
	case vol.PersistentVolumeClaim != nil:
		return vol.PersistentVolumeClaim.ClaimName
	case vol.Ephemeral != nil:
		return p.Name + "-" + vol.Name
	}
	return ""
}
