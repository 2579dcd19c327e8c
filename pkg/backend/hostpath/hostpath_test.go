package hostpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/catalog"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// imageFile is the name of a plain image. Roots of all releases have it.
const imageFile = "image.raw"

func TestHostpathKeepsTheContract(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, kind, func(t *testing.T, images mounter.Images) func() backend.Backend {
				w := newWorld(t, uses(images))
				ownFilesystem(t, w) // the contract measures space
				return func() backend.Backend { return w.open() }
			})
		})
	}
}

// uses returns a change of the Config that sets Images.
func uses(m mounter.Images) func(c *Config) { return func(c *Config) { c.Images = m } }

// changed has the methods of its Images, except for the methods that a test replaces.
type changed struct {
	mounter.Images
	users   func(source string) ([]string, error)
	helpers func() []mounter.Helpers
	tune    func(ctx context.Context, m mounter.Mount) error
	freeze  freezing
	trim    func(ctx context.Context, tenant, image string) (int64, error)
}

// freezing is the type of Freeze.
type freezing = func(ctx context.Context, tenant string, images []string, limit time.Duration,
	cut func(context.Context) error) error

func (c changed) MountPointsOf(source string) ([]string, error) {
	if c.users == nil {
		return c.Images.MountPointsOf(source)
	}
	return c.users(source)
}

func (c changed) Helpers() []mounter.Helpers {
	if c.helpers == nil {
		return c.Images.Helpers()
	}
	return c.helpers()
}

func (c changed) Tune(ctx context.Context, m mounter.Mount) error {
	if c.tune == nil {
		return c.Images.Tune(ctx, m)
	}
	return c.tune(ctx, m)
}

func (c changed) Freeze(ctx context.Context, tenant string, images []string, limit time.Duration,
	cut func(context.Context) error) error {
	if c.freeze == nil {
		return c.Images.Freeze(ctx, tenant, images, limit, cut)
	}
	return c.freeze(ctx, tenant, images, limit, cut)
}

func (c changed) Trim(ctx context.Context, tenant, image string) (int64, error) {
	if c.trim == nil {
		return c.Images.Trim(ctx, tenant, image)
	}
	return c.trim(ctx, tenant, image)
}

// kinds are the kinds of volumes, with their parameters.
var kinds = map[string]backendtest.Kind{
	"directory": {Mutable: map[string][2]string{labelKey: {"a", "b"}}},
	"image": {
		Parameters: map[string]string{kindKey: string(image), directIOKey: "false"},
		Inline:     map[string]string{kindKey: string(image)},
		Mutable:    map[string][2]string{labelKey: {"a", "b"}, readAheadKey: {"4096", "1048576"}},
	},
}

// world is a root with its surroundings. Backends are opened on the root one after another.
type world struct {
	*testing.T
	cfg Config
}

func newWorld(t *testing.T, change ...func(*Config)) *world {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	fake := mountertest.NewFake(dir)
	w := &world{T: t, cfg: Config{
		Root:       filepath.Join(dir, "root"),
		Node:       "node-1",
		RootRecord: filepath.Join(dir, "seen.json"),
		Release:    "test",
		Init:       true,
		Images:     fake,
		quotaLimit: progressLimit, // on a busy machine a helper starts late
		almostFull: math.MaxInt64, // the disk of the tests may be
	}}
	if err := os.Mkdir(w.cfg.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(&w.cfg)
	}
	return w
}

// ownsFilesystem notes that the root is a filesystem of its own.
func (w *world) ownsFilesystem() { w.cfg.Images.(*mountertest.Fake).Filesystem = true }

