package mounter

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// sound are the programs that check an unmounted filesystem for errors.
var sound = map[string][]string{
	"ext4": {"e2fsck", "-fn"},
	"xfs":  {"xfs_repair", "-n"},
	btrfs:  {"btrfs", "check"},
}

// run runs a program, which must succeed, on an image.
func (b *bench) run(m Mount, command ...string) {
	b.t.Helper()
	if out, err := exec.Command(command[0], append(command[1:], m.Source)...).CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %v, %s", command, err, out)
	}
}

func (b *bench) writeFile(text string, elem ...string) {
	b.t.Helper()
	f, err := os.Create(b.path(elem...))
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		b.t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) shows(want string, elem ...string) {
	b.t.Helper()
	if got, err := os.ReadFile(b.path(elem...)); err != nil || string(got) != want {
		b.t.Errorf("%v shows %q, %v, want %q", elem, got, err, want)
	}
}

func TestCopyWithANewUUIDIsMountedBesideItsSource(t *testing.T) {
	for _, fsType := range linuxFSTypes() {
		for _, dirty := range []bool{false, true} {
			t.Run(fsType+map[bool]string{false: ", clean", true: ", after a power cut"}[dirty], func(t *testing.T) {
				b := newLoopBench(t)
				m := b.image("image", fsType)
				if fsType == "ext4" {
					b.run(m, "tune2fs", "-T", "20200101") // checked long ago
				}
				b.mount(m, b.path("source"))
				b.writeFile("hello", "source", "f") // fsync puts the file into the log
				if !dirty {
					b.unmount(b.path("source"))
				}
				copied := b.copyImage(m, "copy")
				if !dirty {
					b.mount(m, b.path("source"))
				} else if fsType == btrfs {
					f, err := os.Open(copied.Source)
					if err != nil {
						t.Fatal(err)
					}
					if super, err := readBtrfs(f); err != nil || super.log == 0 {
						t.Fatalf("the copy's superblock is %+v, %v: the test proves nothing", super, err)
					}
					f.Close()
				}
				for range 2 {
					err := b.newUUID(copied)
					if dirty && fsType == btrfs && errors.Is(err, errors.ErrUnsupported) {
						t.Skip(err)
					}
					if err != nil {
						t.Fatal(err)
					}
					if left := b.loops(); len(left) != 1 {
						t.Errorf("attached: %v, want the source's device", left)
					}
					b.run(copied, sound[fsType]...)
					b.mount(copied, b.path("copy"))
					b.shows("hello", "copy", "f")
					b.writeFile("copy", "copy", "g")
					b.writeFile("source", "source", "g")
					b.shows("copy", "copy", "g")
					b.shows("source", "source", "g")
					b.unmount(b.path("copy"))
				}
				b.unmount(b.path("source"))
				b.run(m, sound[fsType]...)
			})
		}
	}
}

func TestEveryExt4GetsANewUUID(t *testing.T) {
	b := newLoopBench(t)
	for _, features := range []string{
		"metadata_csum", "metadata_csum,metadata_csum_seed", "^metadata_csum,uninit_bg",
		"^metadata_csum,^uninit_bg", "^has_journal",
	} {
		m := b.image("image", "ext4")
		b.run(m, "mkfs.ext4", "-q", "-F", "-O", features)
		b.run(m, "tune2fs", "-T", "20200101")
		b.mount(m, b.path("source"))
		b.unmount(b.path("source"))
		if err := b.newUUID(m); err != nil {
			t.Errorf("%s: %v", features, err)
		}
		b.run(m, sound["ext4"]...)
	}
}

func TestNewUUIDHonoursTheSectorSize(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "xfs")
	m.Sector = 4096
	if err := b.newUUID(m); err == nil {
		t.Error("NewUUID of a filesystem for other sectors = nil")
	}
	m.Sector = 512
	if err := b.newUUID(m); err != nil {
		t.Error(err)
	}
}

func TestNewUUIDRejectsABlankImage(t *testing.T) {
	b := newLoopBench(t)
	for _, fsType := range linuxFSTypes() {
		m := b.image("image", "")
		m.FSType = fsType
		before := b.copyImage(m, "before")
		if err := b.newUUID(m); !errors.Is(err, ErrFormat) {
			t.Errorf("NewUUID of a blank %s = %v, want ErrFormat", fsType, err)
		}
		b.run(m, "cmp", before.Source)
	}
}

func TestNewUUIDNamesAMissingProgram(t *testing.T) {
	b := newLoopBench(t)
	programs := map[string]string{"ext4": "e2fsck", "xfs": "xfs_db", btrfs: "btrfstune"}
	images := map[string]Mount{}
	for fsType := range programs {
		images[fsType] = b.image(fsType, fsType)
	}
	t.Setenv("PATH", t.TempDir())
	for fsType, program := range programs {
		if err := b.newUUID(images[fsType]); !errors.Is(err, errors.ErrUnsupported) ||
			!strings.Contains(err.Error(), program) {
			t.Errorf("NewUUID of a %s = %v, want ErrUnsupported that names %s", fsType, err, program)
		}
	}
}

func TestNewUUIDEndsWithItsContext(t *testing.T) {
	b := newLoopBench(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, fsType := range slices.DeleteFunc(linuxFSTypes(), func(t string) bool { return t == "ext4" }) {
		m := b.image(fsType, fsType)
		f, err := os.OpenFile(m.Source, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := b.NewUUID(ctx, f, fsType, 512); !errors.Is(err, context.Canceled) {
			t.Errorf("NewUUID of a %s = %v, want Canceled", fsType, err)
		}
	}
}
