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

// longCall is the time for which errors of a copy are no findings: the driver copies a large
// volume, and the sidecar calls again.
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

// transient is a kind of error that is expected for some time after its first occurrence. After
// that time, the error is a finding.
type transient struct {
	is    func(text string) bool
	limit time.Duration
}

var (
	// duringUpdate is the error of a driver or a sidecar that was just replaced. The kubelet does
	// not know the driver meanwhile.
	duringUpdate = transient{func(text string) bool {
		code := fromCode(text)
		return strings.HasPrefix(code, "code = Unavailable") && !tooFewFiles.match.MatchString(code) ||
			strings.HasPrefix(code, "code = Canceled") || notRegistered.match.MatchString(code)
	}, patience}
	// duringCopy is the error of a mount or a delete of a volume that is being copied.
	duringCopy = transient{func(text string) bool {
		return strings.HasPrefix(fromCode(text), "code = Aborted") && strings.Contains(text, "is being copied")
	}, longCall}
	// longCreation is the error of a call for a new volume or snapshot whose copy takes long.
	longCreation = transient{func(text string) bool {
		code := fromCode(text)
		if !strings.HasPrefix(code, "code = ") { // a sidecar that stopped waiting
			return strings.Contains(text, "context deadline exceeded")
		}
		return strings.HasPrefix(code, "code = Aborted") || strings.HasPrefix(code, "code = DeadlineExceeded")
	}, longCall}
	// unreadySource is the error of a claim whose source is being copied.
	unreadySource = transient{func(text string) bool {
		return sourceNotReady.match.MatchString(unnamed(fromCode(text)))
	}, longCall}
	// missingObject is the error of a claim that names an object which is created at the same time.
	missingObject = transient{func(text string) bool {
		words := unnamed(fromCode(text))
		return slices.ContainsFunc([]message{noSource, noAttributes, noSecret}, func(m message) bool {
			return m.match.MatchString(words)
		})
	}, patience}
)

// covers reports whether an error that first occurred at since is expected.
func (t transient) covers(v *cluster.View, text string, since time.Time) bool {
	return t.is(text) && v.ServerNow().Sub(since) < t.limit
}

