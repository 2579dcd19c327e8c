package links

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

const gib = 1 << 30

// image returns the Mount of an image on a model, and makes the image, with a directory "precious"
// in its volume, if it is new.
func (b *bench) vhdx(name string) mounter.Mount {
	b.T.Helper()
	return mounter.Mount{Kind: mounter.Image, Source: b.Files.Join(b.Storage, name+ImageExt), FSType: options.NTFS}
}

func (b *bench) attachedDisk(serial string) mounter.Mount {
	return mounter.Mount{Kind: mounter.BlockDevice, Serial: serial, FSType: options.NTFS, Size: gib}
}

const serialNumber = "vol-0123"

// staging is the staging path of the tests.
func (b *bench) staging() string {
	return b.Path("plugins", "kubernetes.io", "csi", "driver", "hash", "globalmount")
}

// newDiskBench is a bench with the parents of both paths.
func newDiskBench(t *testing.T) (*bench, *model, *modelStore) {
	b, m, store := newModelBench(t)
	b.Mkdir(b.staging())
	b.Mkdir(WindowsPaths.dir(b.target()))
	return b, m, store
}

func (b *bench) startAgain(m *model, store *modelStore) {
	b.T.Helper()
	b.Host = Host{startLinks(b.T, m, b.Kubelet, store)}
}

func TestLinksOverAModelMakeImages(t *testing.T) {
	mountercontract.TestImageFiles(t, func(t *testing.T) *mountercontract.Bench {
		b, _, _ := newModelBench(t)
		return b.Bench
	}, options.NTFS)
}

// diskFlow is a call that changes a disk, with the state before it.
type diskFlow struct {
	prepare func(b *bench, m *model)
	call    func(b *bench) error
	mount   func(b *bench) mounter.Mount
	// mounted: after the call, the volume is mounted at these paths.
	mounted []func(b *bench) string
	// blank: the disk has no data before the call.
	blank bool
}

// usedImage makes an image with data.
func usedImage(b *bench, m *model) {
	v := b.vhdx("v")
	if err := b.MakeImage(context.Background(), v.Source, gib, options.NTFS); err != nil {
		b.T.Fatal(err)
	}
	fillVolume(b, m, v)
}

// fillVolume mounts a volume, writes data, and unmounts it.
func fillVolume(b *bench, m *model, v mounter.Mount) {
	b.T.Helper()
	b.MustMount(v, b.staging())
	b.Mkdir(b.Files.Join(b.staging(), "precious"))
	if err := b.Unmount(context.Background(), b.staging()); err != nil {
		b.T.Fatal(err)
	}
	m.disks.formats = 0
}

func usedDisk(b *bench, m *model) {
	m.disks.plug(serialNumber, gib)
	fillVolume(b, m, b.attachedDisk(serialNumber))
}

func diskFlows() map[string]diskFlow {
	ctx := context.Background()
	image := func(b *bench) mounter.Mount { return b.vhdx("v") }
	disk := func(b *bench) mounter.Mount { return b.attachedDisk(serialNumber) }
	staging, target := (*bench).staging, (*bench).target
	type at = []func(b *bench) string
	flows := map[string]diskFlow{}
	for name, v := range map[string]struct {
		mount func(b *bench) mounter.Mount
		used  func(b *bench, m *model)
	}{"image": {image, usedImage}, "attached disk": {disk, usedDisk}} {
		stage := func(b *bench) error { return b.Mount(ctx, v.mount(b), b.staging()) }
		publish := func(b *bench) error { return b.Mount(ctx, v.mount(b).BindFrom(b.staging()), b.target()) }
		staged := func(b *bench, m *model) { v.used(b, m); must(b, stage(b)) }
		published := func(b *bench, m *model) { staged(b, m); must(b, publish(b)) }
		both := func(b *bench) error { return errors.Join(stage(b), publish(b)) }
		flows[name+": mount"] = diskFlow{v.used, stage, v.mount, at{staging}, false}
		flows[name+": mount after a reboot"] = diskFlow{func(b *bench, m *model) { staged(b, m); m.disks.reboot() },
			stage,
			v.mount, at{staging}, false}
		flows[name+": mount and publish"] = diskFlow{v.used, both, v.mount, at{staging, target}, false}
		flows[name+": unmount"] = diskFlow{staged, func(b *bench) error { return b.Unmount(ctx, b.staging()) },
			v.mount, nil,
			false}
		flows[name+": unmount while published"] = diskFlow{published,
			func(b *bench) error {
				return errors.Join(both(b), b.Unmount(ctx,
					b.staging()))
			}, v.mount, at{target}, false}
		flows[name+": remove the last"] = diskFlow{published, func(b *bench) error {
			return errors.Join(b.Unmount(ctx, b.staging()), b.Remove(ctx, b.target()))
		}, v.mount, nil, false}
		flows[name+": grow"] = diskFlow{func(b *bench, m *model) {
			staged(b, m)
			m.disks.all()[0].size = 2 * gib
		}, func(b *bench) error {
			return errors.Join(stage(b), b.Grow(ctx, v.mount(b),
				b.staging()))
		}, v.mount, at{staging},
			false}
	}
	flows["attached disk: first mount"] = diskFlow{func(b *bench, m *model) { m.disks.plug(serialNumber, gib) },
		func(b *bench) error { return b.Mount(ctx, disk(b), b.staging()) }, disk, at{staging}, true}
	return flows
}

