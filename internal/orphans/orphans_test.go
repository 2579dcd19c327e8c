package orphans

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

var when = time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC)

// all are objects that name all that a full driver holds.
func all() []map[string]any {
	return []map[string]any{pv(v1), pv(v2), pv(v3), content(s1), content(s2), content(m1), content(m2), content(m3),
		groups(g1), groups(g2)}
}

func TestANamedVolumeIsNoOrphan(t *testing.T) {
	for name, tc := range map[string]struct {
		stdin string
		want  string
	}{
		"all": {listOf(all()...), "3/3/0 2/2/0 3/3/0"},
		"a volume missing": {listOf(pv(v1), pv(v3), content(s1, s2, m1, m2, m3), groups(g1, g2)),
			"3/2/1 2/2/0 3/3/0 a2"},
		"a snapshot missing": {listOf(pv(v1, v2, v3), content(s1, m1, m2, m3), groups(g1, g2)),
			"3/3/0 2/1/1 3/3/0 s2"},
		"a group missing":       {listOf(pv(v1, v2, v3), content(s1, s2), groups(g2)), "3/3/0 2/2/0 3/1/2 sm2 sm1"},
		"a group by its ID":     {listOf(pv(v1, v2, v3), content(s1, s2), groups(g1, g2)), "3/3/0 2/2/0 3/3/0"},
		"a group by one member": {listOf(pv(v1, v2, v3), content(s1, s2, m2), groups(g2)), "3/3/0 2/2/0 3/3/0"},
		"other drivers' objects": {listOf(append(all(), pv("vol-0123"), content("snap-0123"))...),
			"3/3/0 2/2/0 3/3/0"},
		"objects one by one": {listOf(pv(v1)) + listOf(pv(v2, v3)) + listOf(content(s1, s2), groups(g1, g2)),
			"3/3/0 2/2/0 3/3/0"},
		"objects without a list": {lines(all()...), "3/3/0 2/2/0 3/3/0"},
		"lists of one kind": {bare(volumeKind, pv(v1, v2)) + bare(contentKind, content(s1, s2)) + bare(groupKind,
			groups(g1, g2)), "3/2/1 2/2/0 3/3/0 a3"},
		"in an object of no kind": {listOf(append(all()[1:], object("ConfigMap", v1))...), "3/3/0 2/2/0 3/3/0"},
		"a source of a content":   {listOf(pv(v1), pv(v2), content(s1, s2, v3), groups(g1, g2)), "3/3/0 2/2/0 3/3/0"},

		"no volume at all":         {listOf(content(s1, s2), groups(g1, g2)), "3/0/0? 2/2/0 3/3/0"},
		"no volume, but all named": {listOf(content(s1, s2, v1, v2, v3), groups(g1, g2)), "3/3/0 2/2/0 3/3/0"},
		"no snapshot at all":       {listOf(pv(v1, v2), groups(g1)), "3/2/1 2/0/0? 3/2/0? a3"},
		"no group at all":          {listOf(pv(v1, v2, v3), content(s1)), "3/3/0 2/1/1 3/0/0? s2"},
		"items that are null": {listOf(pv(v1, v2, v3)) + `{"kind":"VolumeSnapshotContentList","items":null}`,
			"3/3/0 2/0/0? 3/0/0?"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, read := range []func(io.Reader) io.Reader{
				func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader,
			} {
				r, err := Find(context.Background(), full().serve(t), read(strings.NewReader(tc.stdin+mark)), Options{})
				if got := summary(r); err != nil || got != tc.want {
					t.Fatalf("got %s, %v, want %s", got, err, tc.want)
				}
			}
		})
	}
}

// lines returns the objects in sequence, as kubectl get NAME or jq print them.
func lines(objects ...map[string]any) string {
	var text strings.Builder
	for _, o := range objects {
		if err := json.NewEncoder(&text).Encode(o); err != nil {
			panic(err)
		}
	}
	return text.String()
}

