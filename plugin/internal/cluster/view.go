// Package cluster reads the objects of an installation of Causeway, and the answers of its pods,
// once. All commands of kubectl causeway look at a View: a check that compares two objects sees
// both as they were in the same seconds.
package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Client reads a cluster.
type Client struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Pods    Pods
	// Ahead returns the clock of the API server minus that of this machine, by the header Date of
	// its last answer, and whether there is one. Nil: not known.
	Ahead func() (time.Duration, bool)
	// Raw gets a path of the API server. The error of a path without a right is Forbidden.
	Raw func(ctx context.Context, path string) ([]byte, error)
}

// NewClient returns a client with the rights of a configuration.
func NewClient(config *rest.Config) (Client, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 100, 200
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	config.WarningHandler = rest.NoWarnings{}
	pods, err := newAPIPods(config)
	if err != nil {
		return Client{}, err
	}
	clock := &serverClock{}
	config = rest.CopyConfig(config)
	config.Wrap(clock.wrap)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Client{}, err
	}
	objects, err := dynamic.NewForConfig(config)
	raw := func(ctx context.Context, path string) ([]byte, error) {
		return kube.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx)
	}
	return Client{Kube: kube, Dynamic: objects, Pods: pods, Ahead: clock.ahead, Raw: raw}, err
}

// serverClock notes the header Date of the answers of the API server.
type serverClock struct {
	mu    sync.Mutex
	diff  time.Duration
	known bool
}

func (c *serverClock) ahead() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.diff, c.known
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *serverClock) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil {
			if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
				c.mu.Lock()
				c.diff, c.known = date.Sub(time.Now().Truncate(time.Second)), true
				c.mu.Unlock()
			}
		}
		return resp, err
	})
}

// Source is a kind of data in a View.
type Source string

// Sources.
const (
	Version    Source = "the version of the API server"
	Workloads  Source = "Deployments and DaemonSets"
	PodList    Source = "pods of the driver"
	Events     Source = "events"
	Nodes      Source = "nodes"
	CSINodes   Source = "CSINodes"
	CSIDrivers Source = "CSIDrivers"
	Classes    Source = "StorageClasses"
	Volumes    Source = "PersistentVolumes"
	Claims     Source = "PersistentVolumeClaims"
	Pending    Source = "pending pods"
	Ending     Source = "pods that end"
	Capacities Source = "CSIStorageCapacities"
	Leases     Source = "leases"
	NodeLeases Source = "leases of nodes"
	Groups     Source = "API groups"
	Snapshots  Source = "VolumeSnapshotContents"
	GroupSnaps Source = "VolumeGroupSnapshotContents"
	Requests   Source = "VolumeSnapshots and VolumeSnapshotClasses"
	Answers    Source = "HTTP ports of pods"
	Rights     Source = "the rights of ServiceAccounts"
	Strange    Source = "workloads with an invalid driver name" // they are ignored
)

// Kinds of snapshots, and the versions of their CRDs that the sidecars use.
var (
	SnapshotVersion = schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}
	GroupVersion    = schema.GroupVersion{Group: "groupsnapshot.storage.k8s.io", Version: "v1"}
	Contents        = SnapshotVersion.WithResource("volumesnapshotcontents")
	GroupContents   = GroupVersion.WithResource("volumegroupsnapshotcontents")
	VolumeSnapshots = SnapshotVersion.WithResource("volumesnapshots")
	SnapshotClasses = SnapshotVersion.WithResource("volumesnapshotclasses")
)

// View is the state of a cluster.
type View struct {
	Now     time.Time // of this machine
	Server  *version.Info
	Drivers []*Driver
	// ServerAhead is the clock of the API server minus that of this machine, if it is known.
	ServerAhead time.Duration
	ServerDated bool
	Nodes       []corev1.Node
	CSINodes    []storagev1.CSINode
	CSIDrivers  []storagev1.CSIDriver
	Classes     []storagev1.StorageClass
	Volumes     []corev1.PersistentVolume // of all drivers
	Claims      []corev1.PersistentVolumeClaim
	PendingPods []corev1.Pod
	EndingPods  []corev1.Pod // with a deletionTimestamp, in all namespaces
	Capacities  []storagev1.CSIStorageCapacity
	Leases      []coordinationv1.Lease // in the namespaces of the drivers
	NodeLeases  []coordinationv1.Lease
	Events      []corev1.Event // warnings, in all namespaces
	Groups      map[string][]string
	Denied      []Denied
	Snapshots   []unstructured.Unstructured // contents; nil if the cluster has no such kind
	GroupSnaps  []unstructured.Unstructured
	// VolumeSnapshots and SnapshotClasses are of all drivers.
	VolumeSnapshots, SnapshotClasses []unstructured.Unstructured
	Before                           Before // only of GatherBefore
	unread                           map[Source]error
}

