package hostpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/parallel"
	"github.com/causeway-csi/causeway/internal/quietlog"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// noNamespace is the reason why tests that mount cannot run, or nil.
var noNamespace error

func TestMain(m *testing.M) {
	quietlog.Discard()
	parallel.Tests()
	helper.Main(host.HelperTasks(), HelperTasks())
	hang.Main()
	noNamespace = namespace.Enter()
	os.Exit(m.Run())
}

// newDisk is a world whose root is a filesystem of its own.
func newDisk(t *testing.T, options string) *world {
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	w := newWorld(t)
	if err := unix.Mount("none", w.cfg.Root, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(w.cfg.Root, unix.MNT_DETACH) })
	w.ownsFilesystem()
	return w
}

func TestCreateOnAFullDiskLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newDisk(t, "size=4m,nr_inodes=40")
	b := w.open()
	v := w.create(b, "before")
	for i := 0; ; i++ { // other files use up all inodes
		if err := os.WriteFile(w.path(volumesDir, v.ID, dataDir, fmt.Sprint(i)), nil, 0o600); err != nil {
			break
		}
	}
	for free := range 3 { // a volume takes three inodes: each failure is a step later
		if free > 0 {
			if err := os.Remove(w.path(volumesDir, v.ID, dataDir, fmt.Sprint(free))); err != nil {
				t.Fatal(err)
			}
		}
		_, err := b.Create(context.Background(),
			backend.CreateOptions{Name: "after", Required: 1 << 20, Access: []backend.Access{{}}})
		if !errors.Is(err, backend.ErrExhausted) {
			t.Errorf("Create with %d free inodes = %v, want ErrExhausted", free, err)
		}
		if got := append(w.names(stagingDir), w.names(trashDir)...); len(got) != 0 {
			t.Errorf("with %d free inodes %v are left", free, got)
		}
		if c, err := b.Capacity(context.Background(), backend.CreateOptions{}); err != nil || c.Available != 0 ||
			c.Maximum != 0 {
			t.Errorf("Capacity with %d free inodes = %+v, %v, want none", free, c, err)
		}
		if c, err := b.StorageHealth(context.Background()); err != nil || len(c) != 1 ||
			c[0].Reason != "StorageInodesExhausted" || c[0].Severity != backend.Degraded {
			t.Errorf("StorageHealth with %d free inodes = %+v, %v", free, c, err)
		}
	}
	if b.catalog.Reserved() != v.Size {
		t.Errorf("%d bytes are reserved, want those of the only volume", b.catalog.Reserved())
	}
	if ready, err := b.Probe(context.Background()); !ready || err != nil {
		t.Errorf("Probe = %v, %v: a full disk is no reason to restart", ready, err)
	}
	if err := b.Delete(context.Background(), v.ID, nil); err != nil {
		t.Errorf("Delete on a full disk = %v", err)
	}
	w.emptied()
	if c, err := b.Capacity(context.Background(), backend.CreateOptions{}); err != nil || c.Available == 0 {
		t.Errorf("Capacity with free inodes = %+v, %v", c, err)
	}
	w.create(b, "after")
}

// TestReservationsFitOnTheDisk: empty volumes count with their size.
func TestReservationsFitOnTheDisk(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newDisk(t, "size=64m")
	b := w.open()
	refused := func(name string, size int64) {
		t.Helper()
		reserved := b.catalog.Reserved()
		if _, err := b.Create(ctx, backend.CreateOptions{Name: name, Required: size}); !errors.Is(err,
			backend.ErrExhausted) {
			t.Errorf("Create of %d bytes beside %d reserved bytes = %v, want ErrExhausted", size, reserved, err)
		}
		if left := append(w.names(stagingDir), w.names(trashDir)...); len(left) > 0 ||
			b.catalog.Reserved() != reserved {
			t.Errorf("after the error %v are left, and %d bytes are reserved, before %d", left, b.catalog.Reserved(),
				reserved)
		}
	}
	refused("larger than the disk", 65*mib)
	var last backend.Volume
	for i, full := 0, false; !full; i++ {
		v, err := b.Create(ctx, backend.CreateOptions{Name: fmt.Sprint(i), Required: 8 * mib})
		if full = errors.Is(err, backend.ErrExhausted); err != nil && !full {
			t.Fatal(err)
		}
		if b.catalog.Reserved() > 64*mib {
			t.Fatalf("%d bytes are reserved of a disk of %d", b.catalog.Reserved(), 64*mib)
		}
		if !full {
			last = v
		}
	}
	if b.catalog.Reserved() < 48*mib {
		t.Errorf("%d bytes are reserved: the disk has space for more", b.catalog.Reserved())
	}
	refused("another", 8*mib)
	if err := b.Delete(ctx, last.ID, nil); err != nil {
		t.Fatal(err)
	}
	w.emptied()
	if _, err := b.Create(ctx, backend.CreateOptions{Name: "instead", Required: 8 * mib}); err != nil {
		t.Errorf("after the deletion of a volume: %v", err)
	}
}

