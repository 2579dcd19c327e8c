package smb

import (
	"context"
	"errors"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
)

// interrupted are the operations that are interrupted, with the state that the next process must
// reach.
var interrupted = map[string]struct {
	prepare func(w site, b *Backend) (id string, err error)
	call    func(w site, b *Backend, id string) (string, error)
	check   func(w site, b *Backend, id string)
}{
	"Create": {
		call: func(w site, b *Backend, _ string) (string, error) {
			v, err := b.Create(context.Background(), request(w, "pvc-1", subDirKey, "a/pvc-1"))
			return v.ID, err
		},
		check: func(w site, b *Backend, id string) {
			if !w.exists("a", "pvc-1") {
				w.Error("the volume has no directory")
			}
			deleteUntil(w, b, id)
			if left := below(w, "a"); !w.exists("a") || len(left) > 0 {
				w.Errorf("the directory of the volume's directory has %v", left)
			}
			w.removeAll("a")
		},
	},
	"Create directly in the source": {
		call: func(w site, b *Backend, _ string) (string, error) {
			v, err := b.Create(context.Background(), request(w, "pvc-1"))
			return v.ID, err
		},
		check: func(w site, b *Backend, id string) {
			if !w.exists("pvc-1") {
				w.Error("the volume has no directory")
			}
			deleteUntil(w, b, id)
		},
	},
	"Clone": {
		prepare: source,
		call: func(w site, b *Backend, id string) (string, error) {
			v, err := b.Clone(context.Background(), id, request(w, "copy"))
			return v.ID, err
		},
		check: func(w site, b *Backend, id string) {
			holds(w, "precious", "copy", "dir", "data")
			deleteUntil(w, b, id)
			deleteSource(w, b)
		},
	},
	"Snapshot": {
		prepare: source,
		call: func(w site, b *Backend, id string) (string, error) {
			n, err := b.Snapshot(context.Background(), backend.SnapshotOptions{Name: "snap", Source: id})
			return n.ID, err
		},
		check: func(w site, b *Backend, id string) {
			deleteSource(w, b)
			v, err := until(w, func() (backend.Volume, error) {
				return b.Restore(context.Background(), id, request(w, "restored"))
			})
			if err != nil {
				w.Fatal(err)
			}
			holds(w, "precious", "restored", "dir", "data")
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
		call: func(_ site, b *Backend, id string) (string, error) {
			return id, b.Delete(context.Background(), id, nil)
		},
		check: func(w site, b *Backend, id string) {
			if _, err := until(w, func() (backend.Volume, error) {
				return b.Get(context.Background(), id, nil)
			}); !errors.Is(err, backend.ErrNotFound) {
				w.Errorf("Get of a deleted volume: %v", err)
			}
		},
	},
	"Delete with onDelete=archive": {
		prepare: func(w site, b *Backend) (string, error) {
			id, err := source(w, b)
			if err != nil {
				return "", err
			}
			return until(w, func() (string, error) {
				return id, b.Modify(context.Background(), id, map[string]string{onDeleteKey: records.ArchiveData}, nil)
			})
		},
		call: func(_ site, b *Backend, id string) (string, error) {
			return id, b.Delete(context.Background(), id, nil)
		},
		check: func(w site, b *Backend, id string) {
			var archive string
			for _, p := range w.paths() {
				if name, _, _ := strings.Cut(p, "/"); strings.HasPrefix(name, "archived-source-") {
					archive = name
				}
			}
			holds(w, "precious", archive, "dir", "data")
			w.removeAll(archive)
		},
	},
	"Expand and Modify": {
		prepare: source,
		call: func(_ site, b *Backend, id string) (string, error) {
			_, _, err := b.Expand(context.Background(), id, backend.ExpandOptions{Required: 5 << 20})
			if err == nil {
				err = b.Modify(context.Background(), id, map[string]string{onDeleteKey: records.RetainData}, nil)
			}
			return id, err
		},
		check: func(w site, b *Backend, id string) {
			v, err := until(w, func() (backend.Volume, error) { return b.Get(context.Background(), id, nil) })
			if err != nil || v.Size != 5<<20 || v.Mutable[onDeleteKey] != records.RetainData {
				w.Errorf("Get = %+v, %v", v, err)
			}
			deleteUntil(w, b, id)
			holds(w, "precious", "source", "dir", "data")
			w.removeAll("source")
		},
	},
}

// source creates a volume with a file.
func source(w site, b *Backend) (string, error) {
	v, err := until(w, func() (backend.Volume, error) { return b.Create(context.Background(), request(w, "source")) })
	if err != nil {
		return "", err
	}
	w.write("precious", "source", "dir", "data")
	return v.ID, nil
}

func deleteSource(w site, b *Backend) {
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
