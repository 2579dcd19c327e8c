package hostpath

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

var (
	someTime     = time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC)
	someVolume   = volumeid.New(volumeid.Volume, "node-1", "pvc-1")
	otherVolume  = volumeid.New(volumeid.Volume, "node-1", "pvc-2")
	someSnapshot = volumeid.New(volumeid.Snapshot, "node-1", "snapshot-1")
	someGroup    = volumeid.New(volumeid.Group, "node-1", "group-1")
	somePart     = volumeid.New(volumeid.Group, volumeid.SeveralNodes, "group-1")
)

func goodVolume() *volume {
	return &volume{ID: someVolume, Name: "pvc-1", Created: someTime, content: content{Size: 1 << 20, Kind: directory}}
}

func goodImage() *volume {
	v := goodVolume()
	v.content = content{Size: 8 << 20, Kind: image, FSType: "ext4", Sector: 512}
	return v
}

func goodSnapshot() *snapshot {
	return &snapshot{ID: someSnapshot, Name: "snapshot-1", Source: someVolume, Accept: frozen, Created: someTime,
		content: content{Size: 1 << 20, Kind: directory}}
}

func memberOf(group string, volumes ...string) (members []member) {
	for _, v := range volumes {
		id := volumeid.New(volumeid.Snapshot, "node-1", nameOfMember(group, v))
		members = append(members, member{ID: id, Source: v, Incomplete: "staging/" + id + "-abcdef2345"})
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.ID, b.ID) })
	return members
}

func goodGroup() *group {
	return &group{ID: someGroup, Name: "group-1", Created: someTime,
		Members: memberOf(someGroup, someVolume, otherVolume)}
}

func goodPart() *group {
	all := []string{someVolume, otherVolume, "another node's"}
	slices.Sort(all)
	return &group{ID: somePart, Name: "group-1", Created: someTime, Members: memberOf(somePart, someVolume), All: all,
		AttemptID: "cut"}
}

// with returns a copy of an object after change has changed the copy.
func with[T any](object *T, change func(*T)) *T {
	change(object)
	return object
}

// inline makes v the volume of a pod.
func inline(v *volume) {
	v.Name, v.Inline = "csi-"+strings.Repeat("0", 64), true
	v.ID = volumeid.New(volumeid.Inline, "node-1", v.Name)
}

