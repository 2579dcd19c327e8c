package orphans

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/pkg/volumeid"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// Kinds without whose objects a kind of the driver is not judged.
const (
	volumeKind  = "PersistentVolume"
	contentKind = "VolumeSnapshotContent"
	groupKind   = "VolumeGroupSnapshotContent"
)

// pageSize is the number of objects in a page of a list. The pages of a list are of one moment.
const pageSize = 500

// kinds are the kinds of objects that are read, by group. The version is the preferred one of the
// API server.
var kinds = []struct{ group, resource, kind string }{
	{"", "persistentvolumes", volumeKind},
	{"", "persistentvolumeclaims", "PersistentVolumeClaim"},
	{"storage.k8s.io", "volumeattachments", "VolumeAttachment"},
	{"storage.k8s.io", "storageclasses", "StorageClass"},
	{"snapshot.storage.k8s.io", "volumesnapshotcontents", contentKind},
	{"snapshot.storage.k8s.io", "volumesnapshots", "VolumeSnapshot"},
	{"groupsnapshot.storage.k8s.io", "volumegroupsnapshotcontents", groupKind},
	{"groupsnapshot.storage.k8s.io", "volumegroupsnapshots", "VolumeGroupSnapshot"},
}

// digestKey identifies the IDs that the driver gives to an object of one name, on any node.
type digestKey struct {
	kind volumeid.Kind
	name string // digest
}

// names are the IDs that the objects of a cluster name.
type names struct {
	driver  string
	ids     map[string]bool    // anywhere in an object
	digests map[digestKey]bool // of the names that claims and snapshots give to their volumes
	read
	pending      []string
	reservations []Reservation
	claims       []unstructured.Unstructured // pending, until the classes are known
	classes      map[string]string           // provisioners
	prefix       func(what, uid string) string
}

// read has the number of objects of each kind that the API server has.
type read struct{ count map[string]int }

// missing returns a kind of r that a later reading lacks: it has no objects there, or the API
// server no longer has the kind. Otherwise it returns "".
func (r read) missing(later *names) string {
	for _, k := range kinds {
		had, known := r.count[k.kind]
		has, still := later.count[k.kind]
		if known && !still || had > 0 && has == 0 {
			return k.kind
		}
	}
	return ""
}

// named reports whether an object names the ID.
func (n *names) named(id string) bool {
	if n.ids[inventory.Key(id)] {
		return true
	}
	kind, name, ok := parsed(id)
	return !ok || n.digests[digestKey{kind, name}] // an ID of another form is never an orphan
}

// lacks returns the reason why a kind of objects gives no result, or "" if there are objects of it.
func (n *names) lacks(kind, flag string) string {
	if n.count[kind] > 0 {
		return ""
	}
	return fmt.Sprintf("the cluster has no %s: if that is right, use %s", kind, flag)
}

// read reads all objects. An object whose UID is in except is left out.
func (s *Search) read(ctx context.Context, except map[types.UID]bool) (*names, error) {
	groups, err := s.Client.Kube.Discovery().ServerGroups()
	if err != nil {
		return nil, fmt.Errorf("%w: read the groups of the API: %w", ErrNoConclusion, err)
	}
	versions := map[string]string{"": "v1"}
	for _, g := range groups.Groups {
		if g.Name != "" {
			versions[g.Name] = cmp.Or(g.PreferredVersion.Version, "v1")
		}
	}
	n := &names{driver: s.Driver.Name, ids: map[string]bool{}, digests: map[digestKey]bool{},
		read: read{map[string]int{}}, classes: map[string]string{}, prefix: s.volumeName, pending: []string{},
		reservations: []Reservation{}}
	for _, k := range kinds {
		version := versions[k.group]
		if version == "" {
			continue // the cluster does not have this group
		}
		r := schema.GroupVersionResource{Group: k.group, Version: version, Resource: k.resource}
		if err := s.readKind(ctx, r, k.kind, n, except); err != nil {
			return nil, fmt.Errorf("%w: list %s: %w", ErrNoConclusion, r.GroupResource(), err)
		}
	}
	n.findPending()
	return n, nil
}

