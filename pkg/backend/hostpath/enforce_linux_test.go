package hostpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
)

// Roots with quotas. The names of these tests select the kernel on which they run: see the list in
// test/vm.
var (
	projects = []testdisk.Filesystem{
		{Type: "xfs", Size: 400 * mib, Options: "prjquota", Rare: true},
		{Type: "ext4", Size: 400 * mib, Make: []string{"-O", "quota,project"}, Options: "prjquota", Rare: true},
	}
	subvolumes = []testdisk.Filesystem{{Type: "btrfs", Size: 600 * mib}}
)

func onQuotas(t *testing.T, all []testdisk.Filesystem, test func(w *world)) {
	for _, f := range all {
		t.Run(f.Type, func(t *testing.T) {
			w := newRoot(t, f)
			if f.Type == "btrfs" {
				w.quotas("enable")
			}
			test(w)
		})
	}
}

// quotas enables or disables the quotas of btrfs.
func (w *world) quotas(command string) {
	w.Helper()
	if out, err := exec.Command("btrfs", "quota", command, w.cfg.Root).CombinedOutput(); err != nil {
		w.Fatalf("%v: %s", err, out)
	}
}

func TestProjectsLimitDirectories(t *testing.T) { onQuotas(t, projects, limitsDirectories) }

func TestSubvolumesLimitDirectories(t *testing.T) { onQuotas(t, subvolumes, limitsDirectories) }

func (w *world) held(b *Backend, name string, size int64, enforce string) backend.Volume {
	w.Helper()
	v, err := b.Create(context.Background(), backend.CreateOptions{
		Name: name, Required: size, Access: []backend.Access{{}}, Mutable: map[string]string{enforceKey: enforce},
	})
	if err != nil {
		w.Fatal(err)
	}
	return v
}

// put writes 20 MiB to a volume, as a pod without root privileges does, and reports whether they
// fit.
func (w *world) put(v backend.Volume) (fits bool) {
	w.Helper()
	source := filepath.Join(filepath.Dir(w.cfg.Root), "20MiB")
	if _, err := os.Stat(source); err != nil {
		if err := os.WriteFile(source, []byte(strings.Repeat("not a hole", 2*mib)), 0o644); err != nil {
			w.Fatal(err)
		}
	}
	data := w.path(volumesDir, v.ID, dataDir)
	for dir := data; dir != "/"; dir = filepath.Dir(dir) { // a pod has a mount instead
		if err := os.Chmod(dir, 0o777); err != nil {
			w.Fatal(err)
		}
	}
	cp := exec.Command("cp", "--sparse=never", "--reflink=never", source, filepath.Join(data, "20MiB"))
	cp.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	out, err := cp.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "No space left") &&
		!strings.Contains(string(out), "quota exceeded") {
		w.Fatalf("%v: %s", err, out)
	}
	w.sync()
	return err == nil
}

// sync writes all data to the disk: btrfs updates its usage then.
func (w *world) sync() {
	w.Helper()
	root, err := os.Open(w.cfg.Root)
	if err == nil {
		defer root.Close()
		err = unix.Syncfs(int(root.Fd()))
	}
	if err != nil {
		w.Fatal(err)
	}
}

// total returns the size in the volume's stats.
func (w *world) total(b *Backend, v backend.Volume) int64 {
	w.Helper()
	u, known, err := b.Usage(context.Background(), v.ID)
	if err != nil {
		w.Fatal(err)
	}
	if known {
		return u.TotalBytes
	}
	var st unix.Statfs_t
	if err := unix.Statfs(w.path(volumesDir, v.ID, dataDir), &st); err != nil {
		w.Fatal(err)
	}
	return int64(st.Blocks) * st.Frsize
}

func (w *world) healthy(b *Backend, v backend.Volume) {
	w.Helper()
	if sick, err := b.Health(context.Background(), v.ID); err != nil || len(sick) > 0 {
		w.Errorf("Health = %v, %v", sick, err)
	}
}

func limitsDirectories(w *world) {
	ctx := context.Background()
	must := func(err error) {
		w.Helper()
		if err != nil {
			w.Fatal(err)
		}
	}
	b := w.open()
	v := w.held(b, "v", 16*mib, required)
	if len(v.Context) > 0 || w.total(b, v) != 16*mib {
		w.Errorf("the volume has the context %v and %d bytes in its stats, want no context and 16 MiB", v.Context,
			w.total(b, v))
	}
	if w.put(v) {
		w.Error("20 MiB fit into 16 MiB")
	}
	w.healthy(b, v)
	_, _, err := b.Expand(ctx, v.ID, backend.ExpandOptions{Required: 32 * mib})
	must(err)
	if !w.put(v) || w.total(b, v) != 32*mib {
		w.Errorf("20 MiB do not fit into 32 MiB; the stats have %d bytes", w.total(b, v))
	}

	n := w.snapshot(b, v, "n")
	restored, err := b.Restore(ctx, n.ID,
		backend.CreateOptions{Name: "restored", Required: 48 * mib, Access: []backend.Access{{}}})
	must(err)
	if got, want := len(w.read(w.path(volumesDir, restored.ID, dataDir, "20MiB"))), 20*mib; got != want ||
		w.total(b, restored) != 48*mib {
		w.Errorf("the file has %d bytes, want %d; the stats have %d bytes", got, want, w.total(b, restored))
	}
	clone, err := b.Clone(ctx, v.ID, backend.CreateOptions{Name: "clone", Access: []backend.Access{{}}})
	must(err)
	if w.total(b, clone) != 32*mib {
		w.Errorf("the clone's stats have %d bytes", w.total(b, clone))
	}

	must(b.Modify(ctx, v.ID, map[string]string{enforceKey: off}, nil))
	if w.total(b, v) <= 48*mib {
		w.Errorf("without a limit the stats have %d bytes", w.total(b, v))
	}
	must(b.Modify(ctx, v.ID, map[string]string{enforceKey: ""}, nil))
	if w.total(b, v) != 32*mib {
		w.Errorf("with a new limit the stats have %d bytes", w.total(b, v))
	}

	data, err := os.Open(w.path(volumesDir, v.ID, dataDir))
	must(err)
	must(quota.Set(data, *known(b.volume(v.ID)).Mark, 0))
	must(data.Close())
	if sick, err := b.Health(ctx, v.ID); err != nil || len(sick) != 1 || sick[0].Reason != "SizeNotEnforced" {
		w.Errorf("Health = %v, %v", sick, err)
	}
	b = w.restart(b)
	await.True(w.T, "the volume is healthy", func() bool {
		sick, err := b.Health(ctx, v.ID)
		return err == nil && len(sick) == 0
	})

	for _, v := range []backend.Volume{v, restored, clone} {
		must(b.Delete(ctx, v.ID, nil))
	}
	must(b.DeleteSnapshot(ctx, n.ID, nil))
	w.emptied()
	if v := w.held(b, "v", 24*mib, required); !w.put(v) || w.total(b, v) != 24*mib {
		w.Errorf("a new volume of the same name has %d bytes", w.total(b, v))
	}
}

