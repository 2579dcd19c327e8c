package orphans

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/causeway-csi/causeway/internal/inventory"
	"github.com/causeway-csi/causeway/pkg/volumeid"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

var (
	v1, v2, v3 = volumeid.New(volumeid.Volume, "n1", "pvc-1"), volumeid.New(volumeid.Volume, "n1", "pvc-2"), volumeid.New(volumeid.Volume, "n2", "pvc-3")
	s1, s2     = volumeid.New(volumeid.Snapshot, "n1", "snapshot-1"), volumeid.New(volumeid.Snapshot, "n2", "snapshot-2")
	g1, g2     = volumeid.New(volumeid.Group, "n1", "groupsnapshot-1"), volumeid.New(volumeid.Group, "n1", "groupsnapshot-2")
	m1, m2, m3 = volumeid.New(volumeid.Snapshot, "n1", "m1"), volumeid.New(volumeid.Snapshot, "n1", "m2"), volumeid.New(volumeid.Snapshot, "n1", "m3")
	labels     = map[string]string{v1: "v1", v2: "v2", v3: "v3", s1: "s1", s2: "s2", m1: "m1", m2: "m2", m3: "m3"}
)

// held returns the list of the driver: three volumes, two snapshots, a group of two and a group of
// one.
func held() *inventory.Inventory {
	return &inventory.Inventory{Driver: fake.Driver, Volumes: []inventory.Object{{ID: v1, Size: 1 << 30}, {ID: v2, Size: 2 << 30, Source: s1}, {ID: v3}},
		Snapshots: []inventory.Object{{ID: s1, Source: v1}, {ID: s2, Source: v3}, {ID: m1, Group: g1}, {ID: m2, Group: g1}, {ID: m3, Group: g2}}}
}

var versions = map[string]string{"PersistentVolume": "v1", "PersistentVolumeClaim": "v1", "VolumeAttachment": "storage.k8s.io/v1",
	"VolumeSnapshotContent": "snapshot.storage.k8s.io/v1", "VolumeSnapshot": "snapshot.storage.k8s.io/v1",
	"VolumeGroupSnapshotContent": "groupsnapshot.storage.k8s.io/v1", "VolumeGroupSnapshot": "groupsnapshot.storage.k8s.io/v1"}

var serial int

// object returns an object of a kind with a spec.
func object(kind string, spec map[string]any) *unstructured.Unstructured {
	serial++
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": versions[kind], "kind": kind, "spec": spec,
		"metadata": map[string]any{"name": fmt.Sprintf("o-%d", serial), "uid": fmt.Sprintf("uid-%d", serial)}}}
	if kind == "PersistentVolumeClaim" || kind == "VolumeSnapshot" || kind == "VolumeGroupSnapshot" {
		o.SetNamespace("default")
	}
	return o
}

func pv(id string) *unstructured.Unstructured {
	return object("PersistentVolume", map[string]any{"csi": map[string]any{"driver": fake.Driver, "volumeHandle": id}})
}

func content(id string) *unstructured.Unstructured {
	return object("VolumeSnapshotContent", map[string]any{"driver": fake.Driver, "source": map[string]any{"snapshotHandle": id}})
}

func groupContent(id string, members ...any) *unstructured.Unstructured {
	return object("VolumeGroupSnapshotContent", map[string]any{"driver": fake.Driver, "source": map[string]any{
		"groupSnapshotHandles": map[string]any{"volumeGroupSnapshotHandle": id, "volumeSnapshotHandles": members}}})
}

func pvc(uid, phase string) *unstructured.Unstructured {
	o := object("PersistentVolumeClaim", map[string]any{"storageClassName": "causeway-hostpath"})
	o.SetUID(types.UID(uid))
	o.Object["status"] = map[string]any{"phase": phase}
	return o
}

// all are objects that name everything.
func all() []*unstructured.Unstructured {
	return []*unstructured.Unstructured{pv(v1), pv(v2), pv(v3), content(s1), content(s2), groupContent(g1, m1, m2), groupContent(g2, m3)}
}

// search returns a search in a cluster with objects, and its fake.
func search(t *testing.T, objects ...*unstructured.Unstructured) (*Search, *fake.Clients) {
	t.Helper()
	c := fake.Healthy()
	c.Custom = objects
	return searchIn(t, c)
}