// bare returns a list of a single kind as the API server has it: its items have no kind.
func bare(kind string, objects ...map[string]any) string {
	for _, o := range objects {
		delete(o, "kind")
	}
	return lines(map[string]any{"kind": kind + "List", "items": objects})
}

func TestBadInputLeadsToNoConclusion(t *testing.T) {
	whole := listOf(all()...)
	for name, tc := range map[string]struct{ stdin, says string }{
		"nothing":           {"", "stdin is empty"},
		"blank lines":       {" \n\n", "stdin is empty"},
		"the mark alone":    {mark, "no objects"},
		"no mark":           {whole, "does not end with a line that says complete"},
		"cut short":         {whole[:len(whole)/2], "in the middle of the JSON"},
		"cut by a brace":    {whole[:strings.LastIndex(whole, "}")], "in the middle of the JSON"},
		"cut, and the mark": {whole[:len(whole)/2] + mark, "invalid character"},
		"broken":            {strings.Replace(whole, ":", "=", 1) + mark, "expected colon"},
		"an error of kubectl": {"Error from server (Forbidden): persistentvolumes is forbidden\n",
			"-o json: \"Error from server"},
		"an error at the end": {whole + "error: the server doesn't have a resource type\n",
			"-o json: \"error: the server"},
		"more after the mark": {whole + mark + whole, "-o json: \"complete"},
		"YAML":                {"apiVersion: v1\nitems: []\n" + mark, "YAML"},
		"YAML of many":        {"---\nkind: List\n", "YAML"},
		"a table":             {"NAME  CAPACITY\npvc-1 1Gi\n", "is not the output of kubectl get -o json"},
		"IDs alone":           {v1 + "\n" + v2 + "\n", "is not the output of kubectl get -o json"},
		"an array":            {"[" + whole + "]" + mark, "is not the output of kubectl get -o json"},
		"other JSON":          {`{"volumes":["` + v1 + `"]}` + mark, "no kind"},
		"an error in JSON": {`{"kind":"Status","status":"Failure","message":"x"}` + mark,
			"an error of the API server"},
		"a page of a list": {`{"kind":"PersistentVolumeList","metadata":{"continue":"abc"},"items":[{}]}` + mark,
			"goes on elsewhere"},
		"a page that counts":   {`{"kind":"PersistentVolumeList","metadata":{"remainingItemCount":7},"items":[{}]}` + mark, "goes on elsewhere"},
		"items that are none":  {`{"kind":"List","items":"x"}` + mark, "items is no list"},
		"an item that is none": {`{"kind":"List","items":["` + v1 + `"]}` + mark, "cannot unmarshal"},
		"a number for a key":   {`{1:2}` + mark, "invalid character"},
		"a stray brace":        {whole + "}" + mark, "invalid character"},
		"another cluster's": {listOf(pv("other"), content("other"), groups("other")) + mark,
			"are they this cluster's?"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Find(context.Background(), full().serve(t), strings.NewReader(tc.stdin), Options{})
			if !errors.Is(err, ErrNoConclusion) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want ErrNoConclusion with %q in it", err, tc.says)
			}
			if len(r.Orphans) != 0 {
				t.Errorf("orphans nevertheless: %+v", r.Orphans)
			}
		})
	}
}

func TestStdinThatFailsLeadsToNoConclusion(t *testing.T) {
	broken := errors.New("the pipe broke")
	for _, said := range []string{"", " ", listOf(all()...)[:100], listOf(all()...), listOf(all()...) + "compl"} {
		stdin := io.MultiReader(strings.NewReader(said), iotest.ErrReader(broken))
		if r, err := Find(context.Background(), full().serve(t), stdin, Options{}); !errors.Is(err, broken) ||
			!errors.Is(err, ErrNoConclusion) {
			t.Errorf("after %d bytes: %v, %v", len(said), r, err)
		}
	}
}

func TestTheOperatorMayExpectNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		stdin string
		o     Options
		want  string
	}{
		"no volumes": {listOf(content(s1, s2), groups(g1, g2)), Options{NoVolumes: true},
			"3/0/3 2/2/0 3/3/0 a1 a2 a3"},
		"no snapshots": {listOf(pv(v1, v2, v3), groups(g1, g2)), Options{NoSnapshots: true},
			"3/3/0 2/0/2 3/3/0 s1 s2"},
		"no groups": {listOf(pv(v1, v2, v3), content(s1, s2)), Options{NoGroups: true},
			"3/3/0 2/2/0 3/0/3 sm2 sm1 sm3"},
		"groups, no others": {listOf(pv(v1, v2, v3)), Options{NoGroups: true}, "3/3/0 2/0/0? 3/0/0?"},
		"none that is ours": {listOf(pv("other"), content("other"), groups("other")), Options{NoneNamed: true},
			"3/0/3 2/0/2 3/0/3 a1 a2 a3 s2 s1 sm2 sm1 sm3"},
		"nothing at all": {listOf(), Options{NoVolumes: true, NoSnapshots: true, NoGroups: true, NoneNamed: true},
			"3/0/3 2/0/2 3/0/3 a1 a2 a3 s2 s1 sm2 sm1 sm3"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Find(context.Background(), full().serve(t), strings.NewReader(tc.stdin+mark), tc.o)
			if got := sortedWords(summary(r)); err != nil || got != sortedWords(tc.want) {
				t.Errorf("got %s, %v, want %s", got, err, tc.want)
			}
		})
	}
	nothing := Options{NoVolumes: true, NoSnapshots: true, NoGroups: true}
	if _, err := Find(context.Background(), full().serve(t), strings.NewReader(listOf()+mark), nothing); !errors.Is(err,
		ErrNoConclusion) {
		t.Errorf("an empty list and a full driver: %v, want ErrNoConclusion", err)
	}
	if r, err := Find(context.Background(), new(lister).serve(t), strings.NewReader(listOf(all()...)+mark),
		Options{}); err != nil || !r.Judged() || len(r.Orphans) != 0 {
		t.Errorf("an empty driver: %+v, %v", r, err)
	}
}

// watched is a stdin that returns when it is read.
type watched struct {
	io.Reader
	read func()
}

func (w watched) Read(p []byte) (int, error) {
	w.read()
	return w.Reader.Read(p)
}

func TestStdinIsReadWhenAllIsListed(t *testing.T) {
	l, listed := full(), false
	stdin := watched{strings.NewReader(listOf(all()...) + mark), func() {
		if calls := l.calls.Load(); !listed || calls != 2+3 { // pages of two: 3 volumes, 5 snapshots
			t.Fatalf("stdin is read after %d of 5 pages, listed: %v", calls, listed)
		}
	}}
	o := Options{Listed: func(volumes, snapshots int) {
		if listed = true; volumes != 3 || snapshots != 5 {
			t.Errorf("%d volumes and %d snapshots are listed", volumes, snapshots)
		}
	}}
	if _, err := Find(context.Background(), l.serve(t), stdin, o); err != nil {
		t.Error(err)
	}
}

func TestObjectsThatComeTooSoonAreRefused(t *testing.T) {
	text := listOf(all()...) + mark
	for name, tc := range map[string]struct {
		waits time.Duration
		ok    bool
	}{"at once": {0, false}, "soon": {29 * time.Second, false}, "late enough": {30 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			clock := when
			stdin := watched{strings.NewReader(text), func() { clock = clock.Add(tc.waits); tc.waits = 0 }}
			_, err := find(context.Background(), full().serve(t), stdin, Options{Settle: 30 * time.Second},
				func() time.Time { return clock })
			if tc.ok && err != nil {
				t.Error(err)
			}
			if !tc.ok && (!errors.Is(err, ErrNoConclusion) || !strings.Contains(err.Error(), "sleep")) {
				t.Errorf("%v, want ErrNoConclusion and why", err)
			}
		})
	}
	if _, err := Find(context.Background(), full().serve(t), strings.NewReader(""),
		Options{Settle: time.Hour}); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("an empty stdin: %v", err)
	}
}

