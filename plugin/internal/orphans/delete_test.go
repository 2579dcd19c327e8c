package orphans

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

// sidecars behave as the controllers of Kubernetes and the sidecars of the driver: a released
// PersistentVolume with the policy Delete, and a deleted content with that policy, are deleted with
// the volume or snapshot in them. A content gets its handle in its status when the queue of the
// snapshotter runs. Without the handle its snapshot is not deleted, as in external-snapshotter
// v8.7.0.
type sidecars struct {
	clients *fake.Clients
	deleted []string // IDs
	refuses error    // of the driver
	lost    bool     // the driver answers, and deletes nothing
	phase   string   // of new volumes
	lag     int      // requests until the queue runs, for each content
	queue   map[string]int
}

// delete is a call of the driver.
func (s *sidecars) delete(id string) {
	if !s.lost {
		s.deleted = append(s.deleted, id)
	}
}

func (s *sidecars) watch() {
	tracker := s.clients.Dynamic.Tracker()
	s.clients.Dynamic.PrependReactor("get", "volumesnapshotcontents", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		name := a.(clienttesting.GetAction).GetName()
		if s.queue[name]++; s.queue[name] != s.lag {
			return false, nil, nil
		}
		stored, err := tracker.Get(a.GetResource(), "", name)
		if err != nil {
			return true, nil, err
		}
		o := stored.(*unstructured.Unstructured).DeepCopy()
		handle, _, _ := unstructured.NestedString(o.Object, "spec", "source", "snapshotHandle")
		o.Object["status"] = map[string]any{"snapshotHandle": handle}
		return true, o, tracker.Update(a.GetResource(), o, "")
	})
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
			s.delete(handle)
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
			if handle, _, _ := unstructured.NestedString(o.Object, "status", "snapshotHandle"); handle != "" {
				s.delete(handle)
			}
		}
		return true, nil, tracker.Delete(a.GetResource(), "", name)
	})
}

// deletion returns a deletion in a cluster with objects.
func deletion(t *testing.T, objects ...*unstructured.Unstructured) (*Deletion, *sidecars) {
	t.Helper()
	s, clients := search(t, objects...)
	w := &sidecars{clients: clients, phase: "Released", lag: 3, queue: map[string]int{}}
	w.watch()
	s.List = func(context.Context) (*inventory.Inventory, error) {
		all := held()
		gone := func(o inventory.Object) bool { return slices.Contains(w.deleted, o.ID) }
		all.Volumes, all.Snapshots = slices.DeleteFunc(all.Volumes, gone), slices.DeleteFunc(all.Snapshots, gone)
		return all, nil
	}
	return &Deletion{Search: *s, Wait: time.Minute, Poll: time.Second, Log: t.Output()}, w
}

// list returns the objects of a kind.
func (s *sidecars) list(t *testing.T, resource schema.GroupVersionResource, kind string) []unstructured.Unstructured {
	t.Helper()
	l, err := s.clients.Dynamic.Tracker().List(resource, resource.GroupVersion().WithKind(kind), "")
	if err != nil {
		t.Fatal(err)
	}
	return l.(*unstructured.UnstructuredList).Items
}

// reservations returns the names of the reservations in the cluster.
func (s *sidecars) reservations(t *testing.T) (names []string) {
	t.Helper()
	for _, o := range slices.Concat(s.list(t, volumes, volumeKind), s.list(t, contents, contentKind)) {
		if o.GetLabels()[reservationLabel] != "" {
			names = append(names, o.GetName())
		}
	}
	return names
}

var (
	lostVolume   = Orphan{"volume", inventory.Object{ID: v2, Size: 2 << 30}}
	lostSnapshot = Orphan{"snapshot", inventory.Object{ID: s2}}
)

func TestOrphansAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := deletion(t, without(all(), 1, 4)...)
		for _, o := range []Orphan{lostVolume, lostSnapshot} {
			if err := d.Delete(context.Background(), o); err != nil {
				t.Errorf("%s: %v", o.What, err)
			}
		}
		if got := strings.Join(w.deleted, " "); got != v2+" "+s2 || len(w.reservations(t)) > 0 {
			t.Errorf("deleted %s, left %v", got, w.reservations(t))
		}
	})
}

