package hostpath

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
)

// interruptedRoot is a root with quotas on btrfs that the release at commit d787869 has made, with
// the states in which a crash can leave it. See testdata/README.md.
const interruptedRoot = "testdata/interrupted-d787869.tar.gz"

// interruptedContent has the results of that release for the root, in held.json of the archive.
type interruptedContent struct {
	Volumes   []backend.Volume
	Snapshots []backend.Snapshot
	Group     backend.Group
	Parts     []heldPart
	Files     map[string]string // sha256 of each file that is not a record, by path
}

// heldPart is a backend.Part with the field names of the release that wrote the archive.
type heldPart struct {
	backend.Group

	All       []string
	AttemptID string `json:"Cut"`
	Committed bool   `json:"Settled"`
}

// sums returns the sha256 of each file of the root that is not a record, by path.
func (w *world) sums() map[string]string {
	w.Helper()
	all := map[string]string{}
	err := w.walk(func(path string, d fs.DirEntry) error {
		if !d.Type().IsRegular() || d.Name() == recordFile || d.Name() == identityFile {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		rel, _ := filepath.Rel(w.cfg.Root, path)
		all[rel] = hex.EncodeToString(sum.Sum(nil))
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// sizeKey marks a sparse file in the archive: the file has this size, and its entry holds only
// blocks of 4096 bytes that are not zero, each after its offset in 8 bytes.
const (
	sizeKey     = "CAUSEWAY.size"
	sparseBlock = 4096
)

// unpackSparse makes the root of an archive of packSparse in an empty directory.
func unpackSparse(t *testing.T, name, root string, content any) {
	t.Helper()
	f, err := os.Open(name)
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
			return
		}
		if err == nil && header.Name == "held.json" {
			err = json.NewDecoder(archive).Decode(content)
		} else if err == nil {
			err = unpackEntry(filepath.Join(root, header.Name), header, archive)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func unpackEntry(path string, header *tar.Header, body io.Reader) error {
	if header.Typeflag == tar.TypeDir {
		return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, header.FileInfo().Mode().Perm()))
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	text, sparse := header.PAXRecords[sizeKey]
	if !sparse {
		return os.WriteFile(path, data, header.FileInfo().Mode().Perm())
	}
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, header.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	defer f.Close()
	for ; len(data) >= 8+sparseBlock; data = data[8+sparseBlock:] {
		if _, err := f.WriteAt(data[8:8+sparseBlock], int64(binary.BigEndian.Uint64(data))); err != nil {
			return err
		}
	}
	return f.Truncate(size)
}

// TestAnInterruptedRootOfAnEarlierReleaseIsServed: an upgrade after a crash completes the objects
// that the earlier release committed, sweeps its incomplete objects, and keeps the data and the
// records of all others.
func TestAnInterruptedRootOfAnEarlierReleaseIsServed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t)
	var h interruptedContent
	unpackSparse(t, interruptedRoot, w.cfg.Root, &h)
	unchanged(w)
	before := w.records()
	b := w.open()
	equal := func(call string, got, want any, err error) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s = %+v, %v\nwant %+v", call, got, err, want)
		}
	}
	volumes, _, err := b.List(ctx, "", 100)
	equal("List", volumes, h.Volumes, err)
	snapshots, _, err := b.ListSnapshots(ctx, "", "", 100)
	equal("ListSnapshots", snapshots, h.Snapshots, err)
	group, err := b.GetGroup(ctx, h.Group.ID, nil, nil)
	equal("GetGroup", group, h.Group, err)
	for _, want := range h.Parts {
		part, err := b.GetPart(ctx, want.Group.ID)
		equal("GetPart", part, backend.Part(want), err)
	}
	if len(volumes) != 4 || len(snapshots) != 5 || len(h.Parts) != 2 || len(h.Files) != 8 {
		t.Errorf("the archive has %d volumes, %d snapshots, %d parts and %d files", len(volumes), len(snapshots),
			len(h.Parts), len(h.Files))
	}
	await.True(w.T, "the interrupted objects are gone",
		func() bool { return len(w.names(stagingDir))+len(w.names(trashDir)) == 0 })
	equal("the files", w.sums(), h.Files, nil)
	for name, was := range before {
		if after := w.records()[inPlace(h, name)]; !strings.Contains(name, "-uncommitted/") && after != was {
			t.Errorf("the start made %s %s\nwas %s", name, after, was)
		}
	}
	changeAll(w, b, h)
}