func searchIn(t *testing.T, c *fake.Cluster) (*Search, *fake.Clients) {
	t.Helper()
	clients := c.Clients()
	found, err := cluster.Find(context.Background(), clients.Client, cluster.Selection{})
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return &Search{Client: clients.Client, Driver: found[0],
		List:  func(context.Context) (*inventory.Inventory, error) { return held(), nil },
		Sleep: func(context.Context, time.Duration) error { return nil }}, clients
}

// summary is a report in a line: counts as held/named/orphans, with ? for a count that was not
// judged, and the orphans.
func summary(r Report) string {
	var s strings.Builder
	for _, c := range []Count{r.Volumes, r.Snapshots, r.Members} {
		fmt.Fprintf(&s, "%d/%d/%d", c.Held, c.Named, c.Orphans)
		if c.NotJudged != "" {
			s.WriteByte('?')
		}
		s.WriteByte(' ')
	}
	for _, o := range r.Orphans {
		s.WriteString(labels[o.ID] + " ")
	}
	return strings.TrimSpace(s.String())
}

func without(objects []*unstructured.Unstructured, n ...int) (rest []*unstructured.Unstructured) {
	for i, o := range objects {
		keep := true
		for _, j := range n {
			keep = keep && i != j
		}
		if keep {
			rest = append(rest, o)
		}
	}
	return rest
}

func TestANamedVolumeIsNoOrphan(t *testing.T) {
	annotated := object("PersistentVolumeClaim", map[string]any{})
	annotated.SetAnnotations(map[string]string{"note": "keep " + v2 + " please"})
	annotated.Object["status"] = map[string]any{"phase": "Bound"}
	quoted := object("PersistentVolume", map[string]any{"csi": map[string]any{"driver": "other", "volumeAttributes": map[string]any{"json": `{"x":"\n` + v2 + `"}`}}})
	attached := object("VolumeAttachment", map[string]any{"source": map[string]any{"inlineVolumeSpec": map[string]any{"csi": map[string]any{"volumeHandle": v2}}}})
	ofVolume := object("VolumeSnapshotContent", map[string]any{"driver": fake.Driver, "source": map[string]any{"volumeHandle": v2}})
	status := object("VolumeSnapshotContent", map[string]any{"driver": fake.Driver})
	status.Object["status"] = map[string]any{"snapshotHandle": s2}
	info := object("VolumeGroupSnapshotContent", map[string]any{})
	info.Object["status"] = map[string]any{"volumeSnapshotInfoList": []any{map[string]any{"snapshotHandle": m2, "volumeHandle": v3}}}
	snapshotOf := object("VolumeSnapshot", map[string]any{})
	snapshotOf.SetUID("2")
	groupOf := object("VolumeGroupSnapshot", map[string]any{})
	groupOf.SetUID("2")
	referring := func(o *unstructured.Unstructured, field string) *unstructured.Unstructured {
		o.Object["spec"].(map[string]any)[field] = map[string]any{"uid": "2", "name": "x"}
		return o
	}
	for name, tc := range map[string]struct {
		objects []*unstructured.Unstructured
		want    string
	}{
		"named by a reference to its claim":    {append(without(all(), 1), referring(pv("x"), "claimRef")), "3/3/0 2/2/0 3/3/0"},
		"named by a reference to its snapshot": {append(without(all(), 4), referring(content("x"), "volumeSnapshotRef")), "3/3/0 2/2/0 3/3/0"},
		"named by a reference to its group":    {append(without(all(), 6), referring(groupContent("x"), "volumeGroupSnapshotRef")), "3/3/0 2/2/0 3/3/0"},
		"all named":                            {all(), "3/3/0 2/2/0 3/3/0"},
		"a volume":                             {without(all(), 1), "3/2/1 2/2/0 3/3/0 v2"},
		"a snapshot":                           {without(all(), 4), "3/3/0 2/1/1 3/3/0 s2"},
		"a group":                              {without(all(), 6), "3/3/0 2/2/0 3/2/1 m3"},
		"named in an annotation":               {append(without(all(), 1), annotated), "3/3/0 2/2/0 3/3/0"},
		"named in JSON in a string":            {append(without(all(), 1), quoted), "3/3/0 2/2/0 3/3/0"},
		"named in an attachment":               {append(without(all(), 1), attached), "3/3/0 2/2/0 3/3/0"},
		"named as the source of a snapshot":    {append(without(all(), 1), ofVolume), "3/3/0 2/2/0 3/3/0"},
		"named in a status":                    {append(without(all(), 4), status), "3/3/0 2/2/0 3/3/0"},
		"a group of which a member is named":   {append(without(all(), 5), content(m2)), "3/3/0 2/2/0 3/3/0"},
		"a group named in its status":          {append(without(all(), 5), info), "3/3/0 2/2/0 3/3/0"},
		"the volume of a bound claim":          {append(without(all(), 1), pvc("2", "Bound")), "3/3/0 2/2/0 3/3/0"},
		"the volume of a pending claim":        {append(without(all(), 1), pvc("2", "Pending")), "3/3/0 2/2/0 3/3/0"},
		"the snapshot of a VolumeSnapshot":     {append(without(all(), 4), snapshotOf), "3/3/0 2/2/0 3/3/0"},
		"the group of a VolumeGroupSnapshot":   {append(without(all(), 6), groupOf), "3/3/0 2/2/0 3/3/0"},
		"no volumes":                           {all()[3:], "3/0/0? 2/2/0 3/3/0"},
		"no snapshots":                         {all()[:3], "3/3/0 2/0/0? 3/0/0?"},
		"no groups":                            {all()[:5], "3/3/0 2/2/0 3/0/0?"},
		"only a volume of another driver":      {append(all()[3:], pv("x")), "3/0/0? 2/2/0 3/3/0"},
		"only a snapshot of another driver":    {append(without(all(), 3, 4), content("x")), "3/3/0 2/0/0? 3/3/0"},
		"only a group of another driver":       {append(without(all(), 5, 6), groupContent("x")), "3/3/0 2/2/0 3/0/0?"},
		"only objects of another cluster":      {[]*unstructured.Unstructured{pv("x")}, "3/0/0? 2/0/0? 3/0/0?"},
		"a claim of another name and a volume": {append(without(all(), 1), pvc("9", "Bound")), "3/2/1 2/2/0 3/3/0 v2"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := search(t, tc.objects...)
			r, err := s.Find(context.Background())
			if got := summary(r); err != nil || got != tc.want {
				t.Errorf("%s, %v, want %s", got, err, tc.want)
			}
		})
	}
}

func TestTheOperatorMayExpectNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		objects []*unstructured.Unstructured
		o       Options
		want    string
	}{
		"no volumes":    {all()[3:], Options{NoVolumes: true}, "3/0/3 2/2/0 3/3/0 v1 v2 v3"},
		"none is named": {append(all()[3:], pv("x")), Options{NoneNamed: true}, "3/0/3 2/2/0 3/3/0 v1 v2 v3"},
		"no groups":     {all()[:5], Options{NoGroups: true}, "3/3/0 2/2/0 3/0/3 m1 m2 m3"},
		"no snapshots":  {all()[:3], Options{NoSnapshots: true}, "3/3/0 2/0/2 3/0/0? s1 s2"},
		"nothing": {nil, Options{NoVolumes: true, NoSnapshots: true, NoGroups: true, NoneNamed: true},
			"3/0/3 2/0/2 3/0/3 v1 v2 v3 s1 s2 m1 m2 m3"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := search(t, tc.objects...)
			s.Options = tc.o
			r, err := s.Find(context.Background())
			got := strings.Fields(summary(r))
			if err != nil || strings.Join(sortedCopy(got), " ") != strings.Join(sortedCopy(strings.Fields(tc.want)), " ") {
				t.Errorf("%s, %v, want %s", summary(r), err, tc.want)
			}
		})
	}
}

func sortedCopy(words []string) []string {
	c := append([]string(nil), words...)
	for i := range c {
		for j := i + 1; j < len(c); j++ {
			if c[j] < c[i] {
				c[i], c[j] = c[j], c[i]
			}
		}
	}
	return c
}

