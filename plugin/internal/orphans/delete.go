package orphans

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// reservationLabel marks the objects that a delete creates, and their names begin with
// reservationPrefix.
const (
	reservationLabel  = "causeway.dev/orphan"
	reservationPrefix = "causeway-orphan-"
)

// contentFinalizer is that of the snapshotter: without it the content would be gone before the
// snapshot.
const contentFinalizer = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"

// Fields of the policy, in spec.
const (
	volumePolicy  = "persistentVolumeReclaimPolicy"
	contentPolicy = "deletionPolicy"
)

// Resources of reservations.
var (
	volumes  = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	contents = cluster.Contents
)

// Errors of Delete.
var (
	// ErrNamed reports that an object names the volume or snapshot by now.
	ErrNamed = errors.New("an object names it now")
	// ErrUnknown reports an error after the policy of the reservation was, or may have been,
	// Delete.
	ErrUnknown = errors.New("it is not known whether the driver deleted it, or will: run kubectl causeway orphans " +
		"again, which lists it if the driver still holds it")
)

// Deletion deletes orphans. The driver's own sidecars do the work, so that no right and no call is
// added, and the driver refuses a volume that is mounted:
//
//  1. All objects are read again. If one names the orphan, or a claim of the driver is pending,
//     nothing happens; see DespitePending.
//  2. The orphan gets a reservation: a PersistentVolume or a VolumeSnapshotContent with the policy
//     Retain, which nothing deletes. From now on other searches see the orphan as named. The
//     cluster must have processed it: the volume is Released, the content has its handle in its
//     status.
//  3. All objects are read again, without the reservation.
//  4. The policy of the reservation becomes Delete, and the sidecar deletes the orphan, then the
//     reservation.
//  5. The driver lists its volumes again. The end of the reservation alone proves nothing.
//
// An error before step 4 removes the reservation, and the orphan stays. An object that is created
// by hand after step 3 comes too late.
type Deletion struct {
	Search
	Report Report        // of the same search
	Wait   time.Duration // for each orphan
	Poll   time.Duration
	Log    io.Writer
	// DespitePending deletes orphans although claims are pending. Their volumes are named in any
	// case, by the names that the sidecar gives to them.
	DespitePending bool
}

// Reset sets the policy of all reservations that an interrupted run has left to Retain. It must run
// before any other step of a deletion.
func (d *Deletion) Reset(ctx context.Context) error {
	var errs []error
	for _, left := range d.Report.Reservations {
		if left.Policy == string(corev1.PersistentVolumeReclaimRetain) {
			continue
		}
		r := &reservation{resource: volumes, field: volumePolicy, name: left.Name, uid: left.uid}
		if left.Kind == contentKind {
			r.resource, r.field = contents, contentPolicy
		}
		err := d.policy(ctx, r, "Retain")
		switch {
		case apierrors.IsNotFound(err):
			continue // the sidecar has deleted it
		case err != nil:
			errs = append(errs, fmt.Errorf("set the policy of %s/%s from %s to Retain: %w", left.Kind, left.Name,
				left.Policy, err))
			continue
		}
		fmt.Fprintf(d.Log, "%s/%s of an interrupted run: the policy was %s, and is Retain now\n", left.Kind, left.Name,
			left.Policy)
	}
	return errors.Join(errs...)
}

// Check returns the reason why the orphans of the report cannot be deleted, or nil.
func (d *Deletion) Check() error {
	r := d.Report
	switch {
	case !d.Driver.Routed():
		return errors.New("the storage of the driver is not on nodes: another cluster may have volumes " +
			"there, and only its objects name them")
	case len(r.Pending) > 0 && !d.DespitePending:
		return pendingError(r.Pending)
	case d.Driver.Controller == nil:
		return errors.New("the driver has no controller")
	}
	return nameFlags(d.Driver.Controller)
}

func pendingError(claims []string) error {
	return fmt.Errorf("%d claims of the driver are pending, and the driver may be creating their volumes: wait, "+
		"delete the claims, or use --despite-pending-claims, which keeps the volumes with the names of these claims: "+
		"%v", len(claims), claims[:min(len(claims), 10)])
}

