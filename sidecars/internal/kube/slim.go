package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// slim is the cache.TransformFunc of the shared informers. slim drops fields that no controller
// reads. No object keeps its managedFields: the API server takes an update without them for an
// update that leaves them alone, and a patch of two objects without them does not mention them.
// Pods and nodes, of which a cluster has thousands, keep a few fields;
// TestNoControllerReadsFieldsThatSlimDrops fails if a controller reads more.
//
// slim may be called again for its result, as the reflector does after a streamed list. Then it
// changes nothing, as other goroutines may read the object. Pods and nodes are copied. For all
// other objects client-go guarantees that an object with managedFields is not shared yet.
func slim(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return slimPod(o), nil
	case *corev1.Node:
		return slimNode(o), nil
	case cache.DeletedFinalStateUnknown: // its object comes from the cache, so it is slim and shared
		return o, nil
	}
	if m, err := meta.Accessor(obj); err == nil && m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// slimPod keeps the claims of a pod and the fields of an event. The resizer looks up whether a
// claim is in use.
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

// slimVolumes keeps the volumes with claims. The claim of an ephemeral volume is named after the
// pod and the volume.
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

// slimNode keeps the labels, in which the provisioner and the snapshot controller look up topology.
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
