package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// patience is the time for which a state may last that is normal during a start or an update.
const patience = 2 * time.Minute

func podChecks() []Check {
	lists := []cluster.Source{cluster.PodList}
	withEvents := []cluster.Source{cluster.PodList, cluster.Events}
	return []Check{
		{"workloads", lists, workloads},
		{"admission", withEvents, admission},
		{"pods", withEvents, pods},
		{"driver-ready", lists, driverReady},
		{"sidecars-ready", lists, sidecarsReady},
		{"versions", lists, versions},
	}
}

// workloads finds drivers without a controller or without nodes, and replicas that do not exist.
func workloads(v *cluster.View) (all []Finding) {
	if err := v.Unread(cluster.Strange); err != nil {
		all = append(all, Finding{Severity: Note, Object: string(cluster.Strange), Cause: "are ignored: " + err.Error(),
			Page: pageInstall})
	}
	for _, d := range v.Drivers {
		switch c := d.Controller; {
		case c == nil:
			all = append(all, Finding{Severity: Error, Object: "Deployment of " + d.Name,
				Cause:    "the controller is missing: nothing is created or deleted",
				Evidence: fmt.Sprintf("namespace %s has no Deployment with --driver-name=%s", d.Namespace, d.Name),
				Remedy:   "apply the chart or the manifests again", Page: pageObjects})
		case c.Desired == 0:
			all = append(all, Finding{Severity: Error, Object: c.Object(),
				Cause:    "the controller is scaled to 0: nothing is created or deleted, and running pods go on",
				Evidence: "spec.replicas: 0", Page: pageFailures,
				Remedy: "kubectl -n " + d.Namespace + " scale " + strings.ToLower(c.Object()) + " --replicas=2"})
		case len(c.Pods) == 0:
			all = append(all, noPods(c))
		}
		if len(d.Nodes) == 0 {
			all = append(all, Finding{Severity: Error, Object: "DaemonSet of " + d.Name,
				Cause:    "no DaemonSet runs the driver on nodes: no pod with a volume can start or end",
				Evidence: fmt.Sprintf("namespace %s has no DaemonSet with --driver-name=%s", d.Namespace, d.Name),
				Remedy:   "apply the chart or the manifests again", Page: pageObjects})
		}
		for _, w := range d.Nodes {
			if w.Scheduled < w.Desired && int32(len(w.Pods)) < w.Desired { // during an update the status is late
				all = append(all, noPods(w))
			}
		}
	}
	return all
}

func noPods(w *cluster.Workload) Finding {
	return Finding{Severity: Error, Object: w.Object(), Cause: "pods of the driver do not exist",
		Evidence: fmt.Sprintf("%d of %d pods exist", len(w.Pods), w.Desired),
		Remedy:   "kubectl -n " + w.Namespace + " describe " + strings.ToLower(w.Kind) + " " + w.Name,
		Page:     pageInstall}
}

// admission finds pods that the API server rejects. The events stay for an hour, so they count only
// while pods are missing, or while the pods of an update are rejected.
func admission(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, w := range d.Workloads() {
			if int32(len(w.Pods)) >= w.Desired && !w.Rejected {
				continue
			}
			for _, e := range v.Events {
				o := e.InvolvedObject
				owned := o.Name == w.Name || o.Kind == "ReplicaSet" && strings.HasPrefix(o.Name, w.Name+"-")
				if e.Reason != "FailedCreate" || o.Namespace != w.Namespace || !owned {
					continue
				}
				m, ok := explain(e.Message, podMessages)
				if !ok {
					m = message{cause: "the pods cannot be created", remedy: "see the message", page: pageInstall}
				}
				all = append(all, Finding{Severity: Error, Object: w.Object(), Cause: m.cause,
					Evidence: e.Message, Remedy: strings.ReplaceAll(m.remedy, "NAMESPACE", w.Namespace), Page: m.page})
				break
			}
		}
	}
	return all
}

// pods finds pods that do not run, or whose containers end.
func pods(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.Pods() {
			node := v.Node(p.Spec.NodeName)
			if node != nil && !cluster.NodeReady(node) {
				continue // the node is the cause
			}
			if f := podFault(v, p); f != nil {
				all = append(all, *f)
			}
		}
	}
	return all
}

