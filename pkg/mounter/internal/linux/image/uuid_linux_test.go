package image_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// sound are the programs that check an unmounted filesystem for errors.
var sound = map[string][]string{
	"ext4":     {"e2fsck", "-fn"},
	"xfs":      {"xfs_repair", "-n"},
	tree.Btrfs: {"btrfs", "check"},
}

func shows(b *linuxtest.Bench, want string, elem ...string) {
	b.T.Helper()
	if got, err := os.ReadFile(b.Path(elem...)); err != nil || string(got) != want {
		b.T.Errorf("%v shows %q, %v, want %q", elem, got, err, want)
	}
}

func TestCopyWithANewUUIDIsMountedBesideItsSource(t *testing.T) {
	for _, fsType := range linuxtest.LinuxFSTypes() {
		for _, dirty := range []bool{false, true} {
			t.Run(fsType+map[bool]string{false: ", clean", true: ", after a power cut"}[dirty], func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				m := b.Image("image", fsType)
				if fsType == "ext4" {
					b.Run(m, "tune2fs", "-T", "20200101") // checked long ago
				}
				b.MustMount(m, b.Path("source"))
				b.WriteFile("hello", "source", "f") // fsync puts the file into the log
				if !dirty {
					b.MustUnmount(b.Path("source"))
				}
				copied := b.CopyImage(m, "copy")
				if !dirty {
					b.MustMount(m, b.Path("source"))
				} else if fsType == tree.Btrfs {
					f, err := os.Open(copied.Source)
					if err != nil {
						t.Fatal(err)
					}
					if super, err := filesystem.ReadBtrfs(f); err != nil || super.Log == 0 {
						t.Fatalf("the copy's superblock is %+v, %v: the test proves nothing", super, err)
					}
					f.Close()
				}
				for range 2 {
					err := b.RenewUUID(copied)
					if dirty && fsType == tree.Btrfs && errors.Is(err, errors.ErrUnsupported) {
						t.Skip(err)
					}
					if err != nil {
						t.Fatal(err)
					}
					b.WaitForLoops(1) // the source's
					b.Run(copied, sound[fsType]...)
					b.MustMount(copied, b.Path("copy"))
					shows(b, "hello", "copy", "f")
					b.WriteFile("copy", "copy", "g")
					b.WriteFile("source", "source", "g")
					shows(b, "copy", "copy", "g")
					shows(b, "source", "source", "g")
					b.MustUnmount(b.Path("copy"))
				}
				b.MustUnmount(b.Path("source"))
				b.Run(m, sound[fsType]...)
			})
		}
	}
}

func TestEveryExt4GetsANewUUID(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	for _, features := range []string{
		"metadata_csum", "metadata_csum,metadata_csum_seed", "^metadata_csum,uninit_bg",
		"^metadata_csum,^uninit_bg", "^has_journal",
	} {
		m := b.Image("image", "ext4")
		b.Run(m, "mkfs.ext4", "-q", "-F", "-O", features)
		b.Run(m, "tune2fs", "-T", "20200101")
		b.MustMount(m, b.Path("source"))
		b.MustUnmount(b.Path("source"))
		if err := b.RenewUUID(m); err != nil {
			t.Errorf("%s: %v", features, err)
		}
		b.Run(m, sound["ext4"]...)
	}
}

func TestNewUUIDHonoursTheSectorSize(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "xfs")
	m.Sector = 4096
	if err := b.RenewUUID(m); err == nil {
		t.Error("NewUUID of a filesystem for other sectors = nil")
	}
	m.Sector = 512
	if err := b.RenewUUID(m); err != nil {
		t.Error(err)
	}
}

func TestNewUUIDRejectsABlankImage(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	for _, fsType := range linuxtest.LinuxFSTypes() {
		m := b.Image("image", "")
		m.FSType = fsType
		before := b.CopyImage(m, "before")
		if err := b.RenewUUID(m); !errors.Is(err, mounter.ErrFormat) {
			t.Errorf("NewUUID of a blank %s = %v, want ErrFormat", fsType, err)
		}
		b.Run(m, "cmp", before.Source)
	}
}

func TestNewUUIDNamesAMissingProgram(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	programs := map[string]string{"ext4": "e2fsck", "xfs": "xfs_db", tree.Btrfs: "btrfstune"}
	images := map[string]mounter.Mount{}
	for fsType := range programs {
		images[fsType] = b.Image(fsType, fsType)
	}
	t.Setenv("PATH", t.TempDir())
	for fsType, program := range programs {
		if err := b.RenewUUID(images[fsType]); !errors.Is(err, errors.ErrUnsupported) ||
			!strings.Contains(err.Error(), program) {
			t.Errorf("NewUUID of a %s = %v, want ErrUnsupported that names %s", fsType, err, program)
		}
	}
}

func TestNewUUIDEndsWithItsContext(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, fsType := range slices.DeleteFunc(linuxtest.LinuxFSTypes(), func(t string) bool { return t == "ext4" }) {
		m := b.Image(fsType, fsType)
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