// inPlace returns the path of a record after the start: a member of the group may have been in
// staging/.
func inPlace(h interruptedContent, name string) string {
	for _, n := range h.Group.Snapshots {
		if strings.HasPrefix(name, stagingDir+"/"+n.ID) {
			return filepath.Join(snapshotsDir, n.ID, recordFile)
		}
	}
	return name
}

// unchanged checks that this release encodes each record of the root as the earlier release did.
func unchanged(w *world) {
	w.Helper()
	for name, file := range w.records() {
		var format record.Format
		var object any
		switch strings.Split(name, "/")[0] {
		case volumesDir:
			format, object = volumeFormat, new(volume)
		case groupsDir:
			g := new(group)
			if err := partFormat.Decode([]byte(file), g); err != nil {
				w.Error(err)
			}
			format, object = g.format(), g
		default:
			format, object = snapshotFormat, new(snapshot)
		}
		err := format.Decode([]byte(file), object)
		again, _ := format.Encode(object)
		if err != nil || string(again) != file {
			w.Errorf("%s becomes %s, %v\nwas %s", name, again, err, file)
		}
	}
}

// changeAll changes, creates and deletes objects of the root.
func changeAll(w *world, b *Backend, h interruptedContent) {
	w.Helper()
	ctx := context.Background()
	no := func(call string, err error) {
		w.Helper()
		if err != nil {
			w.Errorf("%s: %v", call, err)
		}
	}
	for _, v := range h.Volumes {
		name := filepath.Join(volumesDir, v.ID, recordFile)
		was := w.records()[name]
		no("Modify", b.Modify(ctx, v.ID, map[string]string{labelKey: "other"}, nil))
		if w.records()[name] == was {
			w.Errorf("Modify left %s", was)
		}
		no("Modify", b.Modify(ctx, v.ID, map[string]string{labelKey: v.Mutable[labelKey]}, nil))
		if is := w.records()[name]; is != was {
			w.Errorf("changed and changed back, %s is %s\nwas %s", v.ID, is, was)
		}
	}
	for _, p := range h.Parts {
		if !p.Committed {
			no("SettlePart", b.CommitPart(ctx, p.ID, p.AttemptID))
		}
	}
	for _, n := range h.Snapshots {
		if n.Group == "" {
			_, err := b.Restore(ctx, n.ID, backend.CreateOptions{Name: "new", Access: []backend.Access{{}}})
			no("Restore", err)
			no("DeleteSnapshot", b.DeleteSnapshot(ctx, n.ID, nil))
		}
	}
	no("DeleteGroup", b.DeleteGroup(ctx, h.Group.ID, nil, nil))
	for _, p := range h.Parts {
		no("DeleteGroup", b.DeleteGroup(ctx, p.ID, nil, nil))
	}
	for _, v := range h.Volumes {
		no("Delete", b.Delete(ctx, v.ID, nil))
	}
	again := w.restart(b)
	if left, _, err := again.List(ctx, "", 100); err != nil || len(left) != 1 {
		w.Errorf("List = %+v, %v, want the restored volume only", left, err)
	}
	w.emptied()
	if left := len(w.names(snapshotsDir)) + len(w.names(groupsDir)) + len(w.names(stagingDir)); left != 0 {
		w.Errorf("%d entries are left", left)
	}
}