// start opens a backend that may never become ready.
func (w *world) start(change ...func(*Config)) *Backend {
	w.Helper()
	cfg := w.cfg
	for _, c := range change {
		c(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { b.Close() })
	return b
}

// open opens a backend and waits until it is ready.
func (w *world) open(change ...func(*Config)) *Backend {
	w.Helper()
	b := w.start(change...)
	await.True(w.T, "the backend is ready", func() bool {
		ready, err := b.Probe(context.Background())
		if err != nil {
			w.Fatal(err)
		}
		return ready
	})
	return b
}

// restart closes a backend and opens the next backend.
func (w *world) restart(b *Backend) *Backend {
	w.Helper()
	if err := b.Close(); err != nil {
		w.Fatal(err)
	}
	return w.open()
}

// refused opens a backend, waits until it is not ready, and returns the reason.
func (w *world) refused(change ...func(*Config)) error {
	w.Helper()
	b := w.start(change...)
	defer b.Close()
	var err error
	await.True(w.T, "the backend refuses the root", func() bool {
		_, err = b.Probe(context.Background())
		return err != nil
	})
	if !errors.Is(err, backend.ErrNotReady) {
		w.Errorf("Probe = %v, want ErrNotReady", err)
	}
	if _, err := b.Create(context.Background(), backend.CreateOptions{Name: "x"}); !errors.Is(err,
		backend.ErrUnavailable) {
		w.Errorf("Create = %v, want ErrUnavailable", err)
	}
	return err
}

// awaitReady waits until a backend serves.
func awaitReady(t testing.TB, b *Backend) {
	t.Helper()
	await.True(t, "the backend is ready", func() bool {
		ready, err := b.Probe(context.Background())
		if err != nil {
			b.Close()
			t.Fatalf("the root is not served: %v", err)
		}
		return ready
	})
}

func (w *world) path(elem ...string) string {
	return filepath.Join(append([]string{w.cfg.Root}, elem...)...)
}

func (w *world) names(dir string) []string {
	w.Helper()
	entries, err := os.ReadDir(w.path(dir))
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (w *world) create(b *Backend, name string) backend.Volume {
	w.Helper()
	v, err := b.Create(context.Background(),
		backend.CreateOptions{Name: name, Required: 1 << 20, Access: []backend.Access{{}}})
	if err != nil {
		w.Fatal(err)
	}
	return v
}

func (w *world) emptied() {
	w.Helper()
	await.True(w.T, "the trash is empty", func() bool { return len(w.names(trashDir)) == 0 })
}

func TestVolumesSurviveARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "pvc-1")
	if err := os.WriteFile(w.path(volumesDir, v.ID, dataDir, "f"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	reserved := b.catalog.Reserved()
	b.Close()
	b = w.open()
	if again := w.create(b, "pvc-1"); again.ID != v.ID || again.Size != v.Size {
		t.Errorf("found %+v, want %+v", again, v)
	}
	if b.catalog.Reserved() != reserved {
		t.Errorf("%d bytes are reserved, before %d", b.catalog.Reserved(), reserved)
	}
	if data, err := os.ReadFile(w.path(volumesDir, v.ID, dataDir, "f")); string(data) != "data" {
		t.Errorf("the file holds %q, %v", data, err)
	}
}

func TestIncompleteObjectsAreSwept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open().Close()
	for _, name := range []string{"staging/half/data", "trash/old/data/deep/er", "volumes/lost+found",
		"volumes/unknown/record.json"} {
		if err := os.MkdirAll(w.path(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := w.open()
	if sick, _, err := b.ListHealth(context.Background(), "", 10); err != nil || len(sick) != 0 ||
		len(w.names(volumesDir)) != 2 {
		t.Errorf("ListHealth = %+v, %v, want no conditions; volumes/ has %v", sick, err, w.names(volumesDir))
	}
	if got := b.count.swept.Load(); got != 1 || len(w.names(stagingDir)) != 0 {
		t.Errorf("%d objects were swept, %v is left in staging", got, w.names(stagingDir))
	}
	w.emptied()
}

func TestAnUnreadableRecordIsReportedAndUnchanged(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, tc := range map[string]struct {
		record func(good []byte) []byte
		reason string
	}{
		"torn":  {func(b []byte) []byte { return b[:len(b)/2] }, "RecordUnreadable"},
		"empty": {func([]byte) []byte { return nil }, "RecordUnreadable"},
		"of a newer version": {func([]byte) []byte { return []byte(`{"version":2,"crc32c":"0","data":{}}`) },
			"RecordOfNewerVersion"},
		"of an older version": {func([]byte) []byte { return []byte(`{"version":0,"crc32c":"44136fa3","data":{}}`) },
			"RecordUnreadable"},
		"of another volume": {func(b []byte) []byte {
			other := &volume{ID: "a" + strings.Repeat("0", 56), Name: "other", content: content{Size: 1}}
			file, _ := volumeFormat.Encode(other)
			return file
		}, "RecordUnreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := w.open()
			good, bad := w.create(b, "good"), w.create(b, "bad")
			b.Close()
			file := w.path(volumesDir, bad.ID, recordFile)
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			content = tc.record(content)
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}

			b = w.open()
			if sick, more, err := b.ListHealth(ctx, "", 10); err != nil || more || len(sick) != 1 ||
				sick[0].ID != bad.ID ||
				sick[0].Conditions[0].Reason != tc.reason || sick[0].Conditions[0].Severity != backend.Inaccessible {
				t.Errorf("ListHealth = %+v, %v, %v, want %s", sick, more, err, tc.reason)
			}
			if c, err := b.Health(ctx, bad.ID); err != nil || len(c) != 1 || c[0].Reason != tc.reason {
				t.Errorf("Health = %+v, %v", c, err)
			}
			if _, err := b.Get(ctx, good.ID, nil); err != nil {
				t.Errorf("the other volume: %v", err)
			}
			_, getErr := b.Get(ctx, bad.ID, nil)
			_, createErr := b.Create(ctx, backend.CreateOptions{Name: "bad", Access: []backend.Access{{}}})
			_, mountErr := b.Mount(ctx, bad.ID, backend.Access{})
			for _, err := range []error{getErr, createErr, mountErr, b.Delete(ctx, bad.ID, nil)} {
				if err == nil || errors.Is(err, backend.ErrNotFound) {
					t.Errorf("a call for the volume = %v, want the error of its record", err)
				}
			}
			if page, _, _ := b.List(ctx, "", 10); len(page) != 1 || page[0].ID != good.ID {
				t.Errorf("List = %+v, want the good volume", page)
			}
			if now, err := os.ReadFile(file); err != nil || !slices.Equal(now, content) {
				t.Errorf("the record was touched: %q, %v", now, err)
			}
			if _, err := os.Stat(w.path(volumesDir, bad.ID, dataDir)); err != nil {
				t.Errorf("the data was touched: %v", err)
			}
		})
	}
}

func TestAMissingDirectoryIsDataLoss(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "pvc-1")
	if err := os.Remove(w.path(volumesDir, v.ID, dataDir)); err != nil {
		t.Fatal(err)
	}
	c, err := b.Health(context.Background(), v.ID)
	if err != nil || len(c) != 1 || c[0].Severity != backend.DataLoss {
		t.Errorf("Health = %+v, %v", c, err)
	}
}

// Without its record, a volume is unusable from the next start on: the conditions ask for the
// record, too.
func TestAMissingRecordIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "pvc-1")
	dir, away := w.path(volumesDir, v.ID), w.path("away")
	expect := func(event string, severity backend.Severity, reason, message string) {
		t.Helper()
		c, err := b.Health(w.Context(), v.ID)
		if reason == "" && err == nil && len(c) == 0 {
			return
		}
		if err != nil || len(c) != 1 || c[0].Severity != severity || c[0].Reason != reason ||
			!strings.Contains(c[0].Message, message) {
			t.Errorf("%s: Health = %+v, %v, want %s with %q", event, c, err, reason, message)
		}
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(dir, away)
	expect("no directory", backend.DataLoss, "DataMissing", "and the record beside it are missing")
	if err := os.MkdirAll(filepath.Join(dir, dataDir), 0o700); err != nil {
		t.Fatal(err)
	}
	expect("data without a record", backend.Degraded, "RecordMissing", recordFile+" is missing")
	move(filepath.Join(away, recordFile), filepath.Join(dir, recordFile))
	expect("a restored record", 0, "", "")
	b.Close()
	b = w.open()
	expect("the next start", 0, "", "")
}

