package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// recent is the age up to which a warning counts. Sidecars retry at intervals of at most 5 minutes.
const recent = 10 * time.Minute

// longCall is the time for which errors of a copy are no findings: the driver copies a large volume,
// and the sidecar calls again.
const longCall = 15 * time.Minute

// fromCode returns the text of an error from its code, or the whole text. The snapshotter quotes
// the error, and the API server may cut it.
func fromCode(text string) string {
	at := strings.Index(text, "code = ")
	if at < 0 {
		return text
	}
	before, text := text[:at], text[at:]
	if strings.HasSuffix(before, `"rpc error: `) {
		return strings.TrimSuffix(strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(text), `"`)
	}
	return text
}

// replaces reports whether an error of a call that began at since only shows that the driver or the
// sidecar, which canceled the call, was just replaced. A kubelet does not know the driver meanwhile.
func replaces(v *cluster.View, text string, since time.Time) bool {
	code := fromCode(text)
	passes := strings.HasPrefix(code, "code = Unavailable") && !tooFewFiles.match.MatchString(code) ||
		strings.HasPrefix(code, "code = Canceled") || notRegistered.match.MatchString(code)
	return passes && v.ServerNow().Sub(since) < patience
}

// waits reports whether an error of a mount or a delete, which began at since, is to be expected: the
// driver was just replaced, or the volume is being copied. Later it is a finding.
func waits(v *cluster.View, text string, since time.Time) bool {
	copied := strings.HasPrefix(fromCode(text), "code = Aborted") && strings.Contains(text, "is being copied")
	return replaces(v, text, since) || copied && v.ServerNow().Sub(since) < longCall
}

// progress reports whether an error of a call for a new volume or snapshot, which began at since, is to
// be expected: the driver was just replaced, or a copy takes long. Later it is a finding.
func progress(v *cluster.View, text string, since time.Time) bool {
	code := fromCode(text)
	goesOn := strings.HasPrefix(code, "code = Aborted") || strings.HasPrefix(code, "code = DeadlineExceeded")
	if !strings.HasPrefix(code, "code = ") { // a sidecar that stopped waiting
		goesOn = strings.Contains(text, "context deadline exceeded")
	}
	return replaces(v, text, since) || goesOn && v.ServerNow().Sub(since) < longCall
}

// waitsForOther reports whether an error of a claim, which began at since, is to be expected: an
// object that the claim names is made at the same time, or its source is being copied.
func waitsForOther(v *cluster.View, text string, since time.Time) bool {
	words, age := unnamed(fromCode(text)), v.ServerNow().Sub(since)
	return sourceNotReady.match.MatchString(words) && age < longCall ||
		slices.ContainsFunc([]message{noSource, noAttributes, noSecret}, func(m message) bool {
			return m.match.MatchString(words) && age < patience
		})
}

func callChecks() []Check {
	return []Check{
		{"claims", []cluster.Source{cluster.Claims, cluster.Events, cluster.Classes}, claims},
		{"pods-with-volumes", []cluster.Source{cluster.Pending, cluster.Claims, cluster.Volumes, cluster.Events},
			podsWithVolumes},
		{"pods-that-end", []cluster.Source{cluster.Ending, cluster.Claims, cluster.Volumes, cluster.Nodes},
			podsThatEnd},
		{"deletes", []cluster.Source{cluster.Volumes, cluster.Events}, deletes},
		{"snapshots", []cluster.Source{cluster.Snapshots, cluster.GroupSnaps}, snapshots},
		{"unbound-snapshots", []cluster.Source{cluster.Requests, cluster.Claims, cluster.Volumes, cluster.Events},
			unboundSnapshots},
		{"expansions", []cluster.Source{cluster.Claims, cluster.Events, cluster.Volumes}, expansions},
		{"modifications", []cluster.Source{cluster.Claims, cluster.Events, cluster.Volumes}, modifications},
	}
}

// warnings returns the recent warnings about an object with one of the reasons, newest first.
func warnings(v *cluster.View, kind string, object metav1.Object, reasons ...string) []corev1.Event {
	return slices.DeleteFunc(v.EventsOf(kind, object), func(e corev1.Event) bool {
		return v.ServerNow().Sub(cluster.EventTime(e)) >= recent || !slices.Contains(reasons, e.Reason)
	})
}