func must(b *bench, err error) {
	b.T.Helper()
	if err != nil {
		b.T.Fatal(err)
	}
}

// ways are the ways in which a step does not go well.
var ways = []string{"fails", "fails after its effect", "dies before", "dies after", "reboots before", "reboots after"}

// TestEveryStepOfADisk: each change of the node fails, or the driver dies before or after it, or
// the node reboots. No used disk is formatted, all data is kept, and a repeated call completes.
func TestEveryStepOfADisk(t *testing.T) {
	for name, f := range diskFlows() {
		for _, way := range ways {
			for n := 1; ; n++ {
				reached := false
				t.Run(fmt.Sprintf("%s/%s/%d", name, way, n), func(t *testing.T) {
					reached = testDiskStep(t, f, way,
						n)
				})
				if !reached {
					// A disk of a storage system is there again after a reboot.
					if n == 1 && name != "attached disk: mount after a reboot" {
						t.Errorf("%s changes nothing", name)
					}
					break
				}
			}
		}
	}
}

// stopAt makes the nth change of a call go wrong in a way. died: the process, or the node, ended.
func stopAt(b *bench, m *model, call func(*bench) error, way string, n int) (reached, died bool, err error) {
	step := func(string, string) error {
		if n--; n != 0 {
			return nil
		}
		reached = true
		if strings.HasPrefix(way, "fails") {
			return errStep
		}
		died = true
		runtime.Goexit()
		return nil
	}
	if strings.HasSuffix(way, "fails") || strings.HasSuffix(way, "before") {
		m.before = step
	} else {
		m.after = step
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = errStep
		err = call(b)
	}()
	<-ended
	m.before, m.after = nil, nil
	return reached, died, err
}

func testDiskStep(t *testing.T, f diskFlow, way string, n int) bool {
	b, m, store := newDiskBench(t)
	f.prepare(b, m)
	m.disks.late = 2
	reached, died, _ := stopAt(b, m, f.call, way, n)
	if strings.HasPrefix(way, "reboots") {
		m.disks.reboot()
	}
	if died {
		b.startAgain(m, store)
	}
	b.linksAgree(m, f.mount(b))
	if err := f.call(b); err != nil {
		t.Fatalf("the repeated call: %v", err)
	}
	v := f.mount(b)
	for _, path := range []string{b.staging(), b.target()} {
		want := slices.ContainsFunc(f.mounted, func(p func(*bench) string) bool { return p(b) == path })
		if got := b.IsMounted(v, path); got != want {
			t.Errorf("%s: mounted: %t, want %t", path, got, want)
		}
		if want && !f.blank && !b.Files.Exists(b.Files.Join(path, "precious")) {
			t.Errorf("%s: the data is gone", path)
		}
	}
	if len(f.mounted) == 0 {
		b.released(m)
	}
	if !f.blank && m.disks.formats > 0 {
		t.Errorf("a used disk was formatted %d times", m.disks.formats)
	}
	for _, path := range []string{b.target(), b.staging()} {
		if err := b.Remove(context.Background(), path); err != nil {
			t.Fatal(err)
		}
	}
	b.released(m)
	if len(store.files) > 0 || len(m.disks.store.files) > 0 {
		t.Errorf("records are left: %q, %q", store.files, m.disks.store.files)
	}
	if f.blank {
		return reached
	}
	b.Mkdir(b.staging())
	b.MustMount(v, b.staging())
	if !b.Files.Exists(b.Files.Join(b.staging(), "precious")) {
		t.Error("at the end, the data is gone")
	}
	return reached
}

// linksAgree tests that a path is mounted if, and only if, its data can be reached there.
func (b *bench) linksAgree(m *model, v mounter.Mount) {
	b.T.Helper()
	for _, path := range []string{b.staging(), b.target()} {
		e, err := m.Entry(path)
		isLink := err == nil && e.Kind == DirLink
		if mounted := b.IsMounted(v, path); mounted && !isLink {
			b.T.Errorf("%s is mounted, but is %v", path, e.Kind)
		}
	}
}

