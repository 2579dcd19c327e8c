package hostpath

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// TestMakeInterruptedRoot writes interruptedRoot if CAUSEWAY_GENERATE is set.
func TestMakeInterruptedRoot(t *testing.T) {
	if os.Getenv("CAUSEWAY_GENERATE") == "" {
		t.Skip("CAUSEWAY_GENERATE is not set")
	}
	ctx := context.Background()
	w := newRoot(t, testdisk.Filesystem{Type: "btrfs", Size: 2 << 30})
	w.quotas("enable")
	w.mkfs()
	b := w.open()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var h interruptedContent
	held := w.held(b, "held", 32*mib, required)
	must(os.WriteFile(w.path(volumesDir, held.ID, dataDir, "file"), []byte("held to its size"), 0o640))
	w.snapshot(b, held, "snapshot")
	must(os.WriteFile(w.path(volumesDir, held.ID, dataDir, "file"), []byte("later"), 0o640))
	w.held(b, "not held", mib, off)
	create := func(fsType string, size int64, class, mutable map[string]string) backend.Volume {
		t.Helper()
		class[kindKey] = string(image)
		v, err := b.Create(ctx, backend.CreateOptions{
			Name: fsType, Required: size, Access: []backend.Access{{FSType: fsType}}, Parameters: class, Mutable: mutable, Namespace: "tenant",
		})
		must(err)
		return v
	}
	ext4 := create("ext4", 8*mib, map[string]string{readAheadKey: "1Mi", directIOKey: "false"},
		map[string]string{labelKey: "first"})
	xfs := create("xfs", 300*mib, map[string]string{}, nil)
	must(b.Modify(ctx, ext4.ID, map[string]string{labelKey: "changed", directIOKey: "true"}, nil))
	_, _, err := b.Expand(ctx, ext4.ID, backend.ExpandOptions{Required: 16 * mib})
	must(err)
	group, err := b.SnapshotGroup(ctx, backend.GroupOptions{Name: "group", Sources: []string{ext4.ID, xfs.ID}})
	must(err)
	for _, name := range []string{"settled", "open"} {
		_, err := b.SnapshotPart(ctx, backend.PartOptions{
			GroupOptions: backend.GroupOptions{Name: name,
				Sources: []string{ext4.ID}}, All: []string{ext4.ID}, Cut: "cut of " + name,
		})
		must(err)
	}
	h.Parts, err = settleOne(b)
	must(err)
	h.Group = group
	h.Volumes, _, err = b.List(ctx, "", 100)
	must(err)
	h.Snapshots, _, err = b.ListSnapshots(ctx, "", "", 100)
	must(err)
	committed := b.index.groups.byID[group.ID]
	must(b.Close())
	h.Files = w.sums()
	must(w.interrupt(held.ID, committed, h.Snapshots[0].ID))
	must(packSparse(interruptedRoot, w.cfg.Root, h))
}

// settleOne settles the part that is called settled, and returns all parts.
func settleOne(b *Backend) (all []backend.Part, err error) {
	ctx := context.Background()
	for _, g := range b.index.groups.byID {
		if g.Name == "settled" {
			err = errors.Join(err, b.SettlePart(ctx, g.ID, g.Cut))
		}
		if g.isPart() {
			part, failed := b.GetPart(ctx, g.ID)
			all, err = append(all, part), errors.Join(err, failed)
		}
	}
	return all, err
}

// interrupt makes the root look as after crashes: a member of a committed group is still in
// staging/, and a creation, a group snapshot and the removal of a deleted volume have left some
// files.
func (w *world) interrupt(volume string, committed *group, snapshot string) error {
	created := w.path(stagingDir, volume+"-interrupted")
	return errors.Join(
		os.Rename(w.path(snapshotsDir, committed.Members[0].ID), w.path(committed.Members[0].Half)),
		os.Mkdir(created, 0o700),
		os.WriteFile(filepath.Join(created, imageFile), make([]byte, 4096), 0o600),
		os.CopyFS(w.path(stagingDir, committed.Members[1].ID+"-uncommitted"), os.DirFS(w.path(snapshotsDir, snapshot))),
		os.MkdirAll(w.path(trashDir, volume+"-deleted", dataDir, "deep"), 0o700),
	)
}

// mkfs makes images with real filesystems.
func (w *world) mkfs() {
	w.cfg.Format = func(ctx context.Context, image *os.File, fsType string) error {
		out, err := exec.CommandContext(ctx, "mkfs."+fsType, "-q", image.Name()).CombinedOutput()
		if err != nil {
			w.Errorf("mkfs: %s", out)
		}
		return err
	}
}

// packSparse writes the root and its content to an archive.
func packSparse(name, root string, content any) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zip, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zip)
	add := func(header *tar.Header, body []byte) error {
		header.Size = int64(len(body))
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(body)
		return err
	}
	text, err := json.MarshalIndent(content, "", "\t")
	if err == nil {
		err = add(&tar.Header{Name: "held.json", Mode: 0o600}, text)
	}
	if err != nil {
		return err
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		header := &tar.Header{Mode: int64(info.Mode().Perm()), Typeflag: tar.TypeDir}
		header.Name, _ = filepath.Rel(root, path)
		if d.IsDir() {
			return add(header, nil)
		}
		header.Typeflag = tar.TypeReg
		body, err := os.ReadFile(path)
		if err == nil && d.Name() == imageFile {
			header.PAXRecords = map[string]string{sizeKey: strconv.Itoa(len(body))}
			body = blocksOf(body)
		}
		return errors.Join(err, add(header, body))
	})
	return errors.Join(err, archive.Close(), zip.Close())
}

// blocksOf returns the blocks of an image that are not zero.
func blocksOf(image []byte) (blocks []byte) {
	for at := 0; at < len(image); at += sparseBlock {
		block := image[at:min(at+sparseBlock, len(image))]
		if bytes.Trim(block, "\x00") != nil {
			blocks = append(binary.BigEndian.AppendUint64(blocks, uint64(at)), block...)
		}
	}
	return blocks
}
