package linux_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// overlay mounts an overlay until the test is over.
func overlay(b *linuxtest.Bench, path, options string) {
	b.T.Helper()
	linuxtest.Mkdir(b.T, path)
	if err := unix.Mount("overlay", path, "overlay", 0, options); err != nil {
		b.T.Skipf("no overlays: %v", err)
	}
	b.T.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
}

// overlayOf mounts an overlay with the system calls of Linux 6.8, each layer as its own option.
func overlayOf(b *linuxtest.Bench, path string, layers ...string) bool {
	b.T.Helper()
	linuxtest.Mkdir(b.T, path)
	fsys, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		b.T.Fatal(err)
	}
	defer unix.Close(fsys)
	for _, layer := range layers {
		if err := unix.FsconfigSetString(fsys, "lowerdir+", layer); err != nil {
			return false
		}
	}
	if err := unix.FsconfigCreate(fsys); err != nil {
		b.T.Fatal(err)
	}
	fd, err := unix.Fsmount(fsys, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		b.T.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	return true
}

// usedAt waits until the overlay at path is the only user of a directory. The search gives up a
// layer that does not answer at once, as on a busy machine.
func usedAt(b *linuxtest.Bench, source, path, what string) {
	b.T.Helper()
	await.NoError(b.T, what+": the overlay is found", func() error {
		got, err := b.MountPointsOf(source)
		if err != nil || !slices.Equal(got, []string{path}) {
			return fmt.Errorf("MountPointsOf = %v, %w, want %s", got, err, path)
		}
		return nil
	})
}

func TestMountPointsOfIncludesOverlays(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	dir := filepath.Dir(b.Kubelet)
	other := b.Volume("other")
	link, bind := filepath.Join(dir, "link"), filepath.Join(dir, "bind")
	if err := os.Symlink(b.Storage, link); err != nil {
		t.Fatal(err)
	}
	linuxtest.Mkdir(t, bind)
	if err := unix.Mount(b.Storage, bind, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(bind, unix.MNT_DETACH) })
	escape := strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`)
	for i, name := range []string{"v", "with space", "a:b", "c,d", `e\f`} {
		v := b.Volume(name)
		linuxtest.Mkdir(t, filepath.Join(v.Source, "sub"))
		linuxtest.Mkdir(t, filepath.Join(v.Source, "upper"))
		linuxtest.Mkdir(t, filepath.Join(v.Source, "work"))
		for way, layer := range map[string]string{
			"itself": v.Source, "a directory in it": filepath.Join(v.Source, "sub"),
			"through a link":        filepath.Join(link, name),
			"through another mount": filepath.Join(bind, name, "sub"),
			"with dots":             v.Source + "/../" + name + "/./sub/",
		} {
			path := filepath.Join(dir, fmt.Sprint("overlay", i))
			used := func(what string) {
				t.Helper()
				usedAt(b, v.Source, path, fmt.Sprintf("%q, %s, %s", name, way, what))
				if got, err := b.MountPointsOf(other.Source); err != nil || len(got) > 0 {
					t.Errorf("%q, %s, %s: MountPointsOf of another = %v, %v", name, way, what, got, err)
				}
				if err := unix.Unmount(path, 0); err != nil {
					t.Fatal(err)
				}
			}
			overlay(b, path, "lowerdir="+escape.Replace(dir)+":"+escape.Replace(layer))
			used("lowerdir")
			if overlayOf(b, path, dir, layer) {
				used("lowerdir+")
			}
		}
		path := filepath.Join(dir, fmt.Sprint("overlay", i))
		overlay(b, path, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escape.Replace(other.Source),
			escape.Replace(filepath.Join(v.Source, "upper")), escape.Replace(filepath.Join(v.Source, "work"))))
		for _, source := range []string{v.Source, other.Source} {
			usedAt(b, source, path, fmt.Sprintf("%q, %s", name, source))
		}
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
		if got, err := b.MountPointsOf(v.Source); err != nil || len(got) > 0 {
			t.Errorf("%q: MountPointsOf = %v, %v after all that", name, got, err)
		}
	}
}

// TestMountPointsOfFindsAMovedLayerByItsPath: the recorded path no longer leads to the layer, which
// is still in the volume.
func TestMountPointsOfFindsAMovedLayerByItsPath(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	v, lower := b.Volume("v"), b.Volume("lower")
	sub := filepath.Join(v.Source, "sub")
	linuxtest.Mkdir(t, sub)
	path := filepath.Join(filepath.Dir(b.Kubelet), "overlay")
	overlay(b, path, "lowerdir="+lower.Source+":"+sub)
	if err := os.Rename(sub, sub+"-moved"); err != nil {
		t.Fatal(err)
	}
	if got, err := b.MountPointsOf(v.Source); err != nil || !slices.Equal(got, []string{path}) {
		t.Errorf("MountPointsOf = %v, %v, want %s", got, err, path)
	}
	if got, err := b.MountPointsOf(v.Source + "-none"); err != nil || len(got) > 0 {
		t.Errorf("MountPointsOf of a missing path = %v, %v", got, err)
	}
}