// readKind reads the objects of a kind, as of one moment.
func (s *Search) readKind(ctx context.Context, r schema.GroupVersionResource, kind string, n *names,
	except map[types.UID]bool) error {
	seen := map[string]bool{}
	for next := ""; ; {
		page, err := s.Client.Dynamic.Resource(r).List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
		if apierrors.IsNotFound(err) && next == "" {
			return nil // the group has no such kind
		}
		if err != nil {
			return err
		}
		n.count[kind] = max(n.count[kind], 0) // the API server has the kind
		for i := range page.Items {
			o := &page.Items[i]
			if except[o.GetUID()] {
				continue
			}
			n.count[kind]++
			if err := n.object(kind, o); err != nil {
				return err
			}
		}
		switch next = page.GetContinue(); {
		case next == "":
			return nil
		case seen[next]:
			return fmt.Errorf("the API server returned the token %.64q twice: the list has no end", next)
		}
		seen[next] = true
	}
}

// object notes the IDs of an object: those of typed fields, those anywhere in its text, and those
// that its UID gives.
func (n *names) object(kind string, o *unstructured.Unstructured) error {
	for _, handle := range handles(kind, o) {
		n.ids[inventory.Key(handle)] = true
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	finder := volumeid.Finder{Found: func(id []byte) { n.ids[string(id)] = true }}
	if _, err := finder.Write(text); err != nil {
		return err
	}
	n.digest(kind, o)
	switch kind {
	case "PersistentVolumeClaim":
		if phase, _, _ := unstructured.NestedString(o.Object, "status", "phase"); phase != "Bound" && phase != "Lost" {
			n.claims = append(n.claims, *o)
		}
	case "StorageClass":
		n.classes[o.GetName()], _, _ = unstructured.NestedString(o.Object, "provisioner")
	}
	if field := n.reserves(kind, o); field != "" {
		policy, _, _ := unstructured.NestedString(o.Object, "spec", field)
		n.reservations = append(n.reservations, Reservation{kind, o.GetName(), policy, o.GetUID()})
	}
	return nil
}

// reserves returns the field of the policy of a reservation for the driver, or "" for another
// object: a tenant can give the label to a claim. The IDs of both count as named.
func (n *names) reserves(kind string, o *unstructured.Unstructured) string {
	if o.GetLabels()[reservationLabel] == "" || !strings.HasPrefix(o.GetName(), reservationPrefix) {
		return ""
	}
	field, driver := "", ""
	switch kind {
	case volumeKind:
		field = volumePolicy
		driver, _, _ = unstructured.NestedString(o.Object, "spec", "csi", "driver")
	case contentKind:
		field = contentPolicy
		driver, _, _ = unstructured.NestedString(o.Object, "spec", "driver")
	}
	if driver != n.driver {
		return ""
	}
	return field
}

// digest notes the names that the sidecars give to the volumes of claims and snapshots, by the UID
// of the object itself, or by that in the reference of its PersistentVolume or content.
func (n *names) digest(kind string, o *unstructured.Unstructured) {
	uid := string(o.GetUID())
	reference := func(field string) {
		uid, _, _ = unstructured.NestedString(o.Object, "spec", field, "uid")
	}
	of, what := volumeid.Volume, "provisioner-volume"
	switch kind {
	case "PersistentVolumeClaim":
	case volumeKind:
		reference("claimRef")
	case "VolumeSnapshot":
		of, what = volumeid.Snapshot, "snapshotter-snapshot"
	case contentKind:
		of, what = volumeid.Snapshot, "snapshotter-snapshot"
		reference("volumeSnapshotRef")
	case "VolumeGroupSnapshot":
		of, what = volumeid.Group, "snapshotter-groupsnapshot"
	case groupKind:
		of, what = volumeid.Group, "snapshotter-groupsnapshot"
		reference("volumeGroupSnapshotRef")
	default:
		return
	}
	if uid != "" {
		n.digests[digestKey{of, volumeid.NameDigest(n.prefix(what, uid))}] = true
	}
}

// handles returns the IDs in the typed fields of an object.
func handles(kind string, o *unstructured.Unstructured) (all []string) {
	one := func(path ...string) {
		if s, ok, _ := unstructured.NestedString(o.Object, path...); ok && s != "" {
			all = append(all, s)
		}
	}
	many := func(path ...string) {
		s, _, _ := unstructured.NestedStringSlice(o.Object, path...)
		all = append(all, s...)
	}
	switch kind {
	case volumeKind:
		one("spec", "csi", "volumeHandle")
	case contentKind:
		one("spec", "source", "volumeHandle")
		one("spec", "source", "snapshotHandle")
		one("status", "snapshotHandle")
		one("status", "volumeGroupSnapshotHandle")
	case groupKind:
		many("spec", "source", "volumeHandles")
		one("spec", "source", "groupSnapshotHandles", "volumeGroupSnapshotHandle")
		many("spec", "source", "groupSnapshotHandles", "volumeSnapshotHandles")
		one("status", "volumeGroupSnapshotHandle")
		infos, _, _ := unstructured.NestedSlice(o.Object, "status", "volumeSnapshotInfoList")
		for _, info := range infos {
			if m, ok := info.(map[string]any); ok {
				for _, field := range []string{"volumeHandle", "snapshotHandle"} {
					if s, ok := m[field].(string); ok {
						all = append(all, s)
					}
				}
			}
		}
	}
	return all
}

// findPending finds the pending claims of the driver. The provisioner may be calling CreateVolume
// for them. A claim without a class may get a default class, so it counts, too.
func (n *names) findPending() {
	for i := range n.claims {
		c := &n.claims[i]
		class, ok, _ := unstructured.NestedString(c.Object, "spec", "storageClassName")
		if ok && class == "" || ok && n.classes[class] != "" && n.classes[class] != n.driver {
			continue // bound by hand, or another driver's
		}
		n.pending = append(n.pending, c.GetNamespace()+"/"+c.GetName())
	}
}

// volumeName returns the name that a sidecar gives to the volume or snapshot of an object, by its
// flags --<what>-name-prefix and --<what>-name-uuid-length.
func (s *Search) volumeName(what, uid string) string {
	prefix := map[string]string{"provisioner-volume": "pvc", "snapshotter-snapshot": "snapshot",
		"snapshotter-groupsnapshot": "groupsnapshot"}[what]
	if s.Driver.Controller == nil {
		return prefix + "-" + uid
	}
	prefix = cmp.Or(s.Driver.Controller.SidecarArgument(what+"-name-prefix"), prefix)
	length, err := strconv.Atoi(s.Driver.Controller.SidecarArgument(what + "-name-uuid-length"))
	if short := strings.ReplaceAll(uid, "-", ""); err == nil && length >= 0 && length <= len(short) {
		return prefix + "-" + short[:length]
	}
	return prefix + "-" + uid
}

// nameFlag matches a flag that volumeName reads, with a value that Kubernetes does not expand.
var nameFlag = regexp.MustCompile(`^--?(provisioner-volume|snapshotter-snapshot|snapshotter-groupsnapshot)-name-` +
	`(prefix=[^$]+|uuid-length=-?[0-9]+)$`)

// nameFlags returns an error if a sidecar of the controller has a flag for the names of volumes in
// a form that volumeName does not read. Upstream's sidecars have --volume-name-prefix.
func nameFlags(w *cluster.Workload) error {
	for _, c := range w.Template.Spec.Containers {
		for _, arg := range slices.Concat(c.Command, c.Args) {
			if (strings.Contains(arg, "name-prefix") || strings.Contains(arg, "name-uuid-length")) &&
				(!nameFlag.MatchString(arg) || slices.Contains(c.Command, arg)) {
				return fmt.Errorf("container %s has the argument %.100q: the names of volumes cannot be derived "+
					"from their claims, which protects claims without a PersistentVolume. Only flags of csi-sidecars "+
					"in one argument are supported, such as --provisioner-volume-name-prefix=pvc", c.Name, arg)
			}
		}
	}
	return nil
}

// decode parses the output of driver list.
func decode(data []byte) (*inventory.Inventory, error) {
	var all inventory.Inventory
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // a field of a newer driver could be the reason not to delete an object
	err := d.Decode(&all)
	if _, end := d.Token(); err == nil && !errors.Is(end, io.EOF) {
		err = errors.New("there is more after the list")
	}
	if err != nil {
		return nil, fmt.Errorf("the output of driver list is not that of this version: use the plugin of the "+
			"driver's release: %w", err)
	}
	if all.Driver == "" || all.Volumes == nil || all.Snapshots == nil {
		return nil, fmt.Errorf("the output of driver list has no driver, volumes or snapshots")
	}
	return &all, nil
}
