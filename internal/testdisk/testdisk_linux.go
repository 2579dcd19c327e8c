package testdisk

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Filesystem is one to mount.
type Filesystem struct {
	Type     string   // ext4, xfs or btrfs
	Size     int64    // of the file, in bytes; 0: one that does for most
	Make     []string // arguments for mkfs
	Options  string   // for mount, without loop
	Reflinks bool     // files on it can share blocks
	Rare     bool     // few kernels can mount it so: elsewhere the test is skipped
}

// All are the filesystems on which a root may be.
var All = []Filesystem{{Type: "ext4"}, {Type: "xfs", Reflinks: true}, {Type: "btrfs", Reflinks: true}}

// standard is the size of a Filesystem that doesn't say, in bytes: what it doesn't use is a hole.
const standard = 4 << 30

// Mount makes the filesystem and mounts it at dir, an existing directory, until the test is over. It skips the test
// where that can't be.
func (f Filesystem) Mount(t testing.TB, dir string) {
	t.Helper()
	f.need(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	size := f.Size
	if size == 0 {
		size = standard
	}
	if err := errors.Join(file.Truncate(size), file.Close()); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs."+f.Type, append(append([]string{"-q"}, f.Make...), file.Name())...)
	out, err := exec.Command("mount", "-t", f.Type, "-o", strings.TrimSuffix("loop,"+f.Options, ","), file.Name(), dir).CombinedOutput()
	if err != nil && f.Rare {
		t.Skipf("this kernel mounts no %s with %s (make test-vm has one that does): %s", f.Type, f.Options, out)
	}
	if err != nil {
		t.Fatalf("mount %s: %v: %s", f.Type, err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmount %s: %v: something is left open", dir, err)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
		Detached(t, file.Name())
	})
}

// Detached makes sure that soon no loop device holds a file whose path starts with prefix.
func Detached(t testing.TB, prefix string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); len(Loops(t, prefix)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("left: %v", Loops(t, prefix))
		}
	}
}

// Loops returns the loop devices, as /dev/loop0, that hold a file whose path starts with prefix.
func Loops(t testing.TB, prefix string) (devices []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name, _ := os.ReadFile(file); strings.HasPrefix(string(name), prefix) { // it fails if the device has just let go
			devices = append(devices, filepath.Join("/dev", strings.Split(file, "/")[3]))
		}
	}
	return devices
}

// need skips the test where the filesystem can't be made or mounted.
func (f Filesystem) need(t testing.TB) {
	t.Helper()
	if why := Missing(t); why != "" {
		t.Skip(why)
	}
	if _, err := exec.LookPath("mkfs." + f.Type); err != nil {
		t.Skip(err)
	}
	// The kernel looks for the filesystem, and loads its module, before it sees that there is nothing to mount.
	err := unix.Mount(filepath.Join(t.TempDir(), "none"), t.TempDir(), f.Type, 0, "")
	if errors.Is(err, unix.ENODEV) {
		t.Skipf("the kernel has no %s", f.Type)
	}
}

// Missing returns why no loop device can be mounted here, or "". In a user namespace it can't be, whoever is root in it.
func Missing(t testing.TB) string {
	t.Helper()
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(strings.Fields(string(users)), []string{"0", "0", "4294967295"}) {
		return "only the machine's root can mount a loop device, and this is a user namespace"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return err.Error()
	}
	return ""
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
