package healthmonitor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Reasons of events. The first two are those of upstream's monitor until 0.18, which alerts use.
const (
	eventAbnormal = "VolumeConditionAbnormal"
	eventNormal   = "VolumeConditionNormal"
	eventImproved = "VolumeConditionImproved" // some conditions are over, others are not
)

// tell makes events for changed conditions, on the claim and on the pods that use it. For a changed
// message see tellMessage. The status of the claim has the conditions of before a restart. If the
// API server drops the status, a restart repeats the events.
func (m *Monitor) tell(c *v1.PersistentVolumeClaim, before, after []v1.VolumeHealthCondition) {
	pods := m.users(c)
	if came := minus(after, before); len(came) > 0 { // a single event for all: a recorder drops frequent events
		m.event(c, pods, v1.EventTypeWarning, eventAbnormal, list(came, "; ", phrase))
	}
	gone := minus(before, after)
	switch {
	case len(gone) == 0:
	case len(after) == 0:
		m.event(c, pods, v1.EventTypeNormal, eventNormal,
			"the volume is healthy again, no longer "+list(gone, ", ", name))
	default:
		m.event(c, pods, v1.EventTypeNormal, eventImproved,
			fmt.Sprintf("no longer %s, but still %s", list(gone, ", ", name), list(after, ", ", name)))
	}
}

// tellMessage makes an event if the message of a VolumeCondition changed: the message is its only
// detail. Upstream's monitor makes an event in each round.
func (m *Monitor) tellMessage(c *v1.PersistentVolumeClaim, r *memory, after []v1.VolumeHealthCondition) {
	i := slices.IndexFunc(after, isVolumeCondition)
	if i < 0 {
		return
	}
	now := time.Now()
	switch {
	case !slices.ContainsFunc(r.held, isVolumeCondition): // tell has just made the event
	case after[i].Message == r.lastEvent || now.Before(r.lastEventAt.Add(textEvery)):
		return
	default:
		m.event(c, m.users(c), v1.EventTypeWarning, eventAbnormal, phrase(after[i]))
	}
	r.lastEvent, r.lastEventAt = after[i].Message, now
}

// event makes an event on a claim and on pods. The limit is that of events.k8s.io/v1.
func (m *Monitor) event(c *v1.PersistentVolumeClaim, pods []*v1.Pod, kind, reason, words string) {
	m.Recorder.Event(c, kind, reason, cut(words, maxMessage))
	for _, p := range pods {
		m.Recorder.Event(reference(p), kind, reason,
			cut(fmt.Sprintf("volume of claim %s: %s", c.Name, words), maxMessage))
	}
}

// reference returns the reference of an event to a pod. The shared cache keeps no other fields of a
// pod.
func reference(p *v1.Pod) *v1.ObjectReference {
	return &v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID,
		ResourceVersion: p.ResourceVersion}
}

// phrase returns a condition as text. For a VolumeCondition it is the message alone, as in
// upstream's events.
func phrase(c v1.VolumeHealthCondition) string {
	switch {
	case isVolumeCondition(c):
		return cmp.Or(c.Message, "the CSI driver reports an abnormal condition without a message")
	case c.Message == "":
		return name(c)
	}
	return name(c) + ": " + c.Message
}

func name(c v1.VolumeHealthCondition) string {
	if isVolumeCondition(c) {
		return "abnormal"
	}
	return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
}

// list returns conditions as text, the worst first.
func list(all []v1.VolumeHealthCondition, between string, say func(v1.VolumeHealthCondition) string) string {
	var words []string
	for _, c := range all {
		words = append(words, say(c))
	}
	return strings.Join(words, between)
}

// users returns the pods that use a claim and have not ended. Without PodEvents it returns none.
func (m *Monitor) users(c *v1.PersistentVolumeClaim) []*v1.Pod {
	if m.pods == nil {
		return nil
	}
	all, _ := m.pods.Pods(c.Namespace).List(labels.Everything()) // a cache has no errors
	return slices.DeleteFunc(slices.Clone(all), func(p *v1.Pod) bool {
		return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed || !uses(p, c)
	})
}

// uses reports whether a pod uses a claim by name, or the claim was made for its generic ephemeral
// volume.
func uses(p *v1.Pod, c *v1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool {
		switch {
		case v.PersistentVolumeClaim != nil:
			return v.PersistentVolumeClaim.ClaimName == c.Name
		case v.Ephemeral != nil:
			owner := metav1.GetControllerOf(c)
			return p.Name+"-"+v.Name == c.Name && owner != nil && owner.UID == p.UID
		}
		return false
	})
}
