package orphans

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

// sidecars behave as the controllers of Kubernetes and the sidecars of the driver: a released
// PersistentVolume with the policy Delete, and a deleted content with that policy, are deleted with
// the volume or snapshot in them.
type sidecars struct {
	clients *fake.Clients
	deleted []string // IDs
	refuses error    // of the driver
	phase   string   // of new volumes
}

func (s *sidecars) watch() {
	tracker := s.clients.Dynamic.Tracker()
	s.clients.Dynamic.PrependReactor("create", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		o := a.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured).DeepCopy()
		serial++
		o.SetUID(types.UID(fmt.Sprintf("made-%d", serial)))
		if o.GetKind() == volumeKind {
			o.Object["status"] = map[string]any{"phase": s.phase}
		}
		return true, o, tracker.Create(a.GetResource(), o, "")
	})
	s.clients.Dynamic.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		p := a.(clienttesting.PatchAction)
		stored, err := tracker.Get(a.GetResource(), "", p.GetName())
		if err != nil {
			return true, nil, err
		}
		o := stored.(*unstructured.Unstructured).DeepCopy()
		var patch struct {
			Metadata struct{ UID string }
			Spec     map[string]any
		}
		if err := json.Unmarshal(p.GetPatch(), &patch); err != nil {
			return true, nil, err
		}
		if patch.Metadata.UID != "" && patch.Metadata.UID != string(o.GetUID()) {
			return true, nil, errors.New("Conflict")
		}
		for k, v := range patch.Spec {
			if err := unstructured.SetNestedField(o.Object, v, "spec", k); err != nil {
				return true, nil, err
			}
		}
		if err := tracker.Update(a.GetResource(), o, ""); err != nil {
			return true, nil, err
		}
		policy, _, _ := unstructured.NestedString(o.Object, "spec", "persistentVolumeReclaimPolicy")
		if o.GetKind() == volumeKind && policy == "Delete" && s.refuses == nil {
			handle, _, _ := unstructured.NestedString(o.Object, "spec", "csi", "volumeHandle")
			s.deleted = append(s.deleted, handle)
			return true, o, tracker.Delete(a.GetResource(), "", p.GetName())
		}
		return true, o, nil
	})
	s.clients.Dynamic.PrependReactor("delete", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		name := a.(clienttesting.DeleteAction).GetName()
		stored, err := tracker.Get(a.GetResource(), "", name)
		if err != nil {
			return true, nil, err
		}
		o := stored.(*unstructured.Unstructured)
		policy, _, _ := unstructured.NestedString(o.Object, "spec", "deletionPolicy")
		if o.GetKind() == contentKind && policy == "Delete" {
			if s.refuses != nil {
				return true, nil, nil // the finalizer stays
			}
			handle, _, _ := unstructured.NestedString(o.Object, "spec", "source", "snapshotHandle")
			s.deleted = append(s.deleted, handle)
		}
		return true, nil, tracker.Delete(a.GetResource(), "", name)
	})
}

// deletion returns a deletion in a cluster with objects.
func deletion(t *testing.T, objects ...*unstructured.Unstructured) (*Deletion, *sidecars) {
	t.Helper()
	s, clients := search(t, objects...)
	w := &sidecars{clients: clients, phase: "Released"}
	w.watch()
	return &Deletion{Search: *s, Wait: 200 * time.Millisecond, Poll: time.Millisecond, Log: t.Output()}, w
}

