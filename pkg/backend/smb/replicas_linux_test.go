package smb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
)

// request is a request for a volume with further parameters, in pairs.
func (w *world) request(name string, parameters ...string) backend.CreateOptions {
	o := backend.CreateOptions{Name: name, Required: 1 << 20, Access: []backend.Access{{}},
		Parameters: map[string]string{sourceKey: w.source()}}
	for i := 0; i < len(parameters); i += 2 {
		o.Parameters[parameters[i]] = parameters[i+1]
	}
	return o
}

// testLife is the life of markers in tests that wait for it.
const testLife = 2 * time.Second

// oneAtATime is for a test in which processes work one after the other: a process never gives up its
// marker, also on a machine that is too busy to renew it in time.
func (w *world) oneAtATime() { w.life, w.lease = testLife, time.Hour }

// until repeats a call that another process delays.
func until[T any](t testing.TB, call func() (T, error)) (T, error) {
	t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		v, err := call()
		if time.Now().After(deadline) ||
			(!errors.Is(err, backend.ErrBusy) && !errors.Is(err, backend.ErrUnavailable) &&
				!errors.Is(err, backend.ErrInUse)) {
			return v, err
		}
	}
}

// deleteUntil deletes a volume that another process may be changing.
func deleteUntil(t testing.TB, b *Backend, id string) {
	t.Helper()
	if _, err := until(t, func() (struct{}, error) {
		return struct{}{}, b.Delete(context.Background(), id, nil)
	}); err != nil {
		t.Fatal(err)
	}
}

