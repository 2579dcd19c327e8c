package mounter

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOverlayLayers(t *testing.T) {
	for options, want := range map[string][]string{
		`rw,lowerdir=/a:/b\134:c:/f\040g:/h\134\134i,upperdir=up/u,workdir=up/w,uuid=on`: {"/a",
			"/b:c", "/f g", `/h\i`, "up/u", "up/u", "up/w", "up/w"},
		`rw,lowerdir=a:/d\134\054e,upperdir=/u\134:x,workdir=/w\134\134y`: {"a",
			"/d,e", "/u:x", `/u\:x`, `/w\y`, `/w\\y`},
		`ro,lowerdir+=/b:c,lowerdir+=/d\054e,lowerdir+=/h\134i,datadir+=/f\040g,redirect_dir=on,metacopy=on`: {"/b:c",
			"/d,e", `/h\i`, "/f g"},
		`ro,lowerdir=/a:/b::/data::/more,metacopy=on`: {"/a",
			"/b", "/data", "/more"},
		`rw,upperdir=/u:v`:                       {"/u:v", "/u:v"},
		`ro,lowerdir=/trailing\134`:              {`/trailing\`},
		"":                                       nil,
		`rw,lowerdir,upperdir=,lowerdirs=/x,\05`: {""},
	} {
		if got := overlayLayers(options); !slices.Equal(got, want) {
			t.Errorf("overlayLayers(%s) = %q, want %q", options, got, want)
		}
	}
}

func FuzzLayersOfAnOverlay(f *testing.F) {
	for _, path := range []string{"/a", "/b:c", `/d\e`, "/f,g", "/h i\n\t", "/:", `/\`, "/é"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		overlayLayers(path)
		if path == "" {
			return
		}
		escape := strings.NewReplacer(`\`, `\\`, ":", `\:`)
		octal := strings.NewReplacer(`\`, `\134`, ",", `\054`, " ", `\040`, "\t", `\011`, "\n", `\012`)
		for option, value := range map[string]string{
			"lowerdir": escape.Replace(path), "upperdir": escape.Replace(path), "workdir": path, "lowerdir+": path,
			"datadir+": path,
		} {
			if got := overlayLayers("rw," + option + "=" + octal.Replace(value) + ",x=y"); !slices.Contains(got, path) {
				t.Errorf("%s of %q: %q", option, path, got)
			}
		}
	})
}

// overlay mounts an overlay until the test is over.
func (b *bench) overlay(path, options string) {
	b.t.Helper()
	mkdir(b.t, path)
	if err := unix.Mount("overlay", path, "overlay", 0, options); err != nil {
		b.t.Skipf("no overlays: %v", err)
	}
	b.t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
}

// overlayOf mounts an overlay with the system calls of Linux 6.8, each layer as its own option.
func (b *bench) overlayOf(path string, layers ...string) bool {
	b.t.Helper()
	mkdir(b.t, path)
	fsys, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		b.t.Fatal(err)
	}
	defer unix.Close(fsys)
	for _, layer := range layers {
		if err := unix.FsconfigSetString(fsys, "lowerdir+", layer); err != nil {
			return false
		}
	}
	if err := unix.FsconfigCreate(fsys); err != nil {
		b.t.Fatal(err)
	}
	fd, err := unix.Fsmount(fsys, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	return true
}

func TestMountPointsOfIncludesOverlays(t *testing.T) {
	b := newRealBench(t)
	dir := filepath.Dir(b.kubelet)
	other := b.volume("other")
	link, bind := filepath.Join(dir, "link"), filepath.Join(dir, "bind")
	if err := os.Symlink(b.storage, link); err != nil {
		t.Fatal(err)
	}
	mkdir(t, bind)
	if err := unix.Mount(b.storage, bind, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(bind, unix.MNT_DETACH) })
	escape := strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`)
	for i, name := range []string{"v", "with space", "a:b", "c,d", `e\f`} {
		v := b.volume(name)
		mkdir(t, filepath.Join(v.Source, "sub"))
		mkdir(t, filepath.Join(v.Source, "upper"))
		mkdir(t, filepath.Join(v.Source, "work"))
		for way, layer := range map[string]string{
			"itself": v.Source, "a directory in it": filepath.Join(v.Source, "sub"),
			"through a link":        filepath.Join(link, name),
			"through another mount": filepath.Join(bind, name, "sub"),
			"with dots":             v.Source + "/../" + name + "/./sub/",
		} {
			path := filepath.Join(dir, fmt.Sprint("overlay", i))
			used := func(what string) {
				t.Helper()
				if got, err := b.MountPointsOf(v.Source); err != nil || !slices.Equal(got, []string{path}) {
					t.Errorf("%q, %s, %s: MountPointsOf = %v, %v, want %s", name, way, what, got, err, path)
				}
				if got, err := b.MountPointsOf(other.Source); err != nil || len(got) > 0 {
					t.Errorf("%q, %s, %s: MountPointsOf of another = %v, %v", name, way, what, got, err)
				}
				if err := unix.Unmount(path, 0); err != nil {
					t.Fatal(err)
				}
			}
			b.overlay(path, "lowerdir="+escape.Replace(dir)+":"+escape.Replace(layer))
			used("lowerdir")
			if b.overlayOf(path, dir, layer) {
				used("lowerdir+")
			}
		}
		path := filepath.Join(dir, fmt.Sprint("overlay", i))
		b.overlay(path, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escape.Replace(other.Source),
			escape.Replace(filepath.Join(v.Source, "upper")), escape.Replace(filepath.Join(v.Source, "work"))))
		for _, source := range []string{v.Source, other.Source} {
			if got, err := b.MountPointsOf(source); err != nil || !slices.Equal(got, []string{path}) {
				t.Errorf("%q: MountPointsOf(%s) = %v, %v", name, source, got, err)
			}
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
	b := newRealBench(t)
	v, lower := b.volume("v"), b.volume("lower")
	sub := filepath.Join(v.Source, "sub")
	mkdir(t, sub)
	path := filepath.Join(filepath.Dir(b.kubelet), "overlay")
	b.overlay(path, "lowerdir="+lower.Source+":"+sub)
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