// reservations returns the names of the reservations in the cluster.
func (s *sidecars) reservations(t *testing.T) (names []string) {
	t.Helper()
	for _, r := range []struct{ kind, list string }{{volumeKind, ""}, {contentKind, ""}} {
		resource := volumes
		if r.kind == contentKind {
			resource = contents
		}
		l, err := s.clients.Dynamic.Tracker().List(resource, resource.GroupVersion().WithKind(r.kind), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range l.(*unstructured.UnstructuredList).Items {
			if o.GetLabels()[reservationLabel] != "" {
				names = append(names, o.GetName())
			}
		}
	}
	return names
}

var (
	lostVolume   = Orphan{"volume", inventory.Object{ID: v2, Size: 2 << 30}}
	lostSnapshot = Orphan{"snapshot", inventory.Object{ID: s2}}
)

func TestOrphansAreDeleted(t *testing.T) {
	d, w := deletion(t, without(all(), 1, 4)...)
	for _, o := range []Orphan{lostVolume, lostSnapshot} {
		if err := d.Delete(context.Background(), o); err != nil {
			t.Errorf("%s: %v", o.What, err)
		}
	}
	if got := strings.Join(w.deleted, " "); got != v2+" "+s2 || len(w.reservations(t)) > 0 {
		t.Errorf("deleted %s, left %v", got, w.reservations(t))
	}
}

// An object that names the orphan appears before any request of the deletion, in turn. Unless the
// policy is Delete by then, nothing is deleted, and no reservation is left.
func TestAnObjectThatAppearsSavesItsVolume(t *testing.T) {
	names := map[string]func(id string) *unstructured.Unstructured{
		"a PersistentVolume": pv, "a content": content,
		"a claim with an annotation": func(id string) *unstructured.Unstructured {
			o := pvc("x", "Bound")
			o.SetAnnotations(map[string]string{"keep": id})
			return o
		},
		"a pending claim": func(string) *unstructured.Unstructured { return pvc("y", "Pending") },
	}
	for name, appears := range names {
		for _, o := range []Orphan{lostVolume, lostSnapshot} {
			saved, tooLate := 0, 0
			for at := 0; ; at++ {
				d, w := deletion(t, without(all(), 1, 4)...)
				requests, committed, added := 0, false, false
				w.clients.Dynamic.PrependReactor("*", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
					if p, ok := a.(clienttesting.PatchAction); ok && strings.Contains(string(p.GetPatch()), "Delete") && !added {
						committed = true
					}
					if requests == at {
						added = true
						object := appears(o.ID)
						gvr := map[string]string{volumeKind: "persistentvolumes", contentKind: "volumesnapshotcontents", "PersistentVolumeClaim": "persistentvolumeclaims"}[object.GetKind()]
						if err := w.clients.Dynamic.Tracker().Create(object.GroupVersionKind().GroupVersion().WithResource(gvr), object, object.GetNamespace()); err != nil {
							t.Error(err)
						}
					}
					requests++
					return false, nil, nil
				})
				err := d.Delete(context.Background(), o)
				if !added {
					break // the deletion has no more requests
				}
				lists := lastLook(w)
				if len(w.deleted) > 0 && at < lists {
					t.Fatalf("%s appears before request %d, and %s was deleted: %v", name, at, o.What, err)
				}
				if len(w.deleted) == 0 {
					saved++
					if err == nil || len(w.reservations(t)) > 0 {
						t.Errorf("%s at %d: %v, left %v", name, at, err, w.reservations(t))
					}
				} else {
					tooLate++
				}
				_ = committed
			}
			if saved < 2*3 {
				t.Errorf("%s: saved %d, too late %d", name, saved, tooLate)
			}
		}
	}
}

// lastLook returns the index of the request that begins the last list of the last look: an object
// that appears before that list of its kind must be seen.
func lastLook(w *sidecars) int {
	first := 0
	for i, a := range w.clients.Dynamic.Actions() {
		if a.GetVerb() == "list" && a.GetResource().Resource == "persistentvolumes" {
			first = i
		}
	}
	return first
}

func TestADriverThatRefusesKeepsTheOrphan(t *testing.T) {
	for _, o := range []Orphan{lostVolume, lostSnapshot} {
		d, w := deletion(t, without(all(), 1, 4)...)
		w.refuses = errors.New("FailedPrecondition: mounted")
		if err := d.Delete(context.Background(), o); err == nil || !strings.Contains(err.Error(), "has not deleted it") {
			t.Errorf("%s: %v", o.What, err)
		}
		if len(w.deleted) > 0 || len(w.reservations(t)) > 0 {
			t.Errorf("%s: deleted %v, left %v", o.What, w.deleted, w.reservations(t))
		}
	}
}

func TestAVolumeThatIsNotReleasedIsNotDeleted(t *testing.T) {
	d, w := deletion(t, without(all(), 1)...)
	w.phase = "Bound"
	if err := d.Delete(context.Background(), lostVolume); err == nil || len(w.deleted) > 0 || len(w.reservations(t)) > 0 {
		t.Errorf("%v: deleted %v, left %v", err, w.deleted, w.reservations(t))
	}
}

// Any request may fail, or be the last before an interrupt.
func TestAFailedRequestDeletesNothing(t *testing.T) {
	for _, o := range []Orphan{lostVolume, lostSnapshot} {
		for at := 0; ; at++ {
			d, w := deletion(t, without(all(), 1, 4)...)
			requests, committed := 0, false
			w.clients.Dynamic.PrependReactor("*", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
				requests++
				if requests-1 == at {
					return true, nil, apierrors.NewInternalError(fmt.Errorf("request %d", at))
				}
				if p, ok := a.(clienttesting.PatchAction); ok && strings.Contains(string(p.GetPatch()), "Delete") {
					committed = true
				}
				return false, nil, nil
			})
			err := d.Delete(context.Background(), o)
			if requests <= at {
				break
			}
			if len(w.deleted) > 0 && !committed {
				t.Errorf("%s: request %d fails, and it was deleted: %v", o.What, at, err)
			}
			if err == nil && len(w.deleted) == 0 {
				t.Errorf("%s: request %d fails, and the result is no error", o.What, at)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	d, _ := deletion(t, all()...)
	if err := d.Check(Report{}); err != nil {
		t.Error(err)
	}
	if err := d.Check(Report{Pending: []string{"default/c1"}}); err == nil || !strings.Contains(err.Error(), "default/c1") {
		t.Errorf("with a pending claim: %v", err)
	}
	d.Driver.Nodes, d.Driver.Controller = nil, nil
	if err := d.Check(Report{}); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("of a share: %v", err)
	}
	some, others := Deletable([]Orphan{lostVolume, {"snapshot", inventory.Object{ID: m1, Group: g1}}})
	if len(some) != 1 || others != 1 {
		t.Errorf("%v, %d", some, others)
	}
}