func TestALimitSurvivesCallsWhileQuotasAreOff(t *testing.T) {
	ctx := context.Background()
	for name, call := range map[string]func(b *Backend, id string) error{
		"an expansion": func(b *Backend, id string) error {
			_, _, err := b.Expand(ctx, id, backend.ExpandOptions{Required: 12 * mib})
			return err
		},
		"another setting": func(b *Backend, id string) error {
			return b.Modify(ctx, id, map[string]string{labelKey: "x"}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onQuotas(t, subvolumes, func(w *world) {
				b := w.open()
				v := w.held(b, "v", 8*mib, "")
				w.quotas("disable")
				if sick, err := b.Health(ctx, v.ID); err != nil || len(sick) != 1 {
					w.Errorf("Health while quotas are off = %v, %v", sick, err)
				}
				if err := call(b, v.ID); err != nil {
					w.Fatal(err)
				}
				w.quotas("enable")
				b = w.restart(b)
				await.True(w.T, "the volume is healthy", func() bool {
					sick, err := b.Health(ctx, v.ID)
					return err == nil && len(sick) == 0
				})
				if w.put(v) {
					w.Error("20 MiB fit")
				}
			})
		})
	}
}

func TestProjectsAreFreedByConcurrentDeletes(t *testing.T) {
	onQuotas(t, projects, func(w *world) {
		const volumes = 60
		b := w.open()
		before := map[string]uint32{}
		for i := range volumes {
			v := w.held(b, fmt.Sprint(i), mib, required)
			before[v.ID] = known(b.volume(v.ID)).Mark.Project
		}
		var wg sync.WaitGroup
		for id := range before {
			wg.Go(func() {
				if err := b.Delete(context.Background(), id, nil); err != nil {
					w.Error(err)
				}
			})
		}
		wg.Wait()
		w.emptied()
		for i := range volumes { // a project that is still in use is not taken again
			v := w.held(b, fmt.Sprint(i), mib, required)
			if now := known(b.volume(v.ID)).Mark.Project; now != before[v.ID] {
				w.Errorf("volume %d had project %d, which still has its limit, and has project %d now", i, before[v.ID],
					now)
			}
		}
	})
}

func TestSizesThatCannotBeEnforced(t *testing.T) {
	ctx := context.Background()
	w := newRoot(t, testdisk.Filesystem{Type: "ext4", Size: 64 * mib})
	b := w.open()
	o := backend.CreateOptions{Name: "required", Access: []backend.Access{{}}, Required: mib,
		Parameters: map[string]string{enforceKey: required}}
	if _, err := b.Create(ctx, o); !errors.Is(err, backend.ErrExhausted) || !strings.Contains(err.Error(), "quota") {
		t.Errorf("Create = %v, want ErrExhausted with a remedy", err)
	}
	if capacity, err := b.Capacity(ctx, o); err != nil || capacity.Available != 0 {
		t.Errorf("Capacity = %+v, %v, want none", capacity, err)
	}
	for name, sick := range map[string]int{preferred: 1, off: 0, "": 0} {
		v := w.held(b, "v"+name, mib, name)
		conditions, err := b.Health(ctx, v.ID)
		if err != nil || len(conditions) != sick {
			t.Errorf("with enforce %q: %v, %v, want %d conditions", name, conditions, err, sick)
		}
		if promised := v.Context[contextKey] == contextPromised; promised != (name != off) {
			t.Errorf("with enforce %q the context is %v", name, v.Context)
		}
		if _, err := b.Mount(ctx, v.ID, backend.Access{Context: v.Context}); err != nil {
			t.Errorf("Mount with the volume's own context: %v", err)
		}
		if err := b.Modify(ctx, v.ID, map[string]string{enforceKey: required}, nil); !errors.Is(err,
			backend.ErrInvalid) {
			t.Errorf("Modify to required: %v, want ErrInvalid", err)
		}
	}
	if _, err := b.Mount(ctx, w.held(b, "x", mib, off).ID,
		backend.Access{Context: map[string]string{contextKey: contextPromised}}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("Mount with the context of another volume: %v, want ErrInvalid", err)
	}
}