// released tests that no virtual disk is attached, no disk is online, and no folder is left.
func (b *bench) released(m *model) {
	b.T.Helper()
	for _, disk := range m.disks.all() {
		if disk.image != nil || disk.online {
			b.T.Errorf("disk %d: virtual: %t, online: %t", disk.number, disk.image != nil, disk.online)
		}
	}
	if names, err := m.Names(modelFolders); err != nil || len(names) > 0 {
		b.T.Errorf("folders: %q, %v", names, err)
	}
}

// TestEveryStepOfMakingAnImage: after a failure no file is left; after a death none that cannot be
// removed.
func TestEveryStepOfMakingAnImage(t *testing.T) {
	for _, way := range ways {
		for n, reached := 1, true; reached; n++ {
			t.Run(fmt.Sprintf("%s/%d", way, n), func(t *testing.T) {
				b, m, store := newDiskBench(t)
				usedImage(b, m)
				v := b.vhdx("new")
				var died bool
				var err error
				reached, died, err = stopAt(b, m, func(b *bench) error {
					return b.MakeImage(context.Background(), v.Source, gib, options.NTFS)
				}, way, n)
				if strings.HasPrefix(way, "reboots") {
					m.disks.reboot()
				}
				if died {
					b.startAgain(m, store)
				}
				if err != nil && !died && way == "fails after its effect" && b.Files.Exists(v.Source) {
					must(b, m.disks.RemoveVHDX(v.Source))
				} else if err != nil && !died && b.Files.Exists(v.Source) {
					t.Errorf("after %v, the file is left", err)
				}
				if died && b.Files.Exists(v.Source) {
					must(b, m.disks.RemoveVHDX(v.Source)) // as the caller removes an incomplete volume
				}
				if err != nil {
					must(b, b.MakeImage(context.Background(), v.Source, gib, options.NTFS))
				}
				if len(m.disks.store.files) > 0 {
					t.Errorf("records are left: %q", m.disks.store.files)
				}
				b.released(m)
				b.MustMount(v, b.target())
				b.MustMount(b.vhdx("v"), b.staging())
				if !b.Files.Exists(b.Files.Join(b.staging(), "precious")) || !b.IsMounted(v, b.target()) {
					t.Error("an image is not as it must be")
				}
			})
		}
	}
}

// TestUsedDisksAreNotFormatted: the system reports a used volume as unformatted, as it does of a
// damaged or locked one (rule 1).
func TestUsedDisksAreNotFormatted(t *testing.T) {
	for name, v := range map[string]struct {
		used  func(b *bench, m *model)
		mount func(b *bench) mounter.Mount
		want  error
	}{
		"image": {usedImage, func(b *bench) mounter.Mount { return b.vhdx("v") }, mounter.ErrFormat},
		"attached disk": {usedDisk, func(b *bench) mounter.Mount { return b.attachedDisk(serialNumber) },
			mounter.ErrDevice},
		"attached disk with the record of a format": {func(b *bench, m *model) {
			usedDisk(b, m)
			data := fmt.Sprintf(`{"serial":%q,"size":%d}`, serialNumber, gib)
			must(b, m.disks.records().write(recordName(serialNumber), []byte(data)))
		}, func(b *bench) mounter.Mount { return b.attachedDisk(serialNumber) }, mounter.ErrDevice},
	} {
		t.Run(name, func(t *testing.T) {
			b, m, _ := newDiskBench(t)
			v.used(b, m)
			m.disks.unformatted = true
			b.Refused(v.mount(b), b.staging(), v.want)
			if m.disks.formats > 0 {
				t.Fatal("a used disk was formatted")
			}
			m.disks.unformatted = false
			b.MustMount(v.mount(b), b.staging())
			if !b.Files.Exists(b.Files.Join(b.staging(), "precious")) {
				t.Error("the data is gone")
			}
		})
	}
}

// TestTheProofOfADisk: the volume of another disk is neither used nor grown nor formatted.
func TestTheProofOfADisk(t *testing.T) {
	b, m, _ := newDiskBench(t)
	ctx := context.Background()
	usedImage(b, m)
	m.disks.wrongDisk = true
	b.Refused(b.vhdx("v"), b.staging(), mounter.ErrDevice)
	if err := b.MakeImage(ctx, b.vhdx("new").Source, gib, options.NTFS); !errors.Is(err, mounter.ErrDevice) ||
		m.disks.formats > 0 {
		t.Errorf("MakeImage = %v, %d formats", err, m.disks.formats)
	}
	m.disks.wrongDisk = false
	b.released(m)
	b.MustMount(b.vhdx("v"), b.staging())
	m.disks.wrongDisk = true
	grown := 0
	m.before = func(op, _ string) error {
		if op == "growVolume" {
			grown++
		}
		return nil
	}
	if err := b.Grow(ctx, b.vhdx("v"), b.staging()); !errors.Is(err, mounter.ErrDevice) || grown > 0 {
		t.Errorf("Grow = %v, grown: %d", err, grown)
	}
	if err := b.Unmount(ctx, b.staging()); !errors.Is(err, mounter.ErrDevice) || !m.disks.all()[0].online {
		t.Errorf("Unmount = %v", err)
	}
	m.disks.wrongDisk = false
	must(b, b.Unmount(ctx, b.staging()))
	b.released(m)
}

