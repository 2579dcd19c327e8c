package quota

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused returns the result and the error of Find, which must be ErrNotEnforced.
func refused(t *testing.T, dir *os.File) (Mechanism, string) {
	t.Helper()
	m, err := Find(context.Background(), dir)
	if !errors.Is(err, ErrNotEnforced) {
		t.Fatalf("Find = %+v, %v", m, err)
	}
	return m, err.Error()
}

func TestProjectsAreFoundOnlyIfEnforced(t *testing.T) {
	with := func(f filesystem, options string, mkfs ...string) filesystem {
		f.name, f.options, f.mkfs = f.kind+" with "+options, options, mkfs
		return f
	}
	for _, c := range []struct {
		filesystem
		want string
	}{
		{with(xfs, "noquota"), "unmount the xfs, and mount it with the option prjquota"},
		{with(xfs, "uquota"), "unmount the xfs, and mount it with the option prjquota"},
		{with(xfs, "pqnoenforce"), "not pqnoenforce"},
		{with(ext4, "noatime"), "tune2fs -O project,quota"},
		{with(ext4, "noatime,errors=continue", "-O", "quota,project"),
			"counts the usage of projects but has no limits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := c.mount(t)
			if m, why := refused(t, root); m != (Mechanism{}) || !strings.Contains(why, c.want) {
				t.Errorf("Find = %+v, %q, want %q", m, why, c.want)
			}
			// As if the mount options changed while the driver runs.
			if _, err := Make(Mechanism{Kind: Project}, root, "v", Options{Size: mib, Volume: "v"}); err == nil {
				t.Error("Make made a directory whose limit is not enforced")
			}
			if names, err := os.ReadDir(root.Name()); err != nil ||
				strings.Contains(strings.Join(namesOf(names), " "), "v") {
				t.Errorf("left: %v, %v", names, err)
			}
		})
	}
}

func namesOf(entries []os.DirEntry) (names []string) {
	for _, e := range entries {
		if e.Name() == "v" {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestOtherFilesystemsHaveNoLimits(t *testing.T) {
	if _, why := refused(t, open(t, "/dev/shm")); !strings.Contains(why, "no quota") {
		t.Errorf("Find on tmpfs: %q", why)
	}
	dir, err := os.MkdirTemp("/dev/shm", "causeway-")
	must(t, err)
	defer os.Remove(dir)
	must(t, Discard(open(t, "/dev/shm"), filepath.Base(dir), nil))
	if err := Discard(open(t, "/dev"), "shm", nil); err == nil {
		t.Error("Discard entered a mount")
	}
}

func TestGroupsAreFoundOnlyIfEnforced(t *testing.T) {
	off := btrfs
	off.quotas = 0
	root := off.mount(t)
	want := Mechanism{Kind: Subvolume}
	if m, why := refused(t, root); m != want || !strings.Contains(why, "btrfs quota enable") {
		t.Errorf("Find = %+v, %q", m, why)
	}
	mark, err := Make(want, root, "volume", Options{})
	must(t, err)
	dir := open(t, filepath.Join(root.Name(), "volume"))
	if _, err := Look(dir, mark); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("Look where quotas are off: %v", err)
	}
	if err := Set(dir, mark, mib); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("Set where quotas are off: %v", err)
	}
	if _, err := Make(want, root, "held", Options{Size: mib}); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("Make where quotas are off: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root.Name(), "held")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	must(t, control(root, enableGroups))
	btrfs.found(t, root)
	must(t, Set(dir, mark, 4*mib)) // a directory that was made before is counted, too
	if u := look(t, dir, mark); !u.Holds(4 * mib) {
		t.Errorf("the limit is %+v", u)
	}
	must(t, control(root, disableQuotas))
	if _, err := Look(dir, mark); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("Look after quotas were disabled: %v", err)
	}
	must(t, Discard(root, "volume", nil))
}

func TestGroupsAreAwaitedDuringARescan(t *testing.T) {
	f := btrfs
	f.quotas, f.size = 0, 512<<20
	root := f.mount(t)
	mark, err := Make(f.want, root, "volume", Options{})
	must(t, err)
	dir := open(t, filepath.Join(root.Name(), "volume"))
	const extents = 4000 // the rescan takes a while
	file, err := os.Create(filepath.Join(dir.Name(), "file"))
	must(t, err)
	defer file.Close()
	for i := range int64(extents) {
		_, err := file.WriteAt([]byte{1}, i*8192)
		must(t, err)
		if i%500 == 0 {
			must(t, file.Sync())
		}
	}
	must(t, file.Sync())
	must(t, control(root, enableGroups))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var counting rescanArgs
	_, err = Find(ctx, root)
	must(t, rescanStatus.call(root, unsafe.Pointer(&counting)))
	if counting.running != 0 && !errors.Is(err, context.Canceled) {
		t.Errorf("Find = %v during the rescan", err)
	}
	start := time.Now()
	f.found(t, root)
	t.Logf("the rescan was running: %d; Find took %s", counting.running, time.Since(start))
	must(t, rescanStatus.call(root, unsafe.Pointer(&counting)))
	if u, err := Look(dir, mark); counting.running != 0 || err != nil || u.Used < extents*4096 {
		t.Errorf("after Find the rescan is running: %d; Look = %+v, %v", counting.running, u, err)
	}
}

// TestGroupsThatAreInconsistentAreRejected makes the counts of btrfs inconsistent as administrators
// do: by adding a snapshot to a group with whose members it shares extents.
func TestGroupsThatAreInconsistentAreRejected(t *testing.T) {
	root := btrfs.mount(t)
	dir, mark := btrfs.volume(t, root, "volume", 8*mib)
	fill(t, filepath.Join(dir.Name(), "file"), 4*mib)
	must(t, with(dir, unix.Syncfs))
	run(t, "btrfs", "qgroup", "create", "1/100", root.Name())
	id, err := subvolumeID(dir)
	must(t, err)
	assign := request{0x40189429, "BTRFS_IOC_QGROUP_ASSIGN"}
	args := [3]uint64{1, id, 1<<48 | 100}
	must(t, assign.call(root, unsafe.Pointer(&args)))
	_, err = Snapshot(dir, root, "snapshot", 0, true)
	must(t, err)
	snapshot, err := subvolumeID(open(t, filepath.Join(root.Name(), "snapshot")))
	must(t, err)
	args[1] = snapshot
	must(t, assign.call(root, unsafe.Pointer(&args)))
	must(t, with(dir, unix.Syncfs))
	if m, why := refused(t, root); m != btrfs.want || !strings.Contains(why, "btrfs quota rescan") {
		t.Errorf("Find = %+v, %q", m, why)
	}
	if _, err := Look(dir, mark); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("Look = %v", err)
	}
	run(t, "btrfs", "quota", "rescan", "-w", root.Name())
	btrfs.found(t, root)
	if u := look(t, dir, mark); !u.Holds(8*mib) || u.Used < 4*mib || u.Used > 5*mib {
		t.Errorf("after a rescan: %+v", u)
	}
}
