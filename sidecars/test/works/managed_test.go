package works

import (
	"context"
	"slices"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The informers drop managedFields, so every object that a controller writes is sent without them.
// The API server must keep its own: an update without any leaves them alone.
func TestWhoWroteWhatIsKeptThoughInformersForgetIt(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	claim, volume := l.bound("claim")
	mark := []byte(`{"metadata":{"labels":{"works":"marked"}}}`)
	by := metav1.PatchOptions{FieldManager: writer}
	must(world.Kube.CoreV1().PersistentVolumes().Patch(t.Context(), volume.Name, types.MergePatchType, mark, by))(t)

	attachment := l.attached(volume, l.csiNode())               // patches volume and attachment
	l.bound("clone", from("PersistentVolumeClaim", claim.Name)) // updates the source: a finalizer
	l.askFor("claim", "2Gi")                                    // patches volume and claim
	l.awaitGrown("claim", 2<<30)
	snapshot, content := l.snapshot("snapshot", claim.Name) // updates the snapshot, patches the content
	must(world.Snapshots.SnapshotV1().VolumeSnapshotContents().Patch(t.Context(), content.Name, types.MergePatchType,
		mark, by))(t)
	l.deletingContent(snapshot, content)

	l.wroteToo("the claim", l.get("claim"))
	l.wroteToo("the volume", l.volume(volume.Name))
	l.wroteToo("the attachment", attachment)
	l.wroteToo("the snapshot", snapshot)
}

// wroteToo fails the test unless the managed fields of an object show that both the test and
// csi-sidecars have written to it.
func (l *lab) wroteToo(what string, o metav1.Object) {
	l.Helper()
	var writers []string
	for _, m := range o.GetManagedFields() {
		writers = append(writers, m.Manager)
	}
	for _, want := range []string{writer, "csi-sidecars"} {
		if !slices.Contains(writers, want) {
			l.Errorf("%s was written by %q, it says: without %s", what, writers, want)
		}
	}
}

// deletingContent deletes a snapshot, and looks at its content, to which controllers write
// meanwhile: a finalizer of the test's keeps it for that long.
func (l *lab) deletingContent(snapshot *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) {
	l.Helper()
	contents := world.Snapshots.SnapshotV1().VolumeSnapshotContents()
	keep := []byte(`[{"op":"add","path":"/metadata/finalizers/-","value":"works.example/keep"}]`)
	must(contents.Patch(l.Context(), content.Name, types.JSONPatchType, keep,
		metav1.PatchOptions{FieldManager: writer}))(l)
	if err := world.Snapshots.SnapshotV1().VolumeSnapshots(l.name).Delete(l.Context(), snapshot.Name,
		metav1.DeleteOptions{}); err != nil {
		l.Fatal(err)
	}
	marked := awaitObject(l.T, "the content", "it is being deleted",
		func(ctx context.Context) (*snapshotv1.VolumeSnapshotContent, error) {
			return contents.Get(ctx, content.Name, metav1.GetOptions{})
		}, func(c *snapshotv1.VolumeSnapshotContent) bool {
			return c.DeletionTimestamp != nil &&
				c.Annotations["snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"] == "yes"
		})
	l.wroteToo("the content", marked)
	must(contents.Patch(l.Context(), content.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}))(l)
}