// TestTwoReplicas: 16 callers in two processes create, clone and delete the same volumes.
func TestTwoReplicas(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	ctx := context.Background()
	replicas := []*Backend{w.open(), w.open()}
	src, err := replicas[0].Create(ctx, w.request("source"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.path("source", "data"), []byte("precious"), 0o666); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	var made atomic.Int64
	for caller := range 16 {
		group.Go(func() {
			b := replicas[caller%2]
			for round := range 6 {
				name := fmt.Sprint("pvc-", round%3)
				v, err := until(t, func() (backend.Volume, error) {
					if round%3 == 0 {
						return b.Clone(ctx, src.ID, w.request(name))
					}
					return b.Create(ctx, w.request(name))
				})
				if err != nil {
					t.Errorf("caller %d: %v", caller, err)
					return
				}
				made.Add(1)
				if caller%4 == 0 {
					if _, err := until(t, func() (struct{}, error) {
						return struct{}{}, b.Delete(ctx, v.ID, nil)
					}); err != nil {
						t.Errorf("caller %d: %v", caller, err)
					}
				}
			}
		})
	}
	group.Wait()
	if made.Load() != 16*6 {
		t.Errorf("%d volumes were created, want %d", made.Load(), 16*6)
	}
	for _, b := range replicas {
		volumes, _, err := b.List(ctx, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range volumes {
			deleteUntil(t, b, v.ID)
		}
	}
	w.isEmpty(replicas[0])
}

// isEmpty checks that the source has neither volumes nor anything else of the driver, except for
// the directories of the store and the reserve.
func (w *world) isEmpty(b *Backend) {
	w.Helper()
	want := []string{".causeway", ".causeway/reserve", ".causeway/snapshots", ".causeway/trash", ".causeway/volumes",
		".causeway/work"}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := b.emptyTrashNow(context.Background(), w.parsed(), nil)
		var left []string
		filepath.WalkDir(w.path(), func(path string, _ os.DirEntry, err error) error {
			if err == nil && path != w.path() {
				left = append(left, strings.TrimPrefix(path, w.path()+"/"))
			}
			return err
		})
		slices.Sort(left)
		if err == nil && slices.Equal(left, want) {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("left on the share: %v, %v", left, err)
		}
	}
}

// mortal makes all operations of a backend's process fail after a number of steps, as if it had
// been killed, or wait until resumed, as if it had been stopped.
type mortal struct {
	steps  atomic.Int64 // until death
	dead   chan struct{}
	paused chan struct{} // nil: killed
	once   sync.Once
}

func (m *mortal) step(string, string) error {
	if m.steps.Add(-1) >= 0 {
		return nil
	}
	m.once.Do(func() { close(m.dead) })
	if m.paused != nil {
		<-m.paused
		return nil
	}
	return errDead
}

var errDead = errors.New("this process was killed")

// openMortal opens a backend whose process dies at a step.
func (w *world) openMortal(step int, paused chan struct{}) (*Backend, *mortal) {
	m := &mortal{dead: make(chan struct{}), paused: paused}
	m.steps.Store(int64(step))
	b := w.open()
	b.pool.Before = m.step
	return b, m
}

// interrupted are the operations that are interrupted, with the state that the next process must
// reach.
var interrupted = map[string]struct {
	prepare func(w *world, b *Backend) (id string, err error)
	call    func(w *world, b *Backend, id string) (string, error)
	check   func(w *world, b *Backend, id string)
}{
	"Create": {
		call: func(w *world, b *Backend, _ string) (string, error) {
			v, err := b.Create(context.Background(), w.request("pvc-1", subDirKey, "a/pvc-1"))
			return v.ID, err
		},
		check: func(w *world, b *Backend, id string) {
			if _, err := os.Stat(w.path("a", "pvc-1")); err != nil {
				w.Error(err)
			}
			deleteUntil(w, b, id)
			if err := os.Remove(w.path("a")); err != nil {
				w.Error(err)
			}
		},
	},
	"Create directly in the source": {
		call: func(w *world, b *Backend, _ string) (string, error) {
			v, err := b.Create(context.Background(), w.request("pvc-1"))
			return v.ID, err
		},
		check: func(w *world, b *Backend, id string) {
			if _, err := os.Stat(w.path("pvc-1")); err != nil {
				w.Error(err)
			}
			deleteUntil(w, b, id)
		},
	},
	"Clone": {
		prepare: source,
		call: func(w *world, b *Backend, id string) (string, error) {
			v, err := b.Clone(context.Background(), id, w.request("copy"))
			return v.ID, err
		},
		check: func(w *world, b *Backend, id string) {
			w.holds("precious", "copy", "dir", "data")
			deleteUntil(w, b, id)
			deleteSource(w, b)
		},
	},
	"Snapshot": {
		prepare: source,
		call: func(w *world, b *Backend, id string) (string, error) {
			n, err := b.Snapshot(context.Background(), backend.SnapshotOptions{Name: "snap", Source: id})
			return n.ID, err
		},
		check: func(w *world, b *Backend, id string) {
			deleteSource(w, b)
			v, err := until(w, func() (backend.Volume, error) {
				return b.Restore(context.Background(), id, w.request("restored"))
			})
			if err != nil {
				w.Fatal(err)
			}
			w.holds("precious", "restored", "dir", "data")
			deleteUntil(w, b, v.ID)
			if _, err := until(w, func() (struct{}, error) {
				return struct{}{}, b.DeleteSnapshot(context.Background(), id, nil)
			}); err != nil {
				w.Error(err)
			}
		},
	},
	"Delete": {
		prepare: source,
		call: func(_ *world, b *Backend, id string) (string, error) {
			return id, b.Delete(context.Background(), id, nil)
		},
		check: func(w *world, b *Backend, id string) {
			if _, err := until(w, func() (backend.Volume, error) {
				return b.Get(context.Background(), id, nil)
			}); !errors.Is(err, backend.ErrNotFound) {
				w.Errorf("Get of a deleted volume: %v", err)
			}
		},
	},
	"Delete with onDelete=archive": {
		prepare: func(w *world, b *Backend) (string, error) {
			id, err := source(w, b)
			if err != nil {
				return "", err
			}
			return until(w, func() (string, error) {
				return id, b.Modify(context.Background(), id, map[string]string{onDeleteKey: archiveData}, nil)
			})
		},
		call: func(_ *world, b *Backend, id string) (string, error) {
			return id, b.Delete(context.Background(), id, nil)
		},
		check: func(w *world, b *Backend, id string) {
			archives, err := filepath.Glob(w.path("archived-source-*"))
			if err != nil || len(archives) != 1 {
				w.Fatalf("archives: %v, %v", archives, err)
			}
			w.holds("precious", filepath.Base(archives[0]), "dir", "data")
			if err := os.RemoveAll(archives[0]); err != nil {
				w.Error(err)
			}
		},
	},
	"Expand and Modify": {
		prepare: source,
		call: func(_ *world, b *Backend, id string) (string, error) {
			_, _, err := b.Expand(context.Background(), id, backend.ExpandOptions{Required: 5 << 20})
			if err == nil {
				err = b.Modify(context.Background(), id, map[string]string{onDeleteKey: retainData}, nil)
			}
			return id, err
		},
		check: func(w *world, b *Backend, id string) {
			v, err := until(w, func() (backend.Volume, error) { return b.Get(context.Background(), id, nil) })
			if err != nil || v.Size != 5<<20 || v.Mutable[onDeleteKey] != retainData {
				w.Errorf("Get = %+v, %v", v, err)
			}
			deleteUntil(w, b, id)
			w.holds("precious", "source", "dir", "data")
			if err := os.RemoveAll(w.path("source")); err != nil {
				w.Error(err)
			}
		},
	},
}

// source creates a volume with a file.
func source(w *world, b *Backend) (string, error) {
	v, err := until(w, func() (backend.Volume, error) { return b.Create(context.Background(), w.request("source")) })
	if err != nil {
		return "", err
	}
	return v.ID, errors.Join(os.Mkdir(w.path("source", "dir"), 0o777),
		os.WriteFile(w.path("source", "dir", "data"), []byte("precious"), 0o666))
}

func deleteSource(w *world, b *Backend) {
	w.Helper()
	volumes, err := until(w, func() ([]backend.Volume, error) {
		volumes, _, err := b.List(context.Background(), "", 100)
		return volumes, err
	})
	if err != nil {
		w.Fatal(err)
	}
	for _, v := range volumes {
		deleteUntil(w, b, v.ID)
	}
}

// holds checks the content of a file.
func (w *world) holds(want string, path ...string) {
	w.Helper()
	got, err := os.ReadFile(w.path(path...))
	if err != nil || string(got) != want {
		w.Errorf("%v = %q, %v, want %q", path, got, err, want)
	}
}

// TestAProcessIsKilledAtSteps: before an operation on the server, the process dies.
// The next process finishes the call, and nothing is left when everything is deleted.
func TestAProcessIsKilledAtSteps(t *testing.T) {
	server := smbtest.Serve(t)
	for name, row := range interrupted {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for step := 0; ; step += stride(3) {
				if interrupt(t, server, step, row.prepare, row.call, row.check, killed) {
					least := step - stride(3) + 1
					if least < 8 {
						t.Errorf("the call has perhaps %d steps only", least)
					}
					t.Logf("%d to %d steps", least, step)
					return
				}
			}
		})
	}
}

