package linux_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	mountutils "k8s.io/mount-utils"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// look is the view of a path: that of mount-utils, and that of this package.
type look struct {
	path     string
	listed   int   // entries of List with this path
	point    bool  // IsMountPoint
	pointErr error // of IsMountPoint
	occupied bool
	err      error // of Occupied
}

// expect compares both views of the paths with the expected ones, and List with the paths: it must
// have no other entry below the kubelet directory.
func expect(b *linuxtest.Bench, looks ...look) {
	b.T.Helper()
	utils := mountutils.New("")
	all, err := utils.List()
	if err != nil {
		b.T.Fatal(err)
	}
	listed := map[string]int{}
	for _, m := range all {
		if path := linux.UnescapeOctal(m.Path); linux.Within(path, b.Kubelet) { // List does not decode /proc/mounts
			listed[path]++
		}
	}
	for _, want := range looks {
		if got := listed[want.path]; got != want.listed {
			b.T.Errorf("%q: List has %d entries, want %d", want.path, got, want.listed)
		}
		delete(listed, want.path)
		if got, err := utils.IsMountPoint(want.path); got != want.point || !errors.Is(err, want.pointErr) {
			b.T.Errorf("%q: IsMountPoint = %t, %v, want %t, %v", want.path, got, err, want.point, want.pointErr)
		}
		if got, err := b.Occupied(context.Background(), want.path); got != want.occupied || !errors.Is(err, want.err) {
			b.T.Errorf("%q: Occupied = %t, %v, want %t, %v", want.path, got, err, want.occupied, want.err)
		}
	}
	for path := range listed {
		b.T.Errorf("%q: List has this path, and the test does not expect it", path)
	}
}

// Views in which mount-utils and this package agree.
func mountedAt(path string, layers int) look {
	return look{path: path, listed: layers, point: true, occupied: true}
}

func emptyAt(path string) look { return look{path: path} }

// missingAt returns the view of a path that does not exist: an error for mount-utils, and
// unoccupied for this package, as nothing is left to unmount.
func missingAt(path string) look { return look{path: path, pointErr: fs.ErrNotExist} }

// rawMount mounts without this package, as another program would.
func rawMount(t *testing.T, source, target string, flags uintptr) {
	t.Helper()
	fsType := ""
	if flags&unix.MS_BIND == 0 {
		fsType = "tmpfs"
	}
	if err := unix.Mount(source, target, fsType, flags, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
}

// TestMountUtilsSeesTheSameMounts compares List and IsMountPoint of k8s.io/mount-utils with this
// package. docs/explanation/mount-utils.md lists the differences that these cases show.
func TestMountUtilsSeesTheSameMounts(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, b *linuxtest.Bench){
		"bind mounts of a directory and of a file": func(t *testing.T, b *linuxtest.Bench) {
			dir, file := b.Path("dir"), b.Path("file")
			b.MustMount(b.Volume("v"), dir)
			for _, f := range []string{file, filepath.Join(b.Storage, "source")} {
				if err := os.WriteFile(f, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			expect(b, mountedAt(dir, 1), emptyAt(file), missingAt(b.Path("none")))
			rawMount(t, filepath.Join(b.Storage, "source"), file, unix.MS_BIND)
			expect(b, mountedAt(dir, 1), mountedAt(file, 1))
			for _, path := range []string{dir, file} {
				if err := b.Unmount(t.Context(), path); err != nil {
					t.Fatal(err)
				}
			}
			expect(b, emptyAt(dir), emptyAt(file))
		},
		"a mount in a mount": func(t *testing.T, b *linuxtest.Bench) {
			outer, inner := b.Path("outer"), b.Path("outer", "inner")
			b.MustMount(b.Volume("v"), outer)
			b.MustMount(b.Volume("w"), inner)
			expect(b, mountedAt(outer, 1), mountedAt(inner, 1), missingAt(filepath.Join(inner, "none")))
			if err := b.Unmount(t.Context(), inner); err != nil {
				t.Fatal(err)
			}
			expect(b, mountedAt(outer, 1), emptyAt(inner))
		},
		"paths that mount tables escape, and others": func(t *testing.T, b *linuxtest.Bench) {
			var looks []look
			for _, name := range []string{
				"a space", " both ends ", "tab\there", "line\nbreak", `back\slash`, `\040`, "#comment",
				"Größe", "巻", "e\u0301", "\U0001f4be", "not UTF-8 \xff", "'\"$`*",
			} {
				b.MustMount(b.Volume(name), b.Path(name))
				looks = append(looks, mountedAt(b.Path(name), 1))
			}
			expect(b, looks...)
		},
		"a source that was deleted": func(t *testing.T, b *linuxtest.Bench) {
			v, target := b.Volume("v"), b.Path("target")
			b.MustMount(v, target)
			if err := os.Remove(v.Source); err != nil {
				t.Fatal(err)
			}
			// This package replaces such a mount and does not count it; mount-utils does.
			expect(b, look{path: target, listed: 1, point: true})
			b.MustMount(b.Volume("v"), target)
			expect(b, mountedAt(target, 1))
		},
		"a target that was deleted in another mount namespace": func(t *testing.T, b *linuxtest.Bench) {
			v, target := b.Volume("v"), b.Path("target")
			b.MustMount(v, target)
			removeElsewhere(t, target)
			expect(b, missingAt(target))
			b.MustMount(v, target)
			expect(b, mountedAt(target, 1))
		},
		"symbolic links": func(t *testing.T, b *linuxtest.Bench) {
			target, last, middle := b.Path("pod", "target"), b.Path("last"), b.Path("middle")
			linuxtest.Mkdir(t, b.Path("pod"))
			b.MustMount(b.Volume("v"), target)
			for link, to := range map[string]string{last: target, middle: b.Path("pod")} {
				if err := os.Symlink(to, link); err != nil {
					t.Fatal(err)
				}
			}
			// mount-utils follows links, and this package never does.
			expect(b, mountedAt(target, 1),
				look{path: last, point: true, err: mounter.ErrPath},
				look{path: filepath.Join(middle, "target"), point: true, err: mounter.ErrPath})
		},
		"mounts over a mount": func(t *testing.T, b *linuxtest.Bench) {
			v, target := b.Volume("v"), b.Path("target")
			b.MustMount(v, target)
			b.Refused(b.Volume("w"), target, mounter.ErrConflict)
			expect(b, mountedAt(target, 1))
			rawMount(t, b.Volume("w").Source, target, unix.MS_BIND)
			rawMount(t, "none", target, 0)
			expect(b, mountedAt(target, 3))
			if err := b.Unmount(t.Context(), target); err != nil {
				t.Fatal(err)
			}
			expect(b, emptyAt(target))
		},
		"a mount over the parent of a mount": func(t *testing.T, b *linuxtest.Bench) {
			parent, target := b.Path("pod"), b.Path("pod", "target")
			linuxtest.Mkdir(t, parent)
			b.MustMount(b.Volume("v"), target)
			rawMount(t, "none", parent, 0)
			// List still has the mount, which no path reaches. Neither package finds it by its
			// path.
			expect(b, mountedAt(parent, 1), look{path: target, listed: 1, pointErr: fs.ErrNotExist})
			if err := b.Unmount(t.Context(), parent); err != nil {
				t.Fatal(err)
			}
			expect(b, emptyAt(parent), mountedAt(target, 1))
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, linuxtest.NewRealBench(t)) })
	}
}

