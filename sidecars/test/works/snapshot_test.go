package works

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestASnapshotIsTakenRestoredAndDeleted(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	_, volume := l.bound("claim")

	snapshot, content := l.snapshot("snapshot", "claim")
	handle := *content.Status.SnapshotHandle
	stored := must(l.s.driver.Storage.GetSnapshot(t.Context(), handle, nil))(t)
	if stored.Source != volume.Spec.CSI.VolumeHandle || snapshot.Status.RestoreSize.Value() != stored.Size {
		t.Errorf("the storage has %+v; the snapshot says %v", stored, snapshot.Status.RestoreSize)
	}
	take := onlyCall[*csi.CreateSnapshotRequest](l, "CreateSnapshot", volume.Spec.CSI.VolumeHandle)
	if take.GetName() != "snapshot-"+string(snapshot.UID) ||
		take.GetParameters()["csi.storage.k8s.io/volumesnapshot/name"] != snapshot.Name {
		t.Errorf("the driver was asked for %v", take)
	}

	_, restored := l.bound("restored", from("VolumeSnapshot", snapshot.Name))
	if v := must(l.s.driver.Storage.Get(t.Context(), restored.Spec.CSI.VolumeHandle,
		nil))(t); v.SourceSnapshot != handle {
		t.Errorf("the restored volume was made of %q, not %q", v.SourceSnapshot, handle)
	}

	snapshots := world.Snapshots.SnapshotV1().VolumeSnapshots(l.name)
	if err := snapshots.Delete(t.Context(), snapshot.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, "the content", func(ctx context.Context) (*snapshotv1.VolumeSnapshotContent, error) {
		return world.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, content.Name, metav1.GetOptions{})
	})
	awaitGone(t, "the snapshot", func(ctx context.Context) (*snapshotv1.VolumeSnapshot, error) {
		return snapshots.Get(ctx, snapshot.Name, metav1.GetOptions{})
	})
	sameCall[*csi.DeleteSnapshotRequest](l, "DeleteSnapshot", handle)
}

func TestAClaimIsCloned(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	claim, volume := l.bound("claim")
	_, clone := l.bound("clone", from("PersistentVolumeClaim", "claim"))
	if v := must(l.s.driver.Storage.Get(t.Context(), clone.Spec.CSI.VolumeHandle,
		nil))(t); v.SourceVolume != volume.Spec.CSI.VolumeHandle {
		t.Errorf("the clone was made of %q, not %q", v.SourceVolume, volume.Spec.CSI.VolumeHandle)
	}
	const finalizer = "provisioner.storage.kubernetes.io/cloning-protection"
	if have := l.get("claim").Finalizers; !slices.Contains(have, finalizer) {
		t.Errorf("the source has the finalizers %q, without %s", have, finalizer)
	}
	l.remove(claim) // no copy reads it any more, so that finalizer goes
}

func TestAGroupOfClaimsIsSnapshottedTogether(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	var handles []string
	for _, name := range []string{"one", "two"} {
		_, volume := l.bound(name, func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"group": l.name} })
		handles = append(handles, volume.Spec.CSI.VolumeHandle)
	}
	slices.Sort(handles)
	_, _ = l.bound("outside")

	group, content := l.group("group")
	if have := slices.Sorted(slices.Values(content.Spec.Source.VolumeHandles)); !slices.Equal(have, handles) {
		t.Errorf("the group's content is of %q, not of %q", have, handles)
	}
	stored := must(l.s.driver.Storage.GetGroup(t.Context(), *content.Status.VolumeGroupSnapshotHandle, nil, nil))(t)
	members := must(world.Snapshots.SnapshotV1().VolumeSnapshots(l.name).List(t.Context(), metav1.ListOptions{}))(t)
	if len(stored.Snapshots) != 2 || len(members.Items) != 2 {
		t.Fatalf("the storage has %v, the API server %v", stored.Snapshots, members.Items)
	}
	for _, m := range members.Items {
		l.checkMember(&m, group)
	}

	l.removeGroup(group, content)
	if _, err := l.s.driver.Storage.GetGroup(t.Context(), stored.ID, nil, nil); err == nil {
		t.Error("the storage still has the group")
	}
	sameCall[*csi.DeleteVolumeGroupSnapshotRequest](l, "DeleteVolumeGroupSnapshot", stored.ID)
}