// TestAProcessIsStoppedAtSteps: the process is stopped for longer than a marker lives, and
// continues when another process has finished the call.
func TestAProcessIsStoppedAtSteps(t *testing.T) {
	server := smbtest.Serve(t)
	for name, row := range interrupted {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for step := 0; ; step += stride(9) {
				if interrupt(t, server, step, row.prepare, row.call, row.check, stopped) {
					return
				}
			}
		})
	}
}

// stride returns the number of steps from one interrupted step to the next: n, or 1 in make
// crash-smb. A call has 22 steps or more.
func stride(n int) int {
	if os.Getenv("CAUSEWAY_CRASH_ALL") != "" {
		return 1
	}
	return n
}

// end is how a process ends.
type end int

const (
	killed            end = iota
	stopped               // and continues later
	stoppedWithClocks     // and continues later, without noticing that
)

// interrupt interrupts a call at a step, and repeats the call in another process. done reports that
// the call has fewer steps.
func interrupt(t *testing.T, server *smbtest.Server, step int, prepare func(*world, *Backend) (string, error),
	call func(*world, *Backend, string) (string, error), check func(*world, *Backend, string), how end) (done bool) {
	t.Helper()
	w := newWorld(t, server, smbtest.Share)
	w.oneAtATime()
	second := w.open()
	var id string
	if prepare != nil {
		var err error
		if id, err = prepare(w, second); err != nil {
			t.Fatal(err)
		}
		second.Close() // its trash is empty
		second = w.open()
	}
	paused, resume := (chan struct{})(nil), func() {}
	if how != killed {
		paused = make(chan struct{})
		resume = sync.OnceFunc(func() { close(paused) })
		defer resume() // or the end of the test waits for the first process
	}
	switch how { // for the first process
	case stopped: // it notices that its marker may have a successor
		w.lease = testLife / 3
	case stoppedWithClocks: // nothing renews its marker, which is valid for long
		w.life = time.Hour
	}
	first, m := w.openMortal(step, paused)
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
			case <-m.dead: // in the background, after the call
			default:
				done = true
			}
		}
	case <-m.dead:
	}
	made, err := until(t, func() (string, error) { return call(w, second, id) })
	if err != nil {
		t.Fatalf("killed at step %d: the call in the next process: %v", step, err)
	}
	if how != killed {
		resume()
		<-ended
	}
	check(w, second, made)
	if first.Close(); how == killed {
		w.isEmptyExceptMarkers(second)
	}
	return done
}

