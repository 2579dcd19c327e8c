package smb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// written returns the time of a file that the server writes now.
func (w *world) written(name string) time.Time {
	w.Helper()
	w.write("x", name)
	info, err := os.Stat(w.path(name))
	if err != nil {
		w.Fatal(err)
	}
	return info.ModTime()
}

// TestADirectoryThatAPersonHasReplaced: a person removes the directory of a volume, and another
// volume is created with the same subDir. The first volume can neither be mounted nor delete the
// data of the second.
func TestADirectoryThatAPersonHasReplaced(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	ctx := context.Background()
	first := w.create(b, w.claimed("pvc-1", subDirKey, "data"))
	if err := os.Remove(w.path("data")); err != nil {
		t.Fatal(err)
	}
	before := w.written("first")
	await.True(t, "the time of the server shows an order", func() bool { return w.written("next").After(before) })
	second := w.create(b, w.claimed("pvc-2", subDirKey, "data"))
	if err := os.WriteFile(w.path("data", "file"), []byte("precious"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Expand(ctx, first.ID, backend.ExpandOptions{Required: 5 << 30}); err != nil {
		t.Fatal(err)
	}
	if err := b.Modify(ctx, first.ID, map[string]string{onDeleteKey: records.ArchiveData}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Mount(ctx, first.ID, backend.Access{}); !errors.Is(err, backend.ErrPrecondition) {
		t.Errorf("Mount of the first volume: %v, want ErrPrecondition", err)
	}
	if _, err := b.Mount(ctx, second.ID, backend.Access{}); err != nil {
		t.Error(err)
	}
	if err := b.Delete(ctx, first.ID, nil); err != nil {
		t.Error(err)
	}
	w.holds("precious", "data", "file")
	if _, err := b.Get(ctx, second.ID, nil); err != nil {
		t.Error(err)
	}
}

// TestSharedDirectoriesOutliveOtherVolumes: the directory of a volume has become one that a volume
// with existing=use shares.
func TestSharedDirectoriesOutliveOtherVolumes(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	ctx := context.Background()
	if err := os.Mkdir(w.path("team"), 0o777); err != nil {
		t.Fatal(err)
	}
	w.create(b, w.claimed("shared", subDirKey, "team", existingKey, "use"))
	if err := os.Remove(w.path("team")); err != nil {
		t.Fatal(err)
	}
	v := w.create(b, w.claimed("pvc-1", subDirKey, "team"))
	if err := os.WriteFile(w.path("team", "file"), []byte("precious"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(ctx, v.ID, nil); err != nil {
		t.Error(err)
	}
	w.holds("precious", "team", "file")
}

// TestSourcesAndVolumesAreApart: the source of a class is neither inside a volume of another class
// nor shared by one.
func TestSourcesAndVolumesAreApart(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	ctx := context.Background()
	outer := w.create(b, w.claimed("outer", subDirKey, "teams/one"))
	w.create(b, w.claimed("accents", subDirKey, "caf\u00e9/one"))
	if err := errors.Join(os.Mkdir(w.path("teams", "one", "deep"), 0o777), os.Mkdir(w.path("own"), 0o777),
		os.MkdirAll(w.path("cafe\u0301", "one", "deep"), 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, inside := range []string{"teams/one", "TEAMS/one/deep", "cafe\u0301/one", "Cafe\u0301/one/deep"} {
		o := w.claimed("inner")
		o.Parameters[sourceKey] = w.source() + "/" + inside
		if v, err := b.Create(ctx, o); !errors.Is(err, backend.ErrPrecondition) ||
			!strings.Contains(err.Error(), "is in the directory of volume") {
			t.Errorf("a volume with the source %s: %+v, %v, want ErrPrecondition", inside, v, err)
		}
	}
	inner := w.claimed("inner")
	inner.Parameters[sourceKey] = w.source() + "/own"
	w.create(b, inner)
	if err := os.WriteFile(w.path("own", "inner", "file"), []byte("precious"), 0o666); err != nil {
		t.Fatal(err)
	}
	if v, err := b.Create(ctx, w.claimed("pvc-1", subDirKey, "own", existingKey, "use")); !errors.Is(err,
		backend.ErrPrecondition) {
		t.Errorf("a volume that shares the source of another class: %+v, %v, want ErrPrecondition", v, err)
	}
	// A source that was made inside a volume before its class: the volume is not deleted.
	if err := os.Rename(w.path("own"), w.path("teams", "one", "own")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(w.path("teams", "one", "own", records.MetaDir), w.path("teams", "one", records.MetaDir)); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(ctx, outer.ID, nil); !errors.Is(err, backend.ErrPrecondition) {
		t.Errorf("Delete of a volume that is a source: %v, want ErrPrecondition", err)
	}
	w.holds("precious", "teams", "one", "own", "inner", "file")
}

// TestAFileNamedLikeRecords: a pod that makes a file or a directory under the name of a source's records
// stops no deletion, and no other volume that shares the directory.
func TestAFileNamedLikeRecords(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	own := w.create(b, w.claimed("pvc-1"))
	if err := errors.Join(os.Mkdir(w.path("pvc-1", records.MetaDir), 0o777), os.Mkdir(w.path("together"), 0o777),
		os.WriteFile(w.path("together", ".CauseWay"), nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	w.create(b, w.claimed("pvc-3", subDirKey, "together", existingKey, "use"))
	deleteUntil(t, b, own.ID)
	w.emptyTrash(b)
	if names := w.entries(); !slices.Equal(names, []string{"together"}) {
		t.Errorf("left: %q", names)
	}
}

// TestAFilesystemThatIsNotMounted: the server exports an empty directory, because the filesystem
// with the volumes is not mounted there. No deletion succeeds, and nothing is made.
func TestAFilesystemThatIsNotMounted(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	ctx := context.Background()
	v := w.create(b, w.claimed("pvc-1"))
	n, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "snap", Source: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(w.path(), w.path()+"-away"), os.Mkdir(w.path(), 0o777),
		os.Chmod(w.path(), 0o777)); err != nil {
		t.Fatal(err)
	}
	_, createErr := b.Create(ctx, w.claimed("pvc-2"))
	for name, err := range map[string]error{
		"Create":         createErr,
		"Delete":         b.Delete(ctx, v.ID, nil),
		"DeleteSnapshot": b.DeleteSnapshot(ctx, n.ID, nil),
	} {
		if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(err.Error(), "mount its filesystem") {
			t.Errorf("%s: %v, want ErrPrecondition", name, err)
		}
	}
	if made, err := os.ReadDir(w.path()); err != nil || len(made) > 0 {
		t.Errorf("made: %v, %v", made, err)
	}
	if err := errors.Join(os.Remove(w.path()), os.Rename(w.path()+"-away", w.path())); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Delete(ctx, v.ID, nil), b.DeleteSnapshot(ctx, n.ID, nil)); err != nil {
		t.Error(err)
	}
}

// TestTheFirstVolumesOfASource: many calls find a source without its directories.
func TestTheFirstVolumesOfASource(t *testing.T) {
	server := smbtest.Serve(t)
	for range 10 {
		w := newWorld(t, server, smbtest.Share)
		b := w.open()
		var group sync.WaitGroup
		for i := range 16 {
			group.Go(func() {
				if _, err := until(t, func() (backend.Volume, error) { // busy: a call waits for at most Patience
					return b.Create(context.Background(), w.request(fmt.Sprint("pvc-", i)))
				}); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
}

// TestAnotherProcessCopies: the source of a copy cannot be deleted while another process copies it.
func TestAnotherProcessCopies(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	second := w.open()
	ctx := context.Background()
	id, err := source(w, second)
	if err != nil {
		t.Fatal(err)
	}
	n, err := second.Snapshot(ctx, backend.SnapshotOptions{Name: "snap", Source: id})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		copy   func(b *Backend) error
		delete func() error
	}{
		"Clone": {
			func(b *Backend) error { _, err := b.Clone(ctx, id, w.request("clone")); return err },
			func() error { return second.Delete(ctx, id, nil) },
		},
		"Restore": {
			func(b *Backend) error { _, err := b.Restore(ctx, n.ID, w.request("restored")); return err },
			func() error { return second.DeleteSnapshot(ctx, n.ID, nil) },
		},
	} {
		first := w.open()
		copying, resume, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		first.pool.Before = func(op, path string) error {
			if op == "copy" && strings.HasSuffix(path, "/data") {
				close(copying)
				<-resume
			}
			return nil
		}
		go func() { ended <- c.copy(first) }()
		select {
		case <-copying:
		case err := <-ended:
			t.Fatalf("%s: %v", name, err)
		}
		if err := c.delete(); !errors.Is(err, backend.ErrInUse) {
			t.Errorf("%s: the deletion of the source: %v, want ErrInUse", name, err)
		}
		close(resume)
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		first.Close()
		if err := c.delete(); err != nil {
			t.Errorf("%s: the deletion after the copy: %v", name, err)
		}
		if name == "Clone" {
			if id, err = source(w, second); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.holds("precious", "clone", "dir", "data")
	w.holds("precious", "restored", "dir", "data")
}

// TestSharesWithoutCredentials: the health of a volume on a share that is not in the file of shares
// is not known. That is no condition of the volume.
func TestSharesWithoutCredentials(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	all := w.shares
	w.shares = w.file("none.yaml", "shares: []\n")
	b := w.open()
	ctx := context.Background()
	o := w.claimed("pvc-1")
	o.Secrets = w.secrets()
	v := w.create(b, o)
	if conditions, err := b.Health(ctx, v.ID); len(conditions) > 0 || !errors.Is(err, backend.ErrUnauthenticated) {
		t.Errorf("Health = %+v, %v, want ErrUnauthenticated", conditions, err)
	}
	if page, _, err := b.ListSnapshots(ctx, v.ID, "", 10); len(page) > 0 || err != nil {
		t.Errorf("ListSnapshots = %+v, %v", page, err)
	}
	w.shares = all
	if conditions, err := w.open().Health(ctx, v.ID); len(conditions) > 0 || err != nil {
		t.Errorf("with credentials: Health = %+v, %v", conditions, err)
	}
}

// TestSnapshotsOfOneVolume: their list asks only the server of the volume.
func TestSnapshotsOfOneVolume(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	list, err := os.ReadFile(w.shares)
	if err != nil {
		t.Fatal(err)
	}
	w.shares = w.file("both.yaml", string(list)+"- {source: //127.0.0.1:1/gone, guest: true}\n")
	b := w.open()
	ctx := context.Background()
	v := w.create(b, w.claimed("pvc-1"))
	n, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "snap", Source: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	if page, _, err := b.ListSnapshots(ctx, v.ID, "", 10); err != nil || len(page) != 1 || page[0].ID != n.ID {
		t.Errorf("ListSnapshots = %+v, %v", page, err)
	}
	if _, _, err := b.ListSnapshots(ctx, "", "", 10); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("ListSnapshots of all shares: %v, want ErrUnavailable", err)
	}
}

// TestACopyOfAStoreListsNothing: an administrator has copied a source, with its records. Their IDs
// are those of the other source.
func TestACopyOfAStoreListsNothing(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	v := w.create(b, w.claimed("pvc-1"))
	other := newWorld(t, w.Server, smbtest.Share)
	if err := os.CopyFS(other.path(), os.DirFS(w.path())); err != nil {
		t.Fatal(err)
	}
	if all, _, err := other.open().List(context.Background(), "", 10); err != nil || len(all) > 0 {
		t.Errorf("the copy lists %+v, %v", all, err)
	}
	if all, _, err := b.List(context.Background(), "", 10); err != nil || len(all) != 1 || all[0].ID != v.ID {
		t.Errorf("the source lists %+v, %v", all, err)
	}
}

// TestAMountOptionOfAnotherOutage: the parameter outage decides between soft and hard.
func TestAMountOptionOfAnotherOutage(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	v := w.create(b, w.claimed("pvc-1", outageKey, "wait"))
	m, err := b.Mount(context.Background(), v.ID, backend.Access{Options: []string{"hard"}})
	if err != nil || m.Kind != mounter.Share {
		t.Errorf("with the option that outage sets: %+v, %v", m, err)
	}
	if _, err := b.Mount(context.Background(), v.ID, backend.Access{Options: []string{"soft"}}); !errors.Is(err,
		backend.ErrInvalid) {
		t.Errorf("with the other option: %v, want ErrInvalid", err)
	}
}
