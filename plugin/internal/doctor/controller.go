package doctor

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

func controllerChecks() []Check {
	lists := []cluster.Source{cluster.PodList}
	return []Check{
		{"router", []cluster.Source{cluster.PodList, cluster.Nodes}, router},
		{"certificates", lists, certificates},
		{"leaders", []cluster.Source{cluster.Leases, cluster.PodList}, leaders},
		{"one-installation", []cluster.Source{cluster.PodList}, oneInstallation},
		{"capacity", []cluster.Source{cluster.Capacities, cluster.CSIDrivers, cluster.Classes, cluster.PodList},
			capacity},
	}
}

// router finds nodes that a router does not reach. Both replicas route, and each has its own view.
func router(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.ControllerPods() {
			if twice, _ := peers(p, "twice"); twice > 0 {
				all = append(all, messageOf(twoAddresses).finding(Error, p.Object(), p.DriverReady.Body))
			}
			all = append(all, unreached(v, d, p)...)
			up, ok := p.DriverMetrics.Value("causeway_router_discovery_up")
			if ok && up != 1 && !looksUp(v, p) {
				all = append(all, messageOf(noDNS).finding(Warning, p.Object(),
					"causeway_router_discovery_up 0\n"+p.DriverReady.Body))
			}
		}
	}
	return all
}

// peers returns the number of addresses in a state, and whether the router has the state.
func peers(p *cluster.Pod, state string) (int, bool) {
	for _, s := range p.DriverMetrics.Samples("causeway_router_peers") {
		if s.Labels["state"] == state {
			return int(s.Value), true
		}
	}
	return 0, false
}

// unreached returns a finding for each cause for which a router does not reach nodes. The router
// names 20 nodes at most, those with an address first.
func unreached(v *cluster.View, d *cluster.Driver, p *cluster.Pod) (all []Finding) {
	report := func(m message, evidence string) {
		i := slices.IndexFunc(all, func(f Finding) bool { return f.Cause == m.cause })
		if i < 0 {
			all = append(all, m.finding(Error, p.Object(), evidence))
			return
		}
		all[i].Evidence += "\n" + evidence
	}
	unknown := message{cause: "the router does not reach a node", page: pageRouter,
		remedy: "bring the node back, or its pod of the driver"}
	silent, _ := peers(p, "silent")
	gone, counted := peers(p, "gone") // an older driver counts these nodes as silent
	names, absent := startingNodes(v, d)
	excused := map[string]bool{}
	lines := silentLines(v, d, p.DriverReady.Body)
	for _, l := range lines {
		left := &silent
		if l.gone && counted {
			left = &gone
		}
		if *left == 0 { // the metric is not of the same moment
			continue
		}
		*left--
		m, known := explain(l.reason, certificateMessages)
		switch {
		case known:
			report(m, l.text)
		case l.gone && (l.node == "" || hasAddress(lines, l.node) || !hasPod(d, l.node)):
			// The node has left the cluster, and forgotten-volumes finds its volumes. Or it has
			// another address, which has a line of its own. Or it has no pod: an update replaces
			// the pod, or the DaemonSets no longer select the node.
		case names[l.node]:
			excused[l.node] = true
		case absent > 0 && !hasPod(d, l.node):
			absent--
		default:
			report(unknown, l.text)
		}
	}
	if len(all) == 0 && silent > len(names)-len(excused)+absent { // nodes that the router does not name
		report(unknown, p.DriverReady.Body)
	}
	return all
}

// silentLine is a node in /readyz of a router.
type silentLine struct {
	text, reason string
	node         string // in the cluster, or ""
	gone         bool   // the node has no address
}

// readyzLine is "ID (ADDRESS): REASON", or "ADDRESS: REASON" if no node has answered there since
// the start of the router.
var readyzLine = regexp.MustCompile(`(?m)^(?:(\S+) \((\S+:\d+)\)|(\S+:\d+)): (.*)$`)

// silentLines returns the nodes in /readyz of a router.
func silentLines(v *cluster.View, d *cluster.Driver, body string) (all []silentLine) {
	for _, m := range readyzLine.FindAllStringSubmatch(body, -1) {
		l := silentLine{text: m[0], reason: m[4], gone: m[4] == "it has no address now"}
		if id := m[1]; id != "" {
			i := slices.IndexFunc(v.Nodes, func(n corev1.Node) bool {
				return n.Name == id || n.Labels[d.Name+"/node"] == id
			})
			switch {
			case i >= 0:
				l.node = v.Nodes[i].Name
			case !l.gone && hasPod(d, id): // the Node object is just deleted
				l.node = id
			}
		} else if host, _, err := net.SplitHostPort(m[3]); err == nil {
			l.node = nodeAt(d, host)
		}
		all = append(all, l)
	}
	return all
}

