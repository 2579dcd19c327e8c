package hostpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// obstacles are made by a test at the path of a file or directory. An open of the FIFO without
// O_NONBLOCK never returns.
var obstacles = map[string]func(path, victim string) error{
	"FIFO": func(path, _ string) error { return unix.Mkfifo(path, 0o600) },
	"file": func(path, _ string) error { return os.WriteFile(path, []byte("obstacle"), 0o600) },
	"directory": func(path, _ string) error {
		return errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "obstacle"), nil, 0o600))
	},
	"link": func(path, victim string) error { return os.Symlink(victim, path) },
}

// scene is a root with good and bad objects of each type. The bad objects get an obstacle.
type scene struct {
	*world
	good, bad, badImage       backend.Volume
	goodSnapshot, badSnapshot backend.Snapshot
	badImageSnapshot          backend.Snapshot
	group                     string
	precious                  string // a file of the good volume, to which no link may lead
}

func newScene(t *testing.T) *scene {
	s := &scene{world: newWorld(t), group: someGroup}
	b := s.open()
	s.good, s.bad = s.create(b, "good"), s.create(b, "bad")
	s.precious = s.path(volumesDir, s.good.ID, dataDir, "precious")
	if err := os.WriteFile(s.precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.badImage, err = b.Create(t.Context(), imageOptions("image", nil, nil)); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]*backend.Snapshot{"good": &s.goodSnapshot, "bad": &s.badSnapshot,
		"image": &s.badImageSnapshot} {
		source := map[string]string{"good": s.good.ID, "bad": s.good.ID, "image": s.badImage.ID}[name]
		if *n, err = b.Snapshot(t.Context(), backend.SnapshotOptions{Name: name, Source: source}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(b.Close(), os.Mkdir(s.path(groupsDir, s.group), 0o700)); err != nil {
		t.Fatal(err)
	}
	return s
}

// put moves the file at a path out of the root, and makes an obstacle at this path.
func (s *scene) put(target, obstacle, victim string) {
	s.Helper()
	err := os.Rename(target, filepath.Join(s.TempDir(), "away"))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err := errors.Join(err, obstacles[obstacle](target, victim)); err != nil {
		s.Fatal(err)
	}
}

// soon fails the test if do does not return.
func (s *scene) soon(call string, do func()) {
	s.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	await.Receive(s, call+" returns", done)
}

// serves checks that every call returns, and that calls for good objects succeed.
func (s *scene) serves(b *Backend) {
	s.Helper()
	ctx := context.Background()
	works := func(name string, call func() error) {
		s.Helper()
		s.soon(name, func() {
			if err := call(); err != nil {
				s.Errorf("%s = %v", name, err)
			}
		})
	}
	works("Mount", func() error { _, err := b.Mount(ctx, s.good.ID, backend.Access{}); return err })
	works("Create", func() error {
		_, err := b.Create(ctx, backend.CreateOptions{Name: "new", Required: 4096, Access: []backend.Access{{}}})
		return err
	})
	works("Snapshot", func() error {
		_, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "new", Source: s.good.ID})
		return err
	})
	works("Restore", func() error {
		_, err := b.Restore(ctx, s.goodSnapshot.ID, backend.CreateOptions{Name: "restored"})
		return err
	})
	works("Clone", func() error { _, err := b.Clone(ctx, s.good.ID, backend.CreateOptions{Name: "clone"}); return err })
	works("Health", func() error {
		if c, err := b.Health(ctx, s.good.ID); err != nil || len(c) > 0 {
			return fmt.Errorf("%+v, %w", c, err)
		}
		return nil
	})
	works("Delete", func() error {
		v, err := b.Create(ctx, backend.CreateOptions{Name: "new", Required: 4096, Access: []backend.Access{{}}})
		return errors.Join(err, b.Delete(ctx, v.ID, nil))
	})
	works("Capacity", func() error { _, err := b.Capacity(ctx, backend.CreateOptions{}); return err })
	works("List", func() error { _, _, err := b.List(ctx, "", 100); return err })
	works("ListSnapshots", func() error { _, _, err := b.ListSnapshots(ctx, "", "", 100); return err })
	works("ListHealth", func() error { _, _, err := b.ListHealth(ctx, "", 100); return err })
	works("StorageHealth", func() error { _, err := b.StorageHealth(ctx); return err })
	works("Probe", func() error { _, err := b.Probe(ctx); return err })
	works("Metrics", func() error { b.Metrics(); return nil })
}

