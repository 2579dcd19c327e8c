// Package story collects all that is known about one volume: its objects and their events, its
// node, and the answers of the driver and of its node.
package story

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/orphans"
)

// Story is all about a volume.
type Story struct {
	Claim   string             `json:"claim,omitempty"` // namespace/name
	Volume  string             `json:"persistentVolume,omitempty"`
	Driver  string             `json:"driver,omitempty"`
	Handle  string             `json:"volumeHandle,omitempty"`
	Node    string             `json:"node,omitempty"`
	Objects []Object           `json:"objects"`
	Events  []Event            `json:"events"` // the oldest first
	Record  *inventory.Detail  `json:"controller,omitempty"`
	Files   *Files             `json:"files,omitempty"`
	Jobs    map[string]float64 `json:"jobs,omitempty"` // of the whole node
	// NotRead are the parts that could not be read, with the reasons.
	NotRead []string `json:"notRead"`
}

// Object is the state of an object.
type Object struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	State string `json:"state"`
}

// Event is an event of one of the objects.
type Event struct {
	Time    time.Time `json:"time"`
	Object  string    `json:"object"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// Files is the output of the command show of the driver on the node.
type Files struct {
	Node   string          `json:"node"`
	Path   string          `json:"path,omitempty"`
	Record json.RawMessage `json:"record,omitempty"`
	Mounts []string        `json:"mounts"`
	Errors []string        `json:"errors,omitempty"`
}

// builder collects a story.
type builder struct {
	client    cluster.Client
	selection cluster.Selection
	program   string
	story     *Story
	claim     *corev1.PersistentVolumeClaim
	volume    *corev1.PersistentVolume
}

// Of returns the story of a claim, or of the PersistentVolume pv/NAME. The selection is that of the
// installation; namespace is that of the claim. program is the path of the driver in its image.
// Errors: those of the first object.
func Of(ctx context.Context, c cluster.Client, selection cluster.Selection, namespace, name,
	program string) (*Story, error) {
	b := &builder{client: c, selection: selection, program: program,
		story: &Story{Objects: []Object{}, Events: []Event{}, NotRead: []string{}}}
	if err := b.first(ctx, namespace, name); err != nil {
		return nil, err
	}
	b.objects(ctx)
	if b.volume != nil {
		b.driver(ctx)
	}
	slices.SortStableFunc(b.story.Events, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return b.story, nil
}

// first reads the claim and its volume.
func (b *builder) first(ctx context.Context, namespace, name string) (err error) {
	core := b.client.Kube.CoreV1()
	if pv, ok := strings.CutPrefix(name, "pv/"); ok {
		if b.volume, err = core.PersistentVolumes().Get(ctx, pv, metav1.GetOptions{}); err != nil {
			return err
		}
		ref := b.volume.Spec.ClaimRef
		if ref == nil {
			return nil
		}
		claim, err := core.PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			b.lack("claim", err)
			return nil
		}
		b.claim = claim
		return nil
	}
	b.claim, err = core.PersistentVolumeClaims(namespace).Get(ctx, strings.TrimPrefix(name, "pvc/"),
		metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w in namespace %q: give the namespace of the claim with -n", err, namespace)
	case err != nil:
		return err
	}
	if b.claim.Spec.VolumeName == "" {
		return nil
	}
	volume, err := core.PersistentVolumes().Get(ctx, b.claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		b.lack("PersistentVolume", err)
		return nil
	}
	b.volume = volume
	return nil
}

// lack notes a part that could not be read.
func (b *builder) lack(part string, err error) {
	if err != nil {
		b.story.NotRead = append(b.story.NotRead, fmt.Sprintf("%s: %v", part, err))
	}
}

// add adds an object with its events.
func (b *builder) add(ctx context.Context, kind, namespace, name, state string) {
	b.story.Objects = append(b.story.Objects, Object{kind, strings.TrimPrefix(namespace+"/"+name, "/"), state})
	events, err := b.client.Kube.CoreV1().Events(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
	if err != nil {
		b.lack("events of "+kind+"/"+name, err)
		return
	}
	for _, e := range events.Items {
		if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name {
			continue
		}
		b.story.Events = append(b.story.Events, Event{cluster.EventTime(e).UTC(), kind + "/" + name, e.Type,
			e.Reason, e.Message})
	}
}

// objects collects the objects around the volume.
func (b *builder) objects(ctx context.Context) {
	if c := b.claim; c != nil {
		b.story.Claim = c.Namespace + "/" + c.Name
		b.add(ctx, "PersistentVolumeClaim", c.Namespace, c.Name, claimState(c))
		if c.Spec.StorageClassName != nil && *c.Spec.StorageClassName != "" {
			b.class(ctx, *c.Spec.StorageClassName)
		}
		b.pods(ctx)
	}
	if v := b.volume; v != nil {
		b.story.Volume = v.Name
		b.add(ctx, "PersistentVolume", "", v.Name, fmt.Sprintf("%s, %s, policy %s", v.Status.Phase,
			v.Spec.Capacity.Storage(), v.Spec.PersistentVolumeReclaimPolicy))
		if v.Spec.CSI == nil {
			b.lack("driver", errors.New("the PersistentVolume has no CSI driver"))
		} else {
			b.story.Driver, b.story.Handle = v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle
			b.story.Node = strings.Join(cluster.NodesOf(v), ",")
		}
		b.attachments(ctx)
	}
	b.snapshots(ctx)
}

func claimState(c *corev1.PersistentVolumeClaim) string {
	s := fmt.Sprintf("%s, wants %s, has %s", c.Status.Phase, c.Spec.Resources.Requests.Storage(),
		c.Status.Capacity.Storage())
	for _, one := range c.Status.Conditions {
		s += fmt.Sprintf("; %s=%s %s", one.Type, one.Status, one.Message)
	}
	return s
}

func (b *builder) class(ctx context.Context, name string) {
	class, err := b.client.Kube.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		b.lack("StorageClass", err)
		return
	}
	mode := "Immediate"
	if class.VolumeBindingMode != nil {
		mode = string(*class.VolumeBindingMode)
	}
	b.add(ctx, "StorageClass", "", name, fmt.Sprintf("%s, %s", class.Provisioner, mode))
	if b.story.Driver == "" {
		b.story.Driver = class.Provisioner
	}
}

// pods adds the pods that use the claim.
func (b *builder) pods(ctx context.Context) {
	all, err := b.client.Kube.CoreV1().Pods(b.claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		b.lack("pods", err)
		return
	}
	for i := range all.Items {
		p := &all.Items[i]
		for j := range p.Spec.Volumes {
			if cluster.ClaimIn(p, &p.Spec.Volumes[j]) == b.claim.Name {
				state := string(p.Status.Phase)
				if p.Spec.NodeName == "" {
					state += ", without a node"
				} else {
					state += " on " + p.Spec.NodeName
				}
				if p.DeletionTimestamp != nil {
					state += ", terminating since " + p.DeletionTimestamp.UTC().Format(time.RFC3339)
				}
				b.add(ctx, "Pod", p.Namespace, p.Name, state)
				break
			}
		}
	}
}

// attachments adds the VolumeAttachments of the volume.
func (b *builder) attachments(ctx context.Context) {
	all, err := b.client.Kube.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		b.lack("VolumeAttachments", err)
		return
	}
	for _, a := range all.Items {
		if a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == b.volume.Name {
			b.add(ctx, "VolumeAttachment", "", a.Name, fmt.Sprintf("to %s, attached %t", a.Spec.NodeName,
				a.Status.Attached))
		}
	}
}

// snapshots adds the snapshots of the claim and the contents that name the volume.
func (b *builder) snapshots(ctx context.Context) {
	contents, err := b.client.Dynamic.Resource(cluster.Contents).List(ctx, metav1.ListOptions{})
	if err != nil {
		b.lack("VolumeSnapshotContents", err)
	} else if b.volume != nil && b.volume.Spec.CSI != nil {
		for i := range contents.Items {
			o := &contents.Items[i]
			if source, _, _ := unstructured.NestedString(o.Object, "spec", "source",
				"volumeHandle"); source == b.volume.Spec.CSI.VolumeHandle {
				b.add(ctx, "VolumeSnapshotContent", "", o.GetName(), snapshotState(o))
			}
		}
	}
	if b.claim == nil {
		return
	}
	snapshots, err := b.client.Dynamic.Resource(cluster.SnapshotVersion.WithResource("volumesnapshots")).Namespace(
		b.claim.Namespace).
		List(ctx, metav1.ListOptions{})
	if err != nil {
		b.lack("VolumeSnapshots", err)
		return
	}
	for i := range snapshots.Items {
		o := &snapshots.Items[i]
		if source, _, _ := unstructured.NestedString(o.Object, "spec", "source",
			"persistentVolumeClaimName"); source == b.claim.Name {
			b.add(ctx, "VolumeSnapshot", o.GetNamespace(), o.GetName(), snapshotState(o))
		}
	}
}

func snapshotState(o *unstructured.Unstructured) string {
	ready, _, _ := unstructured.NestedBool(o.Object, "status", "readyToUse")
	state := fmt.Sprintf("ready %t", ready)
	if text, _, _ := unstructured.NestedString(o.Object, "status", "error", "message"); text != "" {
		state += ": " + text
	}
	return state
}

// driver asks the driver, in the pod of its controller and in the pod on the node.
func (b *builder) driver(ctx context.Context) {
	if b.story.Handle == "" {
		return
	}
	d, err := b.installation(ctx)
	if err != nil {
		b.lack("driver", err)
		return
	}
	out, err := orphans.InController(ctx, b.client, d, cluster.ExecTimeout, b.program, "list",
		"--volume="+b.story.Handle)
	if err == nil {
		err = json.Unmarshal(out, &b.story.Record)
	}
	b.lack("size, source, health and snapshots of the driver", err) // files reads the record on the node
	if b.story.Node == "" {
		b.lack("path, mounts and jobs", errors.New("the volume is not on one node, as those of shares"))
		return
	}
	pod := b.podOfNode(d)
	if pod == nil {
		b.lack("path, mounts and jobs", fmt.Errorf("no pod of the driver runs on the node of the volume (%s)",
			b.story.Node))
		return
	}
	b.files(ctx, pod)
	b.jobs(ctx, pod)
}

// installation returns the selected installation of the volume's driver.
func (b *builder) installation(ctx context.Context) (*cluster.Driver, error) {
	selected := b.selection
	if selected.Driver != "" && selected.Driver != b.story.Driver {
		return nil, fmt.Errorf("the volume is one of %q, not of %q", b.story.Driver, selected.Driver)
	}
	selected.Driver = b.story.Driver
	found, err := cluster.Find(ctx, b.client, selected)
	if err != nil {
		return nil, err
	}
	if len(found) > 1 {
		return nil, fmt.Errorf("%s has installations in the namespaces %s and %s: choose one with --release",
			b.story.Driver, found[0].Namespace, found[1].Namespace)
	}
	return found[0], nil
}

// podOfNode returns the running pod of the driver on the node of the volume, or for storage without
// nodes on the node of the first pod that uses it.
func (b *builder) podOfNode(d *cluster.Driver) *cluster.Pod {
	node := b.story.Node
	for _, o := range b.story.Objects {
		if _, on, ok := strings.Cut(o.State, "Running on "); ok && o.Kind == "Pod" && node == "" {
			node, _, _ = strings.Cut(on, ",")
		}
	}
	for _, p := range d.NodePods() {
		if p.Spec.NodeName == node && p.Status.Phase == corev1.PodRunning {
			return p
		}
	}
	return nil
}

// files runs the command show in the pod of the node.
func (b *builder) files(ctx context.Context, p *cluster.Pod) {
	digest := sha256.Sum256([]byte(b.story.Handle)) // in the kubelet's staging path
	command := append([]string{b.program, "show", b.story.Handle, b.volume.Name + "," + hex.EncodeToString(
		digest[:])}, arguments(p.Pod)...)
	out, err := cluster.Run(ctx, b.client, p.Pod, cluster.ExecTimeout, command...)
	if err != nil {
		b.lack("path and mounts", err)
		return
	}
	if err := json.Unmarshal(out, &b.story.Files); err != nil {
		b.lack("path and mounts", err)
	}
}

// arguments returns the flags of the running driver, with the values of environment variables.
func arguments(p *corev1.Pod) (args []string) {
	for _, c := range p.Spec.Containers {
		if c.Name != cluster.Container {
			continue
		}
		var pairs []string
		for _, e := range c.Env {
			value := e.Value
			if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
				value = map[string]string{"spec.nodeName": p.Spec.NodeName, "metadata.name": p.Name,
					"metadata.namespace": p.Namespace, "status.podIP": p.Status.PodIP}[e.ValueFrom.FieldRef.FieldPath]
			}
			pairs = append(pairs, "$("+e.Name+")", value)
		}
		replace := strings.NewReplacer(pairs...)
		for _, arg := range c.Args {
			args = append(args, replace.Replace(arg))
		}
	}
	return args
}

// jobs reads the metrics of jobs of the node.
func (b *builder) jobs(ctx context.Context, p *cluster.Pod) {
	m, err := cluster.MetricsOf(ctx, b.client, p.Pod)
	if err != nil {
		b.lack("jobs", err)
		return
	}
	b.story.Jobs = map[string]float64{}
	for _, name := range []string{"causeway_copies", "causeway_stalled_copies", "causeway_trash_entries"} {
		if v, ok := m.Value(name); ok {
			b.story.Jobs[name] = v
		}
	}
	for _, name := range []string{"causeway_slots_used", "causeway_slot_waiters"} {
		for _, s := range m.Samples(name) {
			if s.Value > 0 {
				b.story.Jobs[fmt.Sprintf("%s %s %s", name, s.Labels["resource"], s.Labels["kind"])] = s.Value
			}
		}
	}
}