// TestAnswersOfTheLibrary: a state with an error, volumes that appear late, and mounts whose result
// the error does not show (rule 6).
func TestAnswersOfTheLibrary(t *testing.T) {
	t.Run("GetDiskState returns true and an error", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		usedImage(b, m)
		m.disks.fail = failing("isOnline", errStep)
		b.Refused(b.vhdx("v"), b.staging(), errStep)
		m.disks.fail = nil
		b.released(m)
	})
	t.Run("ListVolumesOnDisk returns nothing, and no error", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		usedImage(b, m)
		m.disks.late = 5
		b.MustMount(b.vhdx("v"), b.staging())
		must(b, b.Unmount(context.Background(), b.staging()))
		m.disks.late = 50 // more looks than the bench has
		b.Refused(b.vhdx("v"), b.staging(), mounter.ErrNoAnswer)
		m.disks.late = 0
		must(b, b.Unmount(context.Background(), b.staging()))
		b.released(m)
	})
	t.Run("MountVolume fails, and has mounted", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		usedImage(b, m)
		m.after = func(op, _ string) error {
			if op == "mountVolume" {
				return errStep
			}
			return nil
		}
		b.MustMount(b.vhdx("v"), b.staging())
		if !b.Files.Exists(b.Files.Join(b.staging(), "precious")) {
			t.Error("the volume is not there")
		}
	})
	t.Run("a property is missing", func(t *testing.T) {
		for _, call := range []string{"vhdx", "attach", "online true", "volumes", "diskOf", "filesystem", "mountVolume",
			"volumeAt", "growVolume", "volumeSize", "isOnline", "rescan"} {
			b, m, _ := newDiskBench(t)
			usedImage(b, m)
			m.disks.fail = func(name string) error {
				if name == call {
					panic("NULL")
				}
				return nil
			}
			var panicked *guard.Panic
			if err := b.Mount(context.Background(), b.vhdx("v"), b.staging()); !errors.As(err, &panicked) {
				t.Errorf("%s: Mount = %v, want a panic", call, err)
			}
			m.disks.fail = nil
			b.MustMount(b.vhdx("v"), b.staging())
		}
	})
	t.Run("a volume does not grow, without an error", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		usedImage(b, m)
		b.MustMount(b.vhdx("v"), b.staging())
		must(b, b.GrowImage(context.Background(), b.vhdx("v").Source, gib+50<<20))
		m.disks.skipsGrowth = true
		if err := b.Grow(context.Background(), b.vhdx("v"), b.staging()); !errors.Is(err, mounter.ErrDevice) {
			t.Errorf("Grow = %v, want ErrDevice", err)
		}
		m.disks.skipsGrowth = false
		must(b, b.Grow(context.Background(), b.vhdx("v"), b.staging()))
	})
}

// errNull is the value of a panic.
var errNull = errors.New("NULL")

func failing(call string, err error) func(string) error {
	return func(name string) error {
		if name == call {
			return err
		}
		return nil
	}
}

// TestACallThatHangs: its caller gets an error, and no other call uses disks until it ends.
func TestACallThatHangs(t *testing.T) {
	b, m, _ := newDiskBench(t)
	usedImage(b, m)
	hangs, goOn := make(chan struct{}), make(chan struct{})
	m.disks.fail = func(name string) error {
		if name == "filesystem" {
			close(hangs)
			<-goOn
			m.disks.fail = nil
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-hangs; cancel() }()
	if err := b.Mount(ctx, b.vhdx("v"), b.staging()); !errors.Is(err, mounter.ErrStalled) || !errors.Is(err,
		context.Canceled) {
		t.Errorf("Mount = %v, want ErrStalled", err)
	}
	for name, call := range map[string]func(context.Context) error{
		"Unmount":   func(ctx context.Context) error { return b.Unmount(ctx, b.staging()) },
		"MakeImage": func(ctx context.Context) error { return b.MakeImage(ctx, b.vhdx("w").Source, gib, options.NTFS) },
		"GrowImage": func(ctx context.Context) error { return b.GrowImage(ctx, b.vhdx("v").Source, 2*gib) },
		"Freeze": func(ctx context.Context) error {
			return b.Freeze(ctx, "", []string{b.vhdx("v").Source}, mountercontract.Eternity,
				func(context.Context) error { return nil })
		},
	} {
		if name == "MakeImage" { // which looks at its ctx first
			ctx, cancel = context.WithCancel(context.Background())
			time := ctx
			cancel()
			ctx = time
		}
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want it to wait for the lock", name, err)
		}
	}
	if m.disks.formats > 0 {
		t.Error("a call used disks meanwhile")
	}
	close(goOn)
	must(b, b.Unmount(context.Background(), b.staging()))
	b.released(m)
}