// podFault returns the fault of a pod, or nil.
func podFault(v *cluster.View, p *cluster.Pod) *Finding {
	if p.DeletionTimestamp != nil {
		if v.ServerNow().Sub(p.DeletionTimestamp.Time) < patience {
			return nil
		}
		return &Finding{Severity: Warning, Object: p.Object(), Cause: "a pod of the driver does not end",
			Evidence: "terminating since " + p.DeletionTimestamp.UTC().Format(time.RFC3339),
			Remedy:   "see its node", Page: pagePodEnd}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if f := containerFault(p, s); f != nil {
			return f
		}
	}
	age, warnings := v.ServerNow().Sub(p.CreationTimestamp.Time), podWarnings(v, p)
	isPulled := p.Spec.NodeName != "" && len(warnings) == 0 && age < patience // a new node has no images
	if p.Status.Phase != corev1.PodPending || age < 30*time.Second || isPulled {
		return nil
	}
	evidence := podConditions(p)
	for _, e := range warnings {
		evidence = append(evidence, e.Reason+": "+e.Message)
	}
	text := strings.Join(evidence, "\n")
	m, ok := explain(text, podMessages)
	if !ok {
		m = message{cause: "a pod of the driver does not start", remedy: "kubectl -n " + p.Namespace +
			" describe pod " + p.Name, page: pageInstall}
	}
	f := m.finding(Error, p.Object()+nodeOf(p), firstLines(text, 4))
	return &f
}

// podWarnings returns the warnings about a pod that are newer than the transition of its node to
// Ready. The pods of the DaemonSet are bound to a node that has no network yet: the kubelet warns
// of NetworkNotReady until then. A fault that lasts causes newer warnings. Both times are of the
// kubelet and in whole seconds: a warning in the second of the transition counts as older.
func podWarnings(v *cluster.View, p *cluster.Pod) []corev1.Event {
	all, node := v.EventsOf("Pod", p), v.Node(p.Spec.NodeName)
	if node == nil {
		return all
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			ready := c.LastTransitionTime.Truncate(time.Second)
			return slices.DeleteFunc(all, func(e corev1.Event) bool {
				return !cluster.EventTime(e).Truncate(time.Second).After(ready)
			})
		}
	}
	return all
}

// podConditions returns the conditions that are not true, with their messages.
func podConditions(p *cluster.Pod) (all []string) {
	for _, c := range p.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Type == corev1.PodScheduled {
			all = append(all, c.Reason+": "+c.Message)
		}
	}
	if len(all) == 0 {
		all = append(all, "phase Pending since "+p.CreationTimestamp.UTC().Format(time.RFC3339))
	}
	for _, c := range p.Spec.Containers { // a pull that hangs has no warning
		for _, s := range p.Status.ContainerStatuses {
			if s.Name == c.Name && s.State.Waiting != nil {
				all = append(all, fmt.Sprintf("container %s with image %s: %s", c.Name, c.Image,
					s.State.Waiting.Reason))
			}
		}
	}
	return all
}

// containerFault returns the fault of a container, or nil.
func containerFault(p *cluster.Pod, s corev1.ContainerStatus) *Finding {
	f := &Finding{Severity: Error, Object: p.Object() + "/" + s.Name + nodeOf(p), Page: pageNoStart}
	switch w := s.State.Waiting; {
	case w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing":
		return nil
	case w.Reason == "CrashLoopBackOff":
		f.Evidence = w.Reason
		if t := s.LastTerminationState.Terminated; t != nil {
			f.Evidence = fmt.Sprintf("exit code %d, %d restarts\n%s", t.ExitCode, s.RestartCount, lastLines(
				t.Message, 4))
		}
		m, ok := explain(f.Evidence, driverMessages)
		if !ok {
			m = message{cause: "the container ends again and again",
				remedy: fmt.Sprintf("kubectl -n %s logs %s -c %s --previous", p.Namespace, p.Name, s.Name),
				page:   pageNoStart}
		}
		f.Cause, f.Remedy, f.Page = m.cause, m.remedy, m.page
	default:
		m, ok := explain(w.Reason+": "+w.Message, podMessages)
		if !ok {
			m = message{cause: "the container does not start", remedy: "kubectl -n " + p.Namespace +
				" describe pod " + p.Name, page: pageInstall}
		}
		f.Cause, f.Evidence, f.Remedy, f.Page = m.cause, w.Reason+": "+w.Message, m.remedy, m.page
	}
	return f
}

func nodeOf(p *cluster.Pod) string {
	if p.Spec.NodeName == "" {
		return ""
	}
	return " on " + p.Spec.NodeName
}

func firstLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[:min(n, len(lines))], "\n")
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// driverReady reports drivers that are not ready, with the reason that they give.
func driverReady(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.Pods() {
			a := p.DriverReady
			if !p.Asked || a.Err != nil || a.Status == 200 || starts(v, p) {
				continue
			}
			m, ok := explain(a.Body, driverMessages)
			if !ok {
				m = message{cause: "the driver is not ready", remedy: "see the message", page: pageNotReady}
			}
			all = append(all, m.finding(Error, p.Object()+nodeOf(p), a.Body))
		}
	}
	return all
}

// starts reports whether the driver of a pod has not looked at its storage yet, and started not
// long ago.
func starts(v *cluster.View, p *cluster.Pod) bool {
	return strings.TrimSpace(p.DriverReady.Body) == "the driver is starting" &&
		slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.Name == cluster.Container && startedWithin(v, s, patience)
		})
}

// startedWithin reports whether a container runs, and started less than a time ago.
func startedWithin(v *cluster.View, s corev1.ContainerStatus, d time.Duration) bool {
	return s.State.Running != nil && v.ServerNow().Sub(s.State.Running.StartedAt.Time) < d
}

// sidecarsStart reports whether the sidecars of a pod started less than 30 s ago, for the first
// time. An image or a secret may have delayed them.
func sidecarsStart(v *cluster.View, p *cluster.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return strings.HasPrefix(s.Name, "csi-sidecars") && s.RestartCount == 0 && startedWithin(v, s, 30*time.Second)
	})
}

// sidecarsReady reports sidecars that are not ready, with the reason that they give.
func sidecarsReady(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.Pods() {
			a := p.SidecarsReady
			age := v.ServerNow().Sub(p.CreationTimestamp.Time)
			if !p.Asked || a.Err != nil || a.Status == 200 || age < 30*time.Second || sidecarsStart(v, p) {
				continue
			}
			m, ok := explain(a.Body, sidecarMessages)
			if !ok {
				m = message{cause: "the sidecars are not ready", remedy: "see the message", page: pageSidecars}
			}
			all = append(all, m.finding(Error, p.Object()+"/sidecars"+nodeOf(p), a.Body))
		}
	}
	return all
}

// versions finds pods with another image than the rest of their driver. It finds nothing while a
// pod ends, or is younger than patience: that is an update.
func versions(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		images := map[string][]string{}
		for _, p := range d.Pods() {
			if version := driverVersion(p.Spec); version != "" {
				images[version] = append(images[version], p.Name)
			}
		}
		if len(images) < 2 || slices.ContainsFunc(d.Pods(), func(p *cluster.Pod) bool {
			return p.DeletionTimestamp != nil || v.ServerNow().Sub(p.CreationTimestamp.Time) < patience
		}) {
			continue
		}
		var evidence []string
		for _, version := range sorted(images) {
			evidence = append(evidence, fmt.Sprintf("%s: %s", version, firstFew(images[version], 5)))
		}
		all = append(all, Finding{Severity: Warning, Object: d.Name,
			Cause:    "pods of one driver run different versions: an update is not complete",
			Evidence: strings.Join(evidence, "\n"), Remedy: completeUpdate(d), Page: pageFailures})
	}
	return all
}

// driverVersion returns the version of the image of the container driver, or "".
func driverVersion(spec corev1.PodSpec) (version string) {
	for _, c := range spec.Containers {
		if c.Name == cluster.Container {
			_, version = splitImage(c.Image)
		}
	}
	return version
}

// completeUpdate names the workloads whose pods have another version than their template. If there
// is none, the workloads themselves differ.
func completeUpdate(d *cluster.Driver) string {
	var commands []string
	for _, w := range d.Workloads() {
		if slices.ContainsFunc(w.Pods, func(p *cluster.Pod) bool {
			return driverVersion(p.Spec) != driverVersion(w.Template.Spec)
		}) {
			commands = append(commands, "kubectl -n "+w.Namespace+" rollout status "+strings.ToLower(w.Kind)+"/"+w.Name)
		}
	}
	if len(commands) == 0 {
		return "apply the chart again: its workloads name different versions"
	}
	return "complete the update: " + strings.Join(commands, "; ")
}

// splitImage splits the reference of an image into its name and its digest or tag.
func splitImage(image string) (name, version string) {
	if name, digest, ok := strings.Cut(image, "@"); ok {
		return name, digest
	}
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[:i], image[i+1:]
	}
	return image, "latest"
}
