package mounter

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
	"testing"

	"golang.org/x/sys/unix"
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
	for _, fsType := range linuxFSTypes() {
		t.Run(fsType, func(t *testing.T) {
			b := newFreezeBench(t)
			m, path := b.image("image", fsType), b.path("staging")
			b.mount(m, path)
			writeRandom(t, filepath.Join(path, "deleted"), size)
			kept := writeRandom(t, filepath.Join(path, "kept"), size)
			if err := os.Remove(filepath.Join(path, "deleted")); err != nil {
				t.Fatal(err)
			}
			syncFilesystem(t, path)
			before, freed := sizeOnDisk(t, m.Source), int64(0)
			await(t, "the blocks are given back", func() bool { // xfs frees the blocks of a deleted file in the background
				n, err := b.Trim(t.Context(), "", m.Source)
				if err != nil {
					t.Fatal(err)
				}
				freed += n
				return before-sizeOnDisk(t, m.Source) >= size*9/10
			})
			after := sizeOnDisk(t, m.Source)
			if after < size || freed > before-after || freed <= 0 && fsType != "xfs" { // it may be late
				t.Errorf("%d bytes became %d on the disk, and Trim returned %d", before, after, freed)
			}
			b.unmount(path)
			b.mount(m, path)
			got, err := os.ReadFile(filepath.Join(path, "kept"))
			if err != nil || sha256.Sum256(got) != sha256.Sum256(kept) {
				t.Errorf("the other file has changed, %v", err)
			}
			b.unmount(path)
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
	if err := syncAll([]*os.File{dir}); err != nil {
		t.Fatal(err)
	}
}

// sizeOnDisk returns the bytes of the disk that a file takes.
func sizeOnDisk(t *testing.T, path string) int64 {
	t.Helper()
	n, err := allocated(path)
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
			b := newFreezeBench(t)
			m, path := b.image("image", fsType), b.path("staging")
			if fsType == "" {
				writeRandom(t, m.Source, 16<<20)
				b.mount(m, path)
				defer b.unmount(path)
			}
			before := sizeOnDisk(t, m.Source)
			freed, err := b.Trim(t.Context(), "", m.Source)
			if after := sizeOnDisk(t, m.Source); err != nil || freed != 0 || before != after {
				t.Errorf("Trim = %d, %v; %d bytes became %d on the disk", freed, err, before, after)
			}
		})
	}
	b := newFreezeBench(t)
	if _, err := b.Trim(t.Context(), "", filepath.Join(b.storage, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Trim of a missing image = %v, want ErrNotExist", err)
	}
	if _, err := b.Trim(t.Context(), "", b.storage); !errors.Is(err, ErrFormat) {
		t.Errorf("Trim of a directory = %v, want ErrFormat", err)
	}
}

// TestTrimGivesWay: a call that needs the image does not wait for the end of a trim. The helper of
// the trim is stopped, so that it does not end by itself.
func TestTrimGivesWay(t *testing.T) {
	for name, call := range map[string]func(b *bench, m Mount, path string) error{
		"Unmount": func(b *bench, _ Mount, path string) error { return b.Unmount(context.Background(), path) },
		"Remove":  func(b *bench, _ Mount, path string) error { return b.Remove(context.Background(), path) },
		"Grow":    func(b *bench, m Mount, path string) error { return b.Grow(context.Background(), m, path) },
		"Freeze": func(b *bench, m Mount, _ string) error {
			return b.Freeze(context.Background(), "", []string{m.Source}, eternity, nothing)
		},
		"none": func(*bench, Mount, string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := newFreezeBench(t)
			l := b.Host.(*linux)
			m, path := b.image("image", "ext4"), b.path("staging")
			b.mount(m, path)
			others := ownHelpers(t)
			if _, err := b.Trim(t.Context(), "", m.Source); err != nil {
				t.Fatal(err)
			}
			idle := slices.DeleteFunc(ownHelpers(t), func(pid int) bool { return slices.Contains(others, pid) })
			if len(idle) != 1 { // the helper of the next trim
				t.Fatalf("idle helpers: %v, want one", idle)
			}
			if err := unix.Kill(idle[0], unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			trimmed := make(chan error)
			go func() {
				_, err := b.Trim(ctx, "", m.Source)
				trimmed <- err
			}()
			await(t, "the trim runs", func() bool { busy, _ := l.helpers.Busy(); return busy == 1 })
			if _, err := b.Trim(t.Context(), "", m.Source); !errors.Is(err, ErrBusy) {
				t.Errorf("a second Trim = %v, want ErrBusy", err)
			}
			if err := call(b, m, path); err != nil && !(name == "Grow" && !mayGrowExt4(t)) {
				t.Errorf("%s during a trim: %v", name, err)
			}
			want := ErrBusy
			if name == "none" {
				cancel()
				want = context.Canceled
			}
			if err := <-trimmed; !errors.Is(err, want) {
				t.Errorf("Trim = %v, want %v", err, want)
			}
			cancel()
			if failing, err := b.Failing(); err != nil || len(failing) > 0 {
				t.Errorf("Failing = %v, %v", failing, err)
			}
			b.unmount(path)
		})
	}
}

// ownHelpers returns the helpers of this process.
func ownHelpers(t *testing.T) []int {
	t.Helper()
	parent := "\nPPid:\t" + strconv.Itoa(os.Getpid()) + "\n"
	return slices.DeleteFunc(helperProcesses(t), func(pid int) bool {
		status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		return !strings.Contains(string(status), parent)
	})
}

// TestTrimBesideCalls: mounts and unmounts work while the image is trimmed again and again.
func TestTrimBesideCalls(t *testing.T) {
	b := newFreezeBench(t)
	m := b.image("image", "ext4")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if _, err := b.Trim(ctx, "", m.Source); err != nil && !errors.Is(err, ErrBusy) && ctx.Err() == nil {
				t.Errorf("Trim = %v", err)
			}
		}
	}()
	for range 30 {
		b.mount(m, b.path("staging"))
		b.unmount(b.path("staging"))
	}
	cancel()
	<-ended
}
