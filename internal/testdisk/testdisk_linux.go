package testdisk

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/namespace"
)

// Filesystem is a filesystem to mount.
type Filesystem struct {
	Type     string   // ext4, xfs or btrfs
	Size     int64    // of the file, in bytes; 0: the standard size
	Make     []string // arguments for mkfs
	Options  string   // for mount, without loop
	Reflinks bool     // files on it can share blocks
	Rare     bool     // few kernels can mount it; elsewhere the test is skipped
}

// All are the filesystems that a root can have.
var All = []Filesystem{{Type: "ext4"}, {Type: "xfs", Reflinks: true}, {Type: "btrfs", Reflinks: true}}

// standard is the size of a Filesystem without Size, in bytes. Unused space is a hole.
const standard = 4 << 30

// Mount makes the filesystem and mounts it at dir, an existing directory, until the end of the
// test. Mount skips the test if that is impossible.
func (f Filesystem) Mount(t testing.TB, dir string) {
	t.Helper()
	f.Attach(t, f.Image(t), dir)
}

// Image makes the filesystem in a new file, and returns its path. Image skips the test if the
// filesystem cannot be mounted.
func (f Filesystem) Image(t testing.TB) string {
	t.Helper()
	f.Need(t)
	file, err := os.Create(filepath.Join(Dir(t), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Truncate(cmp.Or(f.Size, standard)), file.Close()); err != nil {
		t.Fatal(err)
	}
	args := append(append([]string{"-q"}, f.Make...), file.Name())
	await.NoError(t, "mkfs."+f.Type+" sees no loop device disappear", func() error {
		out, err := exec.Command("mkfs."+f.Type, args...).CombinedOutput()
		// of btrfs-progs, if another process detaches a device meanwhile
		if err != nil && !strings.Contains(string(out), "cannot check mount status") {
			t.Fatalf("mkfs.%s %v: %v\n%s", f.Type, args, err, out)
		}
		return err
	})
	return file.Name()
}

// memory is the memory that must be available for a Dir in memory, in bytes, and the most that it
// takes. A run of all tests with six packages at a time takes 1 GB.
const memory = 6 << 30

// Dir returns an empty directory for the images of a test. It is in memory if the test has a mount
// namespace of its own, which ends with the process, and if enough memory is available: otherwise
// such tests wait for the disk most of the time.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if !namespace.Entered() || available("/") < memory {
		return dir
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("mode=700,size=%d", memory)); err != nil {
		t.Fatalf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// available returns the bytes of memory that this machine has available, or its control group if
// that is less: MemAvailable of proc_meminfo(5), cgroups(7). Errors count as 0. root is that of
// /proc and /sys.
func available(root string) int64 {
	text, _ := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	_, after, _ := strings.Cut(string(text), "\nMemAvailable:")
	var kilobytes int64
	if _, err := fmt.Sscan(after, &kilobytes); err != nil {
		return 0
	}
	bytes := kilobytes << 10
	for _, files := range [][2]string{{"memory.max", "memory.current"},
		{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"}} {
		var limit, used int64
		for i, number := range []*int64{&limit, &used} {
			text, _ := os.ReadFile(filepath.Join(root, "sys/fs/cgroup", files[i]))
			if _, err := fmt.Sscan(string(text), number); err != nil { // none, or "max"
				limit = math.MaxInt64
			}
		}
		bytes = min(bytes, limit-used)
	}
	return bytes
}

// Attach mounts an image at dir until the end of the test.
func (f Filesystem) Attach(t testing.TB, image, dir string) {
	t.Helper()
	out, err := exec.Command("mount", "-t", f.Type, "-o", strings.TrimSuffix("loop,"+f.Options, ","), image,
		dir).CombinedOutput()
	if err != nil && f.Rare {
		t.Logf("mount: %s", out)
		t.Skipf("this kernel mounts no %s with %s: make test-vm has one that does", f.Type, f.Options)
	}
	if err != nil {
		t.Fatalf("mount %s: %v: %s", f.Type, err, out)
	}
	t.Cleanup(func() {
		if err := Unmount(t, dir); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmount %s: %v", dir, err)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
		Detached(t, image)
	})
}

// Unmount unmounts dir. Errors: EBUSY and the path if this process has left a file open there, or a
// mount. Unmount waits for other processes: a program that looks at all loop devices, such as the
// driver of another test, may have one open, and a child that another test starts has all files of
// this process until its exec.
func Unmount(t testing.TB, dir string) (err error) {
	t.Helper()
	await.True(t, "no other process has a file open in "+dir, func() bool {
		if err = unix.Unmount(dir, 0); !errors.Is(err, unix.EBUSY) {
			return true
		}
		mounts, _ := os.ReadFile("/proc/self/mountinfo")
		if i := strings.Index(string(mounts), " "+dir+"/"); i >= 0 {
			path, _, _ := strings.Cut(string(mounts[i+1:]), " ")
			err = fmt.Errorf("%w: %s is mounted", err, path)
			return true
		}
		links, _ := filepath.Glob("/proc/self/fd/*")
		for _, link := range links {
			if path, _ := os.Readlink(link); path == dir || strings.HasPrefix(path, dir+"/") {
				err = fmt.Errorf("%w: %s is open", err, path)
				return true
			}
		}
		return false
	})
	return err
}

// CutPower copies the image of a mounted disk to the file after: the disk after a power cut, as
// nothing was written to its loop device during the copy. change is called in each attempt, before
// the copy.
func CutPower(t testing.TB, image, after string, change func()) {
	t.Helper()
	loops := Loops(t, image)
	if len(loops) != 1 {
		t.Fatalf("loop devices of %s: %v, want one", image, loops)
	}
	await.True(t, "nothing is written to the disk while it is copied", func() bool {
		before, rest := written(t, loops[0])
		change()
		run(t, "cp", "--sparse=always", image, after)
		now, still := written(t, loops[0])
		return rest && still && before == now
	})
}

// written returns how many sectors have been written to a device and discarded, and whether no
// request is on its way.
func written(t testing.TB, device string) (sectors [2]string, rest bool) {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(stat)) // Documentation/block/stat.rst
	return [2]string{f[6], f[13]}, f[8] == "0"
}

// Detached waits until no loop device holds a file whose path starts with prefix.
func Detached(t testing.TB, prefix string) {
	t.Helper()
	await.NoError(t, "no loop device holds a file", func() error {
		if left := Loops(t, prefix); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// Loops returns the loop devices, as /dev/loop0, that hold a file whose path starts with prefix.
func Loops(t testing.TB, prefix string) (devices []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		// fails if the device was just detached
		if name, _ := os.ReadFile(file); strings.HasPrefix(string(name), prefix) {
			devices = append(devices, filepath.Join("/dev", strings.Split(file, "/")[3]))
		}
	}
	return devices
}

// Flush writes out a file, and the writes to its loop devices. sync(2) would do the same for
// the whole machine, and so for the disks of tests that cut the power.
func Flush(t testing.TB, path string) {
	t.Helper()
	for _, name := range append(Loops(t, path), path) {
		file, err := os.Open(name)
		if err == nil {
			err = errors.Join(file.Sync(), file.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Syncfs writes out the filesystem that path is on.
func Syncfs(t testing.TB, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err == nil {
		err = errors.Join(unix.Syncfs(int(file.Fd())), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Need skips the test if the filesystem cannot be made or mounted.
func (f Filesystem) Need(t testing.TB) {
	t.Helper()
	NeedLoops(t)
	namespace.Need(t, "mkfs."+f.Type)
	// The kernel looks up the filesystem, and loads its module, before it finds that there is
	// nothing to mount.
	err := unix.Mount(filepath.Join(t.TempDir(), "none"), t.TempDir(), f.Type, 0, "")
	if errors.Is(err, unix.ENODEV) {
		t.Skipf("the kernel has no %s", f.Type)
	}
}

// NeedLoops skips the test if no loop device can be mounted.
func NeedLoops(t testing.TB) {
	t.Helper()
	if !isRoot(t) {
		t.Skip(Missing(t))
	}
	if why := Missing(t); why != "" {
		namespace.Skip(t, why)
	}
}

// Missing returns the reason for which no loop device can be mounted, or "".
func Missing(t testing.TB) string {
	t.Helper()
	if !isRoot(t) {
		return "only the machine's root can mount a loop device"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return err.Error()
	}
	return ""
}

// isRoot reports whether the process is root of the initial user namespace.
func isRoot(t testing.TB) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	return slices.Equal(strings.Fields(string(users)), []string{"0", "0", "4294967295"})
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
