package smb

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/sharesim"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

var errLost = fmt.Errorf("%w: the connection was lost", backend.ErrUnavailable)

// end is how a process ends.
type end int

const (
	killed            end = iota
	stopped               // and continues later
	stoppedWithClocks     // and continues later, without noticing that
)

var ends = map[string]end{"killed": killed, "stopped": stopped, "stopped with its clocks": stoppedWithClocks}

// endAt ends a process before the operation after a number of steps. reached is closed then. A
// process that is stopped has no open file: the server would keep it open for hours.
func endAt(p *sharesim.Process, steps int, how end) (reached chan struct{}) {
	reached = make(chan struct{})
	closed := make(chan struct{}) // all files
	var n atomic.Int64
	p.Before = func(string, string) error {
		switch n := int(n.Add(1)); {
		case n <= steps:
			return nil
		case n > steps+1:
			<-closed
			return nil
		}
		defer close(closed)
		defer close(reached)
		if how == killed {
			p.Kill()
			return sharesim.ErrDead
		}
		time.Sleep(time.Second)
		p.Stop(1000*time.Hour, how == stoppedWithClocks) // until resumed
		return nil
	}
	return reached
}

// TestAProcessEndsAtSteps: before each operation on the server, the process dies, or is stopped for
// longer than a marker lives, perhaps with its clocks. The next process finishes the call. A
// process that was stopped continues then. Nothing is left when everything is deleted.
func TestAProcessEndsAtSteps(t *testing.T) {
	for name, row := range interrupted {
		for way, how := range ends {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel()
				for step, done := 0, false; !done; step++ {
					simulate(t, func(w *simulation) {
						done = interrupt(w, step, how, row.prepare, row.call, row.check)
					})
					if t.Failed() {
						t.Fatalf("at step %d", step)
					}
					if done && step < 8 {
						t.Errorf("the call has %d steps only", step)
					}
				}
			})
		}
	}
}

// interrupt interrupts a call at a step, and repeats the call in another process. done reports that
// the call has fewer steps.
func interrupt(w *simulation, step int, how end, prepare func(site, *Backend) (string, error),
	call func(site, *Backend, string) (string, error), check func(site, *Backend, string)) (done bool) {
	w.Helper()
	second := w.open()
	var id string
	if prepare != nil {
		var err error
		if id, err = prepare(w, second); err != nil {
			w.Fatal(err)
		}
	}
	first, p := w.process()
	reached := endAt(p, step, how)
	ended := make(chan struct{})
	var firstErr error
	go func() {
		defer close(ended)
		_, firstErr = call(w, first, id)
	}()
	select {
	case <-ended:
		if firstErr == nil {
			select {
			case <-reached: // in the background, after the call
			default:
				done = true
			}
		}
	case <-reached:
	}
	made, err := until(w, func() (string, error) { return call(w, second, id) })
	if err != nil {
		w.Fatalf("the call in the next process: %v", err)
	}
	p.Resume()
	<-ended
	check(w, second, made)
	p.Kill()
	if first.Close(); how == killed {
		isEmptyExceptMarkers(w, second)
	}
	return done
}

// TestAConnectionIsLostAtSteps: before an operation on the server, or after it and before its
// answer, the connection ends. The same process repeats the call, and nothing is left when
// everything is deleted.
func TestAConnectionIsLostAtSteps(t *testing.T) {
	for name, row := range interrupted {
		for _, executed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, executed %v", name, executed), func(t *testing.T) {
				t.Parallel()
				for step, done := int64(0), false; !done; step++ {
					simulate(t, func(w *simulation) {
						var id string
						if row.prepare != nil {
							var err error
							if id, err = row.prepare(w, w.open()); err != nil {
								w.Fatal(err)
							}
						}
						b, p := w.process()
						var steps atomic.Int64
						lose := func(string, string) error {
							if steps.Add(1) == step+1 {
								return errLost
							}
							return nil
						}
						if executed {
							p.After = lose
						} else {
							p.Before = lose
						}
						made, err := until(w, func() (string, error) { return row.call(w, b, id) })
						if err != nil {
							w.Fatalf("step %d: %v", step, err)
						}
						if done = steps.Load() <= step; done {
							steps.Store(step + 1)
						}
						row.check(w, b, made)
						isEmptyExceptMarkers(w, b)
					})
					if t.Failed() {
						t.Fatalf("at step %d", step)
					}
				}
			})
		}
	}
}