// Unread returns the reason why a source could not be read, or nil.
func (v *View) Unread(s Source) error { return v.unread[s] }

// SetUnread notes the reason why a source could not be read.
func (v *View) SetUnread(s Source, err error) {
	if v.unread == nil {
		v.unread = map[Source]error{}
	}
	v.unread[s] = err
}

// Missing returns a line for each source that could not be read.
func (v *View) Missing() []string {
	var all []string
	for _, s := range sortedKeys(v.unread) {
		all = append(all, fmt.Sprintf("%s: %v", s, v.unread[s]))
	}
	return all
}

// Serves reports whether the API server has a version of a group.
func (v *View) Serves(gv schema.GroupVersion) bool {
	return slices.Contains(v.Groups[gv.Group], gv.Version)
}

// ServerNow returns the time of the view by the clock of the API server: times in objects are
// compared with it, not with the clock of the operator's machine.
func (v *View) ServerNow() time.Time { return v.Now.Add(v.ServerAhead) }

// Driver returns the driver with a name, or nil.
func (v *View) Driver(name string) *Driver {
	i := slices.IndexFunc(v.Drivers, func(d *Driver) bool { return d.Name == name })
	if i < 0 {
		return nil
	}
	return v.Drivers[i]
}

// Node returns the node with a name, or nil.
func (v *View) Node(name string) *corev1.Node {
	for i := range v.Nodes {
		if v.Nodes[i].Name == name {
			return &v.Nodes[i]
		}
	}
	return nil
}

// EventsOf returns the warnings about an object, the newest first. Those about an earlier object of
// the same name are not among them.
func (v *View) EventsOf(kind string, object metav1.Object) []corev1.Event {
	var all []corev1.Event
	namespace, uid := object.GetNamespace(), object.GetUID()
	for _, e := range v.Events {
		o := e.InvolvedObject
		same := o.UID == uid || o.UID == "" || uid == ""
		if same && o.Kind == kind && o.Name == object.GetName() && (namespace == "" || o.Namespace == namespace) {
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b corev1.Event) int {
		return cmp.Or(EventTime(b).Compare(EventTime(a)), cmp.Compare(nameTime(b), nameTime(a)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
	})
	return all
}

// nameTime returns the time in the name of an event, in nanoseconds, or 0: the other times of most
// events are whole seconds. The recorders of client-go name an event OBJECT.HEX.
func nameTime(e corev1.Event) uint64 {
	n, err := strconv.ParseUint(e.Name[strings.LastIndex(e.Name, ".")+1:], 16, 64)
	if err != nil {
		return 0
	}
	return n
}

// EventTime returns the time of the last occurrence of an event.
func EventTime(e corev1.Event) time.Time {
	t := e.LastTimestamp.Time
	for _, other := range []time.Time{e.EventTime.Time, e.CreationTimestamp.Time} {
		if other.After(t) && (t.IsZero() || e.LastTimestamp.IsZero()) {
			t = other
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(t) {
		t = e.Series.LastObservedTime.Time
	}
	return t
}

// Selection selects an installation.
type Selection struct {
	Namespace string // "" is all namespaces
	Release   string // "" is all releases
	Driver    string // "" is all drivers
}

func (s Selection) matches(d *Driver) bool {
	return (s.Namespace == "" || d.Namespace == s.Namespace) && (s.Release == "" || d.Release == s.Release) &&
		(s.Driver == "" || d.Name == s.Driver)
}

// ErrNotInstalled reports that no driver was found.
type ErrNotInstalled struct{ Selection }

func (e ErrNotInstalled) Error() string {
	where := "in any namespace"
	if e.Namespace != "" {
		where = fmt.Sprintf("in namespace %q", e.Namespace)
	}
	if e.Release != "" {
		where += fmt.Sprintf(" of release %q", e.Release)
	}
	if e.Driver != "" {
		where += fmt.Sprintf(" with the name %q", e.Driver)
	}
	return "there is no driver of Causeway " + where + ": no Deployment or DaemonSet with the label " + PartOf +
		" has a container driver with --driver-name; kubectl causeway doctor --pre checks a cluster before the " +
		"installation"
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// Find finds the drivers of a selection, with their pods, and asks no port.
func Find(ctx context.Context, c Client, s Selection) ([]*Driver, error) {
	g := &gatherer{client: c, selection: s, view: &View{Now: time.Now()}}
	return g.find(ctx)
}

// absent reports whether an error is that of a kind that the cluster does not have.
func absent(err error) bool { return apierrors.IsNotFound(err) }
