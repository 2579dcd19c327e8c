package hostpath

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// oldRoot is a root that the release at commit d787869 has made, and its content as that release
// returned it, in held.json. TestMakeOldRoot made it.
const oldRoot = "testdata/root-d787869.tar.gz"

// oldContent is the content of a root.
type oldContent struct {
	Volumes   []backend.Volume
	Inline    backend.Volume
	Snapshots []backend.Snapshot
	Group     backend.Group
	Files     map[string]string // content of the files in directories and of snapshots, by path
}

// UnmarshalJSON reads the content with the names that the fields of backend.Volume had in that
// release.
func (o *oldContent) UnmarshalJSON(data []byte) error {
	type plain oldContent
	var old struct{ Volumes []oldSource }
	err := errors.Join(json.Unmarshal(data, (*plain)(o)), json.Unmarshal(data, &old))
	setSources(o.Volumes, old.Volumes)
	return err
}

// oldSource has the content source of a volume in a release before SourceSnapshot and SourceVolume.
type oldSource struct{ Snapshot, Origin string }

func setSources(volumes []backend.Volume, old []oldSource) {
	for i, s := range old {
		volumes[i].SourceSnapshot, volumes[i].SourceVolume = s.Snapshot, s.Origin
	}
}

// TestMakeOldRoot writes oldRoot if CAUSEWAY_GENERATE is set. Run it with the code of that release:
// the root of another release gets another name.
func TestMakeOldRoot(t *testing.T) {
	t.Parallel()
	if os.Getenv("CAUSEWAY_GENERATE") == "" {
		t.Skip("CAUSEWAY_GENERATE is not set")
	}
	ctx := context.Background()
	w := newRoot(t, testdisk.Filesystem{Type: "xfs", Reflinks: true})
	b := w.open()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	directory, err := b.Create(ctx,
		backend.CreateOptions{Name: "directory", Required: 1 << 20, Access: []backend.Access{{}}, Namespace: "tenant",
			Mutable: map[string]string{labelKey: "blue"}})
	must(err)
	file := filepath.Join(volumesDir, directory.ID, dataDir, "file")
	must(os.WriteFile(w.path(file), []byte("in the directory"), 0o640))
	images := w.images(b, "image-1", "image-2")
	device := w.device(b, "device", 8*mib)
	w.write(w.disk(device.ID), 4*mib, []byte("on the device"))
	snapshot := w.snapshot(b, directory, "snapshot")
	must(os.WriteFile(w.path(file), []byte("later"), 0o640))
	group, err := b.SnapshotGroup(ctx, backend.GroupOptions{Name: "group", Sources: images})
	must(err)
	_, err = b.Restore(ctx, snapshot.ID, backend.CreateOptions{Name: "restored", Access: []backend.Access{{}}})
	must(err)
	_, err = b.Clone(ctx, device.ID, deviceOptions("clone", 8*mib))
	must(err)
	inline, err := b.CreateInline(ctx, inlineOfOldRoot,
		backend.CreateOptions{Required: 1 << 20, Access: []backend.Access{{}}})
	must(err)
	volumes, _, err := b.List(ctx, "", 100)
	must(err)
	snapshots, _, err := b.ListSnapshots(ctx, "", "", 100)
	must(err)
	must(b.Close())
	// An interrupted creation and an interrupted deletion.
	must(os.Mkdir(w.path(stagingDir, directory.ID+"-interrupted"), 0o700))
	must(os.MkdirAll(w.path(trashDir, "deleted", dataDir), 0o700))
	h := oldContent{Volumes: volumes, Inline: inline, Snapshots: snapshots, Group: group, Files: map[string]string{}}
	must(filepath.WalkDir(w.cfg.Root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() == "file" {
			rel, _ := filepath.Rel(w.cfg.Root, path)
			h.Files[rel] = string(w.read(path))
		}
		return err
	}))
	must(pack(w.cfg.Root, h))
}

// inlineOfOldRoot is the kubelet's handle of the inline volume.
const inlineOfOldRoot = "csi-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// pack writes oldRoot.
func pack(root string, h oldContent) (err error) {
	f, err := os.Create(oldRoot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zip, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zip)
	text, err := json.MarshalIndent(h, "", "\t")
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: "held.json", Mode: 0o600, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := archive.Write(text); err != nil {
		return err
	}
	return errors.Join(archive.AddFS(os.DirFS(root)), archive.Close(), zip.Close())
}