// TestALargeImageKeepsNoOtherWaiting: Windows fills its file with zeros for minutes. Its caller
// gives up, and no file is left.
func TestALargeImageKeepsNoOtherWaiting(t *testing.T) {
	b, m, _ := newDiskBench(t)
	usedImage(b, m)
	hangs, goOn := make(chan struct{}), make(chan struct{})
	m.disks.fail = func(name string) error {
		if name == "create" {
			close(hangs)
			<-goOn
		}
		return nil
	}
	large := b.vhdx("large")
	ctx, cancel := context.WithCancel(context.Background())
	made := make(chan error, 1)
	go func() { made <- b.MakeImage(ctx, large.Source, gib, options.NTFS) }()
	<-hangs
	b.MustMount(b.vhdx("v"), b.staging())
	must(b, b.GrowImage(context.Background(), b.vhdx("v").Source, 2*gib))
	if size, err := b.ImageSize(b.vhdx("v").Source); err != nil || size != 2*gib {
		t.Errorf("ImageSize = %d, %v", size, err)
	}
	cancel()
	if err := <-made; !errors.Is(err, mounter.ErrStalled) {
		t.Errorf("MakeImage = %v, want ErrStalled", err)
	}
	close(goOn)
	// The image is locked until its making ends.
	release, err := b.Host.(Host).disks.images.Lock(context.Background(), WindowsPaths.Key(large.Source))
	must(b, err)
	release()
	if b.Files.Exists(large.Source) || len(m.disks.store.files) > 0 {
		t.Errorf("left are a file: %t, and the records %v", b.Files.Exists(large.Source), m.disks.store.files)
	}
}

// TestDisksOfLostRecords: the links show which images are in use.
func TestDisksOfLostRecords(t *testing.T) {
	ctx := context.Background()
	setup := func(t *testing.T) (*bench, *model, *modelStore) {
		b, m, store := newDiskBench(t)
		usedImage(b, m)
		v := b.vhdx("v")
		b.MustMount(v, b.staging())
		b.MustMount(v.BindFrom(b.staging()), b.target())
		clear(store.files)
		b.startAgain(m, store)
		if got, err := b.MountPointsOf(v.Source); err != nil || len(got) != 2 {
			t.Errorf("MountPointsOf: got %q, %v, want both links", got, err)
		}
		return b, m, store
	}
	t.Run("staged again", func(t *testing.T) {
		b, m, _ := setup(t)
		b.MustMount(b.vhdx("v"), b.staging())
		b.MustMount(b.vhdx("v").BindFrom(b.staging()), b.target())
		must(b, b.Remove(ctx, b.target()))
		must(b, b.Unmount(ctx, b.staging()))
		b.released(m)
	})
	t.Run("unmounted", func(t *testing.T) {
		b, m, _ := setup(t)
		must(b, b.Remove(ctx, b.target()))
		must(b, b.Unmount(ctx, b.staging()))
		if disk := m.disks.all()[0]; disk.online {
			t.Error("the disk is online")
		}
		if got, err := b.MountPointsOf(b.vhdx("v").Source); err != nil || len(got) > 0 {
			t.Errorf("MountPointsOf: got %q, %v", got, err)
		}
		b.released(m)
		b.MustMount(b.vhdx("v"), b.staging())
		if !b.Files.Exists(b.Files.Join(b.staging(), "precious")) {
			t.Error("the data is gone")
		}
		must(b, b.Unmount(ctx, b.staging()))
		b.released(m)
	})
}

// TestAnImageOfAnotherProgram: it is attached and online without a link, and so in use.
func TestAnImageOfAnotherProgram(t *testing.T) {
	b, m, _ := newDiskBench(t)
	usedImage(b, m)
	v := b.vhdx("v")
	must(b, m.disks.AttachVHDX(v.Source))
	disk := m.disks.all()[0]
	disk.online = true
	for range 2 {
		got, err := b.MountPointsOf(v.Source)
		if want := fmt.Sprintf(`\\.\PhysicalDrive%d`, disk.number); err != nil || !slices.Equal(got, []string{want}) ||
			!disk.attached {
			t.Errorf("MountPointsOf: got %q, %v, want %s", got, err, want)
		}
	}
}

