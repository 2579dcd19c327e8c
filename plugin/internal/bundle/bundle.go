// Package bundle writes an archive for support: logs, objects, records and metrics of an
// installation, without secrets. Objects of the kind Secret are never read.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/doctor"
	"github.com/causeway-csi/causeway/plugin/internal/orphans"
	"github.com/causeway-csi/causeway/plugin/internal/status"
)

// Options are the settings of the operator.
type Options struct {
	Version  string // of this program
	LogLimit int64  // bytes of each log: its end is kept
	Program  string // path of the driver in its image
}

// logsAtOnce is the number of logs that are read at the same time. Of each up to twice
// Options.LogLimit is in memory.
const logsAtOnce = 8

// bundle is an archive under construction.
type bundle struct {
	client  cluster.Client
	view    *cluster.View
	options Options
	now     time.Time
	own     map[string]bool // objects of the installation, by kind, namespace and name

	mu      sync.Mutex // of the fields below
	out     *tar.Writer
	files   []entry
	missing []string
}

// entry is a file of the archive.
type entry struct {
	name string
	size int
}

// Write writes the archive. It reports whether the archive has all parts: its MANIFEST has each
// missing part, with the reason. Secrets are missing by design, and do not count. Errors: those of
// out.
func Write(ctx context.Context, c cluster.Client, v *cluster.View, o Options, out io.Writer) (bool, error) {
	zip := gzip.NewWriter(out)
	b := &bundle{client: c, view: v, options: o, out: tar.NewWriter(zip), now: time.Now(), missing: v.Missing(),
		own: map[string]bool{}}
	for _, part := range []func(context.Context) error{b.summary, b.objects, b.answers, b.records, b.logs, b.manifest} {
		if err := part(ctx); err != nil {
			return false, err
		}
	}
	if err := b.out.Close(); err != nil {
		return false, err
	}
	return len(b.missing) == 0, zip.Close()
}

// add adds a file. The text has no secrets by now. A name that leaves the directory of the archive,
// here or on Windows, is not added.
func (b *bundle) add(name string, data []byte) error {
	if !fs.ValidPath(name) || strings.ContainsAny(name, `\:`) {
		b.lack(fmt.Sprintf("file %q", name), errors.New("invalid name"))
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files = append(b.files, entry{name, len(data)})
	h := &tar.Header{Name: path.Join("causeway-bundle", name), Mode: 0o600, Size: int64(len(data)), ModTime: b.now,
		Typeflag: tar.TypeReg}
	if err := b.out.WriteHeader(h); err != nil {
		return err
	}
	_, err := b.out.Write(data)
	return err
}

// lack notes a part that could not be collected.
func (b *bundle) lack(part string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missing = append(b.missing, text(fmt.Sprintf("%s: %v", part, err)))
}

// summary adds the versions and the results of status and doctor.
func (b *bundle) summary(context.Context) error {
	for name, report := range map[string]any{"status.json": status.Of(b.view),
		"doctor.json": doctor.Run(b.view, doctor.Checks())} {
		data, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return err
		}
		if err := b.add(name, []byte(jsonText(string(data)))); err != nil {
			return err
		}
	}
	versions, err := json.MarshalIndent(map[string]any{"plugin": b.options.Version, "server": b.view.Server,
		"apiGroups": b.view.Groups}, "", "  ")
	if err != nil {
		return err
	}
	// Versions, and names of API groups, such as authorization.k8s.io: a redaction would take them
	// for names of secrets.
	return b.add("version.json", versions)
}

// collection is a kind of objects of the archive.
type collection struct {
	resource schema.GroupVersionResource
	of       scope
	driver   []string // path of the field with the name of the driver, of the scope storage
}

// scope tells which objects of a kind are in the archive as a whole. Of all others it has the
// names.
type scope int

const (
	installation scope = iota // objects of the installation, in the namespaces of the drivers
	storage                   // objects of the cluster whose driver is one of the installation
	all                       // all objects of the cluster
)