// TestAStoppedDeleteLeavesTheNextVolume: a process is stopped, with its clocks, while it deletes a
// volume. Meanwhile another process deletes the volume, and creates another with the same
// directory. Nothing can stop the request that the process sends first. So the move of the
// directory is not stopped after the server has confirmed the right to it, and a removal is not the
// first request. The steps are those of the call and of the task that empties the trash.
func TestAStoppedDeleteLeavesTheNextVolume(t *testing.T) {
	for step, done := 0, false; !done; step++ {
		simulate(t, func(w *simulation) {
			second := w.open()
			id, err := old(w, second)
			if err != nil {
				w.Fatal(err)
			}
			w.write("old", "x", "data")
			first, p := w.process()
			var confirmed atomic.Bool
			var steps atomic.Int64
			reached := endAt(p, step, stoppedWithClocks)
			before := p.Before
			p.Before = func(op, path string) error {
				switch {
				case strings.HasPrefix(op, "move") && strings.HasSuffix(path, "/x") && confirmed.Load(),
					op == "remove" && steps.Load() == int64(step):
					return nil
				}
				if op == "read" && strings.Contains(path, "/"+records.WorkDir+"/") {
					confirmed.Store(true)
				}
				steps.Add(1)
				return before(op, path)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				first.Delete(context.Background(), id, nil)
			}()
			select {
			case <-ended:
				done = true
			case <-reached:
			}
			deleteUntil(w, second, id)
			v, err := until(w, func() (backend.Volume, error) {
				return second.Create(context.Background(), request(w, "new", subDirKey, "x"))
			})
			if err != nil {
				w.Fatal(err)
			}
			w.write("precious", "x", "data")
			p.Resume()
			<-ended
			holds(w, "precious", "x", "data")
			if _, err := second.Get(context.Background(), v.ID, nil); err != nil || w.Failed() {
				w.Fatalf("stopped at step %d: %v", step, err)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// TestMakersOfOtherDirectoriesDelayNoCall: a process has ended between the directory of a volume
// and its record. Only volumes whose directories overlap with that one wait for the end of its
// marker.
func TestMakersOfOtherDirectoriesDelayNoCall(t *testing.T) {
	simulate(t, func(w *simulation) {
		first, p := w.process()
		second := w.open()
		p.Before = loseRecord
		ctx := context.Background()
		if _, err := first.Create(ctx, request(w, "lost")); !errors.Is(err, backend.ErrUnavailable) {
			w.Fatalf("Create: %v", err)
		}
		if _, err := second.Create(ctx, request(w, "other", subDirKey, "lostandfound/x")); err != nil {
			w.Errorf("a volume beside the directory: %v", err)
		}
		for _, subDir := range []string{"Lost/x", "lost/x/y"} {
			if _, err := second.Create(ctx, request(w, subDir, subDirKey, subDir)); !errors.Is(err, backend.ErrBusy) {
				w.Errorf("a volume in %s: %v, want ErrBusy", subDir, err)
			}
		}
	})
}

// loseRecord loses the connection before the record of a volume.
func loseRecord(op, path string) error {
	if op == "create" && strings.Contains(path, records.VolumesDir) {
		return errLost
	}
	return nil
}

// TestADirectoryWithoutARecordIsRemoved: a process ends between the directory and its record. The
// deletion of the volume removes the directory, and so does the sweep a day later, if no call
// deletes the volume.
func TestADirectoryWithoutARecordIsRemoved(t *testing.T) {
	for _, swept := range []bool{false, true} {
		simulate(t, func(w *simulation) {
			first, p := w.process()
			second := w.open()
			p.Before = loseRecord
			o := request(w, "pvc-1")
			if _, err := first.Create(context.Background(), o); !errors.Is(err, backend.ErrUnavailable) {
				w.Fatalf("Create: %v", err)
			}
			if !w.exists("pvc-1") {
				w.Fatal("the volume has no directory")
			}
			if swept {
				p.Kill()
				first.Close()
				time.Sleep(48 * time.Hour)
				w.write("", records.MetaDir, records.WorkDir, "c.0123456789abcdef") // its time is that of the server
				second.emptyTrashNow(context.Background(), w.parsed(), nil)
				time.Sleep(time.Minute) // the marker does not change
				second.emptyTrashNow(context.Background(), w.parsed(), nil)
				w.removeAll(records.MetaDir, records.WorkDir, "c.0123456789abcdef")
			} else {
				id, err := records.NewObject('a', w.parsed(), o.Name)
				if err != nil {
					w.Fatal(err)
				}
				deleteUntil(w, second, id.String())
			}
			isEmpty(w, second)
		})
	}
}

// TestTheSweepOfAFullShare: a marker that cannot be succeeded does not stop the removal of others,
// which frees space.
func TestTheSweepOfAFullShare(t *testing.T) {
	simulate(t, func(w *simulation) {
		b, p := w.process()
		ctx := context.Background()
		if _, err := b.Create(ctx, request(w, "pvc-1")); err != nil {
			w.Fatal(err)
		}
		markers := []string{records.MetaDir, records.WorkDir}
		w.write("", append(markers, "a")...)                  // of an object without a record
		w.write("", append(markers, "r+", "b")...)            // of a copy
		w.write("", append(markers, "r+", "c~0123")...)       // of a chain without a head
		w.write("", append(markers, "s.0123456789abcdef")...) // a record that was not written
		time.Sleep(48 * time.Hour)
		w.write("", append(markers, "c.0123456789abcdef")...) // its time is that of the server
		p.Before = func(op, path string) error {
			if op == "create" {
				return fmt.Errorf("%w: the share is full", backend.ErrExhausted)
			}
			return nil
		}
		b.emptyTrashNow(ctx, w.parsed(), nil)
		time.Sleep(time.Minute) // the markers do not change
		if err := b.emptyTrashNow(ctx, w.parsed(), nil); !errors.Is(err, backend.ErrExhausted) {
			w.Errorf("the sweep of a full share: %v, want ErrExhausted", err)
		}
		for name, want := range map[string]bool{"a": true, "r+/b": true, "r+/c~0123": false, "s.0123456789abcdef": false} {
			if got := w.exists(append(markers, name)...); got != want {
				w.Errorf("%s exists: %v, want %v", name, got, want)
			}
		}
	})
}

// TestADeletionKeepsTheSpaceOfTheReserve: on a full share a deletion removes the reserve. A task
// that empties the trash at the same time does not make it again before the deletion has ended.
func TestADeletionKeepsTheSpaceOfTheReserve(t *testing.T) {
	for name, remove := range map[string]func(ctx context.Context, b *Backend, volume, snapshot string) error{
		"Delete": func(ctx context.Context, b *Backend, volume, _ string) error { return b.Delete(ctx, volume, nil) },
		"DeleteSnapshot": func(ctx context.Context, b *Backend, _, snapshot string) error {
			return b.DeleteSnapshot(ctx, snapshot, nil)
		},
	} {
		simulate(t, func(w *simulation) {
			b, p := w.process()
			ctx := context.Background()
			v, err := b.Create(ctx, request(w, "pvc-1"))
			if err != nil {
				w.Fatal(err)
			}
			snapshot, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "snap-1", Source: v.ID})
			if err != nil {
				w.Fatal(err)
			}
			emptied := false
			p.Before = func(op, _ string) error {
				full := w.exists(records.MetaDir, reserveFile)
				if !full && !emptied {
					emptied = true
					if err := b.emptyTrashNow(ctx, w.parsed(), nil); err != nil {
						w.Error(err)
					}
					full = w.exists(records.MetaDir, reserveFile)
				}
				if op == "create" && full {
					return fmt.Errorf("%w: the share is full", backend.ErrExhausted)
				}
				return nil
			}
			if err := remove(ctx, b, v.ID, snapshot.ID); err != nil {
				w.Errorf("%s on a full share: %v", name, err)
			}
			if !emptied {
				w.Errorf("%s did not remove the reserve", name)
			}
			time.Sleep(time.Minute) // for the background
			if !w.exists(records.MetaDir, reserveFile) {
				w.Errorf("%s: there is no reserve after the deletion", name)
			}
		})
	}
}

// TestFullSourcesDoNotWaitForEachOther: a deletion that uses the reserve of a source holds up those of
// the same source, however it is written, and no other.
func TestFullSourcesDoNotWaitForEachOther(t *testing.T) {
	simulate(t, func(w *simulation) {
		b := w.open()
		lockOf := func(source string) chan struct{} {
			parsed, err := mounter.ParseShare(source)
			if err != nil {
				w.Fatal(err)
			}
			return (&store{Backend: b, source: parsed}).reserveLock()
		}
		one := lockOf("//server/share/one")
		if lockOf("//server/share/one") != one || lockOf("//SERVER/Share/One") != one {
			w.Error("a source has two locks")
		}
		if lockOf("//server/share/two") == one || lockOf("//server/other/one") == one {
			w.Error("two sources have one lock")
		}
	})
}

// TestTheTrashOfAFileThatStays: an entry of the trash that cannot be removed does not stop the
// removal of old markers.
func TestTheTrashOfAFileThatStays(t *testing.T) {
	simulate(t, func(w *simulation) {
		b, p := w.process()
		ctx := context.Background()
		if _, err := b.Create(ctx, request(w, "pvc-1")); err != nil {
			w.Fatal(err)
		}
		const marker = "s.0123456789abcdef" // a record that was not written
		w.write("", records.MetaDir, records.WorkDir, marker)
		time.Sleep(48 * time.Hour)
		w.write("", records.MetaDir, records.WorkDir, "c.0123456789abcdef")
		w.write("", records.MetaDir, trashDir, "stuck", "file")
		p.Before = func(op, path string) error {
			if op == "remove" && strings.Contains(path, "stuck") {
				return fmt.Errorf("%w: the file stays", backend.ErrDenied)
			}
			return nil
		}
		if err := b.emptyTrashNow(ctx, w.parsed(), nil); !errors.Is(err, backend.ErrDenied) {
			w.Errorf("the trash with a file that stays: %v, want ErrDenied", err)
		}
		if w.exists(records.MetaDir, records.WorkDir, marker) {
			w.Error("the old marker stays")
		}
	})
}

// TestACopyWithoutItsSourceLeavesNothing: a copy is interrupted at each step, and its source is
// deleted. The repeated call fails for good, and leaves nothing.
func TestACopyWithoutItsSourceLeavesNothing(t *testing.T) {
	ctx := context.Background()
	for name, row := range map[string]struct {
		call func(w site, b *Backend, id string) error
		want error
	}{
		"Clone": {func(w site, b *Backend, id string) error {
			_, err := b.Clone(ctx, id, request(w, "copy"))
			return err
		}, backend.ErrNotFound},
		"Clone that has become too small": {func(w site, b *Backend, id string) error {
			o := request(w, "copy")
			o.Limit = o.Required
			_, err := b.Clone(ctx, id, o)
			return err
		}, backend.ErrOutOfRange},
		"Snapshot": {func(_ site, b *Backend, id string) error {
			_, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "snap", Source: id})
			return err
		}, backend.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for step, done := 0, false; !done; step++ {
				simulate(t, func(w *simulation) { done = loseSource(w, step, row.want, row.call) })
				if t.Failed() {
					t.Fatalf("at step %d", step)
				}
			}
		})
	}
}