// TestRecordsOfAllReleasesAreRead has records that some release can have written, even if the
// present release does not write them.
func TestRecordsOfAllReleasesAreRead(t *testing.T) {
	t.Parallel()
	mark := &quota.Mark{Kind: quota.Subvolume}
	for name, err := range map[string]error{
		"directory": goodVolume().check(someVolume),
		"image":     goodImage().check(someVolume),
		"block device": with(goodImage(),
			func(v *volume) { v.FSType, v.Block = "", true }).check(someVolume),
		"image without use": with(goodImage(), func(v *volume) { v.FSType = "" }).check(someVolume),
		"btrfs of 128 MiB": with(goodImage(),
			func(v *volume) { v.FSType, v.Size = "btrfs", 128<<20 }).check(someVolume),
		"image that an administrator made longer": with(goodImage(), func(v *volume) { v.Size++ }).check(someVolume),
		"inline": with(goodVolume(), inline).checkOwn(),
		"inline with a label": with(goodVolume(),
			func(v *volume) { inline(v); v.Class = mutableParameters{labelKey: "x"} }).checkOwn(),
		"inline and promised": with(goodVolume(),
			func(v *volume) { inline(v); v.Promised = true }).checkOwn(),
		"restored": with(goodVolume(),
			func(v *volume) { v.From = &contentSource{Snapshot: someSnapshot} }).check(someVolume),
		"cloned": with(goodVolume(),
			func(v *volume) { v.From = &contentSource{Volume: otherVolume} }).check(someVolume),
		"parameters": with(goodImage(), func(v *volume) {
			v.Class = mutableParameters{directIOKey: "false", readAheadKey: "131072", enforceKey: required}
			v.Mutable = mutableParameters{readAheadKey: "4096", labelKey: strings.Repeat("x", 128)}
		}).check(someVolume),
		"a label that is rejected now": with(goodVolume(),
			func(v *volume) { v.Class = mutableParameters{labelKey: "\u202e\u0085"} }).check(someVolume),
		"project": with(goodVolume(), func(v *volume) {
			v.Mark, v.Enforced = &quota.Mark{Kind: quota.Project, Project: 0x40000000}, true
		}).check(someVolume),
		"subvolume": with(goodVolume(),
			func(v *volume) { v.Mark, v.Enforced = mark, true }).check(someVolume),
		"subvolume without a limit": with(goodVolume(),
			func(v *volume) { v.Mark, v.Promised = mark, true }).check(someVolume),
		"promised, then quotas turned on": with(goodVolume(),
			func(v *volume) { v.Mark, v.Promised, v.Enforced = mark, true, true }).check(someVolume),
		"enforced, then off without quotas": with(goodVolume(), func(v *volume) {
			v.Mark, v.Enforced, v.Mutable = mark, true, mutableParameters{enforceKey: off}
		}).check(someVolume),
		"snapshot": goodSnapshot().check(someSnapshot),
		"snapshot of an image": with(goodSnapshot(), func(n *snapshot) {
			n.content, n.Cloned, n.OnDisk, n.Accept = goodImage().content, true, 4096, anyState
		}).check(someSnapshot),
		"group":        goodGroup().check(someGroup),
		"part":         goodPart().check(somePart),
		"settled part": with(goodPart(), func(g *group) { g.Committed = true }).check(somePart),
		"group of the first release with groups": with(goodGroup(), func(g *group) {
			id := volumeid.New(volumeid.Snapshot, "node-1", someGroup+" "+someVolume)
			g.Members = []member{{ID: id, Source: someVolume, Incomplete: "staging/" + id + "-abcdef2345"}}
		}).check(someGroup),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, group := range []string{someGroup, somePart} {
		for _, from := range digestedForMember(group, someVolume) {
			n := with(goodSnapshot(), func(n *snapshot) {
				n.ID, n.Name, n.Group, n.content = volumeid.New(volumeid.Snapshot, "node-1",
					from), someVolume, group, goodImage().content
			})
			if err := n.check(n.ID); err != nil {
				t.Errorf("member %q: %v", from, err)
			}
		}
	}
}

// TestRecordsThatEarlierReleasesWroteAreRead reads files that earlier commits wrote, with commit
// and directory.
func TestRecordsThatEarlierReleasesWroteAreRead(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "records.txt"))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for line := range strings.Lines(string(text)) {
		commit, rest, _ := strings.Cut(line, " ")
		dir, file, _ := strings.Cut(rest, " ")
		var v volume
		var n snapshot
		if dir == volumesDir {
			err = volumeFormat.Decode([]byte(file), &v)
			err = cmp.Or(err, v.checkOwn())
		} else {
			err = snapshotFormat.Decode([]byte(file), &n)
			err = cmp.Or(err, n.check(n.ID))
		}
		if err != nil {
			t.Errorf("commit %s: %v: %s", commit, err, file)
		}
		read++
	}
	if read < 15 {
		t.Errorf("%d records were read", read)
	}
}

func (v *volume) checkOwn() error { return v.check(v.ID) }

