// Package status shows the state of an installation.
package status

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/doctor"
	"github.com/causeway-csi/causeway/plugin/internal/safe"
)

// Status is the state of all drivers of an installation.
type Status struct {
	Server  string   `json:"server"` // version of the API server
	Drivers []Driver `json:"drivers"`
	NotRead []string `json:"notRead,omitempty"` // sources that could not be read, with the reasons
}

// Driver is the state of a driver.
type Driver struct {
	Name       string     `json:"name"`
	Namespace  string     `json:"namespace"`
	Release    string     `json:"release,omitempty"`
	Leader     string     `json:"leader,omitempty"` // pod whose sidecars lead
	Controller []Pod      `json:"controller"`
	Nodes      []Pod      `json:"nodes"`
	Volumes    int        `json:"volumes"`   // PersistentVolumes
	Snapshots  int        `json:"snapshots"` // VolumeSnapshotContents
	Groups     int        `json:"groupSnapshots"`
	Classes    []string   `json:"storageClasses"`
	Capacity   []Capacity `json:"capacity"` // as published for the scheduler
}

// Pod is the state of a pod of a driver.
type Pod struct {
	Name    string `json:"name"`
	Node    string `json:"node"`
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason,omitempty"` // why the driver is not ready, or does not answer
	Version string `json:"version"`
	Kernel  string `json:"kernel,omitempty"`
	// These are missing if the pod does not answer. The bytes are missing, too, while the root is
	// away.
	Volumes            *float64   `json:"volumes,omitempty"`
	Snapshots          *float64   `json:"snapshots,omitempty"`
	SizeBytes          *float64   `json:"sizeBytes,omitempty"`
	FreeBytes          *float64   `json:"freeBytes,omitempty"`
	AvailableBytes     *float64   `json:"availableBytes,omitempty"`
	CertificateExpires *time.Time `json:"certificateExpires,omitempty"`
}

// Capacity is a published capacity.
type Capacity struct {
	Class string `json:"class"`
	Node  string `json:"node,omitempty"`
	Bytes int64  `json:"bytes"`
}

// Of returns the state in a view.
func Of(v *cluster.View) Status {
	s := Status{NotRead: v.Missing(), Drivers: []Driver{}}
	if v.Server != nil {
		s.Server = v.Server.GitVersion
	}
	for _, d := range v.Drivers {
		s.Drivers = append(s.Drivers, driver(v, d))
	}
	return s
}

func driver(v *cluster.View, d *cluster.Driver) Driver {
	s := Driver{Name: d.Name, Namespace: d.Namespace, Release: d.Release, Controller: []Pod{}, Nodes: []Pod{},
		Classes: []string{}, Capacity: []Capacity{}}
	if l := doctor.LeaseOf(v, d); l != nil && l.Spec.HolderIdentity != nil {
		s.Leader, _, _ = strings.Cut(*l.Spec.HolderIdentity, "_")
	}
	for _, p := range d.ControllerPods() {
		s.Controller = append(s.Controller, pod(v, p))
	}
	for _, p := range d.NodePods() {
		s.Nodes = append(s.Nodes, pod(v, p))
	}
	slices.SortFunc(s.Nodes, func(a, b Pod) int { return strings.Compare(a.Node, b.Node) })
	for i := range v.Volumes {
		if csi := v.Volumes[i].Spec.CSI; csi != nil && csi.Driver == d.Name {
			s.Volumes++
		}
	}
	s.Snapshots, s.Groups = of(v.Snapshots, d.Name), of(v.GroupSnaps, d.Name)
	for _, c := range v.Classes {
		if c.Provisioner == d.Name {
			s.Classes = append(s.Classes, c.Name)
		}
	}
	for _, c := range v.Capacities {
		if !slices.Contains(s.Classes, c.StorageClassName) || c.Namespace != d.Namespace {
			continue
		}
		one := Capacity{Class: c.StorageClassName}
		if c.Capacity != nil {
			one.Bytes = c.Capacity.Value()
		}
		if c.NodeTopology != nil {
			one.Node = c.NodeTopology.MatchLabels[d.Name+"/node"]
		}
		s.Capacity = append(s.Capacity, one)
	}
	slices.SortFunc(s.Capacity, func(a, b Capacity) int {
		return strings.Compare(a.Class+"\x00"+a.Node,
			b.Class+"\x00"+b.Node)
	})
	return s
}