// loseSource reports whether the copy was complete before the step.
func loseSource(w *simulation, step int, want error, call func(w site, b *Backend, id string) error) (done bool) {
	w.Helper()
	ctx := context.Background()
	second := w.open()
	id, err := source(w, second)
	if err != nil {
		w.Fatal(err)
	}
	first, p := w.process()
	endAt(p, step, killed)
	if err := call(w, first, id); err == nil {
		return true
	}
	first.Close()
	tooSmall := errors.Is(want, backend.ErrOutOfRange)
	if tooSmall {
		if _, err := until(w, func() (int64, error) {
			size, _, err := second.Expand(ctx, id, backend.ExpandOptions{Required: 5 << 20})
			return size, err
		}); err != nil {
			w.Fatal(err)
		}
	} else {
		deleteUntil(w, second, id)
	}
	_, err = until(w, func() (struct{}, error) { return struct{}{}, call(w, second, id) })
	if err == nil { // interrupted when the copy was complete
		return true
	}
	if !errors.Is(err, want) {
		w.Fatalf("the repeated call: %v, want %v", err, want)
	}
	if tooSmall {
		deleteUntil(w, second, id)
	}
	isEmptyExceptMarkers(w, second)
	return false
}

// reused are calls that leave the directory "x" or give it up, when they are interrupted.
var reused = map[string]struct {
	prepare func(w site, b *Backend) (id string, err error)
	call    func(w site, b *Backend, id string) error
}{
	"Create": {
		call: func(w site, b *Backend, _ string) error {
			_, err := b.Create(context.Background(), request(w, "old", subDirKey, "x"))
			return err
		},
	},
	"Clone": {
		prepare: source,
		call: func(w site, b *Backend, id string) error {
			_, err := b.Clone(context.Background(), id, request(w, "old", subDirKey, "x"))
			return err
		},
	},
	"Clone that fails": {
		prepare: func(w site, b *Backend) (string, error) {
			id, err := source(w, b)
			w.(*simulation).server.Deny(w.(*simulation).path("source", "dir", "data"))
			return id, err
		},
		call: func(w site, b *Backend, id string) error {
			_, err := b.Clone(context.Background(), id, request(w, "old", subDirKey, "x"))
			return err
		},
	},
	"Delete of an empty volume": {
		prepare: old,
		call:    func(_ site, b *Backend, id string) error { return b.Delete(context.Background(), id, nil) },
	},
	"Delete of a volume with data": {
		prepare: func(w site, b *Backend) (string, error) {
			id, err := old(w, b)
			w.write("old", "x", "data")
			return id, err
		},
		call: func(_ site, b *Backend, id string) error { return b.Delete(context.Background(), id, nil) },
	},
}

