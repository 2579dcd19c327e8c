package doctor

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// unboundSnapshots finds VolumeSnapshots for which no content is made. The snapshot controller
// makes the content, or reports an error in the status and in an event: without both it does not
// run.
func unboundSnapshots(v *cluster.View) (all []Finding) {
	volumes := ours(v)
	for i := range v.VolumeSnapshots {
		s := &v.VolumeSnapshots[i]
		bound, _, _ := unstructured.NestedString(s.Object, "status", "boundVolumeSnapshotContentName")
		young := v.ServerNow().Sub(s.GetCreationTimestamp().Time) < patience
		if bound != "" || young || s.GetDeletionTimestamp() != nil || !snapshotOfOurs(v, s, volumes) {
			continue
		}
		f := Finding{Severity: Error, Object: "VolumeSnapshot/" + s.GetNamespace() + "/" + s.GetName(),
			Cause: "no snapshot controller works on the snapshot: the cluster has none, or it does not run",
			Evidence: "no status.boundVolumeSnapshotContentName and no error since " +
				s.GetCreationTimestamp().UTC().Format(time.RFC3339),
			Remedy: "install a snapshot controller, or set snapshotController.enabled", Page: pageCRDs}
		text, _, _ := unstructured.NestedString(s.Object, "status", "error", "message")
		e, ok := latest(v, "VolumeSnapshot", s, "SetDefaultSnapshotClassFailed",
			"GetSnapshotClassFailed")
		if ok {
			text = e.Message
		}
		if ok || strings.Contains(text, " snapshot class with error ") {
			f.Cause = "the snapshot has no class: it names none and no default fits, or the class does not exist"
			f.Evidence, f.Page = text, pageSnapshot
			f.Remedy = "make the VolumeSnapshotClass, or make the snapshot again with a class of its driver"
		} else if text != "" {
			if !lacksClaim(v, s) {
				continue // an error about its source, such as a claim that is not bound yet: the controller works
			}
			f.Cause, f.Evidence, f.Page = "the claim of the snapshot does not exist", text, pageSnapshot
			f.Remedy = "make the claim, or delete the snapshot and make it again with another source"
		}
		all = append(all, f)
	}
	return all
}

// lacksClaim reports whether a VolumeSnapshot is of a claim that does not exist.
func lacksClaim(v *cluster.View, s *unstructured.Unstructured) bool {
	claim, _, _ := unstructured.NestedString(s.Object, "spec", "source", "persistentVolumeClaimName")
	return claim != "" && !slices.ContainsFunc(v.Claims, func(c corev1.PersistentVolumeClaim) bool {
		return c.Namespace == s.GetNamespace() && c.Name == claim
	})
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
