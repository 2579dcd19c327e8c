package main

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// className is the class of all claims: the first of those that are the driver's.
const className = "class-0"

const volumeSize = 1 << 30

// class makes a StorageClass. Every second class belongs to another driver.
func (l *loader) class(ctx context.Context, i int) error {
	remove, expand := corev1.PersistentVolumeReclaimDelete, true
	c := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("class-%d", i),
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: applied("StorageClass", i)}},
		Provisioner: l.name, ReclaimPolicy: &remove, AllowVolumeExpansion: &expand,
	}
	if i%2 == 1 {
		c.Provisioner, c.Parameters = "disk.csi.example.com", map[string]string{"type": "gp3", "iops": "6000",
			"encrypted": "true"}
	}
	_, err := l.kube.StorageV1().StorageClasses().Create(ctx, c, byUser)
	return err
}

// applied is the annotation of kubectl apply.
func applied(kind string, i int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"metadata":{"annotations":{},"name":"applied-%d",`+
		`"labels":{"app.kubernetes.io/managed-by":"kubectl"}}}`, kind, i)
}

func claimName(i int) string { return fmt.Sprintf("data-database-%d", i) }

func newClaim(name string) *corev1.PersistentVolumeClaim {
	class := className
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"kubernetes.io/pvc-protection"}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(volumeSize, resource.BinarySI)}}},
	}
}

// volume makes a volume, its claim, and its attachment to a node, in the API server and in the
// driver: the attacher compares both. The binder binds the claim.
func (l *loader) volume(ctx context.Context, i int) error {
	c := newClaim(claimName(i))
	c.Labels = map[string]string{"app.kubernetes.io/name": "database",
		"app.kubernetes.io/instance": fmt.Sprint("database-", i), "app.kubernetes.io/managed-by": "Helm"}
	c, err := l.kube.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Create(ctx, c, byManager)
	if err != nil {
		return err
	}
	name := "pvc-" + string(c.UID)
	handle, err := l.attached(ctx, name, nodeName(i%l.share(nodes)))
	if err != nil {
		return err
	}
	if _, err := l.kube.CoreV1().PersistentVolumes().Create(ctx, l.newVolume(name, handle, c),
		byProvisioner); err != nil {
		return err
	}
	return l.attachment(ctx, name, handle, nodeName(i%l.share(nodes)))
}

// attached has the driver make a volume and attach it, and returns its handle.
func (l *loader) attached(ctx context.Context, name, node string) (string, error) {
	use := &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	made, err := l.driver.CreateVolume(ctx,
		&csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{use},
			CapacityRange: &csi.CapacityRange{RequiredBytes: volumeSize}})
	if err != nil {
		return "", err
	}
	handle := made.Volume.VolumeId
	_, err = l.driver.ControllerPublishVolume(ctx,
		&csi.ControllerPublishVolumeRequest{VolumeId: handle, NodeId: node, VolumeCapability: use})
	return handle, err
}

func (l *loader) newVolume(name, handle string, c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": l.name,
				"volume.kubernetes.io/provisioner-deletion-secret-name":      "",
				"volume.kubernetes.io/provisioner-deletion-secret-namespace": ""},
			Finalizers: []string{"external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection",
				l.finalizer()},
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: c.Spec.AccessModes, Capacity: c.Spec.Resources.Requests, StorageClassName: className,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: l.name,
				VolumeHandle: handle,
				VolumeAttributes: map[string]string{
					"storage.kubernetes.io/csiProvisionerIdentity": "1790000000000-1234-" + l.name}}},
		},
	}
}

// finalizer is the finalizer that the attacher adds to objects.
func (l *loader) finalizer() string { return "external-attacher/" + "memory-csi-causeway-dev" }

// attachment makes the VolumeAttachment, as the attach-detach controller does, and fills it in as
// the attacher does.
func (l *loader) attachment(ctx context.Context, volume, handle, node string) error {
	attachments := l.kube.StorageV1().VolumeAttachments()
	va, err := attachments.Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+l.name+node)))},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: l.name, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}, byManager)
	if err != nil {
		return err
	}
	va.Finalizers, va.Annotations = []string{l.finalizer()}, map[string]string{"csi.alpha.kubernetes.io/node-id": node}
	if va, err = attachments.Update(ctx, va, thenAttacher); err != nil {
		return err
	}
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"number": "1"}}
	_, err = attachments.UpdateStatus(ctx, va, thenAttacher)
	return err
}

// snapshot makes a VolumeSnapshot and its content, both of which are ready: nothing is left to do.
func (l *loader) snapshot(ctx context.Context, i int) error {
	class, claim, ready, size := "snapshots", claimName(i), true, resource.NewQuantity(volumeSize, resource.BinarySI)
	s, err := l.snapshots.SnapshotV1().VolumeSnapshots(metav1.NamespaceDefault).Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("nightly-%d", i),
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: applied("VolumeSnapshot", i)},
			Finalizers: []string{"snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection",
				"snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"}},
		Spec: snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: &class,
			Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}, byUser)
	if err != nil {
		return err
	}
	name := "snapcontent-" + string(s.UID)
	now := metav1.Now()
	s.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &name, CreationTime: &now,
		ReadyToUse: &ready, RestoreSize: size}
	if _, err := l.snapshots.SnapshotV1().VolumeSnapshots(s.Namespace).UpdateStatus(ctx, s, thenSnapshots); err != nil {
		return err
	}
	return l.content(ctx, name, s)
}

func (l *loader) content(ctx context.Context, name string, s *snapshotv1.VolumeSnapshot) error {
	contents := l.snapshots.SnapshotV1().VolumeSnapshotContents()
	handle, ready, size, now, mode := "mem-"+hex(1,
		64), true, int64(volumeSize), metav1.Now().UnixNano(), corev1.PersistentVolumeFilesystem
	c, err := contents.Create(ctx, &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Finalizers: []string{"snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{Driver: l.name,
			DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, SourceVolumeMode: &mode,
			VolumeSnapshotClassName: s.Spec.VolumeSnapshotClassName,
			Source:                  snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &handle},
			VolumeSnapshotRef: corev1.ObjectReference{APIVersion: "snapshot.storage.k8s.io/v1", Kind: "VolumeSnapshot",
				Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion}},
	}, metav1.CreateOptions{FieldManager: "snapshot-controller"})
	if err != nil {
		return err
	}
	c.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle, ReadyToUse: &ready, RestoreSize: &size,
		CreationTime: &now}
	_, err = contents.UpdateStatus(ctx, c, thenSidecar)
	return err
}