// old creates a volume with the directory "x".
func old(w site, b *Backend) (string, error) {
	v, err := until(w, func() (backend.Volume, error) {
		return b.Create(context.Background(), request(w, "old", subDirKey, "x"))
	})
	return v.ID, err
}

// TestADirectoryIsUsedAgain: a call is interrupted at a step, another volume with the same
// directory is created, and the call is repeated. The second volume keeps its directory and its
// data.
func TestADirectoryIsUsedAgain(t *testing.T) {
	for name, row := range reused {
		for _, how := range []string{"lost x", "killed x", "killed x/inner"} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				way, subDir, _ := strings.Cut(how, " ")
				for step, done := 0, false; !done; step++ {
					for _, atOnce := range []bool{false, true} {
						simulate(t, func(w *simulation) {
							u := reuse{w, row.call, subDir, atOnce}
							done = u.run(step, way == "killed", row.prepare)
						})
					}
					if t.Failed() {
						t.Fatalf("at step %d", step)
					}
				}
			})
		}
	}
}

// reuse is a call that is interrupted, and another volume with the same directory.
type reuse struct {
	*simulation
	call   func(w site, b *Backend, id string) error
	subDir string
	atOnce bool // the other volume has data before the call is repeated
}

// run reports whether the call has fewer steps.
func (w reuse) run(step int, killed bool, prepare func(w site, b *Backend) (string, error)) (done bool) {
	w.Helper()
	second := w.open()
	var id string
	if prepare != nil {
		var err error
		if id, err = prepare(w.simulation, second); err != nil {
			w.Fatal(err)
		}
	}
	first, p := w.process()
	var steps atomic.Int64
	p.Before = func(string, string) error {
		if n := int(steps.Add(1)); n == step+1 || (killed && n > step) {
			return errLost
		}
		return nil
	}
	w.call(w.simulation, first, id)
	done = int(steps.Load()) <= step
	p.Kill()
	first.Close()
	w.useAgain(second, id)
	return done
}

