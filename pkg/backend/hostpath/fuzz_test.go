package hostpath

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// plants are the directories and kinds of records in a root.
var plants = []struct {
	dir    string
	format record.Format
	kind   volumeid.Kind
}{
	{volumesDir, volumeFormat, volumeid.Volume},
	{volumesDir, volumeFormat, volumeid.Inline},
	{snapshotsDir, snapshotFormat, volumeid.Snapshot},
	{groupsDir, groupFormat, volumeid.Group},
	{groupsDir, partFormat, volumeid.Group},
	{stagingDir, snapshotFormat, volumeid.Snapshot},
}

// garden is a root with good objects, in which a fuzzer plants records.
type garden struct {
	cfg      Config
	volume   backend.Volume
	image    backend.Volume
	snapshot backend.Snapshot
	group    *group
	good     map[string]string // the content of all files, by path
}

// templates returns a good record for each element of plants.
func templates() []any {
	planted := goodVolume()
	planted.Name, planted.ID = "planted", volumeid.New(volumeid.Volume, "node-1", "planted")
	pod := goodImage()
	inline(pod)
	member := &snapshot{
		ID: memberOf(someGroup, someVolume)[0].ID, Name: someVolume, Source: someVolume, Accept: frozen,
		Group:  someGroup,
		Cloned: true, OnDisk: 1, Created: someTime, content: goodImage().content,
	}
	return []any{planted, pod, goodSnapshot(), goodGroup(), goodPart(), member}
}

// fields are the fields of all records. values returns values for them; text and number come from
// the fuzzer.
var fields = []string{
	"id", "name", "size", "kind", "fsType", "block", "sector", "inline", "from", "class", "mutable", "created", "mark",
	"enforced", "promised", "source", "consistency", "cloned", "held", "group", "members", "all", "cut", "settled", "x",
}

func values(text string, number int64) []any {
	member := memberOf(someGroup, otherVolume)[0]
	odd := map[string]any{"id": text, "source": someVolume, "half": "staging/" + text}
	return []any{
		nil, true, false, 0, 1, -1, 512, 4096, int64(1) << 62, number, text, "directory", "image", "ext4", "xfs",
		"frozen", "none",
		someVolume, someSnapshot, someGroup, somePart, someTime, []any{}, []any{nil}, []any{text}, []any{member},
		[]any{member, member}, []any{odd},
		map[string]any{}, map[string]any{"kind": "project", "project": number}, map[string]any{"kind": "project",
			"project": 0x40000000}, map[string]any{"kind": "subvolume"},
		map[string]any{"kind": text}, map[string]any{"snapshot": someSnapshot}, map[string]any{"volume": otherVolume},
		map[string]any{"snapshot": text, "volume": text},
		mutableParameters{enforceKey: off}, mutableParameters{enforceKey: required}, mutableParameters{directIOKey: "false"},
		mutableParameters{readAheadKey: text}, mutableParameters{labelKey: text}, mutableParameters{text: text},
	}
}

// compose returns a template after changes: pairs of bytes that select a field and its value.
func compose(template any, changes []byte, text string, number int64) ([]byte, error) {
	data, err := json.Marshal(template)
	if err != nil {
		return nil, err
	}
	object := map[string]any{}
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, err
	}
	all := values(text, number)
	for ; len(changes) > 1; changes = changes[2:] {
		field, value := fields[int(changes[0])%len(fields)], int(changes[1])
		if delete(object, field); value < 0xf0 {
			object[field] = all[value%len(all)]
		}
	}
	return json.Marshal(object)
}