// survives checks that calls for bad objects return. Their errors depend on the obstacle.
func (s *scene) survives(b *Backend) {
	s.Helper()
	ctx := context.Background()
	for _, v := range []backend.Volume{s.bad, s.badImage} {
		s.soon("a call for volume "+v.ID, func() {
			_, _ = b.Get(ctx, v.ID, nil)
			_, _ = b.Health(ctx, v.ID)
			_, _, _ = b.Usage(ctx, v.ID)
			_, _, _ = b.Expand(ctx, v.ID, backend.ExpandOptions{Required: v.Size + 1<<20})
			_ = b.Modify(ctx, v.ID, map[string]string{labelKey: "new"}, nil)
			_, _ = b.Snapshot(ctx, backend.SnapshotOptions{Name: "of " + v.ID, Source: v.ID})
			_, _ = b.Clone(ctx, v.ID, backend.CreateOptions{Name: "clone of " + v.ID})
			_ = b.Delete(ctx, v.ID, nil)
		})
	}
	for _, n := range []backend.Snapshot{s.badSnapshot, s.badImageSnapshot} {
		s.soon("a call for snapshot "+n.ID, func() {
			_, _ = b.GetSnapshot(ctx, n.ID, nil)
			_ = b.Allocated(ctx, n.ID, 0, nil, func(int64, int64) error { return nil })
			_, _ = b.Restore(ctx, n.ID, backend.CreateOptions{Name: "of " + n.ID})
			_ = b.DeleteSnapshot(ctx, n.ID, nil)
		})
	}
	s.soon("a call for the group", func() {
		_, _ = b.GetGroup(ctx, s.group, nil, nil)
		_ = b.DeleteGroup(ctx, s.group, nil, nil)
	})
}

// ends closes b, and checks that no link led to the good volume.
func (s *scene) ends(b *Backend) {
	s.Helper()
	s.soon("Close", func() {
		if err := b.Close(); err != nil {
			s.Errorf("Close = %v", err)
		}
	})
	if got, err := os.ReadFile(s.precious); err != nil || string(got) != "precious" {
		s.Errorf("the good volume's file holds %q, %v", got, err)
	}
}