func TestTheRootsIdentity(t *testing.T) {
	t.Parallel()
	other := func(c *Config) { c.Root += "2" }
	adopt := func(c *Config) { c.Adopt = true }
	elsewhere := func(c *Config) { c.RootRecord += ".other" }
	for name, tc := range map[string]struct {
		prepare func(w *world) // after a first start, with one volume
		change  func(*Config)
		refused string // "" if the root is served
	}{
		"the same again":     {func(*world) {}, nil, ""},
		"the memory is lost": {func(w *world) { os.Remove(w.cfg.RootRecord) }, nil, ""},
		"an empty disk instead of a filled disk": {func(w *world) {
			os.Rename(w.cfg.Root, w.cfg.Root+".away")
			os.Mkdir(w.cfg.Root, 0o700)
		}, nil, "is its disk mounted?"},
		"an empty disk and nothing remembered": {func(w *world) {
			os.Rename(w.cfg.Root, w.cfg.Root+".away")
			os.Mkdir(w.cfg.Root, 0o700)
			os.Remove(w.cfg.RootRecord)
		}, func(c *Config) { c.Init = false }, "--init-root"},
		"the same again without --init-root": {func(*world) {}, func(c *Config) { c.Init = false }, ""},
		"another disk": {func(w *world) {
			os.Mkdir(w.cfg.Root+"2", 0o700)
			w.open(other, elsewhere).Close()
		}, other, "is the right disk mounted?"},
		"another node's disk": {func(*world) {}, func(c *Config) { c.Node = "node-2" }, `belongs to node "node-1"`},
		"no identity and files": {func(w *world) {
			os.Remove(w.path(identityFile))
			os.Remove(w.cfg.RootRecord)
		}, nil, "is not empty"},
		"no identity and the volumes": {func(w *world) { os.Remove(w.path(identityFile)) }, nil,
			"is not empty: it contains \"groups\", and "},
		"no identity and the volumes of a lost root": {func(w *world) { os.Remove(w.path(identityFile)) },
			func(c *Config) {
				seen, _ := os.ReadFile(c.RootRecord)
				c.Lost = regexp.MustCompile(`[0-9a-f-]{36}`).FindAllString(string(seen), 1)
			}, "delete nothing: to serve the root"},
		"the identity restored from its copy": {func(w *world) {
			os.Remove(w.path(identityFile))
			seen, _ := os.ReadFile(w.cfg.RootRecord)
			os.WriteFile(w.path(identityFile), seen, 0o600)
		}, nil, ""},
		"a torn identity": {func(w *world) { os.WriteFile(w.path(identityFile), []byte("{"), 0o600) }, adopt,
			"damaged"},
		"an identity without a UUID": {func(w *world) { nameless(w, w.path(identityFile)) }, adopt, "invalid uuid"},
		"a memory without a UUID":    {func(w *world) { nameless(w, w.cfg.RootRecord) }, adopt, "invalid uuid"},
		"an identity of a newer release": {func(w *world) {
			os.WriteFile(w.path(identityFile), []byte(`{"version":9}`), 0o600)
		}, adopt, "newer"},
		"no root": {func(w *world) { os.RemoveAll(w.cfg.Root) }, nil, "the root must exist"},
		"a file as root": {func(w *world) {
			os.RemoveAll(w.cfg.Root)
			os.WriteFile(w.cfg.Root, nil, 0o600)
		}, nil, "the root must exist"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := w.open()
			w.create(b, "pvc-1")
			b.Close()
			tc.prepare(w)
			if tc.change == nil {
				tc.change = func(*Config) {}
			}
			if tc.refused == "" {
				w.open(tc.change)
				return
			}
			if err := w.refused(tc.change); !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("not ready: %v, want %s", err, tc.refused)
			}
		})
	}
}

