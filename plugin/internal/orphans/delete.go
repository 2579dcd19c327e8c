package orphans

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// reservationLabel marks the objects that a delete creates.
const reservationLabel = "causeway.dev/orphan"

// contentFinalizer is that of the snapshotter: without it the content would be gone before the
// snapshot.
const contentFinalizer = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"

// Resources of reservations.
var (
	volumes  = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	contents = cluster.Contents
)

// ErrNamed reports that an orphan is none any more.
var ErrNamed = errors.New("an object names it now")

// Deletion deletes orphans. The driver's own sidecars do the work, so that no right and no call is
// added, and the driver refuses a volume that is mounted:
//
//  1. All objects are read again. If one names the orphan, or a claim of the driver is pending,
//     nothing happens.
//  2. The orphan gets a reservation: a PersistentVolume or a VolumeSnapshotContent with the policy
//     Retain, which nothing deletes. From now on other searches see the orphan as named.
//  3. All objects are read again, without the reservation.
//  4. The policy of the reservation becomes Delete, and the sidecar deletes the orphan, then the
//     reservation.
//
// An error before step 4 removes the reservation, and the orphan stays. An object that is created
// by hand after step 3 comes too late.
type Deletion struct {
	Search
	Wait time.Duration // for each orphan
	Poll time.Duration
	Log  io.Writer
}

// Check returns the reason why the orphans of a report cannot be deleted, or nil.
func (d *Deletion) Check(r Report) error {
	switch {
	case !d.Driver.Routed():
		return errors.New("the storage of the driver is not on nodes: another cluster may have volumes on the same " +
			"share, and only its objects name them")
	case len(r.Pending) > 0:
		return pendingError(r.Pending)
	case d.Driver.Controller == nil:
		return errors.New("the driver has no controller")
	}
	return nil
}

func pendingError(claims []string) error {
	return fmt.Errorf("%d claims of the driver are pending, and a volume may be being made for each of them: wait, or "+
		"delete them: %v", len(claims), claims[:min(len(claims), 10)])
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

// Delete deletes one orphan. Errors: ErrNamed if an object names it by now, and an error if it was
// not deleted within Wait.
func (d *Deletion) Delete(ctx context.Context, o Orphan) error {
	if err := d.look(ctx, o, nil); err != nil {
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
		return errors.Join(err, d.release(ctx, r))
	}
	if err := d.gone(ctx, r); err != nil {
		return errors.Join(err, d.release(ctx, r))
	}
	return nil
}

// reserved waits until the cluster has seen the reservation, and looks again.
func (d *Deletion) reserved(ctx context.Context, o Orphan, r *reservation) error {
	if r.resource == volumes {
		err := d.until(ctx, r, func(o *unstructured.Unstructured) bool {
			phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
			return phase == string(corev1.VolumeReleased)
		})
		if err != nil {
			return fmt.Errorf("the PersistentVolume %s does not become Released: %w", r.name, err)
		}
	}
	return d.look(ctx, o, map[types.UID]bool{r.uid: true})
}

// look reads all objects, and returns an error if the orphan may not be deleted.
func (d *Deletion) look(ctx context.Context, o Orphan, except map[types.UID]bool) error {
	n, err := d.read(ctx, except)
	switch {
	case err != nil:
		return err
	case n.named(o.ID):
		return ErrNamed
	case len(n.pending) > 0:
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
	name := "causeway-orphan-" + rand.String(10)
	labels := map[string]any{reservationLabel: "true"}
	if o.What == "snapshot" {
		return &reservation{resource: contents, field: "deletionPolicy", object: &unstructured.Unstructured{
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
	return &reservation{resource: volumes, field: "persistentVolumeReclaimPolicy", object: &unstructured.Unstructured{
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
	if listErr == nil && len(events.Items) > 0 {
		err = errors.Join(err, errors.New(events.Items[len(events.Items)-1].Message))
	}
	return fmt.Errorf("the driver has not deleted it: %w", err)
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
	return fmt.Errorf("the reservation %s is left, remove it by hand: %w", r.name, err)
}
