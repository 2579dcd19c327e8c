package doctor

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// unboundSnapshots finds VolumeSnapshots for which no content is made. The snapshot controller makes
// the content, or reports an error in the status and in an event: without both it does not run.
func unboundSnapshots(v *cluster.View) (all []Finding) {
	volumes := ours(v)
	for i := range v.VolumeSnapshots {
		s := &v.VolumeSnapshots[i]
		bound, _, _ := unstructured.NestedString(s.Object, "status", "boundVolumeSnapshotContentName")
		if bound != "" || s.GetDeletionTimestamp() != nil || v.ServerNow().Sub(s.GetCreationTimestamp().Time) < patience ||
			!snapshotOfOurs(v, s, volumes) {
			continue
		}
		object := "VolumeSnapshot/" + s.GetNamespace() + "/" + s.GetName()
		text, _, _ := unstructured.NestedString(s.Object, "status", "error", "message")
		if e, ok := latest(v, "VolumeSnapshot", s.GetNamespace(), s.GetName(), "SetDefaultSnapshotClassFailed",
			"GetSnapshotClassFailed"); ok {
			all = append(all, Finding{Severity: Error, Object: object,
				Cause:    "the snapshot has no class: it names none and no default fits, or the class does not exist",
				Evidence: e.Message, Remedy: "make the VolumeSnapshotClass, or make the snapshot again with a class of " +
					"its driver", Page: pageSnapshot})
		} else if text == "" {
			all = append(all, Finding{Severity: Error, Object: object,
				Cause: "no snapshot controller works on the snapshot: the cluster has none, or it does not run",
				Evidence: "no status.boundVolumeSnapshotContentName and no error since " +
					s.GetCreationTimestamp().UTC().Format(time.RFC3339),
				Remedy: "install a snapshot controller, or set snapshotController.enabled", Page: pageCRDs})
		}
	}
	return all
}

// snapshotOfOurs reports whether a VolumeSnapshot is one of the drivers: by its class, or without a
// known class by the volume of its claim.
func snapshotOfOurs(v *cluster.View, s *unstructured.Unstructured, volumes map[string]*cluster.Driver) bool {
	class, _, _ := unstructured.NestedString(s.Object, "spec", "volumeSnapshotClassName")
	for i := range v.SnapshotClasses {
		if c := &v.SnapshotClasses[i]; c.GetName() == class {
			driver, _, _ := unstructured.NestedString(c.Object, "driver")
			return v.Driver(driver) != nil
		}
	}
	claim, _, _ := unstructured.NestedString(s.Object, "spec", "source", "persistentVolumeClaimName")
	for i := range v.Claims {
		c := &v.Claims[i]
		if c.Namespace == s.GetNamespace() && c.Name == claim && c.Status.Phase == corev1.ClaimBound {
			return volumes[c.Spec.VolumeName] != nil
		}
	}
	return false
}