func TestNoConclusion(t *testing.T) {
	s, _ := search(t)
	s.Options = Options{NoVolumes: true, NoSnapshots: true, NoGroups: true}
	if r, err := s.Find(context.Background()); !errors.Is(err, ErrNoConclusion) || !strings.Contains(err.Error(), "--expect-none-named") {
		t.Errorf("no objects: %s, %v", summary(r), err)
	}
	for _, kind := range kinds {
		c := fake.Healthy()
		c.Custom = without(all(), 1)
		c.Refuse[kind.resource] = errors.New("forbidden")
		s, _ := searchIn(t, c)
		if r, err := s.Find(context.Background()); !errors.Is(err, ErrNoConclusion) || !strings.Contains(err.Error(), kind.resource) {
			t.Errorf("without %s: %s, %v", kind.resource, summary(r), err)
		}
	}
	s, _ = search(t, all()...)
	s.List = func(context.Context) (*inventory.Inventory, error) {
		return &inventory.Inventory{Driver: "another"}, nil
	}
	if _, err := s.Find(context.Background()); !errors.Is(err, ErrNoConclusion) {
		t.Errorf("another driver: %v", err)
	}
	s.List = func(context.Context) (*inventory.Inventory, error) {
		return nil, errors.New("not all nodes answer: node-2")
	}
	if _, err := s.Find(context.Background()); err == nil || !strings.Contains(err.Error(), "node-2") {
		t.Errorf("a list that fails: %v", err)
	}
	for _, output := range []string{"", `{"driver":"x","volumes":[]}`, `{"driver":"x","volumes":[],"snapshots":[]`, `{"volumes":[],"snapshots":[]}`,
		`{"driver":"x","volumes":[],"snapshots":[{"id":"s","member-of":"g"}]}`,
		`{"driver":"x","volumes":[],"snapshots":[]}{}`, `{"driver":"x","volumes":[],"snapshots":[]}]`} {
		if all, err := decode([]byte(output)); err == nil {
			t.Errorf("%s: %+v", output, all)
		}
	}
}

// A list in pages counts as a whole: a failure of a later page gives no conclusion.
func TestPagesAreReadToTheEnd(t *testing.T) {
	for _, fails := range []bool{false, true} {
		s, clients := search(t, without(all(), 1, 2)...)
		pages := 0
		clients.Dynamic.PrependReactor("list", "persistentvolumes", func(clienttesting.Action) (bool, kruntime.Object, error) {
			page := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeList"}}
			switch pages++; pages {
			case 1:
				page.Items = []unstructured.Unstructured{*pv(v1)}
				page.SetContinue("more")
			default:
				if fails {
					return true, nil, errors.New("410 Expired")
				}
				page.Items = []unstructured.Unstructured{*pv(v2), *pv(v3)}
			}
			return true, page, nil
		})
		r, err := s.Find(context.Background())
		if fails != (err != nil) || !fails && summary(r) != "3/3/0 2/2/0 3/3/0" {
			t.Errorf("fails %v: %s, %v", fails, summary(r), err)
		}
	}
}

func TestAListWithoutEndIsNoList(t *testing.T) {
	s, clients := search(t, all()...)
	clients.Dynamic.PrependReactor("list", "persistentvolumes", func(clienttesting.Action) (bool, kruntime.Object, error) {
		page := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeList"}}
		page.SetContinue("more")
		return true, page, nil
	})
	if r, err := s.Find(context.Background()); !errors.Is(err, ErrNoConclusion) {
		t.Errorf("%s, %v", summary(r), err)
	}
}

// The objects are read after the list and the time to settle: a volume that is made in between is
// in neither.
func TestObjectsAreReadLast(t *testing.T) {
	s, clients := search(t, all()...)
	order := ""
	list := s.List
	s.List = func(ctx context.Context) (*inventory.Inventory, error) { order += "list "; return list(ctx) }
	s.Settle = 30 * time.Second
	s.Sleep = func(_ context.Context, d time.Duration) error { order += d.String() + " "; return nil }
	clients.Dynamic.PrependReactor("list", "*", func(clienttesting.Action) (bool, kruntime.Object, error) {
		order += "objects "
		return false, nil, nil
	})
	if _, err := s.Find(context.Background()); err != nil || !strings.HasPrefix(order, "list 30s objects ") || strings.Count(order, "list") != 1 {
		t.Errorf("%s, %v", order, err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("interrupted"))
	s.Sleep = nil
	if _, err := s.Find(ctx); err == nil {
		t.Error("an interrupted sleep is no error")
	}
}

// TestAnIDInAnyPlaceNamesItsVolume puts an ID somewhere into objects made at random: into a key, a
// value, JSON in a string.
func TestAnIDInAnyPlaceNamesItsVolume(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := object("PersistentVolume", map[string]any{})
		if seed%3 == 0 {
			o.SetAnnotations(map[string]string{"a": fmt.Sprintf("%x%s%x", r.Uint64(), v2, r.Uint64())})
		} else {
			value := map[string]any{"k": v2}
			for range r.IntN(5) {
				if r.IntN(2) == 0 {
					data, err := json.Marshal(value)
					if err != nil {
						t.Fatal(err)
					}
					value = map[string]any{"text": string(data)}
				} else {
					value = map[string]any{"x" + fmt.Sprint(r.IntN(9)): []any{value, "y"}}
				}
			}
			o.Object["spec"] = value
		}
		s, _ := search(t, append(without(all(), 1), o)...)
		got, err := s.Find(context.Background())
		if err != nil || len(got.Orphans) > 0 {
			t.Fatalf("seed %d: %s, %v: %v", seed, summary(got), err, o.Object)
		}
	}
}