// useAgain creates the other volume, and repeats the call.
func (w reuse) useAgain(second *Backend, id string) {
	w.Helper()
	v, newErr := until(w.simulation, func() (backend.Volume, error) {
		return second.Create(context.Background(), request(w, "new", subDirKey, w.subDir))
	})
	precious := append(strings.Split(w.subDir, "/"), "data")
	write := sync.OnceFunc(func() {
		if newErr == nil {
			w.write("precious", precious...)
		}
	})
	if w.atOnce {
		write()
	}
	third := w.open()
	_, oldErr := until(w.simulation, func() (struct{}, error) { return struct{}{}, w.call(w.simulation, third, id) })
	write()
	if _, err := until(w.simulation, func() (struct{}, error) {
		return struct{}{}, third.emptyTrashNow(context.Background(), w.parsed(), nil)
	}); err != nil {
		w.Error(err)
	}
	volumes, _, err := second.List(context.Background(), "", 10)
	if err != nil {
		w.Fatal(err)
	}
	var dirs []string
	for _, v := range volumes {
		dirs = append(dirs, v.Context[subDirKey])
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(dirs)))
	if len(distinct) != len(dirs) || (slices.Contains(dirs, "x") && slices.Contains(dirs, "x/inner")) {
		w.Errorf("volumes with the directories %q: %v, %v", dirs, newErr, oldErr)
	}
	if newErr == nil {
		holds(w, "precious", precious...)
		deleteUntil(w.simulation, second, v.ID)
	} else if !errors.Is(newErr, backend.ErrPrecondition) {
		w.Errorf("Create = %v", newErr)
	}
}

