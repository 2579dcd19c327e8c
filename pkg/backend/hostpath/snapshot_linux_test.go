package hostpath

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// everywhere runs a test on a root of each filesystem.
func everywhere(t *testing.T, test func(w *world, f testdisk.Filesystem)) {
	for _, f := range testdisk.All {
		t.Run(f.Type, func(t *testing.T) { test(newRoot(t, f), f) })
	}
}

// newRoot returns a world whose root is a filesystem of its own, on a loop device.
func newRoot(t *testing.T, f testdisk.Filesystem) *world {
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	w := newWorld(t)
	w.ownsFilesystem()
	f.Mount(t, w.cfg.Root)
	if err := os.RemoveAll(filepath.Join(w.cfg.Root, "lost+found")); err != nil {
		t.Fatal(err)
	}
	return w
}

// ownFilesystem mounts a filesystem in memory at the empty root of w: other programs fill and empty
// the disk of the machine.
func ownFilesystem(t *testing.T, w *world) {
	t.Helper()
	if noNamespace != nil {
		return
	}
	w.ownsFilesystem()
	root := w.cfg.Root
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=4g,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := testdisk.Unmount(t, root); err != nil {
			t.Errorf("unmount %s: %v", root, err)
		}
	})
}

func TestHostpathKeepsTheContractWhereFilesShareBlocks(t *testing.T) {
	t.Parallel()
	for _, f := range testdisk.All {
		if !f.Reflinks {
			continue
		}
		for name, kind := range kinds {
			kind.Groups = name == string(image)
			t.Run(f.Type+"/"+name, func(t *testing.T) {
				t.Parallel()
				// For all tests of the contract. The files that a test leaves take space from the next test:
				// no root is a filesystem of its own.
				disk := newRoot(t, f).cfg.Root
				backendtest.Run(t, kind, func(t *testing.T, images mounter.Images) func() backend.Backend {
					root, err := os.MkdirTemp(disk, "root-")
					if err != nil {
						t.Fatal(err)
					}
					w := newWorld(t, uses(images))
					w.cfg.Root = root
					return func() backend.Backend { return w.open() }
				})
			})
		}
	}
}

const mib = 1 << 20

// device makes an image without a filesystem, for use as a block device.
func (w *world) device(b *Backend, name string, size int64) backend.Volume {
	w.Helper()
	v, err := b.Create(context.Background(), deviceOptions(name, size))
	if err != nil {
		w.Fatal(err)
	}
	return v
}

func deviceOptions(name string, size int64) backend.CreateOptions {
	return backend.CreateOptions{
		Name: name, Required: size, Access: []backend.Access{{Block: true}},
		Parameters: map[string]string{kindKey: string(image)},
	}
}

func (w *world) snapshot(b *Backend, v backend.Volume, name string) backend.Snapshot {
	w.Helper()
	n, err := b.Snapshot(context.Background(), backend.SnapshotOptions{Name: name, Source: v.ID})
	if err != nil {
		w.Fatal(err)
	}
	return n
}

// disk returns the path of a volume's image.
func (w *world) disk(id string) string { return w.path(volumesDir, id, imageFile) }

func (w *world) write(file string, offset int64, data []byte) {
	w.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(data, offset)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) read(file string) []byte {
	w.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		w.Fatal(err)
	}
	return data
}

// TestABlockDeviceIsNotRestoredAsAFilesystem, and the error has the reason.
func TestABlockDeviceIsNotRestoredAsAFilesystem(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	b := w.open()
	v := w.device(b, "v", 8*mib)
	n := w.snapshot(b, v, "n")
	for _, fsType := range []string{"", "ext4"} {
		o := backend.CreateOptions{Name: "as " + fsType, Access: []backend.Access{{FSType: fsType}},
			Parameters: map[string]string{kindKey: string(image)}}
		_, restoreErr := b.Restore(ctx, n.ID, o)
		_, cloneErr := b.Clone(ctx, v.ID, o)
		for _, err := range []error{restoreErr, cloneErr} {
			if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "a trap for the kernel") {
				t.Errorf("as %q: %v, want ErrInvalid with the reason", fsType, err)
			}
		}
	}
}

