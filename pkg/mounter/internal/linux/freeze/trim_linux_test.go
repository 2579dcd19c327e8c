package freeze_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/freeze"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// writeRandom writes random data to a file, to the disk, and returns the data.
func writeRandom(t *testing.T, path string, size int) []byte {
	t.Helper()
	data := make([]byte, size)
	rand.Read(data)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return data
}

// TestTrimGivesDeletedDataBack: the blocks of a deleted file leave the disk, those of another file
// stay.
func TestTrimGivesDeletedDataBack(t *testing.T) {
	const size = 64 << 20
	for _, fsType := range linuxtest.LinuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := linuxtest.NewFreezeBench(t)
			m, path := b.Image("image", fsType), b.Path("staging")
			b.MustMount(m, path)
			writeRandom(t, filepath.Join(path, "deleted"), size)
			kept := writeRandom(t, filepath.Join(path, "kept"), size)
			if err := os.Remove(filepath.Join(path, "deleted")); err != nil {
				t.Fatal(err)
			}
			syncFilesystem(t, path)
			before, freed := sizeOnDisk(t, m.Source), int64(0)
			await.True(t, "the blocks are given back", func() bool { // xfs frees the blocks of a deleted file in the background
				n, err := b.Trim(t.Context(), "", m.Source)
				if err != nil {
					t.Fatal(err)
				}
				freed += n
				return before-sizeOnDisk(t, m.Source) >= size*9/10
			})
			after := sizeOnDisk(t, m.Source)
			// xfs may give all back later, and a filesystem writes meanwhile.
			if after < size || freed > before-after+size/10 || freed <= 0 && fsType != "xfs" {
				t.Errorf("%d bytes became %d on the disk, and Trim returned %d", before, after, freed)
			}
			b.MustUnmount(path)
			b.MustMount(m, path)
			got, err := os.ReadFile(filepath.Join(path, "kept"))
			if err != nil || sha256.Sum256(got) != sha256.Sum256(kept) {
				t.Errorf("the other file has changed, %v", err)
			}
			b.MustUnmount(path)
		})
	}
}

func syncFilesystem(t *testing.T, path string) {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := freeze.SyncAll([]*os.File{dir}); err != nil {
		t.Fatal(err)
	}
}