// TestAnObstacleInTheRootHarmsNothingElse starts a backend on a root with an obstacle at the path
// of a file or directory.
func TestAnObstacleInTheRootHarmsNothingElse(t *testing.T) {
	for name, target := range map[string]func(s *scene) string{
		"leftover of the identity": func(s *scene) string { return s.path(identityFile + ".new") },
		"leftover of the memory":   func(s *scene) string { return s.cfg.RootRecord + ".new" },
		"volume":                   func(s *scene) string { return s.path(volumesDir, s.bad.ID) },
		"record of a volume":       func(s *scene) string { return s.path(volumesDir, s.bad.ID, recordFile) },
		"leftover of a record":     func(s *scene) string { return s.path(volumesDir, s.bad.ID, recordFile+".new") },
		"data of a volume":         func(s *scene) string { return s.path(volumesDir, s.bad.ID, dataDir) },
		"image of a volume":        func(s *scene) string { return s.path(volumesDir, s.badImage.ID, imageFile) },
		"snapshot":                 func(s *scene) string { return s.path(snapshotsDir, s.badSnapshot.ID) },
		"record of a snapshot": func(s *scene) string {
			return s.path(snapshotsDir, s.badSnapshot.ID,
				recordFile)
		},
		"data of a snapshot": func(s *scene) string { return s.path(snapshotsDir, s.badSnapshot.ID, dataDir) },
		"image of a snapshot": func(s *scene) string {
			return s.path(snapshotsDir, s.badImageSnapshot.ID,
				imageFile)
		},
		"group":              func(s *scene) string { return s.path(groupsDir, s.group) },
		"record of a group":  func(s *scene) string { return s.path(groupsDir, s.group, recordFile) },
		"entry of the trash": func(s *scene) string { return s.path(trashDir, "x") },
		"entry of staging/":  func(s *scene) string { return s.path(stagingDir, "x") },
		"data in the trash": func(s *scene) string {
			os.Mkdir(s.path(trashDir, "y"),
				0o700)
			return s.path(trashDir, "y", dataDir)
		},
		"record in staging/": func(s *scene) string {
			os.Mkdir(s.path(stagingDir, "y"), 0o700)
			return s.path(stagingDir, "y", recordFile)
		},
	} {
		for obstacle := range obstacles {
			t.Run(name+"/"+obstacle, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				s.put(target(s), obstacle, filepath.Dir(filepath.Dir(s.precious)))
				b := s.open()
				if name == "volume" && obstacle == "link" { // the message must not lead to another tenant's data
					c, err := b.Health(context.Background(), s.bad.ID)
					if err != nil || len(c) != 1 || c[0].Reason != "RecordUnreadable" ||
						strings.Contains(c[0].Message, "untouched") || !strings.Contains(c[0].Message,
						target(s)+": unexpected file type") {
						t.Errorf("Health = %+v, %v, want RecordUnreadable without the path of the data", c, err)
					}
				}
				s.serves(b)
				s.survives(b)
				s.emptied()
				var want []string
				if name == "record in staging/" { // the record may have been that of a member of a group
					want = []string{"y"}
				}
				if left := s.names(stagingDir); !slices.Equal(left, want) {
					t.Errorf("%v is left in staging/, want %v", left, want)
				}
				s.ends(b)
			})
		}
	}
}

// TestALaterObstacleAffectsNoOtherObject makes an obstacle at the path of an object that is
// served.
func TestALaterObstacleAffectsNoOtherObject(t *testing.T) {
	ctx := context.Background()
	for name, tc := range map[string]struct {
		target func(s *scene) string
		right  string // an obstacle that has the right type
		image  bool
	}{
		"volume": {func(s *scene) string { return s.path(volumesDir, s.bad.ID) }, "", false},
		"data of a volume": {func(s *scene) string { return s.path(volumesDir, s.bad.ID, dataDir) }, "directory",
			false},
		"image of a volume": {func(s *scene) string { return s.path(volumesDir, s.badImage.ID, imageFile) }, "file",
			true},
		"volume of an image": {func(s *scene) string { return s.path(volumesDir, s.badImage.ID) }, "", true},
	} {
		for obstacle := range obstacles {
			if obstacle == tc.right {
				continue
			}
			t.Run(name+"/"+obstacle, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				b := s.open()
				victim := filepath.Dir(filepath.Dir(s.precious)) // a link to this directory leads to data
				if path.Base(tc.target(s)) == dataDir {
					victim = filepath.Dir(s.precious)
				}
				s.put(tc.target(s), obstacle, victim)
				v := s.bad
				if tc.image {
					v = s.badImage
				}
				m, err := b.Mount(ctx, v.ID, backend.Access{})
				if err == nil || errors.Is(err, backend.ErrNotFound) {
					t.Errorf("Mount = %+v, %v, want an error that is not about the volume's ID", m, err)
				}
				if obstacle != "directory" && !errors.Is(err, beneath.ErrType) {
					t.Errorf("Mount = %v, want ErrType", err)
				}
				c, failed := b.Health(ctx, v.ID)
				if failed != nil || len(c) != 1 || c[0].Severity != backend.DataLoss || c[0].Reason != "DataMissing" {
					t.Errorf("Health = %+v, %v, want DataMissing", c, failed)
				}
				if obstacle == "link" {
					same := "the path of the data is obstructed: "
					_, taken := b.Snapshot(ctx, backend.SnapshotOptions{Name: "n", Source: v.ID})
					calls := map[string]error{"Mount": err, "Snapshot": taken, "Health": errors.New(c[0].Message)}
					if path.Base(tc.target(s)) != dataDir { // Delete moves the data to the trash with its link
						calls["Delete"] = b.Delete(ctx, v.ID, nil)
					}
					for call, err := range calls {
						if err == nil || !strings.Contains(err.Error(), same) ||
							!strings.Contains(err.Error(), tc.target(s)+": unexpected file type") {
							t.Errorf("%s = %v, want %q and the path of the link", call, err, same)
						}
						if call != "Health" && !errors.Is(err, backend.ErrPrecondition) {
							t.Errorf("%s = %v, want ErrPrecondition", call, err)
						}
					}
				}
				s.serves(b)
				s.survives(b)
				s.emptied()
				s.ends(b)
			})
		}
	}
}