// FuzzRecord starts a backend on a root with a record that has the right checksum and any
// combination of fields. No call panics or hangs, the good objects are served, and a record that
// cannot be used stays unchanged.
func FuzzRecord(f *testing.F) {
	at := func(field string) byte { return byte(slices.Index(fields, field)) }
	for i := range plants {
		f.Add(byte(i), []byte(nil), "", int64(0), "")
		f.Add(byte(i), []byte{at("enforced"), 1}, "x", int64(1), "")
		f.Add(byte(i), []byte{at("members"), 23, at("kind"), 12, at("mark"), 29}, "../x", int64(-1), "")
	}
	f.Add(byte(0), []byte{at("mark"), 31, at("enforced"), 1, at("promised"), 1, at("mutable"), 36}, "", int64(0), "")
	f.Add(byte(0), []byte(nil), "", int64(0), "null")
	f.Add(byte(3), []byte(nil), "", int64(0), `{"members":[null]}`)
	g := newGarden(f)
	f.Fuzz(func(t *testing.T, plant byte, changes []byte, text string, number int64, raw string) {
		p := plants[int(plant)%len(plants)]
		data, err := compose(templates()[int(plant)%len(plants)], changes, text, number)
		if raw != "" {
			data = []byte(raw)
		}
		file, encodeErr := p.format.Encode(json.RawMessage(data))
		if errors.Join(err, encodeErr) != nil {
			return // not JSON: FuzzDecode tests that
		}
		var named struct{ ID string }
		_ = json.Unmarshal(data, &named)
		if id, err := volumeid.Parse(named.ID); err != nil || id.Kind != p.kind {
			named.ID = volumeid.New(p.kind, "node-1", "planted")
		}
		dir := path.Join(p.dir, named.ID)
		if p.dir == stagingDir {
			dir += "-planted"
		}
		if g.good[path.Join(dir, recordFile)] != "" {
			return // the record would replace a good record
		}
		defer g.weed(t)
		planted := g.plant(t, dir, file, data)
		soon(t, func() { g.start(t, named.ID, dir, planted) })
	})
}

// soon fails the test if do does not return.
func soon(t *testing.T, do func()) {
	done := make(chan error, 1)
	// a panic would end the fuzzer without its input
	go func() { done <- guard.Do(func() error { do(); return nil }) }()
	select {
	case err := <-done:
		if p := (*guard.Panic)(nil); errors.As(err, &p) {
			t.Errorf("%v: %s", err, p.Stack)
		}
	case <-await.Context(t).Done():
		t.Fatal("the call hangs")
	case <-time.After(10 * time.Minute): // a fuzzer has no deadline
		t.Fatal("the call hangs")
	}
}

func newGarden(f *testing.F) *garden {
	ctx := context.Background()
	dir, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	fake := mountertest.NewFake(dir)
	g := &garden{cfg: Config{
		Root: filepath.Join(dir, "root"), Node: "node-1", RootRecord: filepath.Join(dir, "seen"), Release: "test", Init: true,
		Images: fake,
	}}
	if err := os.Mkdir(g.cfg.Root, 0o700); err != nil {
		f.Fatal(err)
	}
	b := g.open(f)
	var errs [3]error
	g.volume, errs[0] = b.Create(ctx, backend.CreateOptions{Name: "good", Required: 4096, Access: []backend.Access{{}}})
	o := imageOptions("image", nil, nil)
	o.Required = 4 << 20
	g.image, errs[1] = b.Create(ctx, o)
	g.snapshot, errs[2] = b.Snapshot(ctx, backend.SnapshotOptions{Name: "good", Source: g.volume.ID})
	if err := errors.Join(errors.Join(errs[:]...), b.Close()); err != nil {
		f.Fatal(err)
	}
	g.group = &group{ID: volumeid.New(volumeid.Group, "node-1", "good"), Name: "good", Created: someTime}
	g.group.Members = memberOf(g.group.ID, g.image.ID)
	member := &snapshot{ID: g.group.Members[0].ID, Name: g.image.ID, Source: g.image.ID, Accept: frozen,
		Group: g.group.ID, Created: someTime, content: goodImage().content}
	groupFile, err := groupFormat.Encode(g.group)
	memberFile, err2 := snapshotFormat.Encode(member)
	if err := errors.Join(err, err2, g.write(path.Join(groupsDir, g.group.ID, recordFile), groupFile),
		g.write(path.Join(snapshotsDir, member.ID, recordFile), memberFile),
		g.write(path.Join(snapshotsDir, member.ID, imageFile),
			make([]byte, 4096)), g.write(path.Join(volumesDir, g.volume.ID, dataDir,
			"precious"), []byte("precious"))); err != nil {
		f.Fatal(err)
	}
	g.good = g.files(f)
	return g
}