// sizeOnDisk returns the bytes of the disk that a file takes.
func sizeOnDisk(t *testing.T, path string) int64 {
	t.Helper()
	n, err := freeze.Allocated(path)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTrimDoesNothingWithoutAFilesystem: the blocks of a raw volume, and of an image that is not
// mounted, stay.
func TestTrimDoesNothingWithoutAFilesystem(t *testing.T) {
	for _, fsType := range []string{"", "ext4"} {
		t.Run(cmp.Or(fsType, "device"), func(t *testing.T) {
			b := linuxtest.NewFreezeBench(t)
			m, path := b.Image("image", fsType), b.Path("staging")
			if fsType == "" {
				writeRandom(t, m.Source, 16<<20)
				b.MustMount(m, path)
				defer b.MustUnmount(path)
			}
			before, freed := sizeOnDisk(t, m.Source), int64(0)
			err := linuxtest.Answered(t, func() (err error) {
				freed, err = b.Trim(t.Context(), "", m.Source)
				return err
			})
			if after := sizeOnDisk(t, m.Source); err != nil || freed != 0 || before != after {
				t.Errorf("Trim = %d, %v; %d bytes became %d on the disk", freed, err, before, after)
			}
		})
	}
	b := linuxtest.NewFreezeBench(t)
	if _, err := b.Trim(t.Context(), "", filepath.Join(b.Storage, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Trim of a missing image = %v, want ErrNotExist", err)
	}
	if _, err := b.Trim(t.Context(), "", b.Storage); !errors.Is(err, mounter.ErrFormat) {
		t.Errorf("Trim of a directory = %v, want ErrFormat", err)
	}
}

// TestTrimGivesWay: a call that needs the image does not wait for the end of a trim. The helper of
// the trim is stopped, so that it does not end by itself.
func TestTrimGivesWay(t *testing.T) {
	for name, call := range map[string]func(b *linuxtest.Bench, m mounter.Mount, path string) error{
		"Unmount": func(b *linuxtest.Bench, _ mounter.Mount, path string) error {
			return b.Unmount(context.Background(), path)
		},
		"Remove": func(b *linuxtest.Bench, _ mounter.Mount, path string) error {
			return b.Remove(context.Background(), path)
		},
		"Grow": func(b *linuxtest.Bench, m mounter.Mount, path string) error {
			return b.Grow(context.Background(), m, path)
		},
		"Freeze": func(b *linuxtest.Bench, m mounter.Mount, _ string) error {
			return b.Freeze(context.Background(), "", []string{m.Source}, linuxtest.Eternity, linuxtest.Nothing)
		},
		"none": func(*linuxtest.Bench, mounter.Mount, string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := linuxtest.NewFreezeBench(t)
			l := b.Host.(*linux.Host)
			m, path := b.Image("image", "ext4"), b.Path("staging")
			b.MustMount(m, path)
			if _, err := b.Trim(t.Context(), "", m.Source); err != nil { // which leaves an idle helper for the next
				t.Fatal(err)
			}
			for _, pid := range ownHelpers(t) {
				stop(t, pid)
			}
			ctx, cancel := context.WithCancel(t.Context())
			trimmed := make(chan error, 1)
			go func() {
				_, err := b.Trim(ctx, "", m.Source)
				trimmed <- err
			}()
			await.True(t, "the trim runs", func() bool {
				select {
				case err := <-trimmed:
					t.Fatalf("the trim has ended: %v", err)
				default:
				}
				busy, _ := l.Tools.Helpers.Busy()
				return busy == 1
			})
			if _, err := b.Trim(t.Context(), "", m.Source); !errors.Is(err, mounter.ErrBusy) {
				t.Errorf("a second Trim = %v, want ErrBusy", err)
			}
			if err := call(b, m, path); err != nil && !(name == "Grow" && !linuxtest.MayGrowExt4(t)) {
				t.Errorf("%s during a trim: %v", name, err)
			}
			want := mounter.ErrBusy
			if name == "none" {
				cancel()
				want = context.Canceled
			}
			if err := <-trimmed; !errors.Is(err, want) {
				t.Errorf("Trim = %v, want %v", err, want)
			}
			cancel()
			if failing, err := b.Failing(); err != nil || failing[m.Source].Kind != 0 {
				t.Errorf("Failing = %v, %v", failing, err)
			}
			b.MustUnmount(path)
		})
	}
}

// stop stops a process until the end of the test: idle helpers of other tests must be able to end.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Kill(pid, unix.SIGCONT) })
	await.True(t, "the process has stopped", func() bool { // each of its threads stops by itself
		threads, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/status"))
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(threads, func(file string) bool {
			status, err := os.ReadFile(file)
			return err == nil && !strings.Contains(string(status), "\nState:\tT") && !strings.Contains(string(status),
				"\nState:\tZ")
		})
	})
}

// ownHelpers returns the helpers of this process.
func ownHelpers(t *testing.T) []int {
	t.Helper()
	parent := "\nPPid:\t" + strconv.Itoa(os.Getpid()) + "\n"
	return slices.DeleteFunc(linuxtest.HelperProcesses(t), func(pid int) bool {
		status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		return !strings.Contains(string(status), parent)
	})
}

// TestNoTrimDuringAFreeze: a trim would compete with copyData for the file of the image.
func TestNoTrimDuringAFreeze(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m, path := b.Image("image", "ext4"), b.Path("staging")
	b.MustMount(m, path)
	if err := b.Freeze(t.Context(), "", []string{m.Source}, linuxtest.Eternity, func(ctx context.Context) error {
		if _, err := b.Trim(ctx, "", m.Source); !errors.Is(err, mounter.ErrBusy) {
			t.Errorf("Trim during a freeze = %v, want ErrBusy", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if _, err := b.Trim(t.Context(), "", m.Source); err != nil {
		t.Errorf("Trim after the freeze = %v", err)
	}
	b.MustUnmount(path)
}

// TestTrimBesideCalls: mounts and unmounts work while the image is trimmed again and again.
func TestTrimBesideCalls(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	m := b.Image("image", "ext4")
	ctx, cancel := context.WithCancel(t.Context())
	var interrupted atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_, err := b.Trim(ctx, "", m.Source)
			// Between two mounts, a device of another test could be that of the image.
			gaveWay := errors.Is(err, mounter.ErrBusy) || errors.Is(err, mounter.ErrNoAnswer)
			if err != nil && !gaveWay && ctx.Err() == nil {
				t.Errorf("Trim = %v", err)
			}
			if errors.Is(err, mounter.ErrBusy) && strings.HasPrefix(err.Error(), "trim the ") { // it had found the mount
				interrupted.Add(1)
			}
		}
	}()
	for n := 0; n < 30 || interrupted.Load() == 0 && n < 1000; n++ {
		b.MustMount(m, b.Path("staging"))
		b.MustUnmount(b.Path("staging"))
	}
	cancel()
	<-ended
	if interrupted.Load() == 0 {
		t.Error("no trim gave way to an unmount")
	}
}