// Deletable returns the orphans that Delete deletes, and the number of the others: members of group
// snapshots are deleted with their group only, by hand.
func Deletable(all []Orphan) (some []Orphan, others int) {
	for _, o := range all {
		if o.Group != "" {
			others++
			continue
		}
		some = append(some, o)
	}
	return some, others
}

// Delete deletes one orphan. Errors: ErrNamed, if nothing was deleted; ErrUnknown, if the driver
// has not confirmed the delete within Wait. After all other errors the orphan is still there.
func (d *Deletion) Delete(ctx context.Context, o Orphan) error {
	if err := d.checkOrphan(ctx, o, nil); err != nil {
		return err
	}
	r := d.reservation(o)
	made, err := d.Client.Dynamic.Resource(r.resource).Create(ctx, r.object, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the reservation: %w", err)
	}
	r.name, r.uid = made.GetName(), made.GetUID()
	if err := d.reserved(ctx, o, r); err != nil {
		return errors.Join(err, d.release(ctx, r))
	}
	if err := d.commit(ctx, r); err != nil {
		return errors.Join(err, ErrUnknown, d.release(ctx, r))
	}
	if err := d.gone(ctx, r); err != nil {
		return errors.Join(err, ErrUnknown, d.release(ctx, r))
	}
	return d.confirm(ctx, o)
}

// confirm returns an error unless the driver no longer holds the orphan.
func (d *Deletion) confirm(ctx context.Context, o Orphan) error {
	held, err := d.List(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("list the volumes of the driver again: %w", err), ErrUnknown)
	}
	for _, h := range slices.Concat(held.Volumes, held.Snapshots) {
		if inventory.Key(h.ID) == inventory.Key(o.ID) {
			return errors.New("its reservation was deleted, but the driver still holds it")
		}
	}
	return nil
}

// reserved waits until the cluster has processed the reservation, and looks again.
func (d *Deletion) reserved(ctx context.Context, o Orphan, r *reservation) error {
	ready, state := func(pv *unstructured.Unstructured) bool {
		phase, _, _ := unstructured.NestedString(pv.Object, "status", "phase")
		return phase == string(corev1.VolumeReleased)
	}, "does not become Released"
	if r.resource == contents {
		// The snapshotter calls DeleteSnapshot only for a content with a handle in its status, and
		// otherwise just removes the finalizer: external-snapshotter v8.7.0,
		// pkg/sidecar-controller/snapshot_controller.go, syncContent.
		ready, state = func(content *unstructured.Unstructured) bool {
			handle, _, _ := unstructured.NestedString(content.Object, "status", "snapshotHandle")
			return handle == o.ID
		}, "does not get the handle in its status"
	}
	if err := d.until(ctx, r, ready); err != nil {
		return fmt.Errorf("the reservation %s %s: %w", r.name, state, err)
	}
	return d.checkOrphan(ctx, o, map[types.UID]bool{r.uid: true})
}

// checkOrphan reads all objects, and returns an error if the orphan may not be deleted.
func (d *Deletion) checkOrphan(ctx context.Context, o Orphan, except map[types.UID]bool) error {
	n, err := d.read(ctx, except)
	if err != nil {
		return err
	}
	switch kind := d.Report.read.missing(n); {
	case kind != "":
		return fmt.Errorf("%w: the report counted objects of the kind %s, and now there are none: run the "+
			"command again", ErrNoConclusion, kind)
	case n.named(o.ID):
		return ErrNamed
	case len(n.pending) > 0 && !d.DespitePending:
		return pendingError(n.pending)
	}
	return nil
}

// reservation is the object by which a sidecar deletes an orphan.
type reservation struct {
	resource schema.GroupVersionResource
	object   *unstructured.Unstructured
	field    string // of the policy, in spec
	name     string
	uid      types.UID
}