// TestALinkThatIsGoneWithItsPod: the kubelet may remove the target of a pod with its directory. The
// image is released by Remove, or by the next start.
func TestALinkThatIsGoneWithItsPod(t *testing.T) {
	ctx := context.Background()
	for name, release := range map[string]func(b *bench, m *model, store *modelStore){
		"Remove":    func(b *bench, _ *model, _ *modelStore) { must(b, b.Remove(ctx, b.target())) },
		"a restart": func(b *bench, m *model, store *modelStore) { b.startAgain(m, store) },
	} {
		t.Run(name, func(t *testing.T) {
			b, m, store := newDiskBench(t)
			usedImage(b, m)
			b.MustMount(b.vhdx("v"), b.target())
			must(b, errors.Join(m.Unlink(b.target()), m.Rmdir(WindowsPaths.dir(b.target()))))
			release(b, m, store)
			b.released(m)
			if len(store.files) > 0 {
				t.Errorf("records: %v", store.files)
			}
		})
	}
}

// TestAReboot: the links of images that are not attached are dead, and a stage brings them to life.
func TestAReboot(t *testing.T) {
	b, m, store := newDiskBench(t)
	ctx := context.Background()
	usedImage(b, m)
	usedDisk(b, m)
	v, d := b.vhdx("v"), b.attachedDisk(serialNumber)
	b.MustMount(v, b.staging())
	b.MustMount(v.BindFrom(b.staging()), b.target())
	m.disks.reboot()
	b.startAgain(m, store)
	for _, path := range []string{b.staging(), b.target()} {
		if occupied, err := b.Occupied(ctx, path); occupied || err != nil {
			t.Errorf("Occupied(%s) = %t, %v", path, occupied, err)
		}
	}
	if got, err := b.MountPointsOf(v.Source); err != nil || len(got) != 2 {
		t.Errorf("MountPointsOf: got %q, %v: the links are references", got, err)
	}
	other := b.Path("plugins", "kubernetes.io", "csi", "driver", "other", "globalmount")
	b.Mkdir(other)
	b.MustMount(d, other) // takes the number that the image had
	b.MustMount(v, b.staging())
	for _, path := range []string{b.staging(), b.target(), other} {
		if !b.Files.Exists(b.Files.Join(path, "precious")) {
			t.Errorf("%s: the data is not there", path)
		}
	}
}

func TestFreezeOfVirtualDisks(t *testing.T) {
	b, m, _ := newDiskBench(t)
	usedImage(b, m)
	ctx, copied := context.Background(), 0
	copyData := func(context.Context) error { copied++; return nil }
	if err := b.Freeze(ctx, "", []string{b.vhdx("v").Source}, mountercontract.Eternity, copyData); err != nil ||
		copied != 1 {
		t.Errorf("Freeze of a detached image = %v, copied %d times", err, copied)
	}
	b.MustMount(b.vhdx("v"), b.staging())
	if err := b.Freeze(ctx, "", []string{b.vhdx("v").Source}, mountercontract.Eternity, copyData); !errors.Is(err,
		mounter.ErrBusy) || copied != 1 {
		t.Errorf("Freeze of an attached image = %v, copied %d times", err, copied)
	}
	if err := b.NewUUID(ctx, nil, options.NTFS, 0); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("NewUUID = %v", err)
	}
	m.disks.fixedOnline = true
	if err := b.GrowImage(ctx, b.vhdx("v").Source, 2*gib); !errors.Is(err, mounter.ErrBusy) {
		t.Errorf("GrowImage of an attached image = %v, want ErrBusy", err)
	}
	if got, err := b.Failing(); err != nil || len(got) > 0 {
		t.Errorf("Failing = %v, %v, want nothing", got, err)
	}
	volume := m.disks.all()[0].volumes[0]
	for _, want := range []mounter.FailureKind{mounter.Erroneous, mounter.TurnedReadOnly} {
		volume.dirty, volume.readOnly = true, want == mounter.TurnedReadOnly
		if got, err := b.Failing(); err != nil || len(got) != 1 || got[b.vhdx("v").Source].Kind != want {
			t.Errorf("Failing = %v, %v, want %v", got, err, want)
		}
	}
}