// expected reports whether the newest warning is an error of one of the kinds, and the oldest
// warning of that kind is younger than its limit. The call did not begin before notBefore.
func expected(v *cluster.View, warnings []corev1.Event, notBefore time.Time, kinds ...transient) bool {
	return slices.ContainsFunc(kinds, func(t transient) bool {
		since := began(v, warnings, t.is)
		if since.Before(notBefore) {
			since = notBefore
		}
		return t.covers(v, warnings[0].Message, since)
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

// warnings returns the warnings about an object with one of the reasons, the newest first.
func warnings(v *cluster.View, kind string, object metav1.Object, reasons ...string) []corev1.Event {
	return slices.DeleteFunc(v.EventsOf(kind, object), func(e corev1.Event) bool {
		return !slices.Contains(reasons, e.Reason)
	})
}

// ifRecent returns warnings whose first is recent, or nil: an older error may be over.
func ifRecent(v *cluster.View, warnings []corev1.Event) []corev1.Event {
	if len(warnings) == 0 || v.ServerNow().Sub(cluster.EventTime(warnings[0])) >= recent {
		return nil
	}
	return warnings
}

// latest returns the newest of recent warnings.
func latest(v *cluster.View, kind string, object metav1.Object, reasons ...string) (corev1.Event, bool) {
	if all := ifRecent(v, warnings(v, kind, object, reasons...)); len(all) > 0 {
		return all[0], true
	}
	return corev1.Event{}, false
}

// first returns the time of the first occurrence of an event. An event with a series has it in
// EventTime.
func first(e corev1.Event) time.Time {
	switch {
	case !e.FirstTimestamp.IsZero():
		return e.FirstTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return cluster.EventTime(e)
}

// began returns the time of the first of the warnings with an error of a kind. A text that varies
// makes several events of one failure. The errors of another kind are those of another failure.
func began(v *cluster.View, warnings []corev1.Event, is func(text string) bool) time.Time {
	oldest := v.ServerNow()
	for _, e := range warnings {
		if t := first(e); is(e.Message) && t.Before(oldest) {
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
		failures := ifRecent(v, slices.DeleteFunc(warnings(v, kind, c, reason), func(e corev1.Event) bool {
			return noClass.MatchString(e.Message) // from a time at which the class did not exist
		}))
		if len(failures) == 0 || expected(v, failures, time.Time{}, duringUpdate, longCreation, unreadySource,
			missingObject) {
			continue
		}
		all = append(all, called([]*cluster.Driver{d}, kind+"/"+c.Namespace+"/"+c.Name, "the volume cannot be created",
			failures[0].Message, pagePending, claimMessages...))
	}
	return all
}

// noClass is the error of a claim whose class does not exist.
var noClass = regexp.MustCompile(`storageclass(es)?\.storage\.k8s\.io "[^"]*" not found`)

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
		if failures := failedMounts(v, p, used); len(failures) > 0 {
			if expected(v, failures, scheduled(p), duringUpdate, duringCopy) {
				continue
			}
			all = append(all, called(used.driversOf(failures[0]), object, "the volume cannot be mounted",
				failures[0].Message,
				pagePodStart, missingVolume, wrongMount, noSecret))
		} else if text := unschedulable(p); !used.others && forVolumes.MatchString(text) {
			f := called(used.drivers, object, "the pod cannot be scheduled", text, pagePending)
			f.Severity = Warning
			all = append(all, f)
		}
	}
	return all
}

// forVolumes matches the reasons of the scheduler that are about bound volumes or their capacity.
// The reason "unbound immediate PersistentVolumeClaims" is that of the claim.
var forVolumes = regexp.MustCompile(`volume|PersistentVolume's node affinity|non-existent pv|free storage`)

// unschedulable returns the reason for which no node fits a pod, or "". Unlike the events of the
// scheduler, the condition stays: an unchanged cluster has no new event for a long time.
func unschedulable(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return ""
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			c.Reason == corev1.PodReasonUnschedulable {
			return c.Message
		}
	}
	return ""
}

// scheduled returns the time at which a pod got its node, or the zero time.
func scheduled(p *corev1.Pod) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// hasVolumes reports whether the kubelet has mounted the volumes of a pod: then it makes the
// sandbox, and starts the containers. Such a pod is Pending while images are pulled, or init
// containers run.
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

// inEvent has the name of the volume in an event of the kubelet or of the controller of
// attachments. The recorder adds the prefix in brackets if many events differ in their text only.
var inEvent = regexp.MustCompile(`^(?:\(combined from similar events\): )?[A-Za-z. ]*failed for volume "([^"]*)"`)

// driversOf returns the drivers of the volume in an event about a mount, or nil. An event without a
// volume counts if the pod has no volumes of others.
func (used podVolumes) driversOf(e corev1.Event) []*cluster.Driver {
	m := inEvent.FindStringSubmatch(e.Message)
	switch {
	case m == nil && !used.others:
		return used.drivers
	case m != nil && used.named[m[1]] != nil:
		return []*cluster.Driver{used.named[m[1]]}
	}
	return nil
}

// failedMounts returns the events of failed mounts of the volumes of a pod, the newest first, if
// the newest is recent.
func failedMounts(v *cluster.View, p *corev1.Pod, used podVolumes) []corev1.Event {
	all := warnings(v, "Pod", p, "FailedMount", "FailedMapVolume", "FailedAttachVolume")
	return ifRecent(v, slices.DeleteFunc(all, func(e corev1.Event) bool { return used.driversOf(e) == nil }))
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
		failures := ifRecent(v, warnings(v, "PersistentVolume", pv, "VolumeFailedDelete"))
		if len(failures) > 0 && !expected(v, failures, time.Time{}, duringUpdate, duringCopy) {
			text := failures[0].Message
			f := called([]*cluster.Driver{driver}, "PersistentVolume/"+pv.Name, "the volume cannot be deleted", text,
				pageDelete)
			if strings.Contains(text, "code = FailedPrecondition") {
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
			if duringUpdate.covers(v, text, since.Time) || longCreation.covers(v, text, since.Time) {
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
	if failures := ifRecent(v, warnings(v, "PersistentVolumeClaim", c, "VolumeResizeFailed")); len(failures) > 0 {
		if expected(v, failures, time.Time{}, duringUpdate) {
			return ""
		}
		return failures[0].Message
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
		failures := ifRecent(v, warnings(v, "PersistentVolumeClaim", c, "VolumeModifyFailed"))
		if len(failures) > 0 && !expected(v, failures, time.Time{}, duringUpdate) {
			f := called([]*cluster.Driver{volumes[c.Spec.VolumeName]}, "PersistentVolumeClaim/"+c.Namespace+"/"+c.Name,
				"the volume does not get its VolumeAttributesClass "+*want, failures[0].Message, pageChange,
				wrongAttributes, noAttributes, noRight, noSecret)
			f.Page = pageChange
			all = append(all, f)
		}
	}
	return all
}