// reservation returns the reservation of an orphan, with the policy Retain.
func (d *Deletion) reservation(o Orphan) *reservation {
	name := reservationPrefix + rand.String(10)
	labels := map[string]any{reservationLabel: "true"}
	if o.What == "snapshot" {
		return &reservation{resource: contents, field: contentPolicy, object: &unstructured.Unstructured{
			Object: map[string]any{
				"apiVersion": contents.GroupVersion().String(), "kind": contentKind,
				"metadata": map[string]any{"name": name, "labels": labels, "finalizers": []any{contentFinalizer}},
				"spec": map[string]any{"driver": d.Driver.Name, "deletionPolicy": "Retain",
					"source":            map[string]any{"snapshotHandle": o.ID},
					"volumeSnapshotRef": map[string]any{"namespace": d.Driver.Namespace, "name": name}},
			}}}
	}
	pv := &corev1.PersistentVolume{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: volumeKind},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{reservationLabel: "true"},
			// The provisioner deletes only volumes with this annotation.
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": d.Driver.Name}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			Capacity: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(max(
				o.Size, 1), resource.BinarySI)},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			// The claim does not exist: so the volume becomes Released, and no claim gets it.
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: d.Driver.Namespace, Name: name, UID: uuid.NewUUID()},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: d.Driver.Name, VolumeHandle: o.ID}},
		},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pv)
	if err != nil {
		panic(err) // a typed object of the API
	}
	delete(object, "status")
	return &reservation{resource: volumes, field: volumePolicy, object: &unstructured.Unstructured{
		Object: object}}
}

// commit sets the policy to Delete.
func (d *Deletion) commit(ctx context.Context, r *reservation) error {
	if err := d.policy(ctx, r, "Delete"); err != nil {
		return fmt.Errorf("set the policy of %s to Delete: %w", r.name, err)
	}
	if r.resource == volumes {
		return nil // the provisioner deletes released volumes
	}
	return d.remove(ctx, r)
}

// policy sets the policy of a reservation. The UID makes sure that it is that object.
func (d *Deletion) policy(ctx context.Context, r *reservation, policy string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": r.uid}, "spec": map[string]any{
		r.field: policy}})
	if err != nil {
		return err
	}
	_, err = d.Client.Dynamic.Resource(r.resource).Patch(ctx, r.name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	return err
}

// remove deletes the object of a reservation.
func (d *Deletion) remove(ctx context.Context, r *reservation) error {
	return d.Client.Dynamic.Resource(r.resource).Delete(ctx, r.name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &r.uid}})
}

// gone waits until the sidecar has deleted the orphan and the reservation.
func (d *Deletion) gone(ctx context.Context, r *reservation) error {
	err := d.until(ctx, r, func(*unstructured.Unstructured) bool { return false })
	if apierrors.IsNotFound(err) {
		return nil
	}
	events, listErr := d.Client.Kube.CoreV1().Events("").List(ctx, metav1.ListOptions{
		FieldSelector: "type=Warning,involvedObject.name=" + r.name})
	if listErr == nil {
		if e := newest(events.Items, r.uid); e != nil {
			err = errors.Join(err, errors.New(e.Message))
		}
	}
	return fmt.Errorf("the reservation %s was not deleted: %w", r.name, err)
}

// newest returns the newest event about an object, or nil: the name alone may be that of another
// object, in any namespace.
func newest(events []corev1.Event, uid types.UID) (last *corev1.Event) {
	for i := range events {
		e := &events[i]
		if e.InvolvedObject.UID == uid && (last == nil || cluster.EventTime(*e).After(cluster.EventTime(*last))) {
			last = e
		}
	}
	return last
}

// until waits until an object has a property. Errors: NotFound if the object is gone.
func (d *Deletion) until(ctx context.Context, r *reservation, ok func(*unstructured.Unstructured) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.Wait, fmt.Errorf("waited for %s", d.Wait))
	defer cancel()
	for {
		o, err := d.Client.Dynamic.Resource(r.resource).Get(ctx, r.name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case o.GetUID() != r.uid:
			return fmt.Errorf("%s was replaced", r.name)
		case ok(o):
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(d.Poll):
		}
	}
}

// release removes a reservation, with the policy Retain, so that the orphan stays.
func (d *Deletion) release(ctx context.Context, r *reservation) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err := d.policy(ctx, r, "Retain")
	if err == nil {
		err = d.remove(ctx, r)
	}
	if err == nil && r.resource == contents {
		patch := []byte(`{"metadata":{"finalizers":null}}`)
		_, err = d.Client.Dynamic.Resource(r.resource).Patch(ctx, r.name, types.MergePatchType, patch,
			metav1.PatchOptions{})
	}
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("the reservation %s may be left, with the policy Delete: run the command with --delete again, "+
		"which sets the policy to Retain, then delete the reservation by hand: %w", r.name, err)
}