// TestTheGuardOfBlankDisks: only a disk that was read, and is blank, is formatted.
func TestTheGuardOfBlankDisks(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(m *model, disk *modelDisk)
		want   error
		text   string
	}{
		"an ext4": {func(_ *model, k *modelDisk) { k.data[1024+0x38] = "\x53\xef" },
			mounter.ErrDevice, "ext4"},
		"unknown data at the end": {func(_ *model, k *modelDisk) { k.data[k.size-9] = "x" }, mounter.ErrDevice,
			"unknown"},
		"an NTFS without partition": {func(_ *model, k *modelDisk) { k.data[3] = "NTFS    " }, mounter.ErrDevice,
			"ntfs"},
		"it cannot be read": {func(_ *model, k *modelDisk) { k.unreadable = true }, mounter.ErrDevice, "read"},
		"it is read-only": {func(_ *model, k *modelDisk) { k.readOnly = true }, mounter.ErrReadOnly,
			"writable"},
		"it is too small": {func(_ *model, k *modelDisk) { k.size = gib - 4096 }, mounter.ErrDevice,
			"at least"},
		"two with the serial number": {func(m *model, _ *modelDisk) { m.disks.plug(serialNumber, gib) },
			mounter.ErrDevice, "same serial"},
		"it is not attached": {func(_ *model, k *modelDisk) { k.attached = false }, mounter.ErrDevice,
			"no disk"},
		"a table without partitions": {func(_ *model, k *modelDisk) { k.data[512] = "EFI PART" }, mounter.ErrDevice,
			"0 partitions"},
		"an exFAT in a partition": {func(m *model, k *modelDisk) {
			k.addPart(partStart, k.size-partStart-partTail)
			m.disks.addVolume(k, "exfat")
		}, mounter.ErrDevice, "exfat"},
		"two partitions": {func(_ *model, k *modelDisk) {
			k.addPart(partStart, 1<<20)
			k.addPart(partStart+1<<20, 1<<20)
		}, mounter.ErrDevice, "2 partitions"},
		"data where the partition will be": {func(_ *model, k *modelDisk) { k.data[partStart+3] = "-FVE-FS-" },
			mounter.ErrDevice,
			"BitLocker"},
	} {
		for _, online := range []bool{false, true} { // true: another program uses the disk
			t.Run(fmt.Sprintf("%s, online %t", name, online), func(t *testing.T) {
				b, m, store := newDiskBench(t)
				disk := m.disks.plug(serialNumber, gib)
				tc.change(m, disk)
				disk.online = online
				parts := len(disk.parts)
				err := b.Mount(context.Background(), b.attachedDisk(serialNumber), b.staging())
				if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) || m.disks.formats > 0 {
					t.Errorf("Mount = %v, %d formats, want %v with %q", err, m.disks.formats, tc.want, tc.text)
				}
				if len(disk.parts) == parts && disk.online != online {
					t.Errorf("online %t before, and %t after", online, disk.online)
				}
				if len(store.files) > 0 {
					t.Errorf("left are the records %v", store.files)
				}
			})
		}
	}
}