func TestASnapshotKeepsItsContent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	everywhere(t, func(w *world, f testdisk.Filesystem) {
		b := w.open()
		v := w.device(b, "v", 8*mib)
		w.write(w.disk(v.ID), 5*mib, []byte("before"))
		n := w.snapshot(b, v, "n")
		w.write(w.disk(v.ID), 5*mib, []byte("after!"))
		clone, err := b.Clone(ctx, v.ID, deviceOptions("clone", 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(ctx, v.ID, nil); err != nil {
			t.Fatal(err)
		}
		restored, err := b.Restore(ctx, n.ID, deviceOptions("restored", 16*mib))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := restored.Size, int64(16*mib); got != want || restored.SourceSnapshot != n.ID ||
			clone.SourceVolume != v.ID {
			t.Errorf("restored %+v, cloned %+v, want %d bytes", restored, clone, want)
		}
		for id, want := range map[string]string{restored.ID: "before", clone.ID: "after!"} {
			if got := w.read(w.disk(id)); string(got[5*mib:5*mib+6]) != want ||
				strings.Trim(string(got[:5*mib]), "\x00") != "" {
				t.Errorf("%s holds %q, want %q", id, got[5*mib:5*mib+6], want)
			}
		}
		if got := known(b.snapshot(n.ID)).Cloned; got != f.Reflinks {
			t.Errorf("Cloned = %v, want %v", got, f.Reflinks)
		}
		if f.Reflinks { // 4 KiB of data and the metadata of the filesystem, not 8 MiB
			if held := known(b.snapshot(n.ID)).OnDisk; held < 4096 || held > mib {
				t.Errorf("the snapshot holds %d bytes", held)
			}
		}
		again := w.restart(b)
		if _, err := again.Restore(ctx, n.ID, deviceOptions("restored", 16*mib)); err != nil {
			t.Errorf("a retry after a restart: %v", err)
		}
		if err := again.DeleteSnapshot(ctx, n.ID, nil); err != nil {
			t.Fatal(err)
		}
		for _, v := range []backend.Volume{restored, clone} {
			if err := again.Delete(ctx, v.ID, nil); err != nil {
				t.Fatal(err)
			}
		}
		if again.catalog.Reserved() != 0 {
			t.Errorf("%d bytes are reserved without an object", again.catalog.Reserved())
		}
		w.emptied()
	})
}

func TestTheCopyOfADirectoryIsComplete(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	everywhere(t, func(w *world, f testdisk.Filesystem) {
		b := w.open()
		v := w.create(b, "v")
		data := w.path(volumesDir, v.ID, dataDir)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		deep := data
		for range 1000 {
			deep = filepath.Join(deep, "d")
		}
		must(mkdirAll(data, 1000, "d"))
		must(os.WriteFile(filepath.Join(data, "not UTF-8 \xff\xfe"), []byte("x"), 0o640))
		must(os.Chown(filepath.Join(data, "not UTF-8 \xff\xfe"), 123, 456))
		must(os.Symlink("/etc/shadow", filepath.Join(data, "link")))
		must(unix.Mknod(filepath.Join(data, "null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		n := w.snapshot(b, v, "n")
		if err := b.Delete(ctx, v.ID, nil); err != nil {
			t.Fatal(err)
		}
		restored, err := b.Restore(ctx, n.ID, backend.CreateOptions{Name: "restored", Access: []backend.Access{{}}})
		must(err)
		data = w.path(volumesDir, restored.ID, dataDir)
		var st unix.Stat_t
		must(unix.Lstat(filepath.Join(data, "not UTF-8 \xff\xfe"), &st))
		if st.Uid != 123 || st.Gid != 456 || st.Mode&0o777 != 0o640 {
			t.Errorf("owner %d:%d, mode %o", st.Uid, st.Gid, st.Mode)
		}
		if to, err := os.Readlink(filepath.Join(data, "link")); to != "/etc/shadow" {
			t.Errorf("the link leads to %q, %v", to, err)
		}
		must(unix.Lstat(filepath.Join(data, "null"), &st))
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(1, 3) {
			t.Errorf("the device is %o %x", st.Mode, st.Rdev)
		}
		if depth := depthOf(t, data, "d"); depth != 1000 {
			t.Errorf("%d directories deep, want 1000", depth)
		}
		if restored.Size != v.Size {
			t.Errorf("%d bytes, want the %d of the source", restored.Size, v.Size)
		}
		must(b.Delete(ctx, restored.ID, nil))
		must(b.DeleteSnapshot(ctx, n.ID, nil))
		w.emptied()
	})
}

func TestASourceOfManySmallFiles(t *testing.T) {
	t.Parallel()
	const files = 20_000
	w := newRoot(t, testdisk.Filesystem{Type: "xfs"})
	b := w.open()
	v := w.create(b, "v")
	data, err := os.OpenRoot(w.path(volumesDir, v.ID, dataDir))
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	for i := range files {
		if err := data.WriteFile(fmt.Sprint(i), []byte{byte(i)}, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := w.snapshot(b, v, "n")
	restored, err := b.Restore(context.Background(), n.ID,
		backend.CreateOptions{Name: "restored", Access: []backend.Access{{}}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if got, err := os.ReadFile(w.path(volumesDir, restored.ID, dataDir, fmt.Sprint(i))); err != nil ||
			len(got) != 1 || got[0] != byte(i) {
			t.Fatalf("file %d holds %q, %v", i, got, err)
		}
	}
	if names := w.names(filepath.Join(volumesDir, restored.ID, dataDir)); len(names) != files {
		t.Errorf("%d files, want %d", len(names), files)
	}
}

// mkdirAll makes depth nested directories, also beyond PATH_MAX.
func mkdirAll(in string, depth int, name string) error {
	at, err := unix.Open(in, unix.O_PATH|unix.O_DIRECTORY, 0)
	for i := 0; err == nil && i < depth; i++ {
		if err = unix.Mkdirat(at, name, 0o755); err == nil {
			var next int
			next, err = unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
			unix.Close(at)
			at = next
		}
	}
	unix.Close(at)
	return err
}

// depthOf returns the number of nested directories of a name.
func depthOf(t *testing.T, in, name string) (depth int) {
	at, err := unix.Open(in, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for ; ; depth++ {
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		unix.Close(at)
		if err != nil {
			return depth
		}
		at = next
	}
}

func TestAMountedImageIsNotCopiedSlowly(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newRoot(t, testdisk.Filesystem{Type: "ext4"})
	b := w.open()
	v := w.device(b, "v", 8*mib)
	b.cfg.Images = changed{Images: b.cfg.Images,
		users: func(string) ([]string, error) { return []string{"/there"}, nil }}
	_, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "n", Source: v.ID})
	if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(err.Error(), "/there") {
		t.Errorf("Snapshot = %v, want ErrPrecondition with the path", err)
	}
	if _, err := b.Clone(ctx, v.ID, deviceOptions("c", 0)); !errors.Is(err, backend.ErrPrecondition) {
		t.Errorf("Clone = %v, want ErrPrecondition", err)
	}
	if got := slices.Concat(w.names(stagingDir), w.names(snapshotsDir)); len(got) > 0 ||
		b.catalog.Reserved() != v.Size {
		t.Errorf("left: %v, and %d bytes", got, b.catalog.Reserved()-v.Size)
	}
	o := backend.SnapshotOptions{Name: "n", Source: v.ID,
		Parameters: map[string]string{consistencyKey: string(anyState)}}
	if _, err := b.Snapshot(ctx, o); err != nil {
		t.Errorf("with consistency none: %v", err)
	}
}

// slowCopy returns a volume on ext4 whose copies wait until finish is called.
func slowCopy(t *testing.T) (w *world, b *Backend, v backend.Volume, finish func()) {
	w = newRoot(t, testdisk.Filesystem{Type: "ext4"})
	b = w.open()
	v = w.device(b, "v", 8*mib)
	w.write(w.disk(v.ID), 0, []byte("data"))
	return w, b, v, occupy(t, b.slots.copies)
}

// copyWaits waits until a copy of a volume has begun, and waits for a slot.
func (w *world) copyWaits(b *Backend, v backend.Volume) {
	w.Helper()
	await.True(w.T, "the copy waits for a slot", func() bool {
		return slices.ContainsFunc(b.slots.copies.Entries(),
			func(e fair.Entry) bool { return !e.Running && e.Volume == v.ID })
	})
}

// impatient is the context of a caller whose deadline passes when a call begins to wait.
type impatient struct {
	context.Context
	pass   func()
	passed chan struct{}
}

func newImpatient() impatient {
	passed := make(chan struct{})
	return impatient{context.Background(), sync.OnceFunc(func() { close(passed) }), passed}
}

func (i impatient) Done() <-chan struct{} {
	i.pass()
	return i.passed
}

func (i impatient) Err() error {
	select {
	case <-i.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// tick waits until a change of the file would get another time: the clock of a filesystem can be
// coarse.
func (w *world) tick(path string) {
	w.Helper()
	before, err := os.Stat(path)
	if err != nil {
		w.Fatal(err)
	}
	probe := path + ".tick"
	await.True(w.T, "the clock of the filesystem ticks", func() bool {
		if err := os.WriteFile(probe, []byte("x"), 0o600); err != nil {
			w.Fatal(err)
		}
		now, err := os.Stat(probe)
		if err != nil {
			w.Fatal(err)
		}
		return now.ModTime().After(before.ModTime())
	})
	if err := os.Remove(probe); err != nil {
		w.Fatal(err)
	}
}

// occupy takes all slots of a resource, for other tenants, until release is called.
func occupy(t *testing.T, s *fair.Slots) (release func()) {
	t.Helper()
	var releases []func()
	for i, kind := range []string{kindSnapshot, kindClone, kindRestore, kindSnapshot} {
		tenant := fmt.Sprint("tenant-", i%2)
		r, err := s.Acquire(t.Context(), fair.Request{Kind: kind, Tenant: tenant, Volume: tenant})
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, r)
	}
	return sync.OnceFunc(func() {
		for _, r := range releases {
			r()
		}
	})
}

func TestACopyOutlivesItsCallersAndARetryJoinsIt(t *testing.T) {
	t.Parallel()
	w, b, v, finish := slowCopy(t)
	defer finish()
	o := backend.SnapshotOptions{Name: "n", Source: v.ID}
	if _, err := b.Snapshot(newImpatient(), o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first call: %v, want DeadlineExceeded", err)
	}
	if _, err := b.Snapshot(newImpatient(), o); !errors.Is(err, backend.ErrBusy) {
		t.Errorf("a retry: %v, want ErrBusy", err)
	}
	other := w.device(b, "other", 8*mib)
	if _, err := b.Snapshot(newImpatient(), backend.SnapshotOptions{Name: "n", Source: other.ID}); !errors.Is(err,
		backend.ErrExists) {
		t.Errorf("a snapshot of another volume with the same name: %v, want ErrExists", err)
	}
	if err := b.Delete(context.Background(), v.ID, nil); !errors.Is(err, backend.ErrInUse) {
		t.Errorf("Delete of the source: %v, want ErrInUse", err)
	}
	id := volumeid.New(volumeid.Snapshot, b.Node(), o.Name)
	if err := b.DeleteSnapshot(context.Background(), id, nil); !errors.Is(err, backend.ErrInUse) {
		t.Errorf("DeleteSnapshot of a snapshot that is being made: %v, want ErrInUse", err)
	}
	if page, _, err := b.ListSnapshots(context.Background(), "", "", 10); err != nil || len(page) > 0 {
		t.Errorf("listed: %v, %v", page, err)
	}
	w.copyWaits(b, v)
	if _, err := b.Mount(context.Background(), v.ID, backend.Access{Block: true}); !errors.Is(err, backend.ErrBusy) {
		t.Errorf("Mount of an image that must not be written to: %v, want ErrBusy", err)
	}
	finish()
	n, err := b.Snapshot(context.Background(), o)
	if err != nil || n.ID != id {
		t.Fatalf("a retry that waits: %+v, %v", n, err)
	}
	if _, err := b.Mount(context.Background(), v.ID, backend.Access{Block: true}); err != nil {
		t.Errorf("Mount afterwards: %v", err)
	}
	if err := b.Delete(context.Background(), v.ID, nil); err != nil {
		t.Errorf("Delete of the source afterwards: %v", err)
	}
}

func TestTheCopyOfAChangedImageIsDiscarded(t *testing.T) {
	t.Parallel()
	w, b, v, finish := slowCopy(t)
	defer finish()
	o := backend.SnapshotOptions{Name: "n", Source: v.ID}
	if _, err := b.Snapshot(newImpatient(), o); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	w.copyWaits(b, v)
	w.tick(w.disk(v.ID))
	w.write(w.disk(v.ID), 0, []byte("sneaky"))
	finish()
	if _, err := b.Snapshot(context.Background(), o); !errors.Is(err, backend.ErrBusy) {
		t.Errorf("Snapshot = %v, want ErrBusy", err)
	}
	if _, err := b.Snapshot(context.Background(), o); err != nil {
		t.Errorf("the second Snapshot: %v", err)
	}
}

func TestCloseRollsBackACopy(t *testing.T) {
	t.Parallel()
	w, b, v, finish := slowCopy(t)
	defer finish()
	if _, err := b.Clone(newImpatient(), v.ID, deviceOptions("c", 0)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	w.copyWaits(b, v)
	again := w.restart(b)
	if got := w.names(volumesDir); len(got) != 1 || again.catalog.Reserved() != v.Size {
		t.Errorf("left: %v, %d bytes", got, again.catalog.Reserved())
	}
	w.emptied()
}

func TestAFailedCopyIsReportedToTheNextCaller(t *testing.T) {
	t.Parallel()
	w := newRoot(t, testdisk.Filesystem{Type: "ext4"})
	ctx, cancel := context.WithCancel(context.Background())
	broken, given := errors.New("the kernel will not say"), make(chan struct{})
	b := w.open(func(c *Config) {
		c.Images = changed{Images: c.Images, users: func(string) ([]string, error) {
			cancel()
			<-given
			return nil, broken
		}}
	})
	give := sync.OnceFunc(func() { close(given) })
	defer give()
	o := backend.SnapshotOptions{Name: "n", Source: w.device(b, "v", 8*mib).ID}
	if _, err := b.Snapshot(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	give()
	if _, err := b.Snapshot(context.Background(), o); !errors.Is(err, broken) {
		t.Errorf("the next call: %v, want the error of the copy", err)
	}
}

// TestASnapshotOfAFileWithALease: a lease that no process releases is an error of the volume's
// users, not of the driver.
func TestASnapshotOfAFileWithALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "v")
	held := w.path(volumesDir, v.ID, dataDir, "held")
	if err := os.WriteFile(held, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(held, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	await.NoError(t, "no child of this process has the file open", func() error {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		return err
	})
	_, err = b.Snapshot(context.Background(), backend.SnapshotOptions{Name: "n", Source: v.ID})
	if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(err.Error(), `"held"`) {
		t.Errorf("Snapshot = %v, want ErrPrecondition and the name of the file", err)
	}
}

func TestASnapshotOnAFullDiskLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, f := range []testdisk.Filesystem{{Type: "ext4", Size: 64 * mib}, {Type: "xfs", Size: 400 * mib},
		{Type: "btrfs", Size: 300 * mib}} {
		t.Run(f.Type, func(t *testing.T) {
			w := newRoot(t, f)
			b := w.open()
			v := w.create(b, "v")
			fill(t, w.path(volumesDir, v.ID, dataDir, "big"))
			_, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "n", Source: v.ID})
			if !errors.Is(err, backend.ErrExhausted) {
				t.Fatalf("Snapshot = %v, want ErrExhausted", err)
			}
			w.emptied()
			if got := slices.Concat(w.names(stagingDir), w.names(snapshotsDir)); len(got) > 0 ||
				b.catalog.Reserved() != v.Size {
				t.Errorf("left: %v, %d bytes", got, b.catalog.Reserved()-v.Size)
			}
			if _, err := b.Clone(ctx, v.ID,
				backend.CreateOptions{Name: "c", Access: []backend.Access{{}}}); !errors.Is(err, backend.ErrExhausted) {
				t.Errorf("Clone = %v, want ErrExhausted", err)
			}
			if err := os.Truncate(w.path(volumesDir, v.ID, dataDir, "big"), mib); err != nil {
				t.Fatal(err)
			}
			await.True(w.T, "it is possible again", func() bool { // on btrfs after the next commit
				testdisk.Syncfs(t, w.path())
				_, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "n", Source: v.ID})
				return err == nil
			})
		})
	}
}

// fill writes a file until the disk is full to the last byte.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := bytes.Repeat([]byte("full"), mib/4)
	for len(data) > 0 {
		if _, err := f.Write(data); errors.Is(err, unix.ENOSPC) {
			data = data[:len(data)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

func TestDeltasAppliedToTheOlderImageGiveTheNewer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	everywhere(t, func(w *world, f testdisk.Filesystem) {
		random := rand.New(rand.NewPCG(seed, 0))
		b := w.open()
		v := w.device(b, "v", 16*mib)
		var all []backend.Snapshot
		for round := range 8 {
			scribble(t, random, w.disk(v.ID), 16*mib)
			all = append(all, w.snapshot(b, v, fmt.Sprint("n", round)))
		}
		if err := b.Delete(ctx, v.ID, nil); err != nil { // the snapshots do not need their volume
			t.Fatal(err)
		}
		for range 20 {
			i, j := random.IntN(len(all)), random.IntN(len(all))
			old, young := w.read(w.path(snapshotsDir, all[i].ID, imageFile)), w.read(w.path(snapshotsDir, all[j].ID,
				imageFile))
			apply(t, old, young, func(each func(int64, int64) error) error {
				return b.Delta(ctx, all[i].ID, all[j].ID,
					0, nil, each)
			})
			if !bytes.Equal(old, young) {
				t.Fatalf("snapshot %d with the changes up to %d differs from that snapshot", i, j)
			}
			empty := make([]byte, len(young))
			apply(t, empty, young, func(each func(int64, int64) error) error {
				return b.Allocated(ctx, all[j].ID, 0,
					nil, each)
			})
			if !bytes.Equal(empty, young) {
				t.Fatalf("the allocated ranges of snapshot %d lack data", j)
			}
		}
	})
}

// apply copies the ranges that report reports from young to old.
func apply(t *testing.T, old, young []byte, report func(each func(offset, length int64) error) error) {
	t.Helper()
	err := report(func(offset, length int64) error {
		copy(old[offset:offset+length], young[offset:])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// scribble writes to random offsets of a file, and punches holes.
func scribble(t *testing.T, random *rand.Rand, name string, size int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 40 {
		at, n := random.Int64N(size), random.Int64N(64<<10)+1
		n = min(n, size-at)
		if random.IntN(4) == 0 {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
		} else {
			data := make([]byte, n)
			for i := range data {
				data[i] = byte(random.Uint32())
			}
			_, err = f.WriteAt(data, at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// images makes images with filesystems, formatted by a fake.
func (w *world) images(b *Backend, names ...string) (ids []string) {
	w.Helper()
	for _, name := range names {
		v, err := b.Create(context.Background(), backend.CreateOptions{
			Name: name, Required: 8 * mib, Access: []backend.Access{{}},
			Parameters: map[string]string{kindKey: string(image)},
		})
		if err != nil {
			w.Fatal(err)
		}
		ids = append(ids, v.ID)
	}
	return ids
}

func TestASnapshotOfADeviceInUseIsOfAPointInTime(t *testing.T) {
	t.Parallel()
	for _, f := range testdisk.All {
		if !f.Reflinks {
			continue
		}
		t.Run(f.Type, func(t *testing.T) {
			const size, late = 640 * mib, 600 * mib // more than a freeze clones in one piece
			w := newRoot(t, f)
			b := w.open()
			v := w.device(b, "v", size)
			disk, err := os.OpenFile(w.disk(v.ID), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer disk.Close()
			block := make([]byte, 4096)
			for i := range int64(4000) { // fragments, as of an image that has been in use
				if _, err := disk.WriteAt(block, (2*i+1)*16*4096); err != nil {
					t.Fatal(err)
				}
			}
			done := make(chan struct{})
			var writer sync.WaitGroup
			writer.Go(func() {
				own := make([]byte, 4096)
				for n := uint64(1); ; n++ { // first to one offset, then to the other
					select {
					case <-done:
						return
					default:
					}
					binary.LittleEndian.PutUint64(own, n)
					for _, at := range []int64{0, late} {
						if _, err := disk.WriteAt(own, at); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
			stop := sync.OnceFunc(func() { close(done); writer.Wait() })
			defer stop()
			for i := range 10 {
				n := w.snapshot(b, v, fmt.Sprint("n", i))
				copied, err := os.Open(w.path(snapshotsDir, n.ID, imageFile))
				if err != nil {
					t.Fatal(err)
				}
				var first, second [8]byte
				_, err1 := copied.ReadAt(first[:], 0)
				_, err2 := copied.ReadAt(second[:], late)
				copied.Close()
				one, two := binary.LittleEndian.Uint64(first[:]), binary.LittleEndian.Uint64(second[:])
				if err := errors.Join(err1, err2); err != nil || two > one {
					t.Errorf("snapshot %d has write %d but not the earlier write %d, %v", i, two, two, err)
				}
			}
			stop()
		})
	}
}

func TestACloneOfAnImageWhoseGrowthWasInterrupted(t *testing.T) {
	t.Parallel()
	w := newRoot(t, testdisk.Filesystem{Type: "xfs"})
	b := w.open()
	v := w.device(b, "v", 8*mib)
	if err := os.Truncate(w.disk(v.ID), 16*mib); err != nil { // the driver died before it wrote the record
		t.Fatal(err)
	}
	b = w.restart(b)
	clone, err := b.Clone(context.Background(), v.ID, deviceOptions("clone", 0))
	if err != nil || clone.Size != 16*mib || b.catalog.Reserved() != 32*mib {
		t.Errorf("Clone = %+v, %v, and %d bytes are reserved", clone, err, b.catalog.Reserved())
	}
}

func TestAStartOnAFullDiskReadsTheSizesOfImages(t *testing.T) {
	t.Parallel()
	w := newRoot(t, testdisk.Filesystem{Type: "ext4", Size: 64 * mib})
	b := w.open()
	v := w.device(b, "v", 8*mib)
	if err := os.Truncate(w.disk(v.ID), 16*mib); err != nil { // the driver died before it wrote the record
		t.Fatal(err)
	}
	fill(t, w.path("filler"))
	b = w.restart(b)
	if got, err := b.Get(context.Background(), v.ID, nil); err != nil || got.Size != 16*mib {
		t.Errorf("on a full disk: %+v, %v", got, err)
	}
}

func TestASnapshotWithoutQuotasReservesTheSizeOfItsVolume(t *testing.T) {
	t.Parallel()
	w := newRoot(t, testdisk.Filesystem{Type: "btrfs", Size: 300 * mib})
	b := w.open()
	v := w.create(b, "v")
	before := b.catalog.Reserved()
	w.snapshot(b, v, "n")
	if held := b.catalog.Reserved() - before; held != v.Size {
		t.Errorf("the snapshot reserves %d bytes, the volume %d", held, v.Size)
	}
}

func TestAbilitiesAreProbedAgainAfterAFullDisk(t *testing.T) {
	t.Parallel()
	for _, f := range []testdisk.Filesystem{{Type: "xfs", Size: 400 * mib}, {Type: "btrfs", Size: 300 * mib}} {
		t.Run(f.Type, func(t *testing.T) {
			w := newRoot(t, f)
			b := w.open()
			ids := w.images(b, "a", "b")
			fill(t, w.path("filler"))
			b = w.restart(b)
			if err := os.Remove(w.path("filler")); err != nil {
				t.Fatal(err)
			}
			await.True(w.T, "it is possible", func() bool {
				w.sync()
				_, err := b.SnapshotGroup(context.Background(), backend.GroupOptions{Name: "g", Sources: ids})
				return err == nil
			})
		})
	}
}

func TestAGroupIsAllOrNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	everywhere(t, func(w *world, f testdisk.Filesystem) {
		b := w.open()
		ids := w.images(b, "a", "b", "c")
		before := b.catalog.Reserved()
		if !f.Reflinks {
			if _, err := b.SnapshotGroup(ctx, backend.GroupOptions{Name: "g", Sources: ids}); !errors.Is(err,
				backend.ErrPrecondition) {
				t.Errorf("SnapshotGroup = %v, want ErrPrecondition", err)
			}
			return
		}
		nothing := func(call string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", call, err, want)
			}
			if got := slices.Concat(w.names(stagingDir), w.names(snapshotsDir), w.names(groupsDir)); len(got) > 0 ||
				b.catalog.Reserved() != before {
				t.Errorf("%s has left %v, %d bytes", call, got, b.catalog.Reserved()-before)
			}
		}
		_, err := b.SnapshotGroup(ctx, backend.GroupOptions{Name: "g",
			Sources: append(slices.Clone(ids), w.create(b, "d").ID)})
		before = b.catalog.Reserved()
		nothing("a group with a directory", err, backend.ErrPrecondition)
		_, err = b.SnapshotGroup(ctx, backend.GroupOptions{Name: "g", Sources: append(slices.Clone(ids), "none")})
		nothing("a group with an unknown volume", err, backend.ErrNotFound)
		images := b.cfg.Images
		torn := errors.New("thawed by another process")
		b.cfg.Images = changed{Images: images,
			freeze: func(ctx context.Context, tenant string, paths []string, limit time.Duration,
				cut func(context.Context) error) error {
				return errors.Join(images.Freeze(ctx, tenant, paths, limit, cut), torn)
			}}
		_, err = b.SnapshotGroup(ctx, backend.GroupOptions{Name: "g", Sources: ids})
		nothing("a group whose freeze did not last", err, torn)
		b.cfg.Images = images

		w.write(w.disk(ids[1]), 4*mib, []byte("together"))
		g, err := b.SnapshotGroup(ctx, backend.GroupOptions{Name: "g", Sources: ids})
		if err != nil || len(g.Snapshots) != 3 {
			t.Fatalf("SnapshotGroup = %+v, %v", g, err)
		}
		b = w.restart(b)
		if again, err := b.SnapshotGroup(ctx,
			backend.GroupOptions{Name: "g",
				Sources: []string{ids[2], ids[0], ids[1]}}); err != nil || again.ID != g.ID {
			t.Errorf("a retry, in another order: %+v, %v", again, err)
		}
		if _, err := b.SnapshotGroup(ctx, backend.GroupOptions{Name: "g", Sources: ids[:2]}); !errors.Is(err,
			backend.ErrExists) {
			t.Errorf("the same name for other volumes: %v, want ErrExists", err)
		}
		for _, n := range g.Snapshots {
			if err := b.DeleteSnapshot(ctx, n.ID, nil); !errors.Is(err, backend.ErrInvalid) {
				t.Errorf("DeleteSnapshot of a member: %v, want ErrInvalid", err)
			}
			if n.Group != g.ID || !n.Created.Equal(g.Created) {
				t.Errorf("%+v of group %+v", n, g)
			}
			if n.Source == ids[1] {
				got := w.read(w.path(snapshotsDir, n.ID, imageFile))
				if string(got[4*mib:4*mib+8]) != "together" {
					t.Errorf("a member has %q", got[4*mib:4*mib+8])
				}
			}
		}
		if err := b.DeleteGroup(ctx, g.ID, []string{g.Snapshots[0].ID}, nil); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("DeleteGroup with other members: %v, want ErrInvalid", err)
		}
		for range 2 {
			if err := b.DeleteGroup(ctx, g.ID, nil, nil); err != nil {
				t.Errorf("DeleteGroup: %v", err)
			}
		}
		nothing("a deleted group", nil, nil)
	})
}

func TestADamagedGroupKeepsItsMembers(t *testing.T) {
	t.Parallel()
	w := newRoot(t, testdisk.Filesystem{Type: "btrfs"})
	b := w.open()
	g, err := b.SnapshotGroup(context.Background(), backend.GroupOptions{Name: "g", Sources: w.images(b, "a", "b")})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if err := os.Truncate(w.path(groupsDir, g.ID, recordFile), 10); err != nil {
		t.Fatal(err)
	}
	b = w.open()
	if got := b.catalog.Stats().Snapshots; got != 2 {
		t.Errorf("%d members are left", got)
	}
	if _, err := b.GetGroup(context.Background(), g.ID, nil, nil); err == nil || errors.Is(err, backend.ErrNotFound) {
		t.Errorf("GetGroup = %v, want the error of its record", err)
	}
}

func TestSnapshotsOfManyVolumesWhileOthersAreUsed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	everywhere(t, func(w *world, f testdisk.Filesystem) {
		b := w.open()
		var volumes []backend.Volume
		for i := range 20 {
			v := w.device(b, fmt.Sprint("v", i), 8*mib)
			w.write(w.disk(v.ID), 0, []byte(v.ID))
			volumes = append(volumes, v)
		}
		other := w.create(b, "other")
		var wg sync.WaitGroup
		for i, v := range volumes {
			wg.Go(func() {
				n, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: fmt.Sprint("n", i), Source: v.ID})
				if err != nil {
					t.Error(err)
					return
				}
				f, err := os.Open(w.path(snapshotsDir, n.ID, imageFile))
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				got, err := io.ReadAll(io.LimitReader(f, int64(len(v.ID))))
				if string(got) != v.ID {
					t.Errorf("the snapshot of %s holds %q, %v", v.ID, got, err)
				}
			})
		}
		for range 200 {
			wg.Go(func() {
				if _, err := b.Mount(ctx, other.ID, backend.Access{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		page, more, err := b.ListSnapshots(ctx, "", "", 100)
		if err != nil || more || len(page) != len(volumes) {
			t.Errorf("%d snapshots, %v, %v", len(page), more, err)
		}
	})
}