// latest returns the newest of warnings.
func latest(v *cluster.View, kind string, object metav1.Object, reasons ...string) (corev1.Event, bool) {
	if all := warnings(v, kind, object, reasons...); len(all) > 0 {
		return all[0], true
	}
	return corev1.Event{}, false
}

// first returns the time of the first occurrence of an event.
func first(e corev1.Event) time.Time {
	if e.FirstTimestamp.IsZero() {
		return cluster.EventTime(e)
	}
	return e.FirstTimestamp.Time
}

// began returns the time of the oldest warning about an object with a reason. A text that varies makes
// several events of one failure.
func began(v *cluster.View, kind string, object metav1.Object, reason string) time.Time {
	oldest := v.ServerNow()
	for _, e := range v.EventsOf(kind, object) {
		if t := first(e); e.Reason == reason && t.Before(oldest) {
			oldest = t
		}
	}
	return oldest
}

// called returns the finding of an error of a call to one of the drivers. effect is for users, page
// for an unknown error. own are errors that have a meaning of their own for this kind of call.
func called(drivers []*cluster.Driver, object, effect, text, page string, own ...message) Finding {
	words, all := unnamed(fromCode(text)), slices.Concat(callMessages, own, codeMessages)
	if !slices.ContainsFunc(drivers, (*cluster.Driver).SMB) && !strings.Contains(words, " //") {
		all = slices.DeleteFunc(all, func(m message) bool { return m.smb })
	}
	m, ok := explain(words, all)
	if !ok {
		m = message{cause: "the reason is in the message", remedy: "see the message"}
	}
	return Finding{Severity: Error, Object: object, Cause: effect + ": " + m.cause, Evidence: text, Remedy: m.remedy,
		Page: cmp.Or(m.page, page)}
}

// claims finds pending claims for which CreateVolume fails. A claim that only waits for its first
// pod has no such event.
func claims(v *cluster.View) (all []Finding) {
	const kind, reason = "PersistentVolumeClaim", "ProvisioningFailed"
	for i := range v.Claims {
		c := &v.Claims[i]
		d := ofOurClass(v, c)
		if c.Status.Phase != corev1.ClaimPending || d == nil {
			continue
		}
		e, ok := latest(v, kind, c, reason)
		if !ok || progress(v, e.Message, c.CreationTimestamp.Time) ||
			waitsForOther(v, e.Message, began(v, kind, c, reason)) {
			continue
		}
		all = append(all, called([]*cluster.Driver{d}, kind+"/"+c.Namespace+"/"+c.Name, "the volume cannot be created",
			e.Message, pagePending, claimMessages...))
	}
	return all
}

// ofOurClass returns the driver of the class of a claim, or nil.
func ofOurClass(v *cluster.View, c *corev1.PersistentVolumeClaim) *cluster.Driver {
	if c.Spec.StorageClassName == nil {
		return nil
	}
	for _, class := range v.Classes {
		if class.Name == *c.Spec.StorageClassName {
			return v.Driver(class.Provisioner)
		}
	}
	return nil
}

// ours returns the drivers of their PersistentVolumes, by the name of the volume.
func ours(v *cluster.View) map[string]*cluster.Driver {
	names := map[string]*cluster.Driver{}
	for i := range v.Volumes {
		if csi := v.Volumes[i].Spec.CSI; csi != nil && v.Driver(csi.Driver) != nil {
			names[v.Volumes[i].Name] = v.Driver(csi.Driver)
		}
	}
	return names
}