// TestGuardsOfDisks: each guard whose failure no other test shows.
func TestGuardsOfDisks(t *testing.T) {
	ctx := context.Background()
	t.Run("a result beside an error does not count", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		if on, err := b.Host.(Host).disks.isOnline(99); on || err == nil || len(m.disks.all()) > 0 {
			t.Errorf("isOnline of no disk = %t, %v, want false and an error", on, err)
		}
	})
	t.Run("an image whose making panics is removed", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		m.disks.fail = func(name string) error {
			if name == "volumes" {
				panic(errNull)
			}
			return nil
		}
		err := b.MakeImage(ctx, b.vhdx("v").Source, gib, options.NTFS)
		if p := (*guard.Panic)(nil); !errors.As(err, &p) || p.Value != any(errNull) {
			t.Errorf("MakeImage = %v, want the panic %v", err, errNull)
		}
		if _, err := b.ImageSize(b.vhdx("v").Source); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("ImageSize after the panic = %v, want ErrNotExist", err)
		}
		b.released(m)
	})
	t.Run("a new volume with a filesystem is another volume", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		m.after = func(op, _ string) error {
			if op == "partition" {
				m.disks.all()[0].volumes[0].fs = "refs"
			}
			return nil
		}
		b.NotMade(ctx, b.vhdx("v").Source, options.NTFS, mounter.ErrDevice)
		if m.disks.formats > 0 {
			t.Error("it was formatted")
		}
	})
	t.Run("a volume that cannot be flushed stays mounted at its folder", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		usedImage(b, m)
		b.MustMount(b.vhdx("v"), b.staging())
		m.disks.fail = failing("flush", errStep)
		if err := b.Unmount(ctx, b.staging()); !errors.Is(err, errStep) || !m.disks.all()[0].online {
			t.Errorf("Unmount = %v", err)
		}
		m.disks.fail = nil
		must(b, b.Unmount(ctx, b.staging()))
		b.released(m)
	})
	t.Run("data in a new partition of a blank disk is not formatted", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		disk := m.disks.plug(serialNumber, gib)
		disk.data[partStart+8192] = "no known format"
		for range 2 { // the second time, there is a partition and a record
			b.Refused(b.attachedDisk(serialNumber), b.staging(), mounter.ErrDevice)
		}
		if m.disks.formats > 0 {
			t.Error("it was formatted")
		}
	})
	t.Run("a format that was interrupted while it wrote is made again", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		disk := m.disks.plug(serialNumber, gib)
		m.before = func(op, _ string) error {
			if op != "format" {
				return nil
			}
			disk.data[partStart+8192] = "a part of a filesystem"
			return errStep
		}
		b.Refused(b.attachedDisk(serialNumber), b.staging(), errStep)
		m.before = nil
		b.MustMount(b.attachedDisk(serialNumber), b.staging())
	})
	t.Run("a disk with two names is online until its last mount ends", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		disk := m.disks.plug(serialNumber, gib)
		disk.page83 = "naa.1"
		b.MustMount(b.attachedDisk(serialNumber), b.staging())
		b.MustMount(b.attachedDisk("naa.1"), b.target())
		must(b, b.Unmount(ctx, b.staging()))
		if mounted, err := b.Mounted(ctx, b.attachedDisk("naa.1"), b.target()); err != nil || !mounted || !disk.online {
			t.Errorf("mounted: %t, %v, online: %t", mounted, err, disk.online)
		}
		must(b, b.Unmount(ctx, b.target()))
		if disk.online {
			t.Error("the disk is still online")
		}
	})
	t.Run("a read-only mount needs a read-only disk, and formats none", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		disk := m.disks.plug(serialNumber, gib)
		readOnly := b.attachedDisk(serialNumber)
		readOnly.Options = []string{"ro"}
		b.Refused(readOnly, b.staging(), mounter.ErrReadOnly)
		disk.readOnly = true
		b.Refused(readOnly, b.staging(), mounter.ErrDevice) // it is blank
		disk.readOnly = false
		b.MustMount(b.attachedDisk(serialNumber), b.staging())
		must(b, b.Unmount(ctx, b.staging()))
		disk.readOnly = true
		b.MustMount(readOnly, b.staging())
		if m.disks.formats != 1 {
			t.Errorf("%d formats", m.disks.formats)
		}
	})
	t.Run("a format that was interrupted at its end gets its access control list", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		disk := m.disks.plug(serialNumber, gib)
		m.after = func(op, _ string) error {
			if op == "format" {
				return errStep
			}
			return nil
		}
		b.Refused(b.attachedDisk(serialNumber), b.staging(), errStep)
		m.after = nil
		b.MustMount(b.attachedDisk(serialNumber), b.staging())
		if !disk.volumes[0].permitted || m.disks.formats != 1 {
			t.Errorf("permitted: %t, %d formats", disk.volumes[0].permitted, m.disks.formats)
		}
	})
	t.Run("a link to a folder whose volume has just gone is not made", func(t *testing.T) {
		b, m, _ := newDiskBench(t)
		usedImage(b, m)
		b.MustMount(b.vhdx("v"), b.staging())
		l := b.Host.(Host).links
		record, err := l.recordOf(b.vhdx("v").BindFrom(b.staging()))
		must(b, err)
		record.Path = b.target()
		must(b, b.Unmount(ctx, b.staging()))
		if err := l.mount(ctx, mounter.Mount{Kind: mounter.Directory}, record); !errors.Is(err, mounter.ErrPath) ||
			b.Files.Exists(b.target()) {
			t.Errorf("mount = %v, want ErrPath", err)
		}
	})
}

// TestAFreezeHoldsItsImagesOnly: the copy of an image takes as long as its file. Volumes of other
// images are mounted meanwhile.
func TestAFreezeHoldsItsImagesOnly(t *testing.T) {
	synctest.Test(t, aFreezeHoldsItsImagesOnly)
}

func aFreezeHoldsItsImagesOnly(t *testing.T) {
	b, m, _ := newDiskBench(t)
	usedImage(b, m)
	v, other := b.vhdx("v"), b.vhdx("w")
	ctx := context.Background()
	if err := b.MakeImage(ctx, other.Source, gib, options.NTFS); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(ctx context.Context) error{
		"Mount":     func(ctx context.Context) error { return b.Mount(ctx, v, b.staging()) },
		"GrowImage": func(ctx context.Context) error { return b.GrowImage(ctx, v.Source, 4*gib) },
		"Freeze": func(ctx context.Context) error {
			return b.Freeze(ctx, "", []string{v.Source}, mountercontract.Eternity,
				func(context.Context) error { return nil })
		},
	}
	err := b.Freeze(ctx, "", []string{v.Source, v.Source}, mountercontract.Eternity, func(context.Context) error {
		b.MustMount(other, b.Path("other"))
		for name, call := range calls {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if err := call(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s of the image during its copy = %v, want DeadlineExceeded", name, err)
			}
		}
		if b.IsMounted(v, b.staging()) {
			t.Error("the image was mounted during its copy")
		}
		return b.Unmount(ctx, b.Path("other"))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Freeze", "GrowImage", "Mount"} {
		if err := calls[name](ctx); err != nil {
			t.Errorf("%s after the copy: %v", name, err)
		}
	}
}