func TestAdoptRootServesTheRootOfAnotherNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "pvc-1")
	b.Close()
	onNode2 := func(c *Config) { c.Node = "node-2" }
	w.refused(onNode2)
	b = w.open(onNode2, func(c *Config) { c.Adopt = true })
	if _, err := b.Get(context.Background(), v.ID, nil); err != nil {
		t.Errorf("the adopted volume: %v", err)
	}
	b.Close()
	w.open(onNode2).Close() // one start with --adopt-root is enough
	w.refused()             // and the root no longer belongs to the first node
}

// TestAnAdoptedRootIsNotLostOnItsNewNode: all nodes of a cluster get the same list of lost roots.
// The list has the UUID of a disk that the first node misses, as it was moved to another node.
func TestAnAdoptedRootIsNotLostOnItsNewNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open().Close()
	onNode2 := func(c *Config) { c.Node, c.RootRecord = "node-2", c.RootRecord+".2" }
	w.open(onNode2, func(c *Config) { c.Adopt = true }).Close()
	empty := func(c *Config) { c.Root += ".new" }
	if err := os.Mkdir(w.cfg.Root+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	said := uuids.FindString(w.refused(empty).Error())
	lost := func(c *Config) { c.Lost = []string{said} }
	w.open(empty, lost).Close()
	w.open(onNode2, lost).Close()
}

