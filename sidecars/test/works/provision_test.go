package works

import (
	"maps"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAClaimGetsAVolumeAndItsVolumeGoesWithIt(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	claim, volume := l.bound("claim")

	if volume.Name != "pvc-"+string(claim.UID) {
		t.Errorf("the volume is called %s, for claim %s", volume.Name, claim.UID)
	}
	create := sameCall[*csi.CreateVolumeRequest](l, "CreateVolume", volume.Name)
	checkCreate(t, create, claim, volume)
	checkVolume(t, l, claim, volume)

	l.remove(claim)
	l.checkDeleted(volume)
}

// checkDeleted fails the test unless a volume that was made by the storage was deleted by a call.
// Upstream may make that call again, where it has not seen yet that the PersistentVolume is gone.
func (l *lab) checkDeleted(volume *corev1.PersistentVolume) {
	l.Helper()
	handle := volume.Spec.CSI.VolumeHandle
	if len(calls[*csi.DeleteVolumeRequest](l.s, "DeleteVolume", handle)) == 0 {
		l.Errorf("DeleteVolume was never called for %s", handle)
	}
	if v, err := l.s.driver.Storage.Get(l.Context(), handle, nil); err == nil {
		l.Errorf("the storage still has the volume %+v", v)
	}
}

// checkCreate compares the only call with the documentation of upstream's provisioner.
func checkCreate(t *testing.T, create *csi.CreateVolumeRequest, claim *corev1.PersistentVolumeClaim,
	volume *corev1.PersistentVolume) {
	t.Helper()
	if create.GetName() != volume.Name || create.GetCapacityRange().GetRequiredBytes() != 1<<30 ||
		create.GetAccessibilityRequirements() != nil {
		t.Errorf("the driver was asked for %v", create)
	}
	want := map[string]string{
		"csi.storage.k8s.io/pvc/name": claim.Name, "csi.storage.k8s.io/pvc/namespace": claim.Namespace, "csi.storage.k8s.io/pv/name": volume.Name,
	}
	if !maps.Equal(create.GetParameters(), want) {
		t.Errorf("the driver was asked with parameters %v, not %v", create.GetParameters(), want)
	}
	modes := create.GetVolumeCapabilities()
	if len(modes) != 1 || modes[0].GetAccessMode().GetMode() != csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
		t.Errorf("the driver was asked for %v; ReadWriteOnce is many writers on one node to a driver that knows the "+
			"difference", modes)
	}
}

// checkVolume holds a PersistentVolume against its claim and the storage.
func checkVolume(t *testing.T, l *lab, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) {
	t.Helper()
	source := volume.Spec.CSI
	stored := must(l.s.driver.Storage.Get(t.Context(), source.VolumeHandle, nil))(t)
	if want := *resource.NewQuantity(stored.Size, resource.BinarySI); !volume.Spec.Capacity.Storage().Equal(want) ||
		stored.Size != 1<<30 {
		t.Errorf("the capacity is %v, that of the storage %d", volume.Spec.Capacity.Storage(), stored.Size)
	}
	if source.Driver != l.s.driver.Name || len(source.VolumeAttributes) != 1 ||
		source.VolumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"] == "" {
		t.Errorf("the source is %+v", source)
	}
	ref := volume.Spec.ClaimRef
	if ref.Kind != "PersistentVolumeClaim" || ref.APIVersion != "v1" || ref.Namespace != claim.Namespace ||
		ref.Name != claim.Name || ref.UID != claim.UID {
		t.Errorf("the volume is for %+v, not for %s/%s", ref, claim.Namespace, claim.Name)
	}
	finalizers := []string{"external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"}
	if have := slices.Sorted(slices.Values(volume.Finalizers)); !slices.Equal(have, finalizers) {
		t.Errorf("the finalizers are %q, not %q", have, finalizers)
	}
	if by := volume.Annotations["pv.kubernetes.io/provisioned-by"]; by != l.s.driver.Name {
		t.Errorf("the volume says that it was made by %q", by)
	}
	if volume.Spec.StorageClassName != l.name ||
		volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
		*volume.Spec.VolumeMode != corev1.PersistentVolumeFilesystem || !slices.Equal(volume.Spec.AccessModes,
		claim.Spec.AccessModes) {
		t.Errorf("the volume is %+v", volume.Spec)
	}
}