// nodeAt returns the node of the pod with an IP, or "".
func nodeAt(d *cluster.Driver, ip string) string {
	for _, p := range d.NodePods() {
		if slices.Contains(p.Status.PodIPs, corev1.PodIP{IP: ip}) {
			return p.Spec.NodeName
		}
	}
	return ""
}

// hasAddress reports whether a line is about the present address of a node.
func hasAddress(lines []silentLine, node string) bool {
	return slices.ContainsFunc(lines, func(l silentLine) bool { return l.node == node && !l.gone })
}

// hasPod reports whether a node has a pod of the driver.
func hasPod(d *cluster.Driver, node string) bool {
	return slices.ContainsFunc(d.NodePods(), func(p *cluster.Pod) bool { return p.Spec.NodeName == node })
}

// looksUp reports whether a router started less than 30 s ago: right after an installation DNS does
// not have the Service yet.
func looksUp(v *cluster.View, p *cluster.Pod) bool {
	const first = 30 * time.Second
	started, ok := p.DriverMetrics.Value("process_start_time_seconds")
	now := v.Now.Add(p.DriverReady.Ahead) // on the clock of the pod
	return v.ServerNow().Sub(p.CreationTimestamp.Time) < first || ok && now.Sub(time.Unix(int64(started), 0)) < first
}

// justReplaced is the age of a pod up to which the router may not have connected to it.
const justReplaced = time.Minute

// starting returns the number of nodes that the router may not reach during an update.
func starting(v *cluster.View, d *cluster.Driver) int {
	names, absent := startingNodes(v, d)
	return len(names) + absent
}

// startingNodes returns the nodes whose pod ends, has just started, or has not been ready for a
// short time, as in an update, and the number of nodes whose pod does not exist yet. A node that
// does not exist counts: its pod is deleted soon. A pod on a node that is away does not count.
func startingNodes(v *cluster.View, d *cluster.Driver) (names map[string]bool, absent int) {
	names = map[string]bool{}
	now := v.ServerNow()
	for _, p := range d.NodePods() {
		node := v.Node(p.Spec.NodeName)
		ends := p.Ended || p.DeletionTimestamp != nil && now.Sub(p.DeletionTimestamp.Time) < justReplaced ||
			node == nil && p.Spec.NodeName != "" && v.Unread(cluster.Nodes) == nil
		if ends || now.Sub(p.CreationTimestamp.Time) < justReplaced ||
			unready(p, now) && node != nil && cluster.NodeReady(node) {
			names[p.Spec.NodeName] = true
		}
	}
	for _, w := range d.Nodes {
		absent += max(0, int(w.Desired)-len(w.Pods))
	}
	return names, absent
}

// unready reports whether a pod is not ready, and was ready or did not exist less than patience
// ago.
func unready(p *cluster.Pod, now time.Time) bool {
	since := p.CreationTimestamp.Time
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.LastTransitionTime.After(since) {
			since = c.LastTransitionTime.Time
		}
	}
	return !p.Ready() && now.Sub(since) < patience
}

// certificateMessages are the reasons for which the two sides reject each other.
var certificateMessages = []message{
	known(`has expired|expired certificate|is not valid before`, "a certificate has expired, or a clock is wrong",
		"renew the certificates", pageCerts),
	known(`wrong CA|unknown certificate authority`, "the certificates of router and nodes do not belong together",
		"write the secrets of both sides again, from one CA", pageCerts),
	known(`refused our certificate|bad certificate`,
		"a node rejects the certificate of the router: its name or its usage is wrong",
		"the log of the node has the reason; make the certificate of the router again", pageCerts),
	known(`has a certificate for|wrong name`, "a node has the certificate of another node",
		"give the node its own certificate, or set --peer-server if all nodes share one", pageRouter),
	known(`it is the driver`, "an address of the Service belongs to another driver",
		"correct the selector of the Service, or --driver-name", pageRouter),
}