// TestImpossibleRecordsAreDamaged has combinations that no release can have written, and the fields
// that the error names.
func TestImpossibleRecordsAreDamaged(t *testing.T) {
	t.Parallel()
	ofVolume := func(v *volume, change func(v *volume)) error { change(v); return v.checkOwn() }
	ofSnapshot := func(change func(n *snapshot)) error { n := with(goodSnapshot(), change); return n.check(n.ID) }
	ofGroup := func(g *group, change func(g *group)) error { change(g); return g.check(g.ID) }
	project := func(n uint32) *quota.Mark { return &quota.Mark{Kind: quota.Project, Project: n} }
	for fields, errs := range map[string][]error{
		"id": {goodVolume().check(otherVolume), goodSnapshot().check(someGroup),
			goodGroup().check(someSnapshot), ofVolume(goodVolume(), func(v *volume) { v.ID = someSnapshot })},
		"id and name": {ofVolume(goodVolume(), func(v *volume) { v.Name = "pvc-2" }),
			ofSnapshot(func(n *snapshot) { n.Name = "x" }), ofGroup(goodGroup(), func(g *group) { g.Name = "x" })},
		"name": {ofVolume(goodVolume(), func(v *volume) { v.Name = "" }),
			ofVolume(goodVolume(), func(v *volume) {
				v.Name = strings.Repeat("x",
					2000)
			}), ofSnapshot(func(n *snapshot) { n.Name = "" })},
		"inline": {ofVolume(goodVolume(), func(v *volume) { v.Inline = true }),
			ofVolume(goodVolume(), func(v *volume) { inline(v); v.Inline = false })},
		"created": {ofVolume(goodVolume(), func(v *volume) { v.Created = time.Time{} }),
			ofSnapshot(func(n *snapshot) { n.Created = time.Time{} }), ofGroup(goodGroup(),
				func(g *group) { g.Created = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) })},
		"size": {ofVolume(goodVolume(), func(v *volume) { v.Size = 0 }),
			ofVolume(goodImage(), func(v *volume) { v.Size = -1 }), ofVolume(goodImage(),
				func(v *volume) { v.Size = 1<<62 + 4096 }), ofSnapshot(func(n *snapshot) { n.Size = -4096 })},
		"kind": {ofVolume(goodVolume(), func(v *volume) { v.Kind = "" })},
		"fsType, block and sector": {ofVolume(goodVolume(), func(v *volume) { v.FSType = "ext4" }),
			ofVolume(goodVolume(), func(v *volume) { v.Block = true }), ofVolume(goodVolume(),
				func(v *volume) { v.Sector = 512 })},
		"sector": {ofVolume(goodImage(), func(v *volume) { v.Sector = 0 }),
			ofVolume(goodImage(), func(v *volume) { v.Sector = 256 }), ofVolume(goodImage(),
				func(v *volume) { v.Sector = 1536 })},
		"block and fsType": {ofVolume(goodImage(), func(v *volume) { v.Block = true })},
		"from": {ofVolume(goodVolume(), func(v *volume) { v.From = &contentSource{} }),
			ofVolume(goodVolume(), func(v *volume) { v.From = &contentSource{someSnapshot, otherVolume} }),
			ofVolume(goodVolume(), func(v *volume) { v.From = &contentSource{Snapshot: someVolume} }),
			ofVolume(goodVolume(), func(v *volume) { v.From = &contentSource{Volume: "../x"} })},
		"inline and from": {ofVolume(goodVolume(),
			func(v *volume) { inline(v); v.From = &contentSource{Volume: otherVolume} })},
		"class": {ofVolume(goodImage(), func(v *volume) { v.Class = mutableParameters{readAheadKey: "4Ki"} })},
		"mutable": {ofVolume(goodImage(), func(v *volume) { v.Mutable = mutableParameters{directIOKey: ""} }),
			ofVolume(goodVolume(), func(v *volume) { v.Mutable = mutableParameters{labelKey: ""} })},
		"kind and class": {ofVolume(goodVolume(), func(v *volume) { v.Class = mutableParameters{directIOKey: "true"} }),
			ofVolume(goodImage(), func(v *volume) { v.Class = mutableParameters{enforceKey: off} })},
		"enforced without mark": {ofVolume(goodVolume(), func(v *volume) { v.Enforced = true })},
		"mark": {ofVolume(goodVolume(), func(v *volume) { v.Mark = &quota.Mark{} }),
			ofVolume(goodVolume(), func(v *volume) { v.Mark = project(0) }),
			ofVolume(goodVolume(), func(v *volume) { v.Mark = project(1000) }),
			ofVolume(goodVolume(), func(v *volume) { v.Mark = &quota.Mark{Kind: quota.Subvolume, Project: 1} }),
			ofVolume(goodVolume(), func(v *volume) { v.Mark = &quota.Mark{Kind: "zfs"} })},
		"kind, mark, enforced and promised": {ofVolume(goodImage(), func(v *volume) { v.Promised = true }),
			ofVolume(goodImage(), func(v *volume) { v.Mark = project(0x40000000) }), ofVolume(goodImage(),
				func(v *volume) { v.Enforced = true })},
		"source": {ofSnapshot(func(n *snapshot) { n.Source = "" }),
			ofSnapshot(func(n *snapshot) { n.Source = someSnapshot })},
		"held":                              {ofSnapshot(func(n *snapshot) { n.OnDisk = -1 })},
		"consistency":                       {ofSnapshot(func(n *snapshot) { n.Accept = "" })},
		"cloned and kind":                   {ofSnapshot(func(n *snapshot) { n.Cloned = true })},
		"group":                             {ofSnapshot(func(n *snapshot) { n.Group = someVolume })},
		"group, name, consistency and kind": {ofSnapshot(func(n *snapshot) { n.Group = someGroup })},
		"members": {ofGroup(goodGroup(), func(g *group) { g.Members = nil }),
			ofGroup(goodGroup(), func(g *group) { slices.Reverse(g.Members) }),
			ofGroup(goodGroup(), func(g *group) { g.Members[1] = g.Members[0] }),
			ofGroup(goodGroup(), func(g *group) { g.Members[0].ID = someSnapshot }),
			ofGroup(goodGroup(), func(g *group) { g.Members[0].Source = "" }),
			ofGroup(goodGroup(), func(g *group) { g.Members[0].Incomplete = "volumes/" + someVolume }),
			ofGroup(goodGroup(), func(g *group) { g.Members[0].Incomplete += "/../x" }),
			ofGroup(goodGroup(), func(g *group) { g.Members = memberOf(somePart, someVolume) })},
		"id and cut": {ofGroup(goodGroup(), func(g *group) { g.AttemptID = "x" }),
			ofGroup(goodPart(), func(g *group) { g.AttemptID = "" })},
		"id, settled and all": {ofGroup(goodGroup(), func(g *group) { g.Committed = true }),
			ofGroup(goodGroup(), func(g *group) { g.All = []string{someVolume, otherVolume} })},
		"all": {ofGroup(goodPart(), func(g *group) { slices.Reverse(g.All) }),
			ofGroup(goodPart(), func(g *group) { g.All = slices.Insert(g.All, 1, g.All[0]) })},
		"members and all": {ofGroup(goodPart(), func(g *group) { g.All = []string{otherVolume} })},
	} {
		for i, err := range errs {
			if !errors.Is(err, record.ErrDamaged) || !strings.Contains(err.Error(), fields+": ") &&
				!strings.HasSuffix(err.Error(), fields) {
				t.Errorf("%s, case %d: %v, want ErrDamaged that names these fields", fields, i, err)
			}
		}
	}
}