func TestPendingClaimsAndReservationsAreReported(t *testing.T) {
	bound := pvc("7", "Bound")
	foreign := pvc("8", "Pending")
	foreign.Object["spec"] = map[string]any{"storageClassName": "manual"}
	byHand := pvc("9", "Pending")
	byHand.Object["spec"] = map[string]any{"storageClassName": ""}
	left := pv(v2)
	left.SetLabels(map[string]string{reservationLabel: "true"})
	left.SetName("causeway-orphan-x")
	left.Object["spec"].(map[string]any)[volumePolicy] = "Delete"
	c := fake.Healthy()
	class := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "other",
		"metadata": map[string]any{"name": "manual"}}}
	c.Custom = append(without(all(), 1), bound, foreign, byHand, pvc("10", "Pending"), left, class)
	s, _ := searchIn(t, c)
	r, err := s.Find(context.Background())
	if err != nil || len(r.Pending) != 1 || len(r.Reservations) != 1 || len(r.Orphans) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	var text strings.Builder
	if err := r.Text(&text); err != nil || !strings.Contains(text.String(), "Its policy is Delete: a sidecar deletes") {
		t.Errorf("%v: %s", err, text.String())
	}
}

// The label alone makes no reservation, whose policy a delete would set. The volume that the object
// names is no orphan in any case.
func TestAnObjectOfATenantIsNoReservation(t *testing.T) {
	named := pv(v3).GetName()
	of := func(kind, name string, spec map[string]any) *unstructured.Unstructured {
		o := object(kind, spec)
		o.SetName(name)
		o.SetLabels(map[string]string{reservationLabel: "true"})
		o.SetAnnotations(map[string]string{"note": v2, "snapshot": s2})
		return o
	}
	bound := of("PersistentVolumeClaim", named, map[string]any{"volumeName": "x"})
	bound.Object["status"] = map[string]any{"phase": "Bound"}
	theirs := map[string]any{"driver": "other", "csi": map[string]any{"driver": "other", "volumeHandle": v2}, volumePolicy: "Delete", contentPolicy: "Delete"}
	own := map[string]any{"driver": fake.Driver, "csi": map[string]any{"driver": fake.Driver, "volumeHandle": v2}, volumePolicy: "Delete", contentPolicy: "Delete"}
	for _, o := range []*unstructured.Unstructured{bound, of("VolumeSnapshot", "causeway-orphan-a", own), of("VolumeGroupSnapshotContent", "causeway-orphan-a", own),
		of("PersistentVolume", "causeway-orphan-a", theirs), of("VolumeSnapshotContent", "causeway-orphan-a", theirs), of("PersistentVolume", "my-volume", own),
		of("VolumeSnapshotContent", "my-content", own), of("VolumeAttachment", "causeway-orphan-a", own)} {
		s, clients := search(t, append(without(all(), 1, 4), o)...)
		r, err := s.Find(t.Context())
		if err != nil || len(r.Reservations) > 0 || len(r.Orphans) > 0 {
			t.Fatalf("%s/%s: %+v, %v", o.GetKind(), o.GetName(), r, err)
		}
		d := Deletion{Search: *s, Report: r, Log: io.Discard}
		if err := d.Reset(t.Context()); err != nil {
			t.Error(err)
		}
		for _, a := range clients.Dynamic.Actions() {
			if a.GetVerb() != "list" {
				t.Errorf("%s/%s: %s %s", o.GetKind(), o.GetName(), a.GetVerb(), a.GetResource().Resource)
			}
		}
	}
}