// removeElsewhere removes a directory that is a mount point here, in a mount namespace where the
// directory is no mount point. The kernel then removes the mount here: Linux 3.18, d_invalidate.
func removeElsewhere(t *testing.T, path string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `umount "$0" && rmdir "$0"`, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // os/exec makes its mounts private
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestMountUtilsFailsOnAWideSpace: List fails if any mount point of the machine contains a space
// character outside ASCII. This package does not read the mount table to inspect a path.
func TestMountUtilsFailsOnAWideSpace(t *testing.T) {
	for _, space := range []string{"\u00a0", "\u3000", "\u2003", "\v"} {
		b := linuxtest.NewRealBench(t)
		v, target := b.Volume("v"), b.Path("wide"+space+"space")
		b.MustMount(v, target)
		if all, err := mountutils.New("").List(); err == nil {
			t.Errorf("List has %d entries: mount-utils can read %q now: correct docs/explanation/mount-utils.md", len(all),
				target)
		}
		if got, err := mountutils.New("").IsMountPoint(target); err != nil || !got {
			t.Errorf("IsMountPoint(%q) = %t, %v, want true", target, got, err)
		}
		if !b.IsMounted(v, target) {
			t.Errorf("Mounted(%q) = false", target)
		}
		if got, err := b.MountPointsOf(v.Source); err != nil || !slices.Equal(got, []string{target}) {
			t.Errorf("MountPointsOf = %q, %v, want %q", got, err, target)
		}
		if err := b.Remove(t.Context(), target); err != nil {
			t.Error(err)
		}
	}
}

// TestMountUtilsMountsAreInterchangeable: mount-utils and this package find and unmount the mounts
// of each other.
func TestMountUtilsMountsAreInterchangeable(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	for _, program := range []string{"mount", "umount"} { // mount-utils runs them
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	utils := mountutils.New("")
	v, target := b.Volume("a volume"), b.Path("a target")
	other, third := b.Path("other"), b.Path("third")
	linuxtest.Mkdir(t, target)
	if err := utils.Mount(v.Source, target, "", []string{"bind", "nosuid", "nodev"}); err != nil {
		t.Fatal(err)
	}
	expect(b, mountedAt(target, 1))
	b.MustMount(v, target) // the same mount, with the same options
	expect(b, mountedAt(target, 1))
	b.MustMount(v, other)
	b.MustMount(v, third)
	if got, err := b.MountPointsOf(v.Source); err != nil || !slices.Equal(got, []string{target, other, third}) {
		t.Errorf("MountPointsOf = %q, %v, want three paths", got, err)
	}
	otherPaths(b, third, other)
	if err := utils.Unmount(other); err != nil {
		t.Fatal(err)
	}
	expect(b, mountedAt(target, 1), emptyAt(other), mountedAt(third, 1))
	otherPaths(b, third)
	if err := b.Unmount(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	expect(b, emptyAt(target), emptyAt(other), mountedAt(third, 1))
}

// siblings compares the result of OtherTargets for path with the wanted paths.
func otherPaths(b *linuxtest.Bench, path string, want ...string) {
	b.T.Helper()
	if got, err := b.OtherTargets(context.Background(), path); err != nil || !slices.Equal(got, want) {
		b.T.Errorf("OtherTargets(%q) = %q, %v, want %q", path, got, err, want)
	}
}