// of returns the number of contents of a driver.
func of(all []unstructured.Unstructured, driver string) (n int) {
	for i := range all {
		if name, _, _ := unstructured.NestedString(all[i].Object, "spec", "driver"); name == driver {
			n++
		}
	}
	return n
}

func pod(v *cluster.View, p *cluster.Pod) Pod {
	s := Pod{Name: p.Name, Node: p.Spec.NodeName, Ready: p.Ready()}
	for _, c := range p.Spec.Containers {
		if c.Name == cluster.Container {
			s.Version = c.Image[strings.LastIndex(c.Image, "/")+1:]
		}
	}
	node := v.Node(s.Node)
	if node != nil {
		s.Kernel = node.Status.NodeInfo.KernelVersion
	}
	s.Reason = reason(p, node)
	for name, to := range map[string]**float64{"causeway_volumes": &s.Volumes, "causeway_snapshots": &s.Snapshots,
		"causeway_storage_size_bytes": &s.SizeBytes, "causeway_storage_free_bytes": &s.FreeBytes,
		"causeway_storage_available_bytes": &s.AvailableBytes} {
		if value, ok := p.DriverMetrics.Value(name); ok {
			*to = &value
		}
	}
	// The driver reports 0 bytes while its root is away.
	if s.SizeBytes != nil && *s.SizeBytes == 0 {
		s.SizeBytes, s.FreeBytes, s.AvailableBytes = nil, nil, nil
	}
	if seconds, ok := p.DriverMetrics.Value("causeway_peer_certificate_expiry_timestamp_seconds"); ok {
		end := time.Unix(int64(seconds), 0).UTC()
		s.CertificateExpires = &end
	}
	return s
}

// reason returns the reason why a driver is not ready or does not answer, or "".
func reason(p *cluster.Pod, node *corev1.Node) string {
	switch a := p.DriverReady; {
	case node != nil && !cluster.NodeReady(node):
		return "the node is not ready"
	case !p.Asked:
		return "phase " + string(p.Status.Phase)
	case a.Err != nil:
		return "no answer: " + a.Err.Error()
	case a.Status != 200:
		return strings.TrimSpace(a.Body)
	}
	return ""
}

// Text writes the status as tables. Names and messages come from nodes.
func (s Status) Text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "API server %s\n", safe.Text(s.Server))
	for _, d := range s.Drivers {
		fmt.Fprintf(w, "\n%s in namespace %s: %d volumes, %d snapshots, %d group snapshots, leader %s\n", d.Name,
			d.Namespace,
			d.Volumes, d.Snapshots, d.Groups, safe.Cell(d.Leader))
		fmt.Fprintln(w, "POD\tNODE\tREADY\tVERSION\tKERNEL\tVOLUMES\tSNAPSHOTS\tSIZE\tFREE\tAVAILABLE\tCERTIFICATE")
		for _, p := range slices.Concat(d.Controller, d.Nodes) {
			fmt.Fprintf(w, "%s\t%s\t%t\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, safe.Cell(p.Node), p.Ready,
				safe.Cell(p.Version),
				safe.Cell(p.Kernel), count(p.Volumes), count(p.Snapshots), bytes(p.SizeBytes), bytes(p.FreeBytes),
				bytes(p.AvailableBytes), date(p.CertificateExpires))
		}
		fmt.Fprintln(w)
		if len(d.Capacity) > 0 {
			fmt.Fprintln(w, "CLASS\tNODE\tCAPACITY")
		}
		for _, c := range d.Capacity {
			value := float64(c.Bytes)
			fmt.Fprintf(w, "%s\t%s\t%s\n", c.Class, safe.Cell(c.Node), bytes(&value))
		}
		for _, p := range slices.Concat(d.Controller, d.Nodes) {
			if p.Reason != "" {
				fmt.Fprintf(w, "%s: %s\n", p.Name, safe.Text(p.Reason))
			}
		}
	}
	for _, n := range s.NotRead {
		fmt.Fprintf(w, "not read: %s\n", safe.Text(n))
	}
	return w.Flush()
}

func count(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f", *v)
}

func bytes(v *float64) string {
	if v == nil {
		return "-"
	}
	q := resource.NewQuantity(int64(*v)>>20<<20, resource.BinarySI)
	return q.String()
}

func date(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.DateOnly)
}