// An object that names the orphan appears before any request of the deletion, in turn. The orphan
// is saved if a list of the kind of that object follows before the policy is Delete. Otherwise it
// is deleted. Nothing else happens, and no reservation is left.
func TestAnObjectThatAppearsSavesItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := map[string]func(id string) *unstructured.Unstructured{
			"a PersistentVolume": pv, "a content": content,
			"a claim with an annotation": func(id string) *unstructured.Unstructured {
				o := pvc("x", "Bound")
				o.SetAnnotations(map[string]string{"keep": id})
				return o
			},
			"a pending claim": func(string) *unstructured.Unstructured { return pvc("y", "Pending") },
		}
		resources := map[string]string{volumeKind: "persistentvolumes", contentKind: "volumesnapshotcontents", "PersistentVolumeClaim": "persistentvolumeclaims"}
		for name, appears := range names {
			for _, o := range []Orphan{lostVolume, lostSnapshot} {
				saved, tooLate := 0, 0
				for at := 0; ; at++ {
					d, w := deletion(t, without(all(), 1, 4)...)
					requests, committed, added, seen := 0, false, false, false
					object := appears(o.ID)
					resource := resources[object.GetKind()]
					w.clients.Dynamic.PrependReactor("*", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
						if requests == at {
							added = true
							gvr := object.GroupVersionKind().GroupVersion().WithResource(resource)
							if err := w.clients.Dynamic.Tracker().Create(gvr, object, object.GetNamespace()); err != nil {
								t.Error(err)
							}
						}
						requests++
						if p, ok := a.(clienttesting.PatchAction); ok && strings.Contains(string(p.GetPatch()), `"Delete"`) {
							committed = true
						}
						seen = seen || added && !committed && a.Matches("list", resource)
						return false, nil, nil
					})
					err := d.Delete(context.Background(), o)
					if !added {
						break // the deletion has no more requests
					}
					if seen {
						saved++
					} else {
						tooLate++
					}
					if seen != (err != nil) || seen == committed || seen == (len(w.deleted) > 0) || len(w.reservations(t)) > 0 {
						t.Errorf("%s appears before request %d, seen %v: %v, committed %v, deleted %v, left %v", name, at, seen, err, committed,
							w.deleted, w.reservations(t))
					}
				}
				if saved < 2*3 || tooLate < 2 {
					t.Errorf("%s: saved %d, too late %d", name, saved, tooLate)
				}
			}
		}
	})
}

// A sidecar that has not seen the content yet would remove it, and leave the snapshot.
func TestAContentWithoutAStatusIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := deletion(t, without(all(), 4)...)
		w.lag = -1
		err := d.Delete(context.Background(), lostSnapshot)
		if err == nil || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "handle in its status") || len(w.reservations(t)) > 0 {
			t.Errorf("%v, left %v", err, w.reservations(t))
		}
	})
}

// The end of the reservation is no proof: the list of the driver is.
func TestADriverThatStillHoldsTheOrphanIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []Orphan{lostVolume, lostSnapshot} {
			d, w := deletion(t, without(all(), 1, 4)...)
			w.lost = true
			if err := d.Delete(context.Background(), o); err == nil || !strings.Contains(err.Error(), "still holds it") {
				t.Errorf("%s: %v", o.What, err)
			}
			d, _ = deletion(t, without(all(), 1, 4)...)
			d.List = func(context.Context) (*inventory.Inventory, error) { return nil, errors.New("node-2 is away") }
			if err := d.Delete(context.Background(), o); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "node-2 is away") {
				t.Errorf("%s: %v", o.What, err)
			}
		}
	})
}

// A run that is killed, or cannot reach the API server, after step 4 leaves the policy Delete.
func TestAPolicyThatAnInterruptedRunLeftIsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []Orphan{lostVolume, lostSnapshot} {
			d, w := deletion(t, without(all(), 1, 4)...)
			w.refuses = errors.New("Unavailable")
			broken := false
			w.clients.Dynamic.PrependReactor("*", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
				if p, ok := a.(clienttesting.PatchAction); ok && strings.Contains(string(p.GetPatch()), `"Retain"`) && !broken {
					return true, nil, errors.New("connection refused")
				}
				return false, nil, nil
			})
			err := d.Delete(context.Background(), o)
			if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "kubectl causeway orphans again") || !strings.Contains(err.Error(), "may be left") {
				t.Errorf("%s: %v", o.What, err)
			}
			broken = true
			for _, want := range []string{"Delete", "Retain"} {
				r, err := d.Find(context.Background())
				if err != nil || len(r.Reservations) != 1 || r.Reservations[0].Policy != want {
					t.Fatalf("%s: %+v, %v, want %s", o.What, r.Reservations, err, want)
				}
				d.Report = r
				if err := d.Reset(context.Background()); err != nil || len(w.deleted) > 0 {
					t.Errorf("%s: %v, deleted %v", o.What, err, w.deleted)
				}
			}
		}
	})
}

func TestNothingIsDeletedIfAKindIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, change := range map[string]func(w *sidecars){
			"no content any more": func(w *sidecars) {
				for _, o := range w.list(t, contents, contentKind) {
					if err := w.clients.Dynamic.Tracker().Delete(contents, "", o.GetName()); err != nil {
						t.Error(err)
					}
				}
			},
			"no group of snapshots any more": func(w *sidecars) {
				w.clients.Kube.Resources = slices.DeleteFunc(w.clients.Kube.Resources, func(l *metav1.APIResourceList) bool {
					return strings.HasPrefix(l.GroupVersion, "groupsnapshot")
				})
			},
		} {
			d, w := deletion(t, without(all(), 1, 5, 6)...)
			var err error
			if d.Report, err = d.Find(context.Background()); err != nil {
				t.Fatal(err)
			}
			change(w)
			if err := d.Delete(context.Background(), lostVolume); !errors.Is(err, ErrNoConclusion) || len(w.deleted) > 0 {
				t.Errorf("%s: %v, deleted %v", name, err, w.deleted)
			}
		}
	})
}

func TestADriverThatRefusesKeepsTheOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []Orphan{lostVolume, lostSnapshot} {
			d, w := deletion(t, without(all(), 1, 4)...)
			w.refuses = errors.New("FailedPrecondition: mounted")
			if err := d.Delete(context.Background(), o); err == nil || !strings.Contains(err.Error(), "was not deleted") {
				t.Errorf("%s: %v", o.What, err)
			}
			if len(w.deleted) > 0 || len(w.reservations(t)) > 0 {
				t.Errorf("%s: deleted %v, left %v", o.What, w.deleted, w.reservations(t))
			}
		}
	})
}

func TestAVolumeThatIsNotReleasedIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := deletion(t, without(all(), 1)...)
		w.phase = "Bound"
		if err := d.Delete(context.Background(), lostVolume); err == nil || len(w.deleted) > 0 || len(w.reservations(t)) > 0 {
			t.Errorf("%v: deleted %v, left %v", err, w.deleted, w.reservations(t))
		}
	})
}

// Any request may fail, or be the last before an interrupt.
func TestAFailedRequestDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// With DespitePending a pending claim protects its own volume only.
func TestDespitePendingClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for uid, want := range map[string]error{"y": nil, "2": ErrNamed} { // lostVolume is that of the claim 2
			d, w := deletion(t, append(without(all(), 1, 4), pvc(uid, "Pending"))...)
			if err := d.Delete(t.Context(), lostVolume); err == nil {
				t.Errorf("claim %s is pending: deleted without the flag", uid)
			}
			d.DespitePending = true
			d.Report = Report{Pending: []string{"default/c1"}}
			if err := d.Check(); err != nil {
				t.Errorf("Check = %v", err)
			}
			if err := d.Delete(t.Context(), lostVolume); !errors.Is(err, want) || (want == nil) != (len(w.deleted) == 1) {
				t.Errorf("claim %s is pending: %v, want %v; deleted %v", uid, err, want, w.deleted)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := deletion(t, all()...)
		if err := d.Check(); err != nil {
			t.Error(err)
		}
		d.Report = Report{Pending: []string{"default/c1"}}
		if err := d.Check(); err == nil || !strings.Contains(err.Error(), "default/c1") {
			t.Errorf("with a pending claim: %v", err)
		}
		d.Report = Report{}
		spec := &d.Driver.Controller.Template.Spec
		for arguments, ok := range map[string]bool{
			"--provisioner-volume-name-prefix=p": true, "-snapshotter-snapshot-name-uuid-length=8": true,
			"--volume-name-prefix=p": false, "--provisioner-volume-name-prefix p": false, "--snapshot-name-uuid-length=8": false,
			"--provisioner-volume-name-prefix=$(PREFIX)": false, "--provisioner-volume-name-uuid-length=": false,
			"-c exec&csi-sidecars&--volume-name-prefix=p": false,
		} {
			before := spec.Containers
			spec.Containers = append(slices.Clone(before), corev1.Container{Name: "csi-provisioner", Args: strings.Fields(arguments)})
			if err := d.Check(); ok != (err == nil) {
				t.Errorf("%s: %v", arguments, err)
			}
			spec.Containers = before
		}
		d.Driver.Nodes, d.Driver.Controller = nil, nil
		if err := d.Check(); err == nil || !strings.Contains(err.Error(), "another cluster") {
			t.Errorf("of a share: %v", err)
		}
		some, others := Deletable([]Orphan{lostVolume, {"snapshot", inventory.Object{ID: m1, Group: g1}}})
		if len(some) != 1 || others != 1 {
			t.Errorf("%v, %d", some, others)
		}
	})
}

// An event about another object of the same name does not explain why a reservation stays.
func TestTheNewestEventOfAnObject(t *testing.T) {
	event := func(uid types.UID, minute int, message string) corev1.Event {
		return corev1.Event{InvolvedObject: corev1.ObjectReference{UID: uid}, Message: message,
			LastTimestamp: metav1.NewTime(time.Date(2026, 11, 28, 12, minute, 0, 0, time.UTC))}
	}
	events := []corev1.Event{event("1", 1, "old"), event("1", 3, "new"), event("1", 2, "later in the list"), event("2", 4, "of another")}
	if e := newest(events, "1"); e == nil || e.Message != "new" {
		t.Errorf("the newest event: %+v", e)
	}
	if e := newest(events, "3"); e != nil {
		t.Errorf("an event of another object: %+v", e)
	}
}
