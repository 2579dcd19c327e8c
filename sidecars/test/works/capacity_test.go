package works

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// roomy is the process whose capacity is published. pod is the pod that it reports as its own.
const (
	roomy = "room"
	pod   = "csi-controller-0"
)

func TestCapacityIsPublishedForEachClassAndRemovedWithIt(t *testing.T) {
	t.Parallel()
	owner := ownedPod(t, "sidecars-"+roomy)
	s := launch(t, setup{name: roomy, controllers: "provisioner", driver: rig.DriverOptions{Topology: true},
		zones: []string{"a"},
		args: []string{"--enable-capacity", "--capacity-poll-interval=1s", "--kube-api-capacity-qps=100",
			"--kube-api-capacity-burst=100", "--capacity-ownerref-level=1"},
		env: []string{"POD_NAME=" + pod}})
	l := newLab(t, s, late)

	room := l.awaitRoom(1 << 50)
	segments := map[string]string{zoneKey(s.driver.Name): "a"}
	if !maps.Equal(room.NodeTopology.MatchLabels, segments) || len(room.NodeTopology.MatchExpressions) > 0 {
		t.Errorf("the room is in %v, not in %v", room.NodeTopology, segments)
	}
	if len(room.OwnerReferences) != 1 || room.OwnerReferences[0].Kind != "StatefulSet" ||
		room.OwnerReferences[0].UID != owner.UID || !*room.OwnerReferences[0].Controller {
		t.Errorf("the room's owner is %+v, not the pod's: %s %s", room.OwnerReferences, owner.Name, owner.UID)
	}
	labels := map[string]string{"csi.storage.k8s.io/drivername": s.driver.Name,
		"csi.storage.k8s.io/managed-by": "external-provisioner"}
	if !maps.Equal(room.Labels, labels) {
		t.Errorf("the labels are %v, not %v", room.Labels, labels)
	}
	if ask := s.driver.Calls("GetCapacity")[0].Request.(*csi.GetCapacityRequest); !maps.Equal(ask.GetAccessibleTopology().GetSegments(), segments) {
		t.Errorf("the driver was asked for the room in %v", ask.GetAccessibleTopology())
	}

	l.bound("claim", selected(roomy, "a"))
	l.awaitRoom(1<<50 - 1<<30)
	if err := world.Kube.StorageV1().StorageClasses().Delete(t.Context(), l.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, "the room of the class", func(ctx context.Context) (*storagev1.CSIStorageCapacity, error) {
		return world.Kube.StorageV1().CSIStorageCapacities(s.namespace).Get(ctx, room.Name, metav1.GetOptions{})
	})
}

// awaitRoom waits until the only object for the lab's class has so many bytes.
func (l *lab) awaitRoom(bytes int64) *storagev1.CSIStorageCapacity {
	l.Helper()
	return awaitObject(l.T, "the room", fmt.Sprintf("it is %d bytes", bytes),
		func(ctx context.Context) (*storagev1.CSIStorageCapacity, error) {
			all, err := world.Kube.StorageV1().CSIStorageCapacities(l.s.namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			if len(all.Items) != 1 || all.Items[0].StorageClassName != l.name {
				return nil, fmt.Errorf("there is not one object of the class, but %v", all.Items)
			}
			return &all.Items[0], nil
		}, func(c *storagev1.CSIStorageCapacity) bool { return c.Capacity != nil && c.Capacity.Value() == bytes })
}

// ownedPod makes a namespace, and in it a pod of a StatefulSet, which it returns. No kubelet runs
// the pod.
func ownedPod(t *testing.T, namespace string) *appsv1.StatefulSet {
	t.Helper()
	must(world.Kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, created))(t)
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "csi-sidecars", Image: "none"}}}
	labels := map[string]string{"app": pod}
	set := must(world.Kube.AppsV1().StatefulSets(namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-controller"},
		Spec: appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}},
	}, created))(t)
	until(t, "the pod is let in", func(ctx context.Context) error { // not before its service account is there
		_, err := world.Kube.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: pod, Labels: labels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set,
					appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}},
			Spec: spec,
		}, created)
		return err
	})
	return set
}