func resource(group, version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

// collections are the kinds of the archive, owners first and events after their objects. Secret is
// not among them. Parameters of classes and attributes of volumes may have secrets of other drivers
// under names that redact.go does not know.
var collections = []collection{
	{resource("apps", "v1", "deployments"), installation, nil},
	{resource("apps", "v1", "daemonsets"), installation, nil},
	{resource("apps", "v1", "replicasets"), installation, nil},
	{resource("", "v1", "pods"), installation, nil},
	{resource("", "v1", "services"), installation, nil},
	{resource("", "v1", "configmaps"), installation, nil},
	{resource("", "v1", "serviceaccounts"), installation, nil},
	{resource("", "v1", "events"), installation, nil},
	{resource("networking.k8s.io", "v1", "networkpolicies"), installation, nil},
	{resource("coordination.k8s.io", "v1", "leases"), installation, nil},
	{resource("storage.k8s.io", "v1", "csistoragecapacities"), installation, nil},
	{resource("", "v1", "nodes"), all, nil},
	{resource("storage.k8s.io", "v1", "csinodes"), all, nil},
	{resource("", "v1", "persistentvolumes"), storage, []string{"spec", "csi", "driver"}},
	{resource("storage.k8s.io", "v1", "csidrivers"), storage, []string{"metadata", "name"}},
	{resource("storage.k8s.io", "v1", "storageclasses"), storage, []string{"provisioner"}},
	{resource("storage.k8s.io", "v1", "volumeattachments"), storage, []string{"spec", "attacher"}},
	{cluster.Contents, storage, []string{"spec", "driver"}},
	{cluster.GroupContents, storage, []string{"spec", "driver"}},
}

// objects adds the objects of the installation, and of the storage of the cluster.
func (b *bundle) objects(ctx context.Context) error {
	for _, c := range collections {
		namespaces := []string{""}
		if c.of == installation {
			namespaces = b.namespaces()
		}
		for _, ns := range namespaces {
			if err := b.list(ctx, c, ns); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bundle) namespaces() (all []string) {
	for _, d := range b.view.Drivers {
		all = append(all, d.Namespace)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// list adds the objects of a kind in a file, or those that were read before an error.
func (b *bundle) list(ctx context.Context, c collection, namespace string) error {
	r := c.resource
	docs, err := b.pages(ctx, c, namespace)
	if err != nil {
		b.lack("objects "+r.GroupResource().String(), err)
		if len(docs) == 0 {
			return nil
		}
	}
	return b.add(path.Join("objects", namespace, r.GroupResource().String()+".yaml"), bytes.Join(docs, []byte("---\n")))
}

// Numbers of objects of a kind: in one answer of the API server, and in the archive.
const (
	pageSize   = 500
	maxObjects = 100_000
)

// pages returns the objects of a kind as YAML. With an error it returns those of the pages before.
func (b *bundle) pages(ctx context.Context, c collection, namespace string) (docs [][]byte, err error) {
	client, o := b.client.Dynamic.Resource(c.resource).Namespace(namespace), metav1.ListOptions{Limit: pageSize}
	for range maxObjects / pageSize {
		l, err := client.List(ctx, o)
		if err != nil {
			return docs, err
		}
		for i := range l.Items {
			content := l.Items[i].Object
			if !b.whole(c, &l.Items[i]) {
				content = names(content)
			}
			doc, err := yaml.Marshal(object(content))
			if err != nil {
				return docs, err
			}
			docs = append(docs, doc)
		}
		if o.Continue = l.GetContinue(); o.Continue == "" {
			return docs, nil
		}
	}
	return docs, fmt.Errorf("only the first %d objects", len(docs))
}

// whole reports whether the archive has an object as a whole. The namespace of a driver may be that
// of other applications, and the cluster may have other drivers: of their objects it has the names.
func (b *bundle) whole(c collection, o *unstructured.Unstructured) bool {
	switch c.of {
	case installation:
		return b.owns(o)
	case storage:
		name, _, _ := unstructured.NestedString(o.Object, c.driver...)
		return b.view.Driver(name) != nil
	}
	return true
}

// owns reports whether an object of a namespace belongs to the installation: it has the label of
// the chart, an owner that has it, or the name of a driver; or it is an event about such an object.
// Names of pods begin with that of their owner, so events about pods that are gone stay.
func (b *bundle) owns(o *unstructured.Unstructured) bool {
	key := func(kind, name string) string { return kind + "/" + o.GetNamespace() + "/" + name }
	label, value, _ := strings.Cut(cluster.PartOf, "=")
	owned := o.GetLabels()[label] == value
	for _, owner := range o.GetOwnerReferences() {
		owned = owned || b.own[key(owner.Kind, owner.Name)]
	}
	for _, d := range b.view.Drivers {
		owned = owned || o.GetLabels()["csi.storage.k8s.io/drivername"] == d.Name ||
			o.GetKind() == "Lease" && strings.Contains(o.GetName(), strings.ReplaceAll(d.Name, ".", "-"))
	}
	if o.GetKind() == "Event" {
		kind, _, _ := unstructured.NestedString(o.Object, "involvedObject", "kind")
		name, _, _ := unstructured.NestedString(o.Object, "involvedObject", "name")
		owned = b.own[key(kind, name)]
		if at := strings.LastIndex(name, "-"); at > 0 && kind == "Pod" {
			owned = owned || b.own[key("DaemonSet", name[:at])] || b.own[key("ReplicaSet", name[:at])]
		}
	}
	if owned {
		b.own[key(o.GetKind(), o.GetName())] = true
	}
	return owned
}

// answers adds the answers of the ports of pods. Those of /readyz are in the view, and metrics only
// as numbers, so it asks for them again.
func (b *bundle) answers(ctx context.Context) error {
	run, ctx := errgroup.WithContext(ctx)
	run.SetLimit(cluster.AsksAtOnce)
	for _, d := range b.view.Drivers {
		for _, p := range d.Pods() {
			if !p.Asked {
				b.lack("ports of "+p.Name, b.notAsked(p))
				continue
			}
			run.Go(func() error { return b.port(ctx, p, "driver-http", p.DriverReady, p.DriverMetricsErr) })
			run.Go(func() error { return b.port(ctx, p, "sidecars-http", p.SidecarsReady, p.SidecarErrors) })
		}
	}
	return run.Wait()
}

// notAsked returns the reason why the ports of a pod were not asked.
func (b *bundle) notAsked(p *cluster.Pod) error {
	err := b.nodeNotReady(p)
	switch {
	case p.Ended:
		return errors.New("the pod was deleted while the view was gathered")
	case err != nil:
		return err
	case p.DeletionTimestamp != nil:
		return errors.New("the pod is being deleted")
	}
	return fmt.Errorf("the pod does not run: %s", p.Status.Phase)
}

// port adds the answers of a port: /readyz from the view, and /metrics. A port that
// answered neither of them in the view is not asked again.
func (b *bundle) port(ctx context.Context, p *cluster.Pod, port string, ready cluster.Answer, metrics error) error {
	if err := b.answer(p, port+"-readyz.txt", ready); err != nil {
		return err
	}
	if ready.Err != nil && metrics != nil {
		return b.answer(p, port+"-metrics.txt", cluster.Answer{Err: metrics})
	}
	return b.answer(p, port+"-metrics.txt", cluster.Ask(ctx, b.client, p.Pod, port, "/metrics"))
}

// answer adds an answer of a pod.
func (b *bundle) answer(p *cluster.Pod, file string, a cluster.Answer) error {
	name := path.Join("pods", p.Name, file)
	if a.Err != nil {
		b.lack(name, a.Err)
		return nil
	}
	return b.add(name, fmt.Appendf(nil, "status %d\n%s", a.Status, text(a.Body)))
}

// records adds the volumes and snapshots that the drivers hold.
func (b *bundle) records(ctx context.Context) error {
	for _, d := range b.view.Drivers {
		out, err := orphans.InController(ctx, b.client, d, cluster.ListTimeout, b.options.Program, "list")
		if err != nil {
			b.lack("records of "+d.Name, err)
			continue
		}
		if err := b.add(path.Join("records", d.Name+".json"), []byte(jsonText(string(out)))); err != nil {
			return err
		}
	}
	return nil
}

// logs adds the logs of all containers, also those before their last restart. The kubelet reads
// logs, so it is not asked on a node that is not ready. The archive has the logs in the order in
// which they are complete.
func (b *bundle) logs(ctx context.Context) error {
	run, ctx := errgroup.WithContext(ctx)
	run.SetLimit(logsAtOnce)
	for _, d := range b.view.Drivers {
		for _, p := range d.Pods() {
			if err := b.nodeNotReady(p); err != nil {
				b.lack("logs of "+p.Name, err)
				continue
			}
			for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				run.Go(func() error { return b.log(ctx, p, s.Name, false) })
				if s.RestartCount > 0 {
					run.Go(func() error { return b.log(ctx, p, s.Name, true) })
				}
			}
		}
	}
	return run.Wait()
}

// nodeNotReady returns an error if the node of a pod is not ready. A node that is not known may be.
func (b *bundle) nodeNotReady(p *cluster.Pod) error {
	if n := b.view.Node(p.Spec.NodeName); n != nil && !cluster.NodeReady(n) {
		return fmt.Errorf("node %s is not ready", n.Name)
	}
	return nil
}

// log adds the end of a log, or the part of it that was read before an error.
func (b *bundle) log(ctx context.Context, p *cluster.Pod, container string, previous bool) error {
	name := path.Join("pods", p.Name, container+".log")
	if previous {
		name = path.Join("pods", p.Name, container+".previous.log")
	}
	o := &corev1.PodLogOptions{Container: container, Previous: previous, Timestamps: true}
	data, cut, err := b.readLog(ctx, p, o)
	if err != nil {
		b.lack(name, err)
		if len(data) == 0 {
			return nil
		}
	}
	if cut {
		b.lack(name, fmt.Errorf("only the last %d bytes", b.options.LogLimit))
	}
	return b.add(name, []byte(text(string(data))))
}

// readLog returns the end of a log, and whether its begin is missing. On a disk that stalls, the
// kubelet accepts the request and sends nothing, and the API server has no limit for logs. Errors:
// no data within ExecTimeout, no end within ListTimeout, those of the API server. With an error the
// data may be a part.
func (b *bundle) readLog(ctx context.Context, p *cluster.Pod, o *corev1.PodLogOptions) (
	data []byte, cut bool, err error) {
	ctx, end := context.WithTimeoutCause(ctx, cluster.ListTimeout, fmt.Errorf("no end within %s", cluster.ListTimeout))
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(cluster.ExecTimeout, func() { cancel(fmt.Errorf("no data within %s", cluster.ExecTimeout)) })
	defer idle.Stop()
	stream, err := b.client.Kube.CoreV1().Pods(p.Namespace).GetLogs(p.Name, o).Stream(ctx)
	if err == nil {
		defer stream.Close()
		data, cut, err = tail(progress{stream, idle}, b.options.LogLimit)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return data, cut, err
}

// progress starts a timer again when it has read data.
type progress struct {
	io.Reader
	idle *time.Timer
}

func (p progress) Read(data []byte) (int, error) {
	n, err := p.Reader.Read(data)
	if n > 0 {
		p.idle.Reset(cluster.ExecTimeout)
	}
	return n, err
}

// tail returns the end of a stream, from the begin of a line: a part of a line may have a secret
// without its name. With an error the data is the end of the part before it.
func tail(r io.Reader, limit int64) (data []byte, cut bool, err error) {
	buffer := make([]byte, 64<<10)
	for err == nil {
		var n int
		n, err = r.Read(buffer)
		data = append(data, buffer[:n]...)
		if int64(len(data)) > 2*limit {
			data, cut = append([]byte(nil), data[int64(len(data))-limit:]...), true
		}
	}
	if extra := int64(len(data)) - limit; extra > 0 {
		data, cut = data[extra:], true
	}
	if cut {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data, cut, err
}

// manifest adds the list of files, and of the parts that are missing.
func (b *bundle) manifest(context.Context) error {
	var m strings.Builder
	fmt.Fprintf(&m, "Collected by kubectl causeway %s at %s.\n\nFiles:\n", b.options.Version,
		b.now.UTC().Format(time.RFC3339))
	slices.SortStableFunc(b.files, func(x, y entry) int { return strings.Compare(x.name, y.name) })
	for _, f := range b.files {
		fmt.Fprintf(&m, "%10d  %s\n", f.size, f.name)
	}
	fmt.Fprint(&m, "\nNot collected:\n")
	for _, line := range b.missing {
		fmt.Fprintf(&m, "%s\n", text(line))
	}
	fmt.Fprint(&m, "objects of the kind Secret: never read\n"+
		"claims, snapshots and pods outside of the namespace, and their events: attach the output of "+
		"kubectl causeway volume NAME\n")
	return b.add("MANIFEST", []byte(m.String()))
}
