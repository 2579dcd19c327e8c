package works

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAnAttachmentIsAttachedAndDetached(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	_, volume := l.bound("claim")

	a := l.attached(volume, l.csiNode())
	publish := calls[*csi.ControllerPublishVolumeRequest](l.s, "ControllerPublishVolume",
		volume.Spec.CSI.VolumeHandle)[0]
	if publish.GetNodeId() != node || publish.GetReadonly() ||
		!maps.Equal(publish.GetVolumeContext(), volume.Spec.CSI.VolumeAttributes) {
		t.Errorf("the driver was asked to attach %v", publish)
	}
	stored := must(l.s.driver.Storage.Get(t.Context(), volume.Spec.CSI.VolumeHandle, nil))(t)
	if !slices.Equal(stored.Nodes, []string{node}) {
		t.Errorf("the storage says that the volume is on %q", stored.Nodes)
	}
	if a.Status.AttachmentMetadata["number"] == "" || len(a.Status.AttachmentMetadata) != 1 {
		t.Errorf("the metadata is %v, not the number that the driver gave", a.Status.AttachmentMetadata)
	}
	finalizer := "external-attacher/" + strings.ReplaceAll(l.s.driver.Name, ".", "-")
	if !slices.Contains(a.Finalizers, finalizer) || !slices.Contains(l.volume(volume.Name).Finalizers, finalizer) {
		t.Errorf("the finalizer %s is not on both: attachment %q, volume %q", finalizer, a.Finalizers,
			l.volume(volume.Name).Finalizers)
	}

	l.detach(a)
	if stored := must(l.s.driver.Storage.Get(t.Context(), volume.Spec.CSI.VolumeHandle,
		nil))(t); len(stored.Nodes) > 0 {
		t.Errorf("the storage says that the volume is on %q still", stored.Nodes)
	}
}

func TestAVolumeThatIsAttachedIsNotDeleted(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	claim, volume := l.bound("claim")
	a := l.attached(volume, l.csiNode())

	if err := world.Kube.CoreV1().PersistentVolumeClaims(l.name).Delete(t.Context(), claim.Name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the provisioner waits for the detachment, which is no failure since v6.4.0", func(ctx context.Context) error {
		events, err := world.Kube.CoreV1().Events("").List(ctx,
			metav1.ListOptions{FieldSelector: "type=Normal,reason=VolumeDelete,involvedObject.name=" + volume.Name})
		if err == nil && !slices.ContainsFunc(events.Items,
			func(e corev1.Event) bool { return strings.Contains(e.Message, "still attached") }) {
			err = errors.New("no such event")
		}
		return err
	})
	if early := calls[*csi.DeleteVolumeRequest](l.s, "DeleteVolume", volume.Spec.CSI.VolumeHandle); len(early) > 0 {
		t.Errorf("DeleteVolume was called for an attached volume: %v", early)
	}

	l.detach(a)
	l.volumeGone(volume.Name)
	l.checkDeleted(volume)
}

// csiNode makes a CSINode, called as the lab, which describes how the driver calls it, and returns
// its name.
func (l *lab) csiNode() string {
	l.Helper()
	must(world.Kube.StorageV1().CSINodes().Create(l.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: l.name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: l.s.driver.Name, NodeID: node}}},
	}, created))(l)
	return l.name
}

// attached makes the object that the attach-detach controller makes, and waits until it is
// attached.
func (l *lab) attached(volume *corev1.PersistentVolume, to string) *storagev1.VolumeAttachment {
	l.Helper()
	attachments := world.Kube.StorageV1().VolumeAttachments()
	must(attachments.Create(l.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va-" + l.name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: l.s.driver.Name, NodeName: to, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume.Name},
		},
	}, created))(l)
	return awaitObject(l.T, "the attachment", "it is attached",
		func(ctx context.Context) (*storagev1.VolumeAttachment, error) {
			return attachments.Get(ctx, "va-"+l.name, metav1.GetOptions{})
		}, func(a *storagev1.VolumeAttachment) bool { return a.Status.Attached })
}

// detach deletes an attachment, and waits until it is gone.
func (l *lab) detach(a *storagev1.VolumeAttachment) {
	l.Helper()
	attachments := world.Kube.StorageV1().VolumeAttachments()
	if err := attachments.Delete(l.Context(), a.Name, metav1.DeleteOptions{}); err != nil {
		l.Fatal(err)
	}
	awaitGone(l.T, "the attachment", func(ctx context.Context) (*storagev1.VolumeAttachment, error) {
		return attachments.Get(ctx, a.Name, metav1.GetOptions{})
	})
}