// podsWithVolumes finds pods that do not start because of a volume of the drivers.
func podsWithVolumes(v *cluster.View) (all []Finding) {
	volumes := ours(v)
	for i := range v.PendingPods {
		p := &v.PendingPods[i]
		used := volumesOf(v, p, volumes)
		if v.ServerNow().Sub(p.CreationTimestamp.Time) < 30*time.Second || len(used.drivers) == 0 || hasVolumes(p) {
			continue
		}
		object := "Pod/" + p.Namespace + "/" + p.Name
		if e, d, ok := failedMount(v, p, used); ok {
			if waits(v, e.Message, p.CreationTimestamp.Time) {
				continue
			}
			all = append(all, called(d, object, "the volume cannot be mounted", e.Message, pagePodStart,
				missingVolume, wrongMount, noSecret))
		} else if e, ok := latest(v, "Pod", p, "FailedScheduling"); ok && p.Spec.NodeName == "" && !used.others &&
			(strings.Contains(e.Message, "volume") || strings.Contains(e.Message, "free storage")) {
			f := called(used.drivers, object, "the pod cannot be scheduled", e.Message, pagePending)
			f.Severity = Warning
			all = append(all, f)
		}
	}
	return all
}

// hasVolumes reports whether the kubelet has mounted the volumes of a pod: then it makes the sandbox, and
// starts the containers. Such a pod is Pending while images are pulled, or init containers run.
func hasVolumes(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
	}) || slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses),
		func(s corev1.ContainerStatus) bool { return s.State.Running != nil || s.State.Terminated != nil })
}

// podVolumes are the volumes of a pod.
type podVolumes struct {
	drivers []*cluster.Driver
	named   map[string]*cluster.Driver // by the name in an event: a PersistentVolume, or an inline volume
	others  bool                       // there are claims of other drivers
}

// volumesOf returns the volumes of a pod. volumes are the drivers of PersistentVolumes.
func volumesOf(v *cluster.View, p *corev1.Pod, volumes map[string]*cluster.Driver) podVolumes {
	all := podVolumes{named: map[string]*cluster.Driver{}}
	add := func(name string, d *cluster.Driver) {
		all.drivers, all.named[name] = append(all.drivers, d), d
	}
	for i := range p.Spec.Volumes {
		vol := &p.Spec.Volumes[i]
		if vol.CSI != nil && v.Driver(vol.CSI.Driver) != nil {
			add(vol.Name, v.Driver(vol.CSI.Driver))
		}
		name := cluster.ClaimIn(p, vol)
		if name == "" {
			continue
		}
		i := slices.IndexFunc(v.Claims, func(c corev1.PersistentVolumeClaim) bool {
			return c.Namespace == p.Namespace && c.Name == name
		})
		var d *cluster.Driver
		if i >= 0 {
			d = cmp.Or(volumes[v.Claims[i].Spec.VolumeName], ofOurClass(v, &v.Claims[i]))
		}
		if d == nil {
			all.others = true
			continue
		}
		add(v.Claims[i].Spec.VolumeName, d)
	}
	return all
}

// inEvent has the name of the volume in an event of the kubelet or of the controller of attachments.
var inEvent = regexp.MustCompile(`^[A-Za-z. ]*failed for volume "([^"]*)"`)

// failedMount returns the newest recent event of a failed mount of one of the volumes of a pod, with the
// driver of the volume. An event without a volume counts if the pod has no volumes of others.
func failedMount(v *cluster.View, p *corev1.Pod, used podVolumes) (corev1.Event, []*cluster.Driver, bool) {
	for _, e := range warnings(v, "Pod", p, "FailedMount", "FailedMapVolume", "FailedAttachVolume") {
		m := inEvent.FindStringSubmatch(e.Message)
		switch {
		case m == nil && !used.others:
			return e, used.drivers, true
		case m != nil && used.named[m[1]] != nil:
			return e, []*cluster.Driver{used.named[m[1]]}, true
		}
	}
	return corev1.Event{}, nil, false
}

// deletes finds PersistentVolumes that cannot be deleted.
func deletes(v *cluster.View) (all []Finding) {
	volumes := ours(v)
	for i := range v.Volumes {
		pv := &v.Volumes[i]
		driver, phase := volumes[pv.Name], pv.Status.Phase
		if driver == nil || phase != corev1.VolumeReleased && phase != corev1.VolumeFailed {
			continue
		}
		const reason = "VolumeFailedDelete"
		if e, ok := latest(v, "PersistentVolume", pv, reason); ok &&
			!waits(v, e.Message, began(v, "PersistentVolume", pv, reason)) {
			f := called([]*cluster.Driver{driver}, "PersistentVolume/"+pv.Name, "the volume cannot be deleted",
				e.Message, pageDelete)
			if strings.Contains(e.Message, "code = FailedPrecondition") {
				f.Page = pageDelete
			}
			all = append(all, f)
		}
	}
	return all
}

