package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// slim is the cache.TransformFunc of the informers that several controllers share: what nobody reads isn't kept. No object
// keeps its managedFields. The API server takes an update without any for one that leaves them alone, and a patch made of two
// objects without any doesn't speak of them. Pods and nodes, of which a cluster has thousands, keep a handful of fields;
// TestNobodyReadsWhatSlimDrops says when that becomes too few.
//
// It may be called again for what it returned, as the reflector does after it streamed a list, and then writes to nothing:
// others may read it by now. Pods and nodes are copied. Of everything else client-go promises that nobody has seen it yet
// when its managedFields are still there.
func slim(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return slimPod(o), nil
	case *corev1.Node:
		return slimNode(o), nil
	case cache.DeletedFinalStateUnknown: // holds what was in a cache, hence is slim, and is read by others
		return o, nil
	}
	if m, err := meta.Accessor(obj); err == nil && m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// slimPod keeps which claims a pod uses, and what an event about it needs. The resizer asks whether a claim is in use.
func slimPod(p *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: p.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name:            p.Name,
			Namespace:       p.Namespace,
			UID:             p.UID,
			ResourceVersion: p.ResourceVersion,
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, Volumes: slimVolumes(p.Spec.Volumes)},
		Status: corev1.PodStatus{Phase: p.Status.Phase},
	}
}

// slimVolumes keeps those that are claims. The claim of an ephemeral volume is named after the pod and the volume.
func slimVolumes(all []corev1.Volume) []corev1.Volume {
	n := 0
	for i := range all {
		if isClaim(&all[i]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	kept := make([]corev1.Volume, 0, n)
	for i := range all {
		if isClaim(&all[i]) {
			kept = append(kept, slimVolume(&all[i]))
		}
	}
	return kept
}

func isClaim(v *corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }

func slimVolume(v *corev1.Volume) corev1.Volume {
	kept := corev1.Volume{Name: v.Name}
	if c := v.PersistentVolumeClaim; c != nil {
		kept.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.ClaimName}
	}
	if v.Ephemeral != nil {
		kept.Ephemeral = &corev1.EphemeralVolumeSource{}
	}
	return kept
}

// slimNode keeps what the provisioner and the snapshot controller look for topology in.
func slimNode(n *corev1.Node) *corev1.Node {
	return &corev1.Node{
		TypeMeta: n.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name:            n.Name,
			UID:             n.UID,
			ResourceVersion: n.ResourceVersion,
			Labels:          n.Labels,
		},
	}
}
