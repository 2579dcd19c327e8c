package works

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAClaimIsExpanded(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	_, volume := l.bound("claim")
	l.askFor("claim", "3Gi")

	claim := l.awaitGrown("claim", 3<<30)
	if waitsForNode(claim) || len(claim.Status.AllocatedResourceStatuses) > 0 {
		t.Errorf("the node has nothing to do for a directory, but the claim says %+v", claim.Status)
	}
	l.checkSizes(volume.Name, 3<<30)
	onlyCall[*csi.ControllerExpandVolumeRequest](l, "ControllerExpandVolume", volume.Spec.CSI.VolumeHandle)
}

func TestAClaimForADiskWaitsForTheNodeToGrowIt(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	_, volume := l.bound("claim", block)
	l.askFor("claim", "2Gi")

	claim := l.awaitClaim("claim", "the node is to grow it", waitsForNode)
	if have := claim.Status.Capacity.Storage().Value(); have != 1<<30 {
		t.Errorf("the claim has %d bytes, before the node has grown anything", have)
	}
	if what := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; what != corev1.PersistentVolumeClaimNodeResizePending {
		t.Errorf("the claim's resizing is %q", what)
	}
	l.checkSizes(volume.Name, 2<<30)
}

// waitsForNode reports whether the node has to expand the claim's volume.
func waitsForNode(c *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
	})
}

// block makes a claim a claim for a block device.
func block(c *corev1.PersistentVolumeClaim) {
	mode := corev1.PersistentVolumeBlock
	c.Spec.VolumeMode = &mode
}

// askFor makes a claim ask for a size.
func (l *lab) askFor(name, size string) {
	l.Helper()
	l.change(name, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	})
}

// awaitGrown waits until a claim has so many bytes.
func (l *lab) awaitGrown(name string, bytes int64) *corev1.PersistentVolumeClaim {
	l.Helper()
	return l.awaitClaim(name, "it has grown",
		func(c *corev1.PersistentVolumeClaim) bool { return c.Status.Capacity.Storage().Value() == bytes })
}

// change updates a claim, as a user does.
func (l *lab) change(name string, change func(*corev1.PersistentVolumeClaim)) {
	l.Helper()
	claims := world.Kube.CoreV1().PersistentVolumeClaims(l.name)
	until(l.T, "the claim is changed", func(ctx context.Context) error {
		c, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(c)
		_, err = claims.Update(ctx, c, metav1.UpdateOptions{FieldManager: writer})
		return err
	})
}

// checkSizes holds the PersistentVolume and the storage against the size that they should have.
func (l *lab) checkSizes(volume string, want int64) {
	l.Helper()
	v := l.volume(volume)
	stored := must(l.s.driver.Storage.Get(l.Context(), v.Spec.CSI.VolumeHandle, nil))(l)
	if have := v.Spec.Capacity.Storage().Value(); have != want || stored.Size != want {
		l.Errorf("the volume has %d bytes and the storage %d, not %d", have, stored.Size, want)
	}
}

func TestAVolumeIsMadeWithOneAttributesClassAndChangedToAnother(t *testing.T) {
	t.Parallel()
	l := newLab(t, everything.use(t))
	fast, archive := l.attributes("fast"), l.attributes("archive")
	_, volume := l.bound("claim", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &fast })
	create := sameCall[*csi.CreateVolumeRequest](l, "CreateVolume", volume.Name)
	if want := map[string]string{"tier": "fast"}; !maps.Equal(create.GetMutableParameters(), want) {
		t.Errorf("the volume was made with %v, not %v", create.GetMutableParameters(), want)
	}
	if class := volume.Spec.VolumeAttributesClassName; class == nil || *class != fast {
		t.Errorf("the volume's class is %v, not %s", class, fast)
	}

	l.change("claim", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &archive })
	claim := l.awaitClaim("claim", "it has the other class", func(c *corev1.PersistentVolumeClaim) bool {
		now := c.Status.CurrentVolumeAttributesClassName
		return now != nil && *now == archive
	})
	if claim.Status.ModifyVolumeStatus != nil {
		t.Errorf("the change is done, but the claim says %+v", claim.Status.ModifyVolumeStatus)
	}
	if class := l.volume(volume.Name).Spec.VolumeAttributesClassName; class == nil || *class != archive {
		t.Errorf("the volume's class is %v, not %s", class, archive)
	}
	stored := must(l.s.driver.Storage.Get(t.Context(), volume.Spec.CSI.VolumeHandle, nil))(t)
	if stored.Mutable["tier"] != "archive" {
		t.Errorf("the storage has %v", stored.Mutable)
	}
	onlyCall[*csi.ControllerModifyVolumeRequest](l, "ControllerModifyVolume", volume.Spec.CSI.VolumeHandle)
}

// attributes makes a VolumeAttributesClass for a tier of the storage, and returns its name.
func (l *lab) attributes(tier string) string {
	l.Helper()
	class := must(world.Kube.StorageV1().VolumeAttributesClasses().Create(l.Context(), &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: l.name + "-" + tier}, DriverName: l.s.driver.Name, Parameters: map[string]string{"tier": tier},
	}, created))(l)
	return class.Name
}