// write writes a file of the root, and makes its directory.
func (g *garden) write(name string, content []byte) error {
	file := filepath.Join(g.cfg.Root, name)
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, content, 0o600))
}

// files returns the content of all files of the root except large files.
func (g *garden) files(t testing.TB) map[string]string {
	all := map[string]string{}
	root := os.DirFS(g.cfg.Root)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Size() > 1<<20 {
			all[name] = "a large file"
			return err
		}
		content, err := fs.ReadFile(root, name)
		all[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// open opens a backend and waits until it serves.
func (g *garden) open(t testing.TB) *Backend {
	b, err := New(g.cfg)
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, b)
	return b
}

// plant puts a record into a directory of the root, beside data for each kind, and returns all
// files of the directory. For the record of a group, plant also makes the members.
func (g *garden) plant(t *testing.T, dir string, file, data []byte) map[string]string {
	planted := map[string]string{recordFile: string(file), imageFile: strings.Repeat("x", 4096), dataDir + "/file": "x"}
	for name, content := range planted {
		if err := g.write(path.Join(dir, name), []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	var made group
	if json.Unmarshal(data, &made) != nil {
		return planted
	}
	for i, m := range made.Members {
		if i < 4 && path.Dir(m.Incomplete) == stagingDir && filepath.IsLocal(m.Incomplete) && len(m.Incomplete) < 200 &&
			!strings.ContainsRune(m.Incomplete, 0) {
			_ = g.write(path.Join(m.Incomplete, imageFile), []byte("x"))
		}
	}
	return planted
}

// weed removes all objects except the good objects, which must be unchanged.
func (g *garden) weed(t *testing.T) {
	left := g.files(t)
	for name, content := range g.good {
		if left[name] != content {
			t.Errorf("%s holds %.200q, before %.200q", name, left[name], content)
		}
	}
	for _, in := range []string{volumesDir, snapshotsDir, groupsDir, stagingDir, trashDir} {
		entries, err := os.ReadDir(filepath.Join(g.cfg.Root, in))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			name := path.Join(in, e.Name())
			if g.good[path.Join(name, recordFile)] != "" {
				continue
			}
			if err := os.RemoveAll(filepath.Join(g.cfg.Root, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// isBroken reports whether an object that was looked up has a record that cannot be used.
func isBroken[T any](_ T, err error) bool { return err != nil && !errors.Is(err, backend.ErrNotFound) }

// start opens a backend, makes every call for the planted object, and checks that the good objects
// are served.
func (g *garden) start(t *testing.T, id, dir string, planted map[string]string) {
	b := g.open(t)
	defer b.Close()
	broken := isBroken(b.volume(id)) || isBroken(b.snapshot(id)) || isBroken(b.group(id))
	ctx := context.Background()
	g.served(t, b)
	_, _, listErr := b.List(ctx, "", 10)
	_, _, snapshotsErr := b.ListSnapshots(ctx, "", "", 10)
	_, _, sickErr := b.ListHealth(ctx, "", 10)
	_, capacityErr := b.Capacity(ctx, backend.CreateOptions{})
	_, healthErr := b.StorageHealth(ctx)
	if err := errors.Join(listErr, snapshotsErr, sickErr, capacityErr, healthErr); err != nil {
		t.Error(err)
	}
	b.Metrics()
	ids := []string{id}
	if v := inlineOf(planted[recordFile]); v != "" {
		ids = append(ids, v)
	}
	for _, id := range ids {
		exercise(b, id)
	}
	g.served(t, b)
	if n := b.count.panics.Load(); n > 0 {
		t.Errorf("%d background tasks panicked: %s", n, *b.count.lastPanic.Load())
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if !broken {
		return
	}
	left := g.files(t)
	for name, content := range planted {
		if left[path.Join(dir, name)] != content {
			t.Errorf("the record cannot be used, and %s has changed to %.100q from %.100q", name,
				left[path.Join(dir, name)],
				content)
		}
	}
}

// inlineOf returns the name in the record of an inline volume.
func inlineOf(file string) string {
	var v volume
	if volumeFormat.Decode([]byte(file), &v) == nil && v.Inline {
		return v.Name
	}
	return ""
}

// served checks that the good objects are served.
func (g *garden) served(t *testing.T, b *Backend) {
	ctx := context.Background()
	m, err := b.Mount(ctx, g.volume.ID, backend.Access{})
	if want := filepath.Join(g.cfg.Root, volumesDir, g.volume.ID, dataDir); err != nil || m.Source != want {
		t.Errorf("Mount = %+v, %v, want %s", m, err, want)
	}
	if m, err := b.Mount(ctx, g.image.ID, backend.Access{}); err != nil || m.FSType != "ext4" {
		t.Errorf("Mount of an image = %+v, %v", m, err)
	}
	if c, err := b.Health(ctx, g.volume.ID); err != nil || len(c) != 0 {
		t.Errorf("Health = %+v, %v", c, err)
	}
	if n, err := b.GetSnapshot(ctx, g.snapshot.ID, nil); err != nil || n != g.snapshot {
		t.Errorf("GetSnapshot = %+v, %v, want %+v", n, err, g.snapshot)
	}
	if got, err := b.GetGroup(ctx, g.group.ID, nil, nil); err != nil || len(got.Snapshots) != 1 {
		t.Errorf("GetGroup = %+v, %v", got, err)
	}
}

// exercise makes every call for an object, and never for a good object. The errors depend on the
// record.
func exercise(b *Backend, id string) {
	ctx := context.Background()
	create := func(name string) backend.CreateOptions { return backend.CreateOptions{Name: name} }
	_, _ = b.Get(ctx, id, nil)
	for _, block := range []bool{false, true} {
		_, _ = b.Mount(ctx, id, backend.Access{Block: block})
	}
	_, _ = b.Health(ctx, id)
	_, _, _ = b.Usage(ctx, id)
	_, _ = b.GetSnapshot(ctx, id, nil)
	_, _ = b.SnapshotSize(ctx, id, nil)
	_ = b.Allocated(ctx, id, 0, nil, func(int64, int64) error { return nil })
	_ = b.Delta(ctx, id, id, 0, nil, func(int64, int64) error { return nil })
	_, _ = b.GetGroup(ctx, id, nil, nil)
	if part, err := b.GetPart(ctx, id); err == nil {
		_ = b.CommitPart(ctx, id, part.AttemptID)
		_ = b.DiscardPart(ctx, id, part.AttemptID)
	}
	_, _, _ = b.Expand(ctx, id, backend.ExpandOptions{Required: 1 << 24})
	for _, wanted := range []string{off, required, preferred} {
		_ = b.Modify(ctx, id, map[string]string{enforceKey: wanted, labelKey: "x"}, nil)
	}
	_, _ = b.Snapshot(ctx, backend.SnapshotOptions{Name: "of " + id, Source: id})
	_, _ = b.SnapshotGroup(ctx, backend.GroupOptions{Name: "of " + id, Sources: []string{id}})
	_, _ = b.Clone(ctx, id, create("clone"))
	_, _ = b.Restore(ctx, id, create("restored"))
	_ = b.Delete(ctx, id, nil)
	_ = b.DeleteInline(ctx, id)
	_ = b.DeleteSnapshot(ctx, id, nil)
	_ = b.DeleteGroup(ctx, id, nil, nil)
}