// snapshots finds snapshots that are not ready, or cannot be deleted, by the error in their status.
func snapshots(v *cluster.View) (all []Finding) {
	for _, list := range [][]unstructured.Unstructured{v.Snapshots, v.GroupSnaps} {
		for i := range list {
			c := &list[i]
			driver, _, _ := unstructured.NestedString(c.Object, "spec", "driver")
			text, _, _ := unstructured.NestedString(c.Object, "status", "error", "message")
			ready, _, _ := unstructured.NestedBool(c.Object, "status", "readyToUse")
			if v.Driver(driver) == nil || text == "" || ready && c.GetDeletionTimestamp() == nil {
				continue
			}
			effect, page, since := "the snapshot cannot be made", pageSnapshot, c.GetCreationTimestamp()
			if c.GetDeletionTimestamp() != nil {
				effect, page, since = "the snapshot cannot be deleted", pageDelete, *c.GetDeletionTimestamp()
			}
			if progress(v, text, since.Time) {
				continue
			}
			all = append(all, called([]*cluster.Driver{v.Driver(driver)}, c.GetKind()+"/"+c.GetName(), effect, text,
				page, wrongSnapshotClass))
		}
	}
	return all
}

// expansions finds claims that do not grow.
func expansions(v *cluster.View) (all []Finding) {
	volumes := ours(v)
	for i := range v.Claims {
		c := &v.Claims[i]
		want, have := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
		if volumes[c.Spec.VolumeName] == nil || want.Cmp(have) <= 0 {
			continue
		}
		if text := growthError(v, c); text != "" {
			f := called([]*cluster.Driver{volumes[c.Spec.VolumeName]}, "PersistentVolumeClaim/"+c.Namespace+"/"+c.Name,
				fmt.Sprintf("the volume does not grow from %s to %s", have.String(), want.String()), text, pageChange,
				growsLater, noRight, noSecret)
			f.Page = pageChange
			all = append(all, f)
		}
	}
	return all
}

// growthError returns the error of the growth of a claim, or "". A recent event may be missing: the
// condition stays until the volume has grown.
func growthError(v *cluster.View, c *corev1.PersistentVolumeClaim) string {
	const reason = "VolumeResizeFailed"
	if e, ok := latest(v, "PersistentVolumeClaim", c, reason); ok {
		if replaces(v, e.Message, began(v, "PersistentVolumeClaim", c, reason)) {
			return ""
		}
		return e.Message
	}
	for _, cond := range c.Status.Conditions {
		failed := cond.Type == corev1.PersistentVolumeClaimNodeResizeError ||
			cond.Type == corev1.PersistentVolumeClaimControllerResizeError
		if failed && cond.Status == corev1.ConditionTrue && v.ServerNow().Sub(cond.LastTransitionTime.Time) > patience {
			return cmp.Or(cond.Message, string(cond.Type))
		}
	}
	return ""
}

// modifications finds claims that do not get their VolumeAttributesClass.
func modifications(v *cluster.View) (all []Finding) {
	volumes := ours(v)
	for i := range v.Claims {
		c := &v.Claims[i]
		want, have := c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName
		if volumes[c.Spec.VolumeName] == nil || want == nil || have != nil && *have == *want {
			continue
		}
		const reason = "VolumeModifyFailed"
		if e, ok := latest(v, "PersistentVolumeClaim", c, reason); ok &&
			!replaces(v, e.Message, began(v, "PersistentVolumeClaim", c, reason)) {
			f := called([]*cluster.Driver{volumes[c.Spec.VolumeName]}, "PersistentVolumeClaim/"+c.Namespace+"/"+c.Name,
				"the volume does not get its VolumeAttributesClass "+*want, e.Message, pageChange, wrongAttributes,
				noAttributes, noRight, noSecret)
			f.Page = pageChange
			all = append(all, f)
		}
	}
	return all
}