// TestAProbeThatSaysNothing: the directory of a deleted volume stays if it is not known whether the
// server takes the name of another volume for the same, as a program of a pod has removed the probe,
// or the account may not look for it. Else it is deleted.
func TestAProbeThatSaysNothing(t *testing.T) {
	const mine, theirs = "cafe\u0301", "caf\u00e9"
	for name, tc := range map[string]struct {
		before func(w *simulation, probe string) error
		kept   bool
	}{
		"two directories":  {func(*simulation, string) error { return nil }, false},
		"removed":          {func(w *simulation, probe string) error { w.removeAll(mine, probe); return nil }, true},
		"no right to look": {func(*simulation, string) error { return backend.ErrDenied }, true},
	} {
		simulate(t, func(w *simulation) {
			b, p := w.process()
			ctx := context.Background()
			first, err := b.Create(ctx, request(w, "pvc-1", subDirKey, mine))
			if err != nil {
				w.Fatal(err)
			}
			second, err := b.Create(ctx, request(w, "pvc-2", subDirKey, "other"))
			if err != nil {
				w.Fatal(err)
			}
			w.write("precious", mine, "f")
			moveRecord(w, b, w.parsed(), second.ID, theirs)
			probes := 0
			p.Before = func(_, pathname string) error {
				if base := path.Base(pathname); strings.HasPrefix(base, "causeway-") && strings.Contains(pathname, theirs) {
					probes++
					return tc.before(w, base)
				}
				return nil
			}
			if err := b.Delete(ctx, first.ID, nil); err != nil {
				w.Errorf("%s: Delete = %v", name, err)
			}
			time.Sleep(time.Minute) // for the background
			if kept := w.exists(mine, "f"); kept != tc.kept || probes == 0 {
				w.Errorf("%s: the data is kept: %v, want %v; %d probes", name, kept, tc.kept, probes)
			}
		})
	}
}