// soon is the rest of a certificate's life in which its renewal is overdue, as in the alert
// CausewayCertificateExpires: cert-manager renews its usual certificates 30 days before their end.
const soon = 21 * 24 * time.Hour

// certificates finds certificates that have expired, or will soon. Only the metric is read, no
// secret.
func certificates(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		for _, p := range d.Pods() {
			seconds, ok := p.DriverMetrics.Value("causeway_peer_certificate_expiry_timestamp_seconds")
			if !ok {
				continue
			}
			end := time.Unix(int64(seconds), 0)
			f := Finding{Object: p.Object() + nodeOf(p), Remedy: "renew the certificate", Page: pageRotation,
				Evidence: "valid until " + end.UTC().Format(time.RFC3339)}
			switch left := end.Sub(v.ServerNow()); {
			case left <= 0:
				f.Severity, f.Cause = Error, "the certificate between router and nodes has expired: no peer accepts it"
			case left < soon:
				f.Severity = Warning
				f.Cause = fmt.Sprintf("the certificate between router and nodes expires in %d days", int(
					left.Hours()/24))
			default:
				continue
			}
			all = append(all, f)
		}
	}
	return all
}

// leaseName returns the name of the lease of the sidecars of a driver, as csi-sidecars builds it.
func leaseName(driver string) string {
	name := "csi-sidecars-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, driver)
	if strings.HasSuffix(name, "-") {
		name += "X"
	}
	return name
}

// LeaseOf returns the lease of the sidecars of a driver, or nil.
func LeaseOf(v *cluster.View, d *cluster.Driver) *coordinationv1.Lease {
	i := slices.IndexFunc(v.Leases, func(l coordinationv1.Lease) bool {
		return l.Namespace == d.Namespace && l.Name == leaseName(d.Name)
	})
	if i < 0 {
		return nil
	}
	return &v.Leases[i]
}

// leaders finds drivers whose sidecars have no leader, and pods that lead without the lease.
func leaders(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		if d.Controller == nil || d.Controller.Desired == 0 || !csiSidecars(d) {
			continue
		}
		l := LeaseOf(v, d)
		object := "Lease/" + leaseName(d.Name)
		switch {
		case !elects(d):
		case l != nil && l.Spec.RenewTime != nil && v.ServerNow().Sub(l.Spec.RenewTime.Time) < time.Minute:
			// also without a holder: a leader that ends releases the lease, and another pod takes
			// it soon
		case youngest(v, d) < patience: // the lease may be that of an earlier installation
		case l == nil:
			all = append(all, noLeader(object, "the lease does not exist"))
		case l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "":
			all = append(all, noLeader(object, "the lease has no holder"))
		case l.Spec.RenewTime != nil:
			all = append(all, noLeader(object, fmt.Sprintf("held by %s, last renewed %s", *l.Spec.HolderIdentity,
				l.Spec.RenewTime.UTC().Format(time.RFC3339))))
		}
		var leading []string
		for _, p := range d.ControllerPods() {
			for _, s := range p.SidecarsMetrics.Samples("csi_sidecars_controller_up") {
				if s.Labels["controller"] == "provisioner" && s.Value == 1 {
					leading = append(leading, p.Name)
				}
			}
		}
		if len(leading) > 1 {
			remedy := "scale the controller to one replica, and restore --leader-election of its sidecars"
			if elects(d) {
				remedy = "scale the controller to one replica, compare the clocks of its nodes, and report it with " +
					"the logs of csi-sidecars: --leader-election is on"
			}
			all = append(all, Finding{Severity: Error, Object: object,
				Cause:    "the sidecars of several pods lead at the same time",
				Evidence: strings.Join(leading, ", ") + " run the provisioner",
				Remedy:   remedy,
				Page:     pageLeaders + "#health-metrics-log"})
		}
	}
	return all
}

// csiSidecars reports whether the sidecars of the controller are csi-sidecars, with one lease for
// all. Upstream's sidecars have a lease each, with other names.
func csiSidecars(d *cluster.Driver) bool {
	return slices.ContainsFunc(d.ControllerPods(), func(p *cluster.Pod) bool {
		return len(p.SidecarsMetrics.Samples("csi_sidecars_build_info")) > 0
	})
}

func noLeader(object, evidence string) Finding {
	return Finding{Severity: Error, Object: object, Cause: "the sidecars have no leader: nothing is created or deleted",
		Evidence: evidence, Remedy: "see the log of csi-sidecars in the pods of the controller", Page: pagePending}
}

