package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// virtualDisks are Images as Windows has them: the name of an image has an extension, the size of
// the file is not that of the volume, an image is copied only while it is not attached, and no
// image gets another UUID.
type virtualDisks struct{ mounter.Images }

// The file of a virtual disk has diskFile bytes, and the size of its volume at sizeAt.
const diskFile, sizeAt = 4096, 1024

func (virtualDisks) ImageExt() string { return ".vhdx" }

func (d virtualDisks) MakeImage(ctx context.Context, path string, size int64, fsType string) error {
	if filepath.Ext(path) != d.ImageExt() {
		return fmt.Errorf("the extension of %s", path)
	}
	if err := d.Images.MakeImage(ctx, path, diskFile, fsType); err != nil {
		return err
	}
	return d.setSize(path, size)
}

func (virtualDisks) setSize(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(fmt.Appendf(nil, "%20d", size), sizeAt)
	return errors.Join(err, file.Close())
}

// GrowImage returns mounter.ErrBusy for an image in use.
func (d virtualDisks) GrowImage(_ context.Context, path string, size int64) error {
	if now, err := d.ImageSize(path); err != nil || now >= size {
		return err
	}
	if err := d.detached(path); err != nil {
		return err
	}
	return d.setSize(path, size)
}

func (d virtualDisks) ImageSize(path string) (size int64, err error) {
	if file, err := d.Images.ImageSize(path); err != nil || file != diskFile {
		return 0, errors.Join(err, fmt.Errorf("the file %s has %d bytes", path, file))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(data[sizeAt:sizeAt+20]), &size)
	return size, err
}

func (d virtualDisks) detached(path string) error {
	users, err := d.MountPointsOf(path)
	if err == nil && len(users) > 0 {
		err = fmt.Errorf("%w: %s", mounter.ErrBusy, users[0])
	}
	return err
}

func (virtualDisks) NewUUID(context.Context, *os.File, string, int) error {
	return errors.ErrUnsupported
}

func (d virtualDisks) Freeze(ctx context.Context, tenant string, images []string, limit time.Duration,
	copyData func(ctx context.Context) error) error {
	for _, image := range images {
		if err := d.detached(image); err != nil {
			return err
		}
	}
	return d.Images.Freeze(ctx, tenant, images, limit, copyData)
}

// withVirtualDisks makes Images virtual disks.
func withVirtualDisks(c *Config) { c.Images = virtualDisks{c.Images} }

// withoutCopies has no method of a Backend whose contract test reads the bytes of a plain image.
type withoutCopies struct {
	backend.Backend
	backend.Lister
	backend.CapacityReporter
	backend.Expander
	backend.NodeLocal
	backend.Inliner
	backend.Prober
	backend.HealthReporter
	backend.Modifier
	io.Closer
}

func TestVirtualDisksKeepTheContract(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, kinds["image"], func(t *testing.T, images mounter.Images) func() backend.Backend {
		w := newWorld(t, uses(images))
		ownFilesystem(t, w) // the contract measures space
		withVirtualDisks(&w.cfg)
		return func() backend.Backend {
			b := w.open()
			return withoutCopies{b, b, b, b, b, b, b, b, b, b}
		}
	})
}