// btrfs has no fixed number of inodes, and reports 0 of 0.
func TestAnEmptyFilesystemHasCapacity(t *testing.T) {
	t.Parallel()
	everywhere(t, func(w *world, _ testdisk.Filesystem) {
		b := w.open()
		if c, err := b.Capacity(context.Background(), backend.CreateOptions{}); err != nil || c.Available == 0 {
			w.Errorf("Capacity = %+v, %v", c, err)
		}
		if c, err := b.StorageHealth(context.Background()); err != nil || len(c) != 0 {
			w.Errorf("StorageHealth = %+v, %v", c, err)
		}
	})
}

// TestChangesOnAFullDisk: the error of an expansion on a full disk is final, so that the user can
// ask for less. The errors of other changes are not.
func TestChangesOnAFullDisk(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newDisk(t, "size=64m,nr_inodes=40")
	b := w.open()
	v := w.create(b, "v")
	o := imageOptions("image", nil, nil)
	o.Required = 8 << 20
	disk, err := b.Create(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for i := 0; ; i++ { // other files use up all inodes, and a record takes an inode
		name := w.path(volumesDir, v.ID, dataDir, fmt.Sprint(i))
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			break
		}
		last = name
	}
	calls := func(id string, size int64) (expand, modify error) {
		_, _, expand = b.Expand(ctx, id, backend.ExpandOptions{Required: size + 1})
		return expand, b.Modify(ctx, id, map[string]string{labelKey: "x"}, nil)
	}
	for _, volume := range []backend.Volume{v, disk} {
		expand, modify := calls(volume.ID, volume.Size)
		if !errors.Is(expand, backend.ErrOutOfRange) || errors.Is(expand, backend.ErrExhausted) {
			t.Errorf("Expand = %v, want ErrOutOfRange", expand)
		}
		if !errors.Is(modify, backend.ErrUnavailable) || errors.Is(modify, backend.ErrInvalid) {
			t.Errorf("Modify = %v, want ErrUnavailable", modify)
		}
	}
	if err := os.Remove(last); err != nil {
		t.Fatal(err)
	}
	for _, volume := range []backend.Volume{v, disk} {
		if expand, modify := calls(volume.ID, volume.Size); expand != nil || modify != nil {
			t.Errorf("with a free inode: %v, %v", expand, modify)
		}
	}
}

func TestAReadOnlyRoot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newDisk(t, "size=4m")
	b := w.open()
	v := w.create(b, "before")
	readOnly := func(flags uintptr) {
		t.Helper()
		await.NoError(t, "no child of this process has a file open for writing", func() error {
			err := unix.Mount("none", w.cfg.Root, "", unix.MS_REMOUNT|flags, "size=4m")
			if err != nil && !errors.Is(err, unix.EBUSY) {
				t.Fatal(err)
			}
			return err
		})
	}
	readOnly(unix.MS_RDONLY)
	if ready, err := b.Probe(ctx); ready || !errors.Is(err, backend.ErrNotReady) {
		t.Errorf("Probe = %v, %v", ready, err)
	}
	if c, err := b.Capacity(ctx, backend.CreateOptions{}); err != nil || c.Available != 0 {
		t.Errorf("Capacity = %+v, %v", c, err)
	}
	if _, err := b.Create(ctx, backend.CreateOptions{Name: "x", Required: 1,
		Access: []backend.Access{{}}}); !errors.Is(err, backend.ErrExhausted) || !strings.Contains(err.Error(),
		"read-only") {
		t.Errorf("Create = %v, want ErrExhausted, as another node may have space, with the reason", err)
	}
	if err := b.Delete(ctx, v.ID, nil); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Delete on a read-only root = %v, want ErrUnavailable", err)
	}
	if err := b.Modify(ctx, v.ID, map[string]string{labelKey: "x"}, nil); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Modify on a read-only root = %v, want ErrUnavailable", err)
	}
	if _, err := b.Mount(ctx, v.ID, backend.Access{ReadOnly: true}); err != nil {
		t.Errorf("Mount = %v, want nil: volumes can still be read", err)
	}
	if c, err := b.StorageHealth(ctx); err != nil || len(c) != 1 || c[0].Severity != backend.Degraded {
		t.Errorf("StorageHealth = %+v, %v", c, err)
	}
	readOnly(0)
	if ready, err := b.Probe(ctx); !ready || err != nil {
		t.Errorf("Probe = %v, %v on the root that is writable again", ready, err)
	}
	w.create(b, "after")
}