func elects(d *cluster.Driver) bool { return has(d.Controller, "--leader-election") }

// has reports whether a container of a workload has a flag that is true.
func has(w *cluster.Workload, flag string) bool {
	return slices.ContainsFunc(w.Template.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Args, func(a string) bool { return a == flag || a == flag+"=true" })
	})
}

// youngest returns the age of the youngest pod of the controller.
func youngest(v *cluster.View, d *cluster.Driver) time.Duration {
	age := time.Duration(1<<63 - 1)
	for _, p := range d.ControllerPods() {
		age = min(age, v.ServerNow().Sub(p.CreationTimestamp.Time))
	}
	return age
}

// oneInstallation finds two installations of one driver: each elects a leader of its own.
func oneInstallation(v *cluster.View) (all []Finding) {
	for i := 1; i < len(v.Drivers); i++ {
		if a, b := v.Drivers[i-1], v.Drivers[i]; a.Name == b.Name {
			all = append(all, Finding{Severity: Error, Object: a.Name,
				Cause:    "two installations have the same driver name: two leaders act on the same objects",
				Evidence: installation(a) + "\n" + installation(b),
				Remedy: "uninstall the one that holds no volumes and no snapshots; the other must keep its name, as " +
					"the PersistentVolumes contain it",
				Page: pageObjects})
		}
	}
	return all
}

// installation describes the workloads of an installation, and the objects on its nodes. A tenant
// can make workloads that look like those of the driver.
func installation(d *cluster.Driver) string {
	text := "namespace " + d.Namespace + ": the driver on " + strconv.Itoa(len(d.NodePods())) + " nodes"
	if d.Controller != nil {
		text += ", " + d.Controller.Object()
	}
	snapshots, _ := onNodes(d, "causeway_snapshots")
	if volumes, answers := onNodes(d, "causeway_volumes"); answers > 0 { // those of shares are on a server
		text += fmt.Sprintf("; %d volumes and %d snapshots on the %d nodes that answer", volumes, snapshots, answers)
	}
	return text
}

// onNodes returns the sum of a metric of the nodes of a driver, and the number of nodes that have
// it.
func onNodes(d *cluster.Driver, metric string) (sum, answers int) {
	for _, p := range d.NodePods() {
		if n, ok := p.DriverMetrics.Value(metric); ok {
			sum += int(n)
			answers++
		}
	}
	return sum, answers
}

// capacity finds nodes for which no capacity was published: the scheduler places no new volume
// there.
func capacity(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		if !d.Routed() || d.Controller == nil || !publishes(v, d) || youngest(v, d) < 5*time.Minute {
			continue
		}
		published := map[string]bool{}
		for _, c := range v.Capacities {
			if c.NodeTopology != nil {
				published[c.NodeTopology.MatchLabels[d.Name+"/node"]] = true
			}
		}
		for _, p := range d.NodePods() {
			node := v.Node(p.Spec.NodeName)
			ends := p.Ended || p.DeletionTimestamp != nil
			if node == nil || ends || !p.Ready() || !cluster.NodeReady(node) ||
				v.ServerNow().Sub(p.CreationTimestamp.Time) < 5*time.Minute {
				continue
			}
			if key := node.Labels[d.Name+"/node"]; key != "" && !published[key] {
				all = append(all, Finding{Severity: Error, Object: "Node/" + node.Name,
					Cause:    "the capacity of the node is not published: the scheduler places no new volume there",
					Evidence: "no CSIStorageCapacity has " + d.Name + "/node=" + key,
					Remedy:   "see the log of csi-sidecars, controller provisioner", Page: pagePending})
			}
		}
	}
	return all
}

// publishes reports whether the sidecars publish the capacity of a driver: it has a class that
// waits for the first pod, or a flag demands it for all classes.
func publishes(v *cluster.View, d *cluster.Driver) bool {
	for _, c := range v.CSIDrivers {
		if c.Name == d.Name && (c.Spec.StorageCapacity == nil || !*c.Spec.StorageCapacity) {
			return false
		}
	}
	return slices.ContainsFunc(v.Classes, func(c storagev1.StorageClass) bool {
		return c.Provisioner == d.Name && (has(d.Controller, "--provisioner-capacity-for-immediate-binding") ||
			c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer)
	})
}