func TestAReportNamesItsPendingClaims(t *testing.T) {
	r := Report{Orphans: make([]Orphan, 1)}
	for i := range 12 {
		r.Pending = append(r.Pending, fmt.Sprintf("default/c%d", i))
	}
	for n, want := range map[int]string{1: "later: default/c0\n", 2: "later: default/c0, default/c1\n", 12: ", default/c9 and 2 more\n"} {
		some := r
		some.Pending = r.Pending[:n]
		var text strings.Builder
		if err := some.Text(&text); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("%v: %q is not in\n%s", err, want, text.String())
		}
	}
}

func TestReportsAsText(t *testing.T) {
	s, _ := search(t, without(all(), 1)...)
	r, err := s.Find(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	r.Orphans[0].Nodes = []string{"n\x1b[2J"}
	var text strings.Builder
	if err := r.Text(&text); err != nil || !strings.Contains(text.String(), `volume  `+v2+`  2147483648  "n\x1b[2J"  -        `+s1) ||
		!strings.Contains(text.String(), "volumes: 3 held, 2 named, 1 orphans") {
		t.Errorf("%v: %s", err, text.String())
	}
}

// The typed fields count by themselves, not only by the search in the text.
func TestHandlesOfTypedFields(t *testing.T) {
	content := object("VolumeSnapshotContent", map[string]any{"source": map[string]any{"volumeHandle": "a", "snapshotHandle": "b"}})
	content.Object["status"] = map[string]any{"snapshotHandle": "c", "volumeGroupSnapshotHandle": "d"}
	group := groupContent("e", "f", "g")
	group.Object["status"] = map[string]any{"volumeGroupSnapshotHandle": "h", "volumeSnapshotInfoList": []any{
		map[string]any{"volumeHandle": "i", "snapshotHandle": "j"}}}
	dynamic := object("VolumeGroupSnapshotContent", map[string]any{"source": map[string]any{"volumeHandles": []any{"k", "l"}}})
	for want, o := range map[string]*unstructured.Unstructured{"x": pv("x"), "abcd": content, "efghij": group, "kl": dynamic} {
		if got := strings.Join(handles(o.GetKind(), o), ""); got != want {
			t.Errorf("%s: %s, want %s", o.GetKind(), got, want)
		}
	}
	n := &names{ids: map[string]bool{}, digests: map[digestKey]bool{}, prefix: (&Search{Driver: &cluster.Driver{}}).volumeName}
	if err := n.object(volumeKind, pv("another form of ID@address")); err != nil || !n.ids["another form of ID"] {
		t.Errorf("%v: %v", n.ids, err)
	}
}

// A pod whose disk stalls, or that fails, is not the only one. Nothing of its output is used.
func TestTheNextPodOfTheControllerIsAsked(t *testing.T) {
	c := fake.Healthy()
	client := c.Clients().Client
	found, err := cluster.Find(t.Context(), client, cluster.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	pods := found[0].ControllerPods()
	c.Pods.Hangs = pods[0].Name
	c.Pods.OnExec = func(_, _ string, _ []string, out io.Writer) error {
		_, err := io.WriteString(out, "second")
		return err
	}
	synctest.Test(t, func(t *testing.T) {
		if out, err := InController(t.Context(), client, found[0], cluster.ListTimeout, "/driver", "list"); string(out) != "second" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
	c.Pods.Hangs = ""
	c.Pods.OnExec = func(pod, _ string, _ []string, out io.Writer) error {
		if _, err := io.WriteString(out, pod); err != nil || pod == pods[0].Name {
			return errors.Join(err, errors.New("broken"))
		}
		return nil
	}
	if out, err := InController(t.Context(), client, found[0], time.Minute, "x"); string(out) != pods[1].Name || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	c.Pods.OnExec = func(string, string, []string, io.Writer) error { return errors.New("node-2 does not answer") }
	want := "x y in pod " + pods[0].Name + ", " + pods[1].Name + ": node-2 does not answer"
	if _, err := InController(t.Context(), client, found[0], time.Minute, "x", "y"); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	c.Pods.OnExec = nil
	if _, err := InController(t.Context(), client, found[0], time.Minute, "x"); err == nil || !strings.Contains(err.Error(), pods[0].Name) ||
		!strings.Contains(err.Error(), pods[1].Name) {
		t.Error(err)
	}
}
