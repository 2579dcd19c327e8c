package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// volumeHealth reports the claims that the health monitor found in its last round.
func volumeHealth(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.ControllerPods() {
			for _, s := range p.SidecarsMetrics.Samples("csi_sidecars_volume_health_abnormal") {
				namespace, claim := s.Labels["namespace"], s.Labels["persistentvolumeclaim"]
				found := unhealthy(v, d, namespace, claim, s.Labels["status"])
				if starting(v, d) > 0 { // the reason is in an event soon, mostly that the node does not answer
					found = slices.DeleteFunc(found, func(f Finding) bool { return f.Cause == unknownCondition })
				}
				all = append(all, found...)
			}
		}
	}
	return all
}

// nodeUnreachable is the reason of the router for each volume of a node that does not answer. The
// checks nodes and router have one finding for the node.
const nodeUnreachable = "NodeUnreachable"

// unhealthy returns the findings of a volume of d with a status. The status of the claim has the
// present conditions. It has none without the feature gate CSIVolumeHealth: then an event of the
// claim has the reason, until it expires.
func unhealthy(v *cluster.View, d *cluster.Driver, namespace, claim, status string) (all []Finding) {
	object, evidence := "PersistentVolumeClaim/"+namespace+"/"+claim, "status "+status
	of := claimOf(v, namespace, claim)
	for _, c := range conditionsOf(of) {
		if string(c.Status) == status && c.Reason == nodeUnreachable {
			return nil
		}
		if string(c.Status) == status {
			all = append(all, condition(d, object, c.Reason, evidence+"\n"+
				strings.TrimSuffix(fmt.Sprintf("%s (%s): %s", c.Status, c.Reason, c.Message), ": ")))
		}
	}
	if len(all) > 0 {
		return all
	}
	for _, e := range v.EventsOf("PersistentVolumeClaim", of) {
		if e.Reason != "VolumeConditionAbnormal" {
			continue
		}
		if reason, ok := reasonIn(e.Message, status); ok && reason == nodeUnreachable {
			return nil
		} else if ok {
			return []Finding{condition(d, object, reason, evidence+"\n"+
				cluster.EventTime(e).UTC().Format(time.RFC3339)+" "+e.Message)}
		}
	}
	for _, s := range []cluster.Source{cluster.Claims, cluster.Events} {
		if err := v.Unread(s); err != nil {
			evidence += fmt.Sprintf("\n%s could not be read: %v", s, err)
		}
	}
	return []Finding{condition(d, object, "", evidence)}
}

// unknownCondition is the cause of a status without a known reason.
const unknownCondition = "the volume is not healthy, and the cause is not known here"

// condition returns the finding of a condition of a volume of d.
func condition(d *cluster.Driver, object, reason, evidence string) Finding {
	m, ok := volumeConditions[d.SMB()][reason]
	if !ok {
		m = message{cause: unknownCondition,
			remedy: "kubectl describe pvc has the reason while its event lasts; the page has the remedy of each reason",
			page:   pageVolume}
	}
	return m.finding(Error, object, evidence)
}

// claimOf returns a claim, or only its name if it was not read.
func claimOf(v *cluster.View, namespace, name string) *corev1.PersistentVolumeClaim {
	for i := range v.Claims {
		if c := &v.Claims[i]; c.Namespace == namespace && c.Name == name {
			return c
		}
	}
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// conditionsOf returns the conditions in the status of a claim.
func conditionsOf(c *corev1.PersistentVolumeClaim) []corev1.VolumeHealthCondition {
	if c.Status.HealthStatus == nil {
		return nil
	}
	return c.Status.HealthStatus.HealthConditions
}

// abnormal is the status, in metrics, of a driver that reports a VolumeCondition. It has no
// reasons.
const abnormal = "Abnormal"

// statuses are the statuses of conditions, in the order in which an event lists them.
var statuses = []string{string(corev1.VolumeHealthDataLoss), string(corev1.VolumeHealthInaccessible),
	string(corev1.VolumeHealthDegraded), "Unknown"}

// phrase is the beginning of a condition in an event of the health monitor.
var phrase = regexp.MustCompile(`^(\w+) \((\w+)\)(: |; |$)`)

// reasonIn returns the reason of the first condition with a status in the text of an event, whose
// conditions are joined by "; ". The message of a condition may have the name of a tenant's file,
// and this name may look like a further condition. Such a name cannot replace a condition:
// conditions are sorted by status, a phrase of a worse status than the one before it is ignored,
// and messages with names of files belong to the status Degraded.
func reasonIn(text, status string) (string, bool) {
	if status == abnormal {
		return "", !phrase.MatchString(text)
	}
	last := 0
	for i, part := range strings.Split(text, "; ") {
		m := phrase.FindStringSubmatch(part)
		if m == nil && i == 0 {
			return "", false
		}
		if m == nil {
			continue
		}
		rank := slices.Index(statuses, m[1])
		if rank < last {
			continue // also an unknown status
		}
		if m[1] == status {
			return m[2], true
		}
		last = rank
	}
	return "", false
}