// isEmptyExceptMarkers is isEmpty, without the directory of markers: those of a process that was
// killed stay there for a day.
func (w *world) isEmptyExceptMarkers(b *Backend) {
	w.Helper()
	markers, err := filepath.Glob(w.path(metaDir, workDir, "*"))
	if err != nil {
		w.Fatal(err)
	}
	for _, m := range markers {
		if err := os.RemoveAll(m); err != nil {
			w.Error(err)
		}
	}
	w.isEmpty(b)
}

// TestTheServerIsKilledAtSteps: the server dies before an operation and comes back. The repeated
// call succeeds, and nothing is left when everything is deleted.
func TestTheServerIsKilledAtSteps(t *testing.T) {
	for name, row := range interrupted {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := smbtest.Serve(t)
			for step, done := 0, false; !done; step += stride(15) {
				w := newWorld(t, server, smbtest.Share)
				w.oneAtATime()
				var id string
				if row.prepare != nil {
					var err error
					if id, err = row.prepare(w, w.open()); err != nil {
						t.Fatal(err)
					}
				}
				b := w.open()
				var mu sync.Mutex // also held while the server is away
				steps := 0
				b.pool.Before = func(string, string) error {
					mu.Lock()
					defer mu.Unlock()
					if steps++; steps != step+1 {
						return nil
					}
					return errors.Join(server.Kill(), server.Restart())
				}
				made, err := until(t, func() (string, error) { return row.call(w, b, id) })
				if err != nil {
					t.Fatalf("the server was killed at step %d: %v", step, err)
				}
				mu.Lock()
				done, steps = steps <= step, step+1 // the check is not interrupted
				mu.Unlock()
				row.check(w, b, made)
				w.isEmptyExceptMarkers(b)
			}
		})
	}
}

// TestMarkersAreExclusive: 8 processes claim the same object, again and again, while some of them
// die with it.
func TestMarkersAreExclusive(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	w.life = 500 * time.Millisecond
	o, err := newObject('a', w.parsed(), "pvc-1")
	if err != nil {
		t.Fatal(err)
	}
	var holders, claims atomic.Int64
	var group sync.WaitGroup
	const enough = 100
	deadline := time.Now().Add(5 * time.Minute)
	for i := range 8 {
		group.Go(func() {
			b := w.open()
			s, err := b.store(context.Background(), o.source, nil, client.Calls)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.close()
			s.mayPrepare = true
			for round := 0; claims.Load() < enough && time.Now().Before(deadline); round++ {
				c, err := s.claim(context.Background(), o, "")
				if errors.Is(err, backend.ErrBusy) {
					continue
				} else if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 && c.valid() {
					t.Errorf("%d processes hold the marker", n)
				}
				claims.Add(1)
				time.Sleep(time.Millisecond)
				holders.Add(-1)
				if i == 0 && round%5 == 4 { // dies
					c.stop()
					continue
				}
				c.release(context.Background())
			}
		})
	}
	group.Wait()
	if n := claims.Load(); n < enough {
		t.Errorf("%d claims, want at least %d", n, enough)
	}
}

// TestMakersOfOtherDirectoriesDelayNoCall: a process has ended between the directory of a volume
// and its record. Only volumes whose directories overlap with that one wait for the end of its
// marker.
func TestMakersOfOtherDirectoriesDelayNoCall(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	w.life = time.Hour
	first, second := w.open(), w.open()
	first.pool.Before = func(op, path string) error {
		if op == "create" && strings.Contains(path, volumesDir) {
			return errLost
		}
		return nil
	}
	ctx := context.Background()
	if _, err := first.Create(ctx, w.request("lost")); !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("Create: %v", err)
	}
	if _, err := second.Create(ctx, w.request("other", subDirKey, "lostandfound/x")); err != nil {
		t.Errorf("a volume beside the directory: %v", err)
	}
	for _, subDir := range []string{"Lost/x", "lost/x/y"} {
		if _, err := second.Create(ctx, w.request(subDir, subDirKey, subDir)); !errors.Is(err, backend.ErrBusy) {
			t.Errorf("a volume in %s: %v, want ErrBusy", subDir, err)
		}
	}
}
