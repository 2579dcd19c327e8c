package smb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
)

var errLost = fmt.Errorf("%w: the connection was lost", backend.ErrUnavailable)

// TestAConnectionIsLostAtSteps: before an operation on the server, or after it and before its
// answer, the connection ends. The same process repeats the call, and nothing is left when
// everything is deleted.
func TestAConnectionIsLostAtSteps(t *testing.T) {
	server := smbtest.Serve(t)
	for name, row := range interrupted {
		for _, executed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, executed %v", name, executed), func(t *testing.T) {
				t.Parallel()
				for step, done := int64(0), false; !done; step += int64(stride(5)) {
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
					var steps atomic.Int64
					lose := func(string, string) error {
						if steps.Add(1) == step+1 {
							return errLost
						}
						return nil
					}
					if executed {
						b.pool.After = lose
					} else {
						b.pool.Before = lose
					}
					made, err := until(t, func() (string, error) { return row.call(w, b, id) })
					if err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
					if done = steps.Load() <= step; done {
						steps.Store(step + 1)
					}
					row.check(w, b, made)
					w.isEmptyExceptMarkers(b)
				}
			})
		}
	}
}

// reused are calls that leave the directory "x" or give it up, when they are interrupted.
var reused = map[string]struct {
	prepare func(w *world, b *Backend) (id string, err error)
	call    func(w *world, b *Backend, id string) error
}{
	"Create": {
		call: func(w *world, b *Backend, _ string) error {
			_, err := b.Create(context.Background(), w.request("old", subDirKey, "x"))
			return err
		},
	},
	"Clone": {
		prepare: source,
		call: func(w *world, b *Backend, id string) error {
			_, err := b.Clone(context.Background(), id, w.request("old", subDirKey, "x"))
			return err
		},
	},
	"Clone that fails": {
		prepare: func(w *world, b *Backend) (string, error) {
			id, err := source(w, b)
			if err == nil { // cannot be read
				err = os.Chmod(w.path("source", "dir", "data"), 0)
			}
			return id, err
		},
		call: func(w *world, b *Backend, id string) error {
			_, err := b.Clone(context.Background(), id, w.request("old", subDirKey, "x"))
			return err
		},
	},
	"Delete of an empty volume": {
		prepare: old,
		call:    func(_ *world, b *Backend, id string) error { return b.Delete(context.Background(), id, nil) },
	},
	"Delete of a volume with data": {
		prepare: func(w *world, b *Backend) (string, error) {
			id, err := old(w, b)
			return id, errors.Join(err, os.WriteFile(w.path("x", "data"), []byte("old"), 0o666))
		},
		call: func(_ *world, b *Backend, id string) error { return b.Delete(context.Background(), id, nil) },
	},
}

// old creates a volume with the directory "x".
func old(w *world, b *Backend) (string, error) {
	v, err := until(w, func() (backend.Volume, error) {
		return b.Create(context.Background(), w.request("old", subDirKey, "x"))
	})
	return v.ID, err
}

// TestADirectoryIsUsedAgain: a call is interrupted at a step, another volume with the same
// directory is created, and the call is repeated. The second volume keeps its directory and its
// data.
func TestADirectoryIsUsedAgain(t *testing.T) {
	server := smbtest.Serve(t)
	for name, row := range reused {
		for _, killed := range []bool{false, true} {
			subDirs := []string{"x"}
			if killed {
				subDirs = append(subDirs, "x/inner")
			}
			for _, subDir := range subDirs {
				t.Run(fmt.Sprintf("%s, killed %v, then %s", name, killed, strings.ReplaceAll(subDir, "/", " ")),
					func(t *testing.T) {
						t.Parallel()
						for step := 0; !useAgain(t, server, step, killed, subDir, row.prepare, row.call); {
							step += stride(7) // odd, as useAgain has two orders
						}
					})
			}
		}
	}
}

// useAgain reports whether the call has fewer steps.
func useAgain(t *testing.T, server *smbtest.Server, step int, killed bool, subDir string,
	prepare func(w *world, b *Backend) (string, error), call func(w *world, b *Backend, id string) error) (done bool) {
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
	}
	first := w.open()
	var steps atomic.Int64
	first.pool.Before = func(string, string) error {
		if n := int(steps.Add(1)); n == step+1 || (killed && n > step) {
			return errLost
		}
		return nil
	}
	call(w, first, id)
	done = int(steps.Load()) <= step
	first.Close()

	request := w.request("new", subDirKey, subDir)
	v, newErr := until(t, func() (backend.Volume, error) { return second.Create(context.Background(), request) })
	precious := append(strings.Split(subDir, "/"), "data")
	// The directory stays empty for a while at every other step.
	write := func() {
		if newErr == nil {
			if err := os.WriteFile(w.path(precious...), []byte("precious"), 0o666); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
		}
	}
	third := w.open()
	if step%2 == 0 {
		write()
	}
	_, oldErr := until(t, func() (struct{}, error) { return struct{}{}, call(w, third, id) })
	if step%2 == 1 {
		write()
	}
	if _, err := until(t, func() (struct{}, error) {
		return struct{}{}, third.emptyTrashNow(context.Background(), w.parsed(), nil)
	}); err != nil {
		t.Errorf("step %d: %v", step, err)
	}
	third.Close()
	volumes, _, err := second.List(context.Background(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, v := range volumes {
		dirs = append(dirs, v.Context[subDirKey])
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(dirs)))
	if len(distinct) != len(dirs) || (slices.Contains(dirs, "x") && slices.Contains(dirs, "x/inner")) {
		t.Errorf("step %d: volumes with the directories %q: %v, %v", step, dirs, newErr, oldErr)
	}
	if newErr == nil {
		w.holds("precious", precious...)
		deleteUntil(t, second, v.ID)
	} else if !errors.Is(newErr, backend.ErrPrecondition) {
		t.Errorf("step %d: Create = %v", step, newErr)
	}
	if t.Failed() {
		t.Fatalf("failed at step %d: %v, %v", step, newErr, oldErr)
	}
	return done
}