// TestAnObstacleThatPreventsTheStartIsNamed starts a backend that cannot become ready.
func TestAnObstacleThatPreventsTheStartIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		target func(w *world) string
		right  string
	}{
		"identity": {func(w *world) string { return w.path(identityFile) }, ""},
		"memory":   {func(w *world) string { return w.cfg.RootRecord }, ""},
		"volumes":  {func(w *world) string { return w.path(volumesDir) }, "directory"},
		"trash":    {func(w *world) string { return w.path(trashDir) }, "directory"},
		"staging":  {func(w *world) string { return w.path(stagingDir) }, "directory"},
		"groups":   {func(w *world) string { return w.path(groupsDir) }, "directory"},
	} {
		for obstacle := range obstacles {
			if obstacle == tc.right {
				continue
			}
			t.Run(name+"/"+obstacle, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				s.put(tc.target(s.world), obstacle, s.path(volumesDir))
				s.soon("the start", func() {
					if err := s.refused(); !strings.Contains(err.Error(), tc.target(s.world)) &&
						!strings.Contains(err.Error(), filepath.Base(tc.target(s.world))) {
						t.Errorf("not ready: %v, want the path %s", err, tc.target(s.world))
					}
				})
				if _, err := os.Lstat(tc.target(s.world)); err != nil {
					t.Errorf("the obstacle: %v", err)
				}
			})
		}
	}
}

// record writes a record into a new directory of the root.
func (w *world) record(dir string, file []byte, err error) {
	w.Helper()
	if err := errors.Join(err, os.MkdirAll(w.path(dir), 0o700),
		os.WriteFile(w.path(dir, recordFile), file, 0o600)); err != nil {
		w.Fatal(err)
	}
}

// member puts an incomplete member of a group into staging/, and returns its directory.
func (w *world) member(g *group, i int) string {
	w.Helper()
	m := g.Members[i]
	n := &snapshot{ID: m.ID, Name: m.Source, Source: m.Source, Accept: frozen, Group: g.ID, Created: someTime,
		content: goodImage().content}
	file, err := snapshotFormat.Encode(n)
	w.record(m.Incomplete, file, err)
	return m.Incomplete
}