// virtualDisk makes a world, and in it the volume v with a virtual disk.
func virtualDisk(t *testing.T) (w *world, b *Backend, v backend.Volume, fake *mountertest.Fake) {
	w = newWorld(t)
	fake = w.cfg.Images.(*mountertest.Fake)
	withVirtualDisks(&w.cfg)
	b = w.open()
	v, err := b.Create(t.Context(), imageOptions("v", nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	return w, b, v, fake
}

// attach mounts the volume v.
func (w *world) attach(b *Backend, fake *mountertest.Fake, v backend.Volume) (path string) {
	w.Helper()
	m, err := b.Mount(w.Context(), v.ID, backend.Access{})
	if err != nil {
		w.Fatal(err)
	}
	path = filepath.Join(filepath.Dir(w.cfg.Root), "staging")
	if err := fake.Mount(w.Context(), m, path); err != nil {
		w.Fatal(err)
	}
	return path
}

func TestNoVirtualDiskIsMeasuredByItsFile(t *testing.T) {
	t.Parallel()
	w, b, v, _ := virtualDisk(t)
	file := w.path(volumesDir, v.ID, "image.vhdx")
	if info, err := os.Stat(file); err != nil || info.Size() == v.Size {
		t.Fatalf("the file is %v, %v: the test needs a file of another size than the volume's", info, err)
	}
	if m, err := b.Mount(t.Context(), v.ID, backend.Access{}); err != nil || m.Source != file {
		t.Errorf("Mount = %+v, %v, want the source %s", m, err, file)
	}
	larger := v.Size + 8<<20
	if size, _, err := b.Expand(t.Context(), v.ID, backend.ExpandOptions{Required: larger}); size != larger || err != nil {
		t.Fatalf("Expand = %d, %v, want %d", size, err, larger)
	}
	// A driver that died while the image grew left an older size in the record.
	largest := larger + 8<<20
	if err := (virtualDisks{}).setSize(file, largest); err != nil {
		t.Fatal(err)
	}
	b = w.restart(b)
	if v, err := b.Get(t.Context(), v.ID, nil); err != nil || v.Size != largest {
		t.Errorf("after a restart the volume is %+v, %v, want %d bytes", v, err, largest)
	}
	n, err := b.Snapshot(t.Context(), backend.SnapshotOptions{Name: "n", Source: v.ID})
	if err != nil || n.Size != largest {
		t.Errorf("Snapshot = %+v, %v, want %d bytes", n, err, largest)
	}
	if sick, _, err := b.ListHealth(t.Context(), "", 10); err != nil || len(sick) > 0 {
		t.Errorf("ListHealth = %+v, %v, want none", sick, err)
	}
	if err := (virtualDisks{}).setSize(file, 4096); err != nil {
		t.Fatal(err)
	}
	if c, err := b.Health(t.Context(), v.ID); err != nil || len(c) != 1 || c[0].Reason != "ImageTruncated" {
		t.Errorf("the health of a smaller disk is %+v, %v, want ImageTruncated", c, err)
	}
	if err := os.Truncate(file, 10); err != nil {
		t.Fatal(err)
	}
	if c, err := b.Health(t.Context(), v.ID); err != nil || len(c) != 1 || c[0].Reason != "DataUnreadable" {
		t.Errorf("the health of a disk without a size is %+v, %v, want DataUnreadable", c, err)
	}
}

func TestAnAttachedVirtualDiskIsNotCopied(t *testing.T) {
	t.Parallel()
	w, b, v, fake := virtualDisk(t)
	path := w.attach(b, fake, v)
	for _, parameters := range []map[string]string{nil, {consistencyKey: string(anyState)}} {
		o := backend.SnapshotOptions{Name: "n", Source: v.ID, Parameters: parameters}
		if _, err := b.Snapshot(t.Context(), o); !errors.Is(err, backend.ErrPrecondition) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("Snapshot of an attached disk with %v = %v, want ErrPrecondition with %s", parameters, err, path)
		}
	}
	_, err := b.SnapshotGroup(t.Context(), backend.GroupOptions{Name: "g", Sources: []string{v.ID}})
	if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(err.Error(), "only while it is not attached") {
		t.Errorf("SnapshotGroup = %v, want ErrPrecondition with the reason", err)
	}
	if _, _, err := b.Expand(t.Context(), v.ID, backend.ExpandOptions{Required: 2 * v.Size}); !errors.Is(err,
		backend.ErrInUse) {
		t.Errorf("Expand of an attached disk = %v, want ErrInUse", err)
	}
	if err := fake.Remove(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	n, err := b.Snapshot(t.Context(), backend.SnapshotOptions{Name: "n", Source: v.ID})
	if err != nil {
		t.Fatalf("Snapshot of a detached disk: %v", err)
	}
	if _, err := b.SnapshotSize(t.Context(), n.ID, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("SnapshotSize, for changed blocks, = %v, want ErrUnsupported", err)
	}
	if _, _, err := b.Expand(t.Context(), v.ID, backend.ExpandOptions{Required: 2 * v.Size}); err != nil {
		t.Errorf("Expand of a detached disk: %v", err)
	}
}

// TestAVirtualDiskIsNotAttachedDuringItsCopy: a call with an earlier result of Mount waits for the
// lock that Freeze holds.
func TestAVirtualDiskIsNotAttachedDuringItsCopy(t *testing.T) {
	t.Parallel()
	w, b, v, fake := virtualDisk(t)
	var during error
	w.cfg.Images = changed{Images: w.cfg.Images, freeze: func(ctx context.Context, tenant string, images []string,
		limit time.Duration, copyData func(context.Context) error) error {
		return virtualDisks{fake}.Freeze(ctx, tenant, images, limit, func(ctx context.Context) error {
			_, during = b.Mount(ctx, v.ID, backend.Access{})
			return copyData(ctx)
		})
	}}
	b = w.restart(b)
	if _, err := b.Snapshot(t.Context(), backend.SnapshotOptions{Name: "n", Source: v.ID}); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(during, backend.ErrBusy) {
		t.Errorf("Mount during the copy = %v, want ErrBusy", during)
	}
}

func TestAVirtualDiskIsRestoredOnlyWithTheFlag(t *testing.T) {
	t.Parallel()
	w, b, v, _ := virtualDisk(t)
	n, err := b.Snapshot(t.Context(), backend.SnapshotOptions{Name: "n", Source: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	o := imageOptions("restored", nil, nil)
	o.Required = 2 * v.Size
	_, restoreErr := b.Restore(t.Context(), n.ID, o)
	_, cloneErr := b.Clone(t.Context(), v.ID, o)
	for call, err := range map[string]error{"Restore": restoreErr, "Clone": cloneErr} {
		if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "on Windows") {
			t.Errorf("%s = %v, want ErrInvalid with the reason", call, err)
		}
	}
	if names := w.names(volumesDir); len(names) != 1 {
		t.Errorf("volumes/ has %v, want one volume", names)
	}
	b.Close()
	b = w.open(func(c *Config) { c.WindowsImageClone = true })
	restored, err := b.Restore(t.Context(), n.ID, o)
	if err != nil || restored.Size != o.Required {
		t.Fatalf("with the flag, Restore = %+v, %v, want %d bytes", restored, err, o.Required)
	}
	b.Close()
	b = w.open() // without the flag again: the volume exists
	if again, err := b.Restore(t.Context(), n.ID, o); err != nil || again.ID != restored.ID {
		t.Errorf("a repeated Restore = %+v, %v, want the volume", again, err)
	}
}

func TestTheFlagForVirtualDisksIsRefusedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.WindowsImageClone = true
	if b, err := New(w.cfg); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "windows-image-clone") {
		t.Errorf("New = %v, %v, want ErrInvalid", b, err)
	}
}

// TestAnImageForWindows: its smallest size leaves space for the partition table and for the
// partition that Windows reserves.
func TestAnImageForWindows(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, tc := range []struct{ required, limit, want int64 }{
		{0, 0, defaultSize}, {1, 0, 128 * mib}, {128*mib + 1, 0, 128*mib + sizeUnit}, {0, 200 * mib, 200 * mib},
		{0, 128*mib - 1, 0}, {1, 100 * mib, 0},
	} {
		c, err := planContent(backend.CreateOptions{Required: tc.required, Limit: tc.limit,
			Parameters: map[string]string{kindKey: string(image)}, Access: []backend.Access{{FSType: "ntfs"}}}, nil)
		if tc.want == 0 && !errors.Is(err, backend.ErrOutOfRange) ||
			tc.want > 0 && (err != nil || c.Size != tc.want || c.FSType != "ntfs") {
			t.Errorf("required %d, limit %d: %+v, %v, want %d bytes", tc.required, tc.limit, c, err, tc.want)
		}
	}
	w := newWorld(t)
	o := imageOptions("v", nil, nil)
	o.Access[0].FSType = "ntfs"
	if _, err := w.open().Create(t.Context(), o); !errors.Is(err, backend.ErrExhausted) {
		t.Errorf("Create on a node without ntfs = %v, want ErrExhausted", err)
	}
}
