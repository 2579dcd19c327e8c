package quota

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestGroupsOfSnapshots(t *testing.T)       { onEach(t, groupFilesystems, snapshots) }
func TestSimpleGroupsOfSnapshots(t *testing.T) { onEach(t, simpleFilesystems, snapshots) }

func snapshots(t *testing.T, f filesystem, root *os.File) {
	dir, _ := f.volume(t, root, "volume", 16*mib)
	path := filepath.Join(dir.Name(), "file")
	fill(t, path, 6*mib)
	must(t, os.Chmod(dir.Name(), 0o751))
	_, err := Make(f.want, dir, "inside", Options{})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir.Name(), "inside", "f"), nil, 0o600))
	_, err = Snapshot(dir, root, "snapshot", 0, true)
	must(t, err)
	must(t, os.Truncate(path, mib)) // the snapshot does not change any more
	snapshot := open(t, filepath.Join(root.Name(), "snapshot"))
	if info, err := os.Stat(filepath.Join(snapshot.Name(), "file")); err != nil || info.Size() != 6*mib {
		t.Errorf("the snapshot has %v, %v", info, err)
	}
	if names, err := os.ReadDir(filepath.Join(snapshot.Name(), "inside")); err != nil || len(names) > 0 {
		t.Errorf("the snapshot has %v inside, %v", names, err)
	}
	if err := os.WriteFile(filepath.Join(snapshot.Name(), "new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to the snapshot: %v", err)
	}
	mark, err := Snapshot(snapshot, root, "restored", 8*mib, false)
	must(t, err)
	restored := open(t, filepath.Join(root.Name(), "restored"))
	if info, err := restored.Stat(); err != nil || info.Mode() != fs.ModeDir|0o751 {
		t.Errorf("the mode of the restored volume is %v, %v", info.Mode(), err)
	}
	u := look(t, restored, mark)
	shared := int64(6 * mib)
	if f.want.Simple {
		shared = 0 // shared blocks count for the volume that wrote them
	}
	if !u.Holds(8*mib) || u.Used < shared || u.Used > shared+mib {
		t.Errorf("the restored volume has %+v", u)
	}
	if n := fill(t, filepath.Join(restored.Name(), "more"), 100*mib); n > 8*mib-shared || n < 8*mib-shared-slack {
		t.Errorf("%d bytes could be written to the restored volume", n)
	}
	// The same for a full volume.
	full, _ := f.volume(t, root, "full", 4*mib)
	for i := range 4 {
		fill(t, filepath.Join(full.Name(), fmt.Sprint(i)), 100*mib)
	}
	_, err = Snapshot(full, root, "of full", 0, true)
	must(t, err)
	mark, err = Snapshot(open(t, filepath.Join(root.Name(), "of full")), root, "full again", 4*mib, false)
	must(t, err)
	again := open(t, filepath.Join(root.Name(), "full again"))
	if u := look(t, again, mark); !u.Holds(4 * mib) {
		t.Errorf("the restored full volume has %+v", u)
	}
	must(t, Set(again, mark, 8*mib))
	if n := fill(t, filepath.Join(again.Name(), "more"), 100*mib); n < 4*mib-2*slack {
		t.Errorf("%d bytes could be written to the volume after its expansion", n)
	}
	for _, name := range []string{"volume", "snapshot", "restored", "full", "of full", "full again"} {
		must(t, Discard(root, name, nil))
	}
	if names, err := os.ReadDir(root.Name()); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

func TestGroupsSnapshotErrorsLeaveNothing(t *testing.T) {
	root := btrfs.mount(t)
	dir, _ := btrfs.volume(t, root, "volume", mib)
	must(t, os.Mkdir(filepath.Join(root.Name(), "plain"), 0o755))
	plain, elsewhere := open(t, filepath.Join(root.Name(), "plain")), open(t, btrfs.mount(t).Name())
	if _, err := Snapshot(plain, root, "s", 0, true); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("of a plain directory: %v", err)
	}
	for _, parent := range []*os.File{elsewhere, open(t, t.TempDir())} {
		if _, err := Snapshot(dir, parent, "s", 0, true); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("to another filesystem: %v", err)
		}
	}
	if _, err := Snapshot(dir, root, "plain", 0, true); !errors.Is(err, fs.ErrExist) {
		t.Errorf("to an existing name: %v", err)
	}
	must(t, control(root, disableQuotas))
	if _, err := Snapshot(dir, root, "s", mib, false); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("with a limit where quotas are off: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(root.Name(), "s")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the subvolume is left: %v", err)
	}
}

// TestGroupsOfNestedSubvolumesAreDiscarded: a pod may make subvolumes and snapshots in its volume,
// make them read-only, and fill the volume until no change is possible in it.
func TestGroupsOfNestedSubvolumesAreDiscarded(t *testing.T) { onEach(t, groupFilesystems, hostile) }
func TestSimpleGroupsOfNestedSubvolumesAreDiscarded(t *testing.T) {
	onEach(t, simpleFilesystems, hostile)
}

func hostile(t *testing.T, f filesystem, root *os.File) {
	before := groups(t, root)
	other, otherMark := f.volume(t, root, "other", mib)
	dir, _ := f.volume(t, root, "volume", 8*mib)
	nested := []*os.File{dir}
	for i := range 20 { // nested, below directories
		sub := filepath.Join(nested[i].Name(), "a", "b\xff")
		must(t, os.MkdirAll(sub, 0o700))
		in := open(t, sub)
		_, err := Make(f.want, in, "sub", Options{})
		must(t, errors.Join(err, in.Close()))
		nested = append(nested, open(t, filepath.Join(sub, "sub")))
	}
	for i := range 100 { // many in the same directory
		_, err := Make(f.want, dir, fmt.Sprint("many", i), Options{})
		must(t, err)
	}
	_, err := Snapshot(dir, dir, "of itself", 0, true)
	must(t, err)
	fill(t, filepath.Join(dir.Name(), "file"), 100*mib)
	fill(t, filepath.Join(dir.Name(), "more"), 100*mib)
	must(t, with(dir, unix.Syncfs))
	for _, subvolume := range nested {
		flags := uint64(readOnlyFlag)
		must(t, setFlags.call(subvolume, unsafe.Pointer(&flags)))
	}
	for range 2 {
		must(t, Discard(root, "volume", nil))
	}
	if _, err := os.Lstat(dir.Name()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the subvolume is left: %v", err)
	}
	for _, subvolume := range nested { // the kernel keeps open subvolumes until they are closed
		subvolume.Close()
	}
	run(t, "btrfs", "subvolume", "sync", root.Name())
	must(t, with(root, unix.Syncfs))
	must(t, Sweep(root))
	if after := groups(t, root); after != before+1 {
		t.Errorf("there are %d quota groups, want %d and that of the volume that stays", after, before)
	}
	if u := look(t, other, otherMark); !u.Holds(mib) {
		t.Errorf("the volume that stays has %+v", u)
	}
}

// groups counts the quota groups of a filesystem.
func groups(t *testing.T, root *os.File) (n int) {
	t.Helper()
	for id := range uint64(1000) {
		switch _, err := item(root, quotaTree, 0, itemLimit, id); {
		case err == nil:
			n++
		case !errors.Is(err, fs.ErrNotExist):
			t.Fatal(err)
		}
	}
	return n
}