// unpack makes the root of oldRoot in an empty directory, and returns its content.
func unpack(t *testing.T, root string) (h oldContent) {
	t.Helper()
	f, err := os.Open(oldRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(zip); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return h
		}
		path := ""
		if err == nil {
			path = filepath.Join(root, header.Name)
		}
		switch {
		case err != nil:
		case header.Name == "held.json":
			err = json.NewDecoder(archive).Decode(&h)
		case header.Typeflag == tar.TypeDir:
			if err = os.MkdirAll(path, 0o700); err == nil {
				err = os.Chmod(path, header.FileInfo().Mode().Perm())
			}
		default:
			var data []byte
			if data, err = io.ReadAll(archive); err == nil {
				err = os.WriteFile(path, data, header.FileInfo().Mode().Perm())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// records returns all records of a root by path.
func (w *world) records() map[string]string {
	w.Helper()
	all := map[string]string{}
	err := w.walk(func(path string, d fs.DirEntry) error {
		if d.Name() == recordFile {
			rel, _ := filepath.Rel(w.cfg.Root, path)
			all[rel] = string(w.read(path))
		}
		return nil
	})
	if err != nil || len(all) < 10 {
		w.Fatalf("%d records, %v", len(all), err)
	}
	return all
}

// walk calls each for all entries of the root. The backend may empty the trash meanwhile.
func (w *world) walk(each func(path string, d fs.DirEntry) error) error {
	return filepath.WalkDir(w.cfg.Root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != w.cfg.Root {
			return nil
		} else if err != nil {
			return err
		}
		return each(path, d)
	})
}

// TestARootOfAnEarlierReleaseIsServed: after an upgrade all objects are found, no record changes by
// itself, and the objects of the earlier release can be deleted and restored.
func TestARootOfAnEarlierReleaseIsServed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t)
	h := unpack(t, w.cfg.Root)
	before := w.records()
	b := w.open()
	volumes, _, err := b.List(ctx, "", 100)
	if err != nil || !reflect.DeepEqual(volumes, h.Volumes) || len(volumes) != 6 {
		t.Errorf("List = %+v, %v\nwant %+v", volumes, err, h.Volumes)
	}
	snapshots, _, err := b.ListSnapshots(ctx, "", "", 100)
	if err != nil || !reflect.DeepEqual(snapshots, h.Snapshots) || len(snapshots) != 3 {
		t.Errorf("ListSnapshots = %+v, %v\nwant %+v", snapshots, err, h.Snapshots)
	}
	if group, err := b.GetGroup(ctx, h.Group.ID, nil, nil); err != nil || !reflect.DeepEqual(group, h.Group) {
		t.Errorf("GetGroup = %+v, %v\nwant %+v", group, err, h.Group)
	}
	if inline, err := b.Get(ctx, inlineOfOldRoot, nil); err != nil || !reflect.DeepEqual(inline, h.Inline) {
		t.Errorf("Get of an inline volume = %+v, %v\nwant %+v", inline, err, h.Inline)
	}
	if len(h.Files) != 3 {
		t.Errorf("%d files, want those of the directory, its snapshot and the restored volume", len(h.Files))
	}
	for path, want := range h.Files {
		if got := string(w.read(w.path(path))); got != want {
			t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	if after := w.records(); !reflect.DeepEqual(after, before) {
		t.Errorf("a start changed records: %v\nwere %v", after, before)
	}
	await.True(w.T, "the interrupted objects are gone",
		func() bool { return len(w.names(stagingDir))+len(w.names(trashDir)) == 0 })
	for _, n := range h.Snapshots {
		if n.Group != "" {
			continue
		}
		if v, err := b.Restore(ctx, n.ID,
			backend.CreateOptions{Name: "new", Access: []backend.Access{{}}}); err != nil || v.SourceSnapshot != n.ID {
			t.Errorf("Restore = %+v, %v", v, err)
		}
		if err := b.DeleteSnapshot(ctx, n.ID, nil); err != nil {
			t.Error(err)
		}
	}
	if err := b.DeleteGroup(ctx, h.Group.ID, nil, nil); err != nil {
		t.Error(err)
	}
	for _, v := range h.Volumes {
		if err := b.Delete(ctx, v.ID, nil); err != nil {
			t.Error(err)
		}
	}
	b = w.restart(b)
	if left, _, err := b.List(ctx, "", 100); err != nil || len(left) != 1 {
		t.Errorf("List = %+v, %v, want the restored volume only", left, err)
	}
	if left, _, err := b.ListSnapshots(ctx, "", "", 100); err != nil || len(left) != 0 {
		t.Errorf("ListSnapshots = %+v, %v, want none", left, err)
	}
}