func TestAListThatFailsIsNoList(t *testing.T) {
	never := watched{strings.NewReader(""), func() { t.Error("stdin is read though the lists failed") }}
	for call := range int32(5) {
		l := full()
		l.failAt = call + 1
		if r, err := Find(context.Background(), l.serve(t), never, Options{}); status.Code(errors.Unwrap(err)) != codes.Unavailable || !strings.Contains(err.Error(), "node-2") {
			t.Errorf("call %d fails: %+v, %v, want UNAVAILABLE", call+1, r, err)
		}
	}
	for name, change := range map[string]func(*lister){
		"no end": func(l *lister) { l.endless = true },
		"no list of volumes": func(l *lister) {
			l.cannot = append(l.cannot, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
		},
		"no list of snapshots": func(l *lister) {
			l.cannot = append(l.cannot, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
		},
		"a volume with another kind of ID":   func(l *lister) { l.volumes[2].VolumeId = "vol-1" },
		"a snapshot with another kind of ID": func(l *lister) { l.snapshots[1].SnapshotId = "snap-1" },
		"a group with another kind of ID":    func(l *lister) { l.snapshots[4].GroupSnapshotId = "group-1" },
		"no ID":                              func(l *lister) { l.volumes[0] = nil },
	} {
		l := full()
		change(l)
		if r, err := Find(context.Background(), l.serve(t), never, Options{}); err == nil {
			t.Errorf("%s: %+v, want an error", name, r)
		}
	}
}

func TestWithoutSnapshotsThereAreVolumes(t *testing.T) {
	l := full()
	l.cannot = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT}
	r, err := Find(context.Background(), l.serve(t), strings.NewReader(listOf(pv(v1))+mark), Options{Page: 1})
	if got := summary(r); err != nil || sortedWords(got) != sortedWords("3/1/2 0/0/0 0/0/0 a2 a3") ||
		l.calls.Load() != 3 || !r.Judged() {
		t.Errorf("%s, %v after %d calls", got, err, l.calls.Load())
	}
}

func TestAnInlineVolumeIsNeverAnOrphan(t *testing.T) {
	l := full()
	l.volumes = append(l.volumes, &csi.Volume{VolumeId: volumeid.New(volumeid.Inline, "n1", "csi-1")})
	r, err := Find(context.Background(), l.serve(t), strings.NewReader(listOf(all()...)+mark), Options{})
	if got := summary(r); err != nil || got != "3/3/0 2/2/0 3/3/0" {
		t.Errorf("%s, %v", got, err)
	}
}

// The ID of central storage ends with the address of the volume, which a PV may spell in another
// way.
func TestAnIDWithAnAddress(t *testing.T) {
	l := full()
	w1, w2 := volumeid.New(volumeid.Volume, "//server/share", "1"), volumeid.New(volumeid.Volume, "//server/share", "2")
	c1 := volumeid.New(volumeid.Snapshot, "//server/share", "1")
	l.volumes = append(l.volumes, &csi.Volume{VolumeId: w1 + "@server/share"}, &csi.Volume{VolumeId: w2 + "@server/share/base"})
	l.snapshots = append(l.snapshots, &csi.Snapshot{SnapshotId: c1 + "@server/share", CreationTime: timestamppb.New(when)})
	named := append(all(), pv(w1+"@SERVER/share"))
	r, err := Find(context.Background(), l.serve(t), strings.NewReader(listOf(named...)+mark), Options{})
	if got := summary(r); err != nil || got != "5/4/1 3/2/1 3/3/0 a s" || len(r.Orphans) != 2 ||
		r.Orphans[0].ID != w2+"@server/share/base" || r.Orphans[1].ID != c1+"@server/share" {
		t.Errorf("%s, %v: %+v", got, err, r.Orphans)
	}
}

// TestAnIDInAnyPlaceNamesItsVolume puts an ID somewhere into documents made at random: into a key,
// a value, JSON in a string.
func TestAnIDInAnyPlaceNamesItsVolume(t *testing.T) {
	conn := full().serve(t)
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		extra := object("Anything")
		place(random, extra, v2, 4)
		text := listOf(pv(v1), pv(v3), content(s1, s2), groups(g1, g2), extra) + mark
		r, err := Find(context.Background(), conn, strings.NewReader(text), Options{})
		if err != nil || r.Volumes.Named != 3 || len(r.Orphans) != 0 {
			t.Fatalf("seed %d: %+v, %v for %s", seed, r, err, text)
		}
	}
}