// uuids finds the UUID in the error of a driver that misses a root.
var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

const identityFile = store.IdentityFile

var identityFormat = record.Format{Version: 1}

// identity is the content of identityFile.
type identity struct {
	UUID    string    `json:"uuid"`
	Node    string    `json:"node"`
	Release string    `json:"release"`
	Created time.Time `json:"created"`
}

// nameless writes a complete identity without a UUID.
func nameless(w *world, path string) {
	w.Helper()
	file, err := identityFormat.Encode(identity{Node: "node-1"})
	if err := cmp.Or(err, os.WriteFile(path, file, 0o600)); err != nil {
		w.Fatal(err)
	}
}

// TestALostRootIsReplacedOnce: a UUID in the list of lost roots has no effect on other roots, nor
// on the next root of the same node.
func TestALostRootIsReplacedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open().Close()
	unmounted := 0
	unmount := func() (id string) {
		file, err := os.ReadFile(w.path(identityFile))
		if err != nil {
			t.Fatal(err)
		}
		var had identity
		if err := identityFormat.Decode(file, &had); err != nil {
			t.Fatal(err)
		}
		unmounted++
		if err := errors.Join(os.Rename(w.cfg.Root, fmt.Sprint(w.cfg.Root, unmounted)),
			os.Mkdir(w.cfg.Root, 0o700)); err != nil {
			t.Fatal(err)
		}
		return had.UUID
	}
	lost := unmount()
	if err := w.refused(); !strings.Contains(err.Error(), lost) {
		t.Errorf("not ready: %v, want an error with %s", err, lost)
	}
	gone := func(c *Config) { c.Lost = []string{uuid.NewString(), lost} }
	w.refused(func(c *Config) { c.Lost = []string{uuid.NewString()} })
	w.refused(gone, func(c *Config) { c.Init = false })
	w.open(gone).Close()
	w.open(gone).Close()
	second := unmount()
	w.refused(gone)

	// The first disk comes back. It is served when its UUID is no longer in the list, and its next
	// loss is noticed.
	if err := errors.Join(os.RemoveAll(w.cfg.Root), os.Rename(w.cfg.Root+"1", w.cfg.Root)); err != nil {
		t.Fatal(err)
	}
	both := func(c *Config) { c.Lost = []string{lost, second} }
	if err := w.refused(both); !strings.Contains(err.Error(), "remove it from") {
		t.Errorf("not ready: %v", err)
	}
	gone = func(c *Config) { c.Lost = []string{second} }
	w.open(gone).Close()
	unmount()
	w.refused(gone)
}

func TestAnAdoptedRootIsRecordedAsServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open().Close()
	first, second := w.cfg.Root, w.cfg.Root+"2"
	if err := os.Mkdir(second, 0o700); err != nil {
		t.Fatal(err)
	}
	w.cfg.Root = second
	w.refused()
	w.open(func(c *Config) { c.Adopt = true }).Close()
	w.open().Close()
	w.cfg.Root = first
	w.refused()
}

func TestARootThatIsMountedLaterIsServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open().Close()
	if err := os.Rename(w.cfg.Root, w.cfg.Root+".away"); err != nil {
		t.Fatal(err)
	}
	b := w.start()
	await.True(w.T, "the backend refuses the root", func() bool { _, err := b.Probe(context.Background()); return err != nil })
	if err := os.Rename(w.cfg.Root+".away", w.cfg.Root); err != nil {
		t.Fatal(err)
	}
	await.True(w.T, "the backend is ready", func() bool { ready, _ := b.Probe(context.Background()); return ready })
}

func TestOneProcessServesARoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	if err := w.refused(); !strings.Contains(err.Error(), "another process") {
		t.Errorf("not ready: %v", err)
	}
	b.Close()
	w.open()
}

func TestARootThatWasReplacedIsNotServed(t *testing.T) {
	t.Parallel()
	notOnWindows(t, "an open root cannot be renamed there")
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "pvc-1")
	if err := os.Rename(w.cfg.Root, w.cfg.Root+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(w.path(volumesDir, v.ID, dataDir), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	_, createErr := b.Create(ctx, backend.CreateOptions{Name: "pvc-1", Access: []backend.Access{{}}})
	_, getErr := b.Get(ctx, v.ID, nil)
	_, mountErr := b.Mount(ctx, v.ID, backend.Access{})
	_, _, listErr := b.List(ctx, "", 1)
	_, roomErr := b.Capacity(ctx, backend.CreateOptions{})
	for _, err := range []error{createErr, getErr, mountErr, listErr, roomErr, b.Delete(ctx, v.ID, nil)} {
		if !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("a call while the path leads to another directory = %v, want ErrUnavailable", err)
		}
	}
	if ready, err := b.Probe(ctx); ready || !errors.Is(err, backend.ErrNotReady) {
		t.Errorf("Probe = %v, %v", ready, err)
	}
	if c, err := b.StorageHealth(ctx); err != nil || len(c) != 1 || c[0].Severity != backend.Inaccessible {
		t.Errorf("StorageHealth = %+v, %v", c, err)
	}
	if _, err := os.Stat(filepath.Join(w.cfg.Root+".away", volumesDir, v.ID)); err != nil {
		t.Errorf("the volume: %v", err)
	}
}

func TestTheTrashIsEmptiedWithoutFollowingLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "pvc-1")
	outside := filepath.Join(w.TempDir(), "precious")
	if err := os.MkdirAll(filepath.Join(outside, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"link", "dir/link"} { // as a pod can
		path := w.path(volumesDir, v.ID, dataDir, link)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := winetest.Symlink(outside, path); err != nil {
			t.Skip(err)
		}
	}
	if err := b.Delete(context.Background(), v.ID, nil); err != nil {
		t.Fatal(err)
	}
	w.emptied()
	if _, err := os.Stat(filepath.Join(outside, "sub")); err != nil {
		t.Errorf("the emptying of the trash followed a link: %v", err)
	}
}

func TestTheFilesOfADeletedVolumeAreRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "pvc-1")
	data := w.path(volumesDir, v.ID, dataDir)
	names := []string{"a/b/c", strings.Repeat("n", 255)}
	if runtime.GOOS != "windows" { // where names are UTF-16, without control characters
		names = append(names, "with\nnewline", "\xff\xfenot UTF-8")
	}
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(data, name, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1500 {
		if err := os.WriteFile(filepath.Join(data, "a", strings.Repeat("f", 1+i%200)+string(rune('0'+i/200))), nil,
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Delete(context.Background(), v.ID, nil); err != nil {
		t.Fatal(err)
	}
	w.emptied()
	if b.count.removedFiles.Load() < 1000 || b.count.stuck.Load() != nil {
		t.Errorf("%d files removed, stuck: %v", b.count.removedFiles.Load(), b.count.stuck.Load())
	}
}

func TestABackgroundPanicIsReportedAndTheTaskRestarted(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var reported []error
	panics := 1
	w := newWorld(t)
	images := w.cfg.Images
	w.cfg.Images = changed{Images: images, users: func(source string) ([]string, error) {
		mu.Lock()
		defer mu.Unlock()
		if filepath.Base(source) == trashDir && panics > 0 {
			panics--
			panic("no mounts")
		}
		return images.MountPointsOf(source)
	}}
	w.cfg.Report = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, err)
	}
	b := w.open()
	if err := b.Delete(context.Background(), w.create(b, "pvc-1").ID, nil); err != nil {
		t.Fatal(err)
	}
	w.emptied()
	mu.Lock()
	defer mu.Unlock()
	var p *guard.Panic
	if len(reported) != 1 || !errors.As(reported[0], &p) || !strings.Contains(string(p.Stack), "unmounted") {
		t.Errorf("Report got %v, want the panic with its stack", reported)
	}
	if c, err := b.StorageHealth(context.Background()); err != nil || len(c) != 1 || c[0].Reason != "TaskPanicked" ||
		!strings.Contains(c[0].Message, "no mounts") {
		t.Errorf("StorageHealth = %+v, %v", c, err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
}

func TestReservedBytesDoNotOverflow(t *testing.T) {
	t.Parallel()
	var x objectCatalog
	huge := content{Size: 1 << 62}
	x.Replace(contents{Volumes: []*volume{{ID: "a", content: huge}, {ID: "b", content: huge},
		{ID: "c", content: huge}}})
	if x.Reserved() <= 0 {
		t.Errorf("reserved = %d", x.Reserved())
	}
	if err := x.Reserve(1, func(p int64) int64 {
		return store.Space{Total: 1 << 40, Free: 1 << 40,
			Whole: true}.Available(p)
	}); !errors.As(err, new(*catalog.Full)) {
		t.Errorf("Reserve = %v", err)
	}
}

// known returns an object that a lookup must have found.
func known[T any](object T, err error) T {
	if err != nil {
		panic(err)
	}
	return object
}

// TestPathsDoNotContainNames: an ID is a digest, so that a name cannot lead out of the root.
func TestPathsDoNotContainNames(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t)
	b := w.open()
	for i, name := range []string{"../../stray", "/stray", "stray/..", "stray", "..", "stray\nstray"} {
		v := w.create(b, name)
		if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: name, Source: v.ID}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Create(ctx, imageOptions("image "+name, nil, nil)); err != nil {
			t.Fatal(err)
		}
		if volumes, snapshots := w.names(volumesDir), w.names(snapshotsDir); len(volumes) != 2*(i+1) ||
			len(snapshots) != i+1 {
			t.Errorf("after %q there are the volumes %q and the snapshots %q", name, volumes, snapshots)
		}
	}
	err := filepath.WalkDir(filepath.Dir(w.cfg.Root), func(path string, _ fs.DirEntry, err error) error {
		if strings.Contains(path, "stray") {
			t.Errorf("a name is in the path %q", path)
		}
		if errors.Is(err, fs.ErrNotExist) { // removed from the trash meanwhile
			return nil
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func FuzzCreate(f *testing.F) {
	f.Add("pvc-1", "kind", "directory", int64(1<<20), int64(0))
	f.Add("..", "kind", "image", int64(-1), int64(1))
	f.Add("a/b\x00", "", "", int64(1<<62), int64(1<<62))
	dir := f.TempDir()
	b, err := New(Config{Root: dir, Node: "n", Init: true, RootRecord: filepath.Join(f.TempDir(), "seen"),
		Images: mountertest.NewFake(dir)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { b.Close() })
	awaitReady(f, b)
	empty, err := os.ReadDir(dir)
	if err != nil || len(empty) < 6 {
		f.Fatalf("the new root has %v, %v", empty, err)
	}
	f.Fuzz(func(t *testing.T, name, key, value string, required, limit int64) {
		if required < 0 || limit < 0 || (limit > 0 && required > limit) {
			return // the driver rejects these
		}
		o := backend.CreateOptions{Name: name, Required: required, Limit: limit,
			Parameters: map[string]string{key: value}, Access: []backend.Access{{}}}
		v, err := b.Create(context.Background(), o)
		if err != nil {
			return
		}
		if key != "kind" && key != "consistency" || key == "kind" && (value != "directory" && value != "image") ||
			v.Size < required || (limit > 0 && v.Size > limit) {
			t.Errorf("Create(%+v) = %+v", o, v)
		}
		if err := b.Delete(context.Background(), v.ID, nil); err != nil {
			t.Error(err)
		}
		// An empty root: on Windows a file holds the lock, instead of the directory.
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != len(empty) {
			t.Errorf("the root has %v, %v, want %v", entries, err, empty)
		}
	})
}

func TestAnExpansionThatWasNotRecordedCanBeRepeated(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, create := range map[string]func(w *world, b *Backend) backend.Volume{
		"directory": func(w *world, b *Backend) backend.Volume { return w.create(b, "v") },
		"image": func(w *world, b *Backend) backend.Volume {
			v, err := b.Create(ctx, imageOptions("v", nil, nil))
			if err != nil {
				w.Fatal(err)
			}
			return v
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := w.open()
			v := create(w, b)
			want := v.Size + 8<<20
			inTheWay := w.path(volumesDir, v.ID, recordFile+".new")
			if err := os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
			if _, _, err := b.Expand(ctx, v.ID, backend.ExpandOptions{Required: want}); err == nil {
				t.Fatal("Expand = nil, although the record cannot be written")
			}
			if err := os.RemoveAll(inTheWay); err != nil {
				t.Fatal(err)
			}
			if size, _, err := b.Expand(ctx, v.ID, backend.ExpandOptions{Required: want}); err != nil || size != want {
				t.Errorf("the second Expand: %d, %v, want %d", size, err, want)
			}
			b = w.restart(b)
			if got, err := b.Get(ctx, v.ID, nil); err != nil || got.Size != want || b.catalog.Reserved() != want {
				t.Errorf("after a restart the volume has %d bytes, %v, and %d are reserved, want %d", got.Size, err,
					b.catalog.Reserved(), want)
			}
		})
	}
}

func TestAFilesystemThatStaysFrozenIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Images = changed{Images: w.cfg.Images,
		freeze: func(ctx context.Context, tenant string, _ []string, _ time.Duration,
			cut func(context.Context) error) error {
			return errors.Join(cut(ctx), mounter.ErrThawed, mounter.ErrFrozen)
		}}
	c := copying{Backend: w.open(), store: &root{Store: new(store.Store)}, job: &copyJob{Job: new(jobs.Job)}}
	src, dst := w.file("src"), w.file("dst")
	if err := c.clonePointInTime(context.Background(), src, dst); !errors.Is(err, mounter.ErrFrozen) {
		t.Errorf("clonePointInTime = %v, want ErrFrozen", err)
	}
}

func (w *world) file(name string) *os.File {
	w.Helper()
	f, err := os.Create(filepath.Join(w.TempDir(), name))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { f.Close() })
	return f
}