// TestAnAlmostFullDiskIsReported below a tenth of free space, as the alert CausewayStorageAlmostFull.
func TestAnAlmostFullDiskIsReported(t *testing.T) {
	t.Parallel()
	w := newDisk(t, "size=64m")
	w.cfg.almostFull = 0
	b := w.open()
	fill := func(bytes int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(w.cfg.Root, "other"), make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fill(57 * mib)
	if c, err := b.StorageHealth(t.Context()); err != nil || len(c) != 0 {
		t.Errorf("StorageHealth with 7 of 64 MiB free = %+v, %v", c, err)
	}
	fill(58 * mib)
	if c, err := b.StorageHealth(t.Context()); err != nil || len(c) != 1 || c[0].Reason != "StorageAlmostFull" {
		t.Errorf("StorageHealth with 6 of 64 MiB free = %+v, %v", c, err)
	}
}

func TestCapacityOfAFilesystemOfItsOwn(t *testing.T) {
	t.Parallel()
	w := newDisk(t, "size=64m")
	b := w.open()
	v, err := b.Create(context.Background(),
		backend.CreateOptions{Name: "v", Required: 48 << 20, Access: []backend.Access{{}}})
	if err != nil {
		t.Fatal(err)
	}
	before, _ := b.Capacity(context.Background(), backend.CreateOptions{})
	if err := os.WriteFile(w.path(volumesDir, v.ID, dataDir, "f"), make([]byte, 40<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	after, err := b.Capacity(context.Background(), backend.CreateOptions{})
	if err != nil || before.Available != 16<<20 || after != before {
		t.Errorf("%d bytes are available, and %d when the volume uses its reservation (%v)", before.Available,
			after.Available, err)
	}
}

// TestTheMaximumOfCapacityIsCreated, and a byte more is refused, for each kind, filesystem and root.
func TestTheMaximumOfCapacityIsCreated(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, free := range []struct {
		name  string
		bytes int64
		never []string // filesystems that do not fit
	}{
		{"an odd number of bytes", 600<<20 + 1, nil},
		{"100 MiB", 100 << 20, []string{"xfs", "btrfs"}},
		{"less than a page", 4095, []string{"ext4", "xfs", "btrfs", "block", "any"}},
	} {
		t.Run(free.name, func(t *testing.T) {
			w := newDisk(t, "size=640m")
			b := w.open()
			for i, size := range []int64{32 << 20, 608<<20 - free.bytes} {
				if _, err := b.Create(ctx, backend.CreateOptions{Name: fmt.Sprint(i), Required: size,
					Access: []backend.Access{{}}}); err != nil {
					t.Fatal(err)
				}
			}
			for name, access := range map[string][]backend.Access{"directory": {{}}, "ext4": {{FSType: "ext4"}},
				"xfs": {{FSType: "xfs"}}, "btrfs": {{FSType: "btrfs"}}, "block": {{Block: true}}, "any": nil} {
				k := cmp.Or(map[string]kind{"directory": directory}[name], image)
				o := backend.CreateOptions{Name: name, Access: access, Parameters: map[string]string{kindKey: string(k)}}
				c, err := b.Capacity(ctx, o)
				if err != nil {
					t.Fatal(err)
				}
				if access == nil {
					o.Access = []backend.Access{{}}
				}
				if slices.Contains(free.never, name) {
					if c != (backend.Capacity{}) {
						t.Errorf("%s: Capacity = %+v, want none", name, c)
					}
					o.Required = 1
					if _, err := b.Create(ctx, o); !errors.Is(err, backend.ErrExhausted) {
						t.Errorf("%s: Create of the least size = %v, want ErrExhausted", name, err)
					}
					continue
				}
				o.Required = c.Maximum + 1
				if _, err := b.Create(ctx, o); !errors.Is(err, backend.ErrExhausted) {
					t.Errorf("%s: Create of %d bytes, one above the maximum = %v, want ErrExhausted", name, o.Required, err)
				}
				o.Required = c.Maximum
				v, err := b.Create(ctx, o)
				if err != nil || v.Size != c.Maximum || c.Maximum > c.Available {
					t.Errorf("%s: Capacity = %+v, and Create of the maximum = %d bytes, %v", name, c, v.Size, err)
				}
				if err := b.Delete(ctx, v.ID, nil); err != nil {
					t.Error(err)
				}
				w.emptied()
			}
		})
	}
}

// openWithHost opens the root with the host of a new kubelet directory, which mounts.
func (w *world) openWithHost() (b *Backend, m mounter.Host, kubelet string) {
	w.Helper()
	kubelet = filepath.Join(filepath.Dir(w.cfg.Root), "kubelet")
	if err := os.Mkdir(kubelet, 0o755); err != nil {
		w.Fatal(err)
	}
	m, err := host.New(kubelet, kubelet+".frozen")
	if err != nil {
		w.Fatal(err)
	}
	return w.open(func(c *Config) { c.Images = m }), m, kubelet
}

func TestDeleteRejectsAMountedVolume(t *testing.T) {
	t.Parallel()
	w := newDisk(t, "size=4m")
	b, m, kubelet := w.openWithHost()
	v := w.create(b, "v")
	ctx := context.Background()
	mount, err := b.Mount(ctx, v.ID, backend.Access{})
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(kubelet, "target")
	if err := m.Mount(ctx, mount, target); err != nil {
		t.Fatal(err)
	}
	defer m.Unmount(ctx, target)
	if err := b.Delete(ctx, v.ID, nil); !errors.Is(err, backend.ErrInUse) || !strings.Contains(err.Error(), target) {
		t.Errorf("Delete = %v, want ErrInUse with the path", err)
	}
	b.Close() // a new driver, without a record of the mount
	m, err = host.New(kubelet, kubelet+".frozen")
	if err != nil {
		t.Fatal(err)
	}
	b = w.open(func(c *Config) { c.Images = m })
	if err := b.Delete(ctx, v.ID, nil); !errors.Is(err, backend.ErrInUse) {
		t.Errorf("Delete after a restart = %v, want ErrInUse", err)
	}
	await.NoError(t, "no process uses the target", func() error { return m.Unmount(ctx, target) })
	if err := b.Delete(ctx, v.ID, nil); err != nil {
		t.Errorf("Delete = %v", err)
	}
}

// TestABlockVolumeThatAnotherProgramUnmountedIsDeleted: the kubelet has forgotten its staging path,
// and an operator has unmounted it, as the error of DeleteVolume says.
func TestABlockVolumeThatAnotherProgramUnmountedIsDeleted(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newDisk(t, "size=64m")
	b, m, kubelet := w.openWithHost()
	access := backend.Access{Block: true}
	v, err := b.Create(ctx, backend.CreateOptions{Name: "v", Required: 8 * mib, Access: []backend.Access{access},
		Parameters: map[string]string{kindKey: string(image)}})
	if err != nil {
		t.Fatal(err)
	}
	mount, err := b.Mount(ctx, v.ID, access)
	if err != nil {
		t.Fatal(err)
	}
	staging := filepath.Join(kubelet, "staging")
	if err := m.Mount(ctx, mount, staging); err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(staging, mounter.DeviceName)
	inUse := func(reason string) {
		t.Helper()
		if err := b.Delete(ctx, v.ID, nil); !errors.Is(err, backend.ErrInUse) || !strings.Contains(err.Error(), reason) {
			t.Errorf("Delete = %v, want ErrInUse, %s", err, reason)
		}
	}
	inUse("is mounted at " + node)
	dev, err := os.Open(node)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(node, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	inUse("is attached to /dev/loop")
	snapshot := func() error { // tmpfs has no reflinks
		_, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "s", Source: v.ID})
		return err
	}
	if err := snapshot(); !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(err.Error(), "is attached to") {
		t.Errorf("Snapshot = %v, want ErrPrecondition", err)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	if err := snapshot(); err != nil {
		t.Errorf("Snapshot of a device that nothing uses = %v", err)
	}
	if err := b.Delete(ctx, v.ID, nil); err != nil {
		t.Errorf("Delete = %v", err)
	}
	w.emptied()
}

// TestDirectIOAfterASnapshot: an image and its copies bypass the page cache of an xfs where they share
// blocks. Where the kernel does not permit that, the health of a volume that asks for it has a condition.
func TestDirectIOAfterASnapshot(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newRoot(t, testdisk.Filesystem{Type: "xfs", Size: 3 << 30})
	b, m, kubelet := w.openWithHost()
	staging := filepath.Join(kubelet, "staging")
	direct := func(v backend.Volume) (is bool) { // while the volume is mounted
		t.Helper()
		mount, err := b.Mount(ctx, v.ID, backend.Access{})
		if err == nil {
			err = m.Mount(ctx, mount, staging)
		}
		if err != nil {
			t.Fatal(err)
		}
		devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, d := range devices {
			if file, err := os.ReadFile(d); err != nil || strings.TrimSpace(string(file)) != w.disk(v.ID) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(filepath.Dir(d), "dio"))
			if err != nil {
				t.Fatal(err)
			}
			found, is = true, string(text) == "1\n"
		}
		if !found {
			t.Fatal("the image has no device")
		}
		sick, err := b.Health(ctx, v.ID)
		if err != nil {
			t.Fatal(err)
		}
		off := len(sick) == 1 && sick[0].Reason == "DirectIOOff"
		if asks := v.Parameters[directIOKey] == "true"; off != (asks && !is) || !off && len(sick) > 0 {
			t.Errorf("direct I/O: %v, asked for: %v, conditions: %v", is, asks, sick)
		}
		await.NoError(t, "no process uses the volume", func() error { return m.Unmount(ctx, staging) })
		return is
	}
	for _, asks := range []bool{true, false} {
		for _, size := range []int64{64 * mib, 512 * mib} {
			o := backend.CreateOptions{Name: fmt.Sprint(size, asks), Required: size, Access: []backend.Access{{}},
				Parameters: map[string]string{kindKey: string(image)}}
			if asks {
				o.Parameters[directIOKey] = "true"
			}
			v, err := b.Create(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			v.Parameters = o.Parameters
			fresh := direct(v)
			s := w.snapshot(b, v, "s"+o.Name)
			after := direct(v)
			o.Name += "-restored"
			restored, err := b.Restore(ctx, s.ID, o)
			if err != nil {
				t.Fatal(err)
			}
			restored.Parameters = o.Parameters
			if copied := direct(restored); size == 512*mib && (after != fresh || copied != fresh) {
				t.Errorf("direct I/O of a new image: %v, after a snapshot: %v, of a restored volume: %v", fresh, after, copied)
			}
			for _, id := range []string{v.ID, restored.ID} {
				if err := b.Delete(ctx, id, nil); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestThePageCacheHidesNoOtherCondition, and is one only for a volume that asks for direct I/O.
func TestThePageCacheHidesNoOtherCondition(t *testing.T) {
	t.Parallel()
	for _, asks := range []bool{true, false} {
		w := newWorld(t)
		b, fake := w.open(), w.cfg.Images.(*mountertest.Fake)
		o := backend.CreateOptions{Name: "v", Required: 8 << 20, Access: []backend.Access{{}},
			Parameters: map[string]string{kindKey: string(image)}}
		if asks {
			o.Parameters[directIOKey] = "true"
		}
		v, err := b.Create(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		w.attach(b, fake, v)
		fake.Failures = map[string]mounter.Failure{w.path(volumesDir, v.ID, imageFile): {Kind: mounter.PageCached}}
		want := func(reasons ...string) {
			t.Helper()
			var got []string
			sick, err := b.Health(t.Context(), v.ID)
			for _, c := range sick {
				got = append(got, c.Reason)
			}
			if err != nil || !slices.Equal(got, reasons) {
				t.Errorf("it asks for direct I/O: %v: Health = %v, %v, want %v", asks, got, err, reasons)
			}
		}
		if asks {
			want("DirectIOOff")
		} else {
			want()
		}
		if err := os.Remove(w.path(volumesDir, v.ID, recordFile)); err != nil {
			t.Fatal(err)
		}
		want("RecordMissing")
	}
}

func TestTheTrashIsNotEmptiedThroughAMount(t *testing.T) {
	t.Parallel()
	for name, mounted := range map[string]func(precious, inTrash string) error{
		"a filesystem": func(precious, inTrash string) error {
			if err := unix.Mount("none", inTrash, "tmpfs", 0, ""); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(inTrash, "precious"), nil, 0o600)
		},
		"a directory of the same filesystem": func(precious, inTrash string) error {
			if err := os.WriteFile(filepath.Join(precious, "precious"), nil, 0o600); err != nil {
				return err
			}
			return unix.Mount(precious, inTrash, "", unix.MS_BIND, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDisk(t, "size=4m")
			precious, inTrash := w.path("precious"), w.path("trash/x/data/mnt")
			for _, dir := range []string{precious, inTrash} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := mounted(precious, inTrash); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(inTrash, unix.MNT_DETACH)
			dir, err := os.Open(w.path(trashDir))
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if err := removeTree(dir, "x", func() error { return nil }); err == nil {
				t.Error("removeTree = nil")
			}
			if _, err := os.Stat(filepath.Join(inTrash, "precious")); err != nil {
				t.Errorf("the content of the mount in the trash: %v", err)
			}
		})
	}
}

func TestMountedEntriesOfTheTrashAreNotRemoved(t *testing.T) {
	t.Parallel()
	w := newDisk(t, "size=4m")
	host, err := host.New(filepath.Dir(w.cfg.Root), w.cfg.Root+".frozen")
	if err != nil {
		t.Fatal(err)
	}
	var blind bool // true: Delete does not find the mount
	b := w.open(func(c *Config) {
		c.Images = changed{Images: host, users: func(source string) ([]string, error) {
			if blind && strings.Contains(source, volumesDir) {
				return nil, nil
			}
			return host.MountPointsOf(source)
		}}
	})
	v := w.create(b, "v")
	target := filepath.Join(filepath.Dir(w.cfg.Root), "target")
	os.Mkdir(target, 0o755)
	if err := unix.Mount(w.path(volumesDir, v.ID, dataDir), target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(target, unix.MNT_DETACH)
	if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	blind = true
	if err := b.Delete(context.Background(), v.ID, nil); err != nil {
		t.Fatal(err)
	}
	await.True(w.T, "an entry of the trash is stuck", func() bool { return b.count.stuck.Load() != nil })
	if other := w.create(b, "other"); b.Delete(context.Background(), other.ID, nil) != nil {
		t.Error("another volume cannot be deleted")
	}
	await.True(w.T, "the trash has one entry", func() bool { return len(w.names(trashDir)) == 1 })
	if _, err := os.Stat(filepath.Join(target, "f")); err != nil {
		t.Errorf("a file in use: %v", err)
	}
	if c, _ := b.StorageHealth(context.Background()); len(c) != 1 || c[0].Reason != "TrashStuck" {
		t.Errorf("StorageHealth = %+v", c)
	}
}

func TestAnImmutableFileIsReportedAsTrashStuck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "v")
	f, err := os.Create(w.path(volumesDir, v.ID, dataDir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const immutable = 0x10 // FS_IMMUTABLE_FL
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		t.Skipf("no immutable files here: %v", err)
	}
	defer unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
	if err := b.Delete(context.Background(), v.ID, nil); err != nil {
		t.Fatal(err)
	}
	await.True(w.T, "an entry of the trash is stuck", func() bool { return b.count.stuck.Load() != nil })
	if why := *b.count.stuck.Load(); !strings.Contains(why, unix.EPERM.Error()) {
		t.Errorf("the trash is stuck: %s, want %v", why, unix.EPERM)
	}
	unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
	b.wakeTrash()
	w.emptied()
	await.True(w.T, "no entry is stuck", func() bool { return b.count.stuck.Load() == nil })
}

func TestDeepTreesAreRemoved(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 256
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) })
	w := newWorld(t)
	b := w.open()
	v := w.create(b, "v")
	dir, err := os.OpenRoot(w.path(volumesDir, v.ID, dataDir))
	if err != nil {
		t.Fatal(err)
	}
	for range 1500 { // far beyond PATH_MAX and any limit on descriptors
		if err := dir.Mkdir("deeper", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := dir.OpenRoot("deeper")
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
		dir = next
	}
	dir.Close()
	if err := b.Delete(context.Background(), v.ID, nil); err != nil {
		t.Fatal(err)
	}
	w.emptied()
}