// snapshot makes a class, and a snapshot of a claim, and waits until both it and its content are
// ready.
func (l *lab) snapshot(name, claim string) (*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent) {
	l.Helper()
	v1 := world.Snapshots.SnapshotV1()
	must(v1.VolumeSnapshotClasses().Create(l.Context(), &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: l.name}, Driver: l.s.driver.Name, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}, created))(l)
	must(v1.VolumeSnapshots(l.name).Create(l.Context(), &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: l.name},
		Spec: snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: &l.name,
			Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}, created))(l)
	s := awaitObject(l.T, "the snapshot", "it is ready", func(ctx context.Context) (*snapshotv1.VolumeSnapshot, error) {
		return v1.VolumeSnapshots(l.name).Get(ctx, name, metav1.GetOptions{})
	}, func(s *snapshotv1.VolumeSnapshot) bool { return s.Status != nil && isTrue(s.Status.ReadyToUse) })
	return s, must(v1.VolumeSnapshotContents().Get(l.Context(), *s.Status.BoundVolumeSnapshotContentName,
		metav1.GetOptions{}))(l)
}

func isTrue(b *bool) bool { return b != nil && *b }

// group makes a class, and a snapshot of all claims with the lab's label, and waits until it is
// ready.
func (l *lab) group(name string) (*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent) {
	l.Helper()
	v1 := world.Snapshots.GroupsnapshotV1()
	must(v1.VolumeGroupSnapshotClasses().Create(l.Context(), &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: l.name}, Driver: l.s.driver.Name, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}, created))(l)
	must(v1.VolumeGroupSnapshots(l.name).Create(l.Context(), &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: l.name},
		Spec: groupv1.VolumeGroupSnapshotSpec{VolumeGroupSnapshotClassName: &l.name,
			Source: groupv1.VolumeGroupSnapshotSource{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": l.name}}}},
	}, created))(l)
	g := awaitObject(l.T, "the group", "it is ready", func(ctx context.Context) (*groupv1.VolumeGroupSnapshot, error) {
		return v1.VolumeGroupSnapshots(l.name).Get(ctx, name, metav1.GetOptions{})
	}, func(g *groupv1.VolumeGroupSnapshot) bool { return g.Status != nil && isTrue(g.Status.ReadyToUse) })
	return g, must(v1.VolumeGroupSnapshotContents().Get(l.Context(), *g.Status.BoundVolumeGroupSnapshotContentName,
		metav1.GetOptions{}))(l)
}

// checkMember waits until a snapshot of a group is ready, and holds it against the group.
func (l *lab) checkMember(m *snapshotv1.VolumeSnapshot, group *groupv1.VolumeGroupSnapshot) {
	l.Helper()
	m = awaitObject(l.T, "member "+m.Name, "it is ready", func(ctx context.Context) (*snapshotv1.VolumeSnapshot, error) {
		return world.Snapshots.SnapshotV1().VolumeSnapshots(l.name).Get(ctx, m.Name, metav1.GetOptions{})
	}, func(s *snapshotv1.VolumeSnapshot) bool { return s.Status != nil && isTrue(s.Status.ReadyToUse) })
	if of := m.Status.VolumeGroupSnapshotName; of == nil || *of != group.Name {
		l.Errorf("member %s says that it is of the group %v", m.Name, of)
	}
}

// removeGroup deletes a group, and waits until it, its content and its members are gone.
func (l *lab) removeGroup(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) {
	l.Helper()
	v1 := world.Snapshots.GroupsnapshotV1()
	if err := v1.VolumeGroupSnapshots(l.name).Delete(l.Context(), group.Name, metav1.DeleteOptions{}); err != nil {
		l.Fatal(err)
	}
	awaitGone(l.T, "the group's content", func(ctx context.Context) (*groupv1.VolumeGroupSnapshotContent, error) {
		return v1.VolumeGroupSnapshotContents().Get(ctx, content.Name, metav1.GetOptions{})
	})
	awaitGone(l.T, "the group", func(ctx context.Context) (*groupv1.VolumeGroupSnapshot, error) {
		return v1.VolumeGroupSnapshots(l.name).Get(ctx, group.Name, metav1.GetOptions{})
	})
	awaitObject(l.T, "the members", "they are gone", func(ctx context.Context) (*snapshotv1.VolumeSnapshotList, error) {
		return world.Snapshots.SnapshotV1().VolumeSnapshots(l.name).List(ctx, metav1.ListOptions{})
	}, func(all *snapshotv1.VolumeSnapshotList) bool { return len(all.Items) == 0 })
}