// A group exists from its commit on. If its members cannot be moved, or its record cannot be read,
// staging/ has the only copy of the members.
func TestMembersOfACommittedGroupAreNotSwept(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, tc := range map[string]struct {
		spoil, mend func(w *world, g *group) error
	}{
		"the path of a member is taken": {
			func(w *world, g *group) error { return os.MkdirAll(w.path(snapshotsDir, g.Members[0].ID, "x"), 0o700) },
			func(w *world, g *group) error { return os.RemoveAll(w.path(snapshotsDir, g.Members[0].ID)) },
		},
		"the group's record is damaged": {
			func(w *world, g *group) error { return os.Truncate(w.path(groupsDir, g.ID, recordFile), 50) },
			func(w *world, g *group) error {
				file, err := groupFormat.Encode(g)
				return errors.Join(err, os.WriteFile(w.path(groupsDir, g.ID, recordFile), file, 0o600))
			},
		},
		"the group's record is a FIFO": {
			func(w *world, g *group) error {
				path := w.path(groupsDir, g.ID, recordFile)
				return errors.Join(os.Rename(path, path+".away"), unix.Mkfifo(path, 0o600))
			},
			func(w *world, g *group) error {
				path := w.path(groupsDir, g.ID, recordFile)
				return os.Rename(path+".away", path)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := w.open()
			good := w.create(b, "good")
			b.Close()
			g := goodGroup()
			file, err := groupFormat.Encode(g)
			w.record(path.Join(groupsDir, g.ID), file, err)
			first, second := w.member(g, 0), w.member(g, 1)
			w.record(path.Join(stagingDir, "unknown"), nil, nil) // its record may have been that of a member
			obstructed := w.path(stagingDir, "obstructed", recordFile)
			if err := errors.Join(os.Mkdir(w.path(stagingDir, "another"), 0o700),
				os.MkdirAll(obstructed, 0o700)); err != nil {
				t.Fatal(err)
			}
			if err := tc.spoil(w, g); err != nil {
				t.Fatal(err)
			}
			b = w.open()
			if _, err := b.Get(ctx, good.ID, nil); err != nil {
				t.Errorf("the volume: %v", err)
			}
			if _, err := b.GetGroup(ctx, g.ID, nil, nil); err == nil || errors.Is(err, backend.ErrNotFound) {
				t.Errorf("GetGroup = %v, want the error of the group", err)
			}
			for _, member := range []string{first, second} {
				target := path.Join(snapshotsDir,
					strings.TrimSuffix(path.Base(member), member[strings.LastIndex(member, "-"):]))
				_, half := os.Stat(w.path(member, recordFile))
				_, final := os.Stat(w.path(target, recordFile))
				if half != nil && final != nil {
					t.Errorf("a member is missing: %v, %v", half, final)
				}
			}
			left := w.names(stagingDir)
			if slices.Contains(left, "another") || !slices.Contains(left, "unknown") ||
				!slices.Contains(left, "obstructed") {
				t.Errorf("%v is left in staging/, want the members and the two unknown entries", left)
			}
			b.Close()
			if err := tc.mend(w, g); err != nil {
				t.Fatal(err)
			}
			b = w.open()
			if got, err := b.GetGroup(ctx, g.ID, nil, nil); err != nil || len(got.Snapshots) != 2 {
				t.Errorf("GetGroup = %+v, %v after the repair, want two snapshots", got, err)
			}
		})
	}
}

func TestAnEntryThatCannotBeSweptIsReported(t *testing.T) {
	t.Parallel()
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	ctx := context.Background()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "good")
	b.Close()
	stuck := w.path(stagingDir, "stuck")
	if err := errors.Join(os.Mkdir(stuck, 0o700), os.Mkdir(w.path(stagingDir, "free"), 0o700),
		unix.Mount("none", stuck, "tmpfs", 0, "size=1m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(stuck, unix.MNT_DETACH) })
	b = w.open()
	if _, err := b.Get(ctx, v.ID, nil); err != nil {
		t.Errorf("the volume: %v", err)
	}
	if left := w.names(stagingDir); len(left) != 1 {
		t.Errorf("%v is left in staging/, want only the mount", left)
	}
	if c, err := b.StorageHealth(ctx); err != nil || len(c) != 1 || c[0].Reason != "SweepFailed" ||
		!strings.Contains(c[0].Message, "stuck") {
		t.Errorf("StorageHealth = %+v, %v, want SweepFailed that names the entry", c, err)
	}
	if err := unix.Unmount(stuck, 0); err != nil {
		t.Fatal(err)
	}
	b = w.restart(b)
	if c, err := b.StorageHealth(ctx); err != nil || len(c) != 0 || len(w.names(stagingDir)) != 0 {
		t.Errorf("StorageHealth = %+v, %v, and %v is left", c, err, w.names(stagingDir))
	}
}
