package copier

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/testdisk"
)

// noNamespace is the reason why tests that mount cannot run, or nil.
var noNamespace error

func TestMain(m *testing.M) {
	noNamespace = namespace.Enter()
	os.Exit(m.Run())
}

// filesystem is the filesystem of source and target.
type filesystem struct {
	name    string
	size    int64 // of an image, in bytes
	options string
	clones  bool     // the filesystem can share blocks
	make    []string // arguments for mkfs
}

// noatime: otherwise reading a link would change its times.
var filesystems = []filesystem{
	{name: "tmpfs", options: "size=512m"},
	{name: "ext4", size: 512 << 20, options: "noatime", make: []string{"-N", "100000"}},
	{name: "xfs", size: 512 << 20, options: "noatime", clones: true},
	{name: "btrfs", size: 512 << 20, options: "noatime", clones: true},
}

// mount returns a directory on which a new filesystem is mounted. mount skips the test if the
// kernel cannot mount the filesystem.
func (f filesystem) mount(t testing.TB) string {
	t.Helper()
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	dir := t.TempDir()
	if f.name == "tmpfs" {
		if err := unix.Mount("none", dir, f.name, unix.MS_NOATIME, f.options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		return dir
	}
	f.onDisk().Mount(t, dir)
	return dir
}

// onDisk returns f as a filesystem in a file.
func (f filesystem) onDisk() testdisk.Filesystem {
	return testdisk.Filesystem{Type: f.name, Size: f.size, Options: f.options, Make: f.make}
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// everywhere runs a test on each filesystem, in an empty directory of it.
func everywhere(t *testing.T, test func(t *testing.T, dir string, f filesystem)) {
	for _, f := range filesystems {
		t.Run(f.name, func(t *testing.T) { test(t, f.mount(t), f) })
	}
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a file until the end of the test.
func open(t testing.TB, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0o600)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// way is a way to copy content.
type way struct {
	name             string
	noClone, noRange bool
}

var ways = []way{{"the best way", false, false}, {"no clone", true, false}, {"read and write", true, true}}

func (w way) set(c *content) {
	c.noClone.Store(w.noClone)
	c.noRange.Store(w.noRange)
}

// copyTree copies a directory to a new directory, and returns an error as Tree does.
func copyTree(ctx context.Context, t testing.TB, src, dst string, w way) (How, error) {
	t.Helper()
	return copyTreeWith(ctx, t, src, dst, w, Options{Workers: 4})
}

// copyTreeWith is copyTree with options.
func copyTreeWith(ctx context.Context, t testing.TB, src, dst string, w way, o Options) (How, error) {
	t.Helper()
	must(t, os.Mkdir(dst, 0o700))
	from, to := open(t, src, os.O_RDONLY), open(t, dst, os.O_RDONLY)
	defer from.Close()
	defer to.Close()
	tree := newTree(ctx, from, to, o)
	w.set(&tree.content)
	err := tree.copy()
	if left := descriptors(t, dst); left != 1 {
		t.Errorf("%d descriptors are open in the target, want only that of the test", left)
	}
	return tree.content.how(), err
}

// descriptors returns the number of open descriptors of files whose paths have a prefix.
func descriptors(t testing.TB, path string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, fd := range all {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.HasPrefix(to, path) {
			n++
		}
	}
	return n
}

// describe returns all properties that a copy keeps, by path.
func describe(t testing.TB, dir string) map[string]string {
	t.Helper()
	fd, err := unix.Open(dir, openDir, 0)
	must(t, err)
	defer unix.Close(fd)
	all, inodes := map[string]string{}, map[identity][]string{}
	describeDir(t, fd, ".", all, inodes)
	for _, names := range inodes {
		slices.Sort(names)
		for _, name := range names {
			all[name] += fmt.Sprintf(" is %q", names)
		}
	}
	return all
}

func describeDir(t testing.TB, dir int, path string, all map[string]string, inodes map[identity][]string) {
	t.Helper()
	for _, name := range append(names(t, dir), ".") {
		fd, err := openAt(dir, name, openPath)
		must(t, err)
		var st unix.Statx_t
		must(t, statx(fd, &st))
		at := path + "/" + name
		all[at] = describeNode(t, fd, &st)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			inodes[identityOf(&st)] = append(inodes[identityOf(&st)], at)
		} else if name != "." {
			sub, err := openAt(dir, name, openDir)
			must(t, err)
			describeDir(t, sub, at, all, inodes)
			unix.Close(sub)
		}
		unix.Close(fd)
	}
}

func names(t testing.TB, dir int) (all []string) {
	t.Helper()
	_, err := unix.Seek(dir, 0, 0)
	must(t, err)
	for buffer := make([]byte, 8192); ; {
		n, err := unix.Getdents(dir, buffer)
		must(t, err)
		if n == 0 {
			return all
		}
		_, _, all = unix.ParseDirent(buffer[:n], -1, all)
	}
}

func describeNode(t testing.TB, fd int, st *unix.Statx_t) string {
	t.Helper()
	s := fmt.Sprintf("mode %o owner %d:%d dev %d:%d times %d.%09d %d.%09d", st.Mode, st.Uid, st.Gid, st.Rdev_major,
		st.Rdev_minor,
		st.Atime.Sec, st.Atime.Nsec, st.Mtime.Sec, st.Mtime.Nsec)
	file := byPath(proc(fd))
	list, err := xattr(file.list)
	must(t, err)
	attrs := strings.Split(string(list), "\x00")
	slices.Sort(attrs)
	for _, name := range attrs {
		if name != "" {
			value, err := xattr(func(to []byte) (int, error) { return file.get(name, to) })
			must(t, err)
			s += fmt.Sprintf(" %s=%q", name, value)
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		to := make([]byte, 4096)
		n, err := unix.Readlinkat(fd, "", to)
		must(t, err)
		s += fmt.Sprintf(" to %q", to[:n])
	case unix.S_IFREG:
		in, err := reopen(fd)
		must(t, err)
		f := os.NewFile(uintptr(in), "")
		defer f.Close()
		sum := sha256.New()
		n, err := f.WriteTo(sum)
		must(t, err)
		s += fmt.Sprintf(" size %d sum %x", n, sum.Sum(nil)[:8])
	}
	return s
}

// equal fails the test if two descriptions differ.
func equal(t testing.TB, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%.200q is\n %s, want\n %s", name, got[name], want[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%.200q is only in the copy", name)
		}
	}
}

// allocated returns the number of bytes of a file that are not in holes.
func allocated(t testing.TB, path string) (n int64) {
	t.Helper()
	f := open(t, path, os.O_RDONLY)
	defer f.Close()
	must(t, f.Sync())
	for at := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return n
		}
		must(t, err)
		at, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		must(t, err)
		n += at - data
	}
}

// pattern returns bytes that are not zero.
func pattern(n int, seed byte) []byte {
	return bytes.Repeat([]byte{seed | 1, 2, 3, 4, 5, 6, 7}, n/7+1)[:n]
}
