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
)

func (w *world) request(name string, parameters ...string) backend.CreateOptions {
	return request(w, name, parameters...)
}

func (w *world) exists(path ...string) bool {
	_, err := os.Stat(w.path(path...))
	return err == nil
}

func (w *world) read(path ...string) string {
	content, err := os.ReadFile(w.path(path...))
	if err != nil {
		w.Error(err)
	}
	return string(content)
}

func (w *world) write(content string, path ...string) {
	w.Helper()
	file := w.path(path...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, []byte(content), 0o666)); err != nil {
		w.Error(err)
	}
}

func (w *world) removeAll(path ...string) {
	w.Helper()
	if err := os.RemoveAll(w.path(path...)); err != nil {
		w.Error(err)
	}
}

func (w *world) paths() (all []string) {
	filepath.WalkDir(w.path(), func(path string, _ os.DirEntry, err error) error {
		if err == nil && path != w.path() {
			all = append(all, strings.TrimPrefix(path, w.path()+"/"))
		}
		return err
	})
	slices.Sort(all)
	return all
}

func (w *world) holds(want string, path ...string) {
	w.Helper()
	holds(w, want, path...)
}

func (w *world) isEmpty(b *Backend) {
	w.Helper()
	isEmpty(w, b)
}

func (w *world) isEmptyExceptMarkers(b *Backend) {
	w.Helper()
	isEmptyExceptMarkers(w, b)
}

// testLife is the life of markers in tests that wait for it.
const testLife = 2 * time.Second

// oneAtATime is for a test in which processes work one after the other: a process never gives up
// its marker, also on a machine that is too busy to renew it in time.
func (w *world) oneAtATime() { w.life, w.lease = testLife, time.Hour }

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

// stride returns the number of steps from one interrupted step to the next: n, or 1 in make
// crash-smb. A call has 22 steps or more.
func stride(n int) int {
	if os.Getenv("CAUSEWAY_CRASH_ALL") != "" {
		return 1
	}
	return n
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