// TestValuesOfANewerRelease are no damage: the remedy is that release, not a backup of the record.
func TestValuesOfANewerRelease(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(v *volume){
		"sector":                 func(v *volume) { v.Sector = 8192 },
		"kind":                   func(v *volume) { v.Kind = "disk" },
		"fsType":                 func(v *volume) { v.FSType = "vfat" },
		"class: unknown":         func(v *volume) { v.Class = mutableParameters{"x": "y"} },
		"class: \"often\"":       func(v *volume) { v.Class = mutableParameters{enforceKey: "often"} },
		"mutable: \"4097\"":      func(v *volume) { v.Mutable = mutableParameters{readAheadKey: "4097"} },
		"mutable: unknown":       func(v *volume) { v.Mutable = mutableParameters{"x": ""} },
		"class: \"as-it-likes\"": func(v *volume) { v.Class = mutableParameters{directIOKey: "as-it-likes"} },
	} {
		v := goodImage()
		change(v)
		if err := v.checkOwn(); !errors.Is(err, record.ErrNewer) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v, want ErrNewer that names it", field, err)
		}
	}
	n := with(goodSnapshot(), func(n *snapshot) { n.Accept = "torn" })
	if err := n.check(n.ID); !errors.Is(err, record.ErrNewer) || !strings.Contains(err.Error(), "consistency") {
		t.Errorf("consistency: %v, want ErrNewer that names it", err)
	}
}

// TestARecordIsCheckedAsItIsRead: JSON may have a field several times, in lower and upper case.
func TestARecordIsCheckedAsItIsRead(t *testing.T) {
	t.Parallel()
	v := goodVolume()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSuffix(string(data), "}") + `,"enforced":true,"enforced":false,"ENFORCED":true}`
	file, err := volumeFormat.Encode(json.RawMessage(text))
	if err != nil {
		t.Fatal(err)
	}
	var got volume
	if err := volumeFormat.Decode(file, &got); err != nil {
		t.Fatal(err)
	}
	if err := got.check(someVolume); err == nil || !got.Enforced {
		t.Errorf("check = %v of a record that was read as enforced: %v", err, got.Enforced)
	}
}