// place puts an ID into m or below it.
func place(random *rand.Rand, m map[string]any, id string, depth int) {
	around := []string{"", "\n", "pv/", "0123456789", "é", "\"", "\t{", "a", "x-", "\\n", "</b>"}
	text := around[random.IntN(len(around))] + id + around[random.IntN(len(around))]
	where := random.IntN(5)
	if depth == 0 && where > 2 {
		where -= 3
	}
	switch where {
	case 0:
		m[text] = random.IntN(9)
	case 1:
		m["value"] = text
	case 2:
		m["list"] = []any{1, nil, true, []any{text}}
	case 3:
		below := map[string]any{}
		place(random, below, id, depth-1)
		m[fmt.Sprint("below", depth)] = below
	case 4:
		below := map[string]any{}
		place(random, below, id, depth-1)
		b, err := json.Marshal(below)
		if err != nil {
			panic(err)
		}
		m["kubectl.kubernetes.io/last-applied-configuration"] = string(b)
	}
}

// TestManyObjectsTakeLittleMemory: the command runs in the container of a driver.
func TestManyObjectsTakeLittleMemory(t *testing.T) {
	one := listOf(append(all(), object("Padding", strings.Repeat("0", 10_000)))...)
	var before, peak uint64
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var stdin []io.Reader
	for i := range 2000 { // 26 MB
		if stdin = append(stdin, strings.NewReader(one)); i%100 == 0 {
			stdin = append(stdin, watched{strings.NewReader(""), func() { peak = max(peak, inUse()) }})
		}
	}
	stdin = append(stdin, strings.NewReader(mark))
	if _, err := Find(context.Background(), full().serve(t), io.MultiReader(stdin...),
		Options{Listed: func(int, int) { before = inUse() }}); err != nil {
		t.Fatal(err)
	}
	if peak == 0 || peak > before+5<<20 {
		t.Errorf("%d bytes are in use before 26 MB are read, and %d meanwhile, want 5 MiB more at the most", before,
			peak)
	}
}

func sortedWords(s string) string {
	words := strings.Fields(s)
	seen := map[string]int{}
	for _, w := range words[3:] {
		seen[w]++
	}
	return fmt.Sprint(words[:3], seen)
}

func FuzzStdin(f *testing.F) {
	f.Add(listOf(all()...) + mark)
	f.Add(`{"kind":"List","items":[{"kind":"PersistentVolume"}]}` + mark)
	f.Add(`{"kind":"List","items":[`)
	f.Add("complete")
	f.Fuzz(func(t *testing.T, s string) {
		text := newText(&held{volumes: []Orphan{{ID: v1}}})
		if err := text.first(strings.NewReader("")); err != nil {
			t.Fatal(err)
		}
		err := text.read(strings.NewReader(s))
		if err == nil && !strings.HasSuffix(strings.TrimSpace(s), endMark) {
			t.Errorf("%q is taken", s)
		}
		if err == nil && strings.Contains(s, v1) && !text.ids[v1] {
			t.Errorf("%q names %s, and that is not seen", s, v1)
		}
	})
}
