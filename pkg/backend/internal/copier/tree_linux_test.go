package copier

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/testdisk"
)

// acl is an ACL with an entry for user 0, who is in every namespace: rwx, user 0 r-x, group r-x,
// mask r-x, others none.
const acl = "\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x05\x00\x00\x00\x00\x00" +
	"\x04\x00\x05\x00\xff\xff\xff\xff" + "\x10\x00\x05\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff"

// capability is the attribute of a program that may open low ports.
const capability = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// inInitialNamespace reports whether this process may make devices and change owners.
func inInitialNamespace(t testing.TB) bool {
	users, err := os.ReadFile("/proc/self/uid_map")
	must(t, err)
	return strings.Join(strings.Fields(string(users)), " ") == "0 0 4294967295" && os.Geteuid() == 0
}

// stamp sets unusual times.
func stamp(t testing.TB, path string, n int64) {
	t.Helper()
	ts := []unix.Timespec{{Sec: 1e9 + n, Nsec: 123456789}, {Sec: 1e9 + 2*n, Nsec: 987654321}}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// plant makes a tree with all properties that a copy must keep.
func plant(t testing.TB, dir string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"a", "a/b", "a/b/c", "empty", "sticky", "default", "default/in"} {
		must(t, os.Mkdir(in(name), 0o755))
	}
	must(t, unix.Chmod(in("sticky"), 0o3777))
	for _, name := range []string{"dense", "a/b/c/deep", "not UTF-8 \xff\xfe", "line\nfeed", "-rf", "...",
		strings.Repeat("n", 255)} {
		must(t, os.WriteFile(in(name), pattern(200_000, name[0]), 0o640))
	}
	must(t, os.WriteFile(in("none"), nil, 0))
	must(t, unix.Chmod(in("dense"), 0o6755))
	writeParts(t, in("a/sparse"), 30<<20, map[int64]int{1 << 20: 5000, 20 << 20: 300_000}).Close()
	for name, to := range map[string]string{"link": "dense", "a/away": "/etc/passwd", "a/up": "../..",
		"dangling": "no\xffwhere"} {
		must(t, os.Symlink(to, in(name)))
	}
	must(t, os.Link(in("dense"), in("a/b/hard")))
	must(t, os.Link(in("dense"), in("hard too")))
	must(t, os.Link(in("link"), in("a/hard link to a link")))
	must(t, unix.Mkfifo(in("fifo"), 0o620))
	must(t, unix.Mknod(in("socket"), unix.S_IFSOCK|0o700, 0))
	must(t, os.Link(in("fifo"), in("a/fifo")))
	must(t, unix.Setxattr(in("dense"), "user.name", []byte("a\x00value"), 0))
	must(t, unix.Setxattr(in("a/b"), "user.empty", nil, 0))
	must(t, unix.Setxattr(in("a/b"), "user.large", pattern(1500, 9), 0))
	must(t, unix.Setxattr(in("-rf"), "system.posix_acl_access", []byte(acl), 0))
	if inInitialNamespace(t) {
		plantPrivileged(t, in)
	}
	// not inherited by existing entries
	must(t, unix.Setxattr(in("default"), "system.posix_acl_default", []byte(acl), 0))
	n := int64(0)
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error { n++; return err }))
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry,
		err error) error {
		n++
		stamp(t, path, n)
		return err
	}))
}

// plantPrivileged adds entries that only root of the machine can make.
func plantPrivileged(t testing.TB, in func(string) string) {
	t.Helper()
	must(t, unix.Mknod(in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(in("a/block"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 70_000))))
	for i, name := range []string{"a", "a/b/c", "dense", "a/away", "fifo", "socket", "null"} {
		must(t, os.Lchown(in(name), 1000+i, 100_000+i))
	}
	must(t, unix.Chmod(in("dense"), 0o6755)) // chown has removed the setuid bits
	must(t, unix.Setxattr(in("-rf"), "security.capability", []byte(capability), 0))
	must(t, unix.Setxattr(in("a/b"), "trusted.secret", []byte("t"), 0))
	must(t, unix.Lsetxattr(in("link"), "trusted.link", []byte("t"), 0))
	must(t, unix.Setxattr(in("fifo"), "trusted.fifo", []byte("t"), 0))
}

func TestTreeKeepsEverything(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		src := filepath.Join(dir, "src")
		must(t, os.Mkdir(src, 0o751))
		plant(t, src)
		want := describe(t, src)
		for _, w := range ways {
			t.Run(w.name, func(t *testing.T) {
				dst := filepath.Join(dir, w.name)
				how, err := copyTree(context.Background(), t, src, dst, w)
				must(t, err)
				equal(t, describe(t, dst), want)
				equal(t, describe(t, src), want)
				if a, b := allocated(t, filepath.Join(dst, "a/sparse")), allocated(t,
					filepath.Join(src, "a/sparse")); a > b {
					t.Errorf("%d bytes are allocated, %d in the source", a, b)
				}
				if cloned := how == Cloned; cloned != (f.clones && !w.noClone) {
					t.Errorf("%v on %s", how, f.name)
				}
				if how == Cloned && !shared(t, open(t, filepath.Join(dst, "dense"), os.O_RDONLY)) {
					t.Error("the blocks are not shared")
				}
			})
		}
	})
}

// grow makes a random tree.
func grow(t testing.TB, dir string, r *rand.Rand) {
	t.Helper()
	dirs, files := []string{dir}, []string{}
	for i := range 20 + r.IntN(200) {
		name := make([]byte, 1+r.IntN(30))
		for j := range name {
			for name[j] == 0 || name[j] == '/' {
				name[j] = byte(r.UintN(256))
			}
		}
		path := dirs[r.IntN(len(dirs))] + "/" + fmt.Sprint(i) + string(name)
		switch kind := r.IntN(10); {
		case kind < 3:
			must(t, os.Mkdir(path, os.FileMode(0o700|r.IntN(0o100))))
			dirs = append(dirs, path)
			continue
		case kind == 3:
			must(t, os.Symlink(dirs[r.IntN(len(dirs))], path))
		case kind == 4:
			must(t, unix.Mkfifo(path, 0o600))
		case kind == 5 && len(files) > 0:
			must(t, os.Link(files[r.IntN(len(files))], path))
		default:
			size := 1 + r.Int64N(1<<uint(r.IntN(20)))
			parts := map[int64]int{}
			for range r.IntN(4) {
				at := r.Int64N(size)
				parts[at] = int(r.Int64N(size - at + 1))
			}
			writeParts(t, path, size, parts).Close()
			must(t, unix.Setxattr(path, "user.n", fmt.Append(nil, i), 0))
		}
		files = append(files, path)
		stamp(t, path, int64(i))
	}
	for i, path := range dirs {
		stamp(t, path, int64(i))
	}
}

func TestTreeOfAnyShape(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		for i := range 12 {
			seed := time.Now().UnixNano()
			src := filepath.Join(dir, fmt.Sprint("src", i))
			must(t, os.Mkdir(src, 0o700))
			grow(t, src, rand.New(rand.NewPCG(uint64(seed), 0)))
			want := describe(t, src)
			dst := filepath.Join(dir, fmt.Sprint("dst", i))
			if _, err := copyTree(context.Background(), t, src, dst, ways[i%len(ways)]); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if equal(t, describe(t, dst), want); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	})
}

// TestTreeOfNothing: the attributes of the top are copied even if the tree is empty.
func TestTreeOfNothing(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/src", 0o3775))
	stamp(t, dir+"/src", 1)
	_, err := copyTree(context.Background(), t, dir+"/src", dir+"/dst", ways[0])
	must(t, err)
	equal(t, describe(t, dir+"/dst"), describe(t, dir+"/src"))
}

// TestTreeInheritsNothing: the copy does not depend on the parent directory of the target.
func TestTreeInheritsNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		must(t, os.MkdirAll(dir+"/src/sub", 0o700))
		must(t, os.WriteFile(dir+"/src/sub/file", nil, 0o640))
		must(t, os.WriteFile(dir+"/src/file", nil, 0o640))
		want := describe(t, dir+"/src")
		must(t, unix.Setxattr(dir, "system.posix_acl_default", []byte(acl), 0))
		must(t, unix.Chmod(dir, 0o2755))
		if inInitialNamespace(t) {
			must(t, os.Chown(dir, 7, 7))
			must(t, unix.Chmod(dir, 0o2755))
		}
		_, err := copyTree(context.Background(), t, dir+"/src", dir+"/dst", ways[0])
		must(t, err)
		equal(t, describe(t, dir+"/dst"), want)
	})
}

// chain makes nested directories, each with a file and a directory beside it.
func chain(t testing.TB, top string, depth int, name string) {
	t.Helper()
	at, err := unix.Open(top, openDir, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(at, name, 0o755))
		must(t, unix.Mkdirat(at, "side", 0o755))
		fd, err := unix.Openat(at, "file", unix.O_WRONLY|unix.O_CREAT, 0o600)
		must(t, err)
		_, err = unix.Write(fd, []byte("content"))
		must(t, err)
		must(t, unix.Close(fd))
		next, err := unix.Openat(at, name, openDir, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
}

// scarce limits this process to n additional descriptors, until the returned function is called.
func scarce(t *testing.T, n int) func() {
	t.Helper()
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = uint64(descriptors(t, "") + n)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	return func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }
}

// TestTreeThatIsDeep: a copy uses no more descriptors than the comment of Tree promises.
func TestTreeThatIsDeep(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/src", 0o700))
	chain(t, dir+"/src", 1000, strings.Repeat("long", 5)) // 20 kB of path
	want := describe(t, dir+"/src")
	if len(want) < 3000 {
		t.Fatalf("%d entries", len(want))
	}
	src := open(t, dir+"/src", os.O_RDONLY)
	for _, workers := range []int{1, 4} {
		path := fmt.Sprint(dir, "/dst", workers)
		must(t, os.Mkdir(path, 0o700))
		dst := open(t, path, os.O_RDONLY)
		restore := scarce(t, 33*workers+20)
		_, err := Tree(context.Background(), src, dst, Options{Workers: workers})
		restore()
		must(t, err)
		equal(t, describe(t, path), want)
	}
}

func TestTreeOfManyFiles(t *testing.T) {
	f := filesystems[1]
	dir := f.mount(t)
	must(t, os.MkdirAll(dir+"/src/sub", 0o700))
	const n = 12_000 // 100,000 only take longer: see the benchmark
	for i := range n {
		must(t, os.WriteFile(fmt.Sprintf("%s/src/%d", dir, i), fmt.Append(nil, i), 0o600))
	}
	_, err := copyTree(context.Background(), t, dir+"/src", dir+"/dst", ways[0])
	must(t, err)
	equal(t, describe(t, dir+"/dst"), describe(t, dir+"/src"))
}

func TestTreeWithAMountInside(t *testing.T) {
	outer, inner := filesystems[0].mount(t), filesystems[0]
	for _, kind := range []string{"another filesystem", "a directory of the same", "a file"} {
		t.Run(kind, func(t *testing.T) {
			src := filepath.Join(outer, kind)
			at := filepath.Join(src, "a", "mounted\n")
			must(t, os.MkdirAll(at, 0o700))
			from, flags, kind := "none", uintptr(0), inner.name
			switch kind {
			case "a directory of the same":
				must(t, os.Mkdir(outer+"/precious", 0o700))
				from, flags, kind = outer+"/precious", unix.MS_BIND, ""
			case "a file":
				must(t, os.Remove(at))
				must(t, os.WriteFile(at, nil, 0o600))
				must(t, os.WriteFile(outer+"/precious file", nil, 0o600))
				from, flags, kind = outer+"/precious file", unix.MS_BIND, ""
			}
			must(t, unix.Mount(from, at, kind, flags, ""))
			defer unix.Unmount(at, unix.MNT_DETACH)
			_, err := copyTree(context.Background(), t, src, src+".copy", ways[0])
			if !errors.Is(err, unix.EXDEV) || !strings.Contains(err.Error(), `"a/mounted\n"`) {
				t.Errorf("Tree = %v, want EXDEV and the path", err)
			}
		})
	}
}

// churn calls change repeatedly until the returned function is called.
func churn(change func()) (stop func()) {
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !over.Load() {
			change()
		}
	}()
	return func() { over.Store(true); <-done }
}

// swap is an attack: two entries exchange their names all the time.
func swap(a, b string) func() {
	return churn(func() { unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) })
}

func TestTreeUnderAttack(t *testing.T) {
	dir := filesystems[0].mount(t)
	precious := dir + "/precious"
	must(t, os.MkdirAll(precious+"/sub", 0o700))
	must(t, os.WriteFile(precious+"/secret", []byte("secret"), 0o600))
	must(t, os.WriteFile(precious+"/sub/secret", []byte("secret"), 0o600))
	src := dir + "/src"
	must(t, os.MkdirAll(src+"/a/victim/sub", 0o700))
	for i := range 50 {
		must(t, os.WriteFile(fmt.Sprintf("%s/a/victim/%d", src, i), []byte("mine"), 0o600))
		must(t, os.WriteFile(fmt.Sprintf("%s/a/victim/sub/%d", src, i), []byte("mine"), 0o600))
	}
	must(t, os.WriteFile(src+"/a/file", []byte("mine"), 0o600))
	must(t, os.Symlink(precious, src+"/link"))
	must(t, os.Symlink(precious+"/secret", src+"/file link"))
	must(t, unix.Mkfifo(src+"/fifo", 0o600)) // an open would never return
	stops := []func(){swap(src+"/a/victim", src+"/link"), swap(src+"/a/file", src+"/file link"),
		swap(src+"/a/file", src+"/fifo")}
	whole := 0
	for i := range 50 {
		dst := fmt.Sprint(dir, "/dst", i)
		if _, err := copyTree(context.Background(), t, src, dst, ways[0]); err != nil {
			t.Fatal(err)
		}
		for path, description := range describe(t, dst) {
			if strings.Contains(path, "secret") {
				t.Fatalf("%s is in the copy: %s", path, description)
			}
			if strings.Contains(path, "victim/sub/") {
				whole++
			}
		}
		must(t, filepath.WalkDir(dst, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != "mine" {
				t.Fatalf("%s is %q, %v", path, got, err)
			}
			return nil
		}))
	}
	for _, stop := range stops {
		stop()
	}
	if whole == 0 {
		t.Error("the victim was never copied: the test proves nothing")
	}
}

// TestTreeThatChanges: entries that are added or removed cause no error, and all other entries are
// in the copy.
func TestTreeThatChanges(t *testing.T) {
	dir := filesystems[0].mount(t)
	src := dir + "/src"
	for i := range 40 {
		must(t, os.MkdirAll(fmt.Sprint(src, "/stays/", i), 0o700))
		must(t, os.WriteFile(fmt.Sprint(src, "/stays/", i, "/f"), []byte("mine"), 0o600))
	}
	stop := churn(func() {
		for i := range 20 {
			os.MkdirAll(fmt.Sprint(src, "/goes/", i, "/sub"), 0o700)
			os.WriteFile(fmt.Sprint(src, "/goes/", i, "/f"), []byte("mine"), 0o600)
		}
		os.RemoveAll(src + "/goes")
	})
	defer stop()
	want := describe(t, src+"/stays")
	for i := range 100 {
		dst := fmt.Sprint(dir, "/dst", i)
		_, err := copyTree(context.Background(), t, src, dst, ways[0])
		must(t, err)
		equal(t, describe(t, dst+"/stays"), want)
	}
}

// begin makes dst, and returns a worker of a copy from src to dst, and the top of the copy, open.
func begin(t *testing.T, src, dst string) (*walker, *dir) {
	t.Helper()
	must(t, os.Mkdir(dst, 0o700))
	tree := newTree(context.Background(), open(t, src, os.O_RDONLY), open(t, dst, os.O_RDONLY), Options{Workers: 1})
	tree.src, tree.dst = int(tree.from.Fd()), int(tree.to.Fd())
	must(t, tree.prepare())
	top := &dir{}
	must(t, tree.open(top, tree.src, tree.dst, "."))
	t.Cleanup(func() { top.close(); tree.links.close(); tree.made.close() })
	return &walker{tree: tree}, top
}

// TestTreeRemovesVanishedEntries: a directory that was removed after its listing leaves no trace in
// the copy, not even in the times of its parent.
func TestTreeRemovesVanishedEntries(t *testing.T) {
	for now, change := range map[string]func(path string) error{
		"gone":   os.Remove,
		"a file": func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
		"a link": func(path string) error { return errors.Join(os.Remove(path), os.Symlink("..", path)) },
	} {
		t.Run(now, func(t *testing.T) {
			base := t.TempDir()
			must(t, os.MkdirAll(base+"/src/a/sub", 0o700))
			stamp(t, base+"/src/a", 7)
			w, top := begin(t, base+"/src", base+"/dst")
			must(t, w.fill(top))
			must(t, w.push(top))
			a, err := w.descend()
			must(t, err)
			must(t, w.fill(a))
			must(t, w.push(a))
			want := describe(t, base+"/dst/a")
			if len(want) != 3 || a.left != 1 {
				t.Fatalf("the copy is %v, with %d directories to come", want, a.left)
			}
			delete(want, "./sub/.")
			delete(want, "./sub")
			must(t, change(base+"/src/a/sub"))
			if sub, err := w.descend(); sub != nil || err != nil {
				t.Errorf("descend = %v, %v", sub, err)
			}
			equal(t, describe(t, base+"/dst/a"), want)
		})
	}
}

// TestTreeLeavesTheSourceAsItIs: not even the times of access change.
func TestTreeLeavesTheSourceAsItIs(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/src/sub", 0o700))
	must(t, os.WriteFile(dir+"/src/sub/file", []byte("content"), 0o600))
	for i, path := range []string{"/src/sub/file", "/src/sub", "/src"} {
		stamp(t, dir+path, int64(i))
	}
	want := describe(t, dir+"/src")
	_, err := copyTree(context.Background(), t, dir+"/src", dir+"/dst", ways[2])
	must(t, err)
	equal(t, describe(t, dir+"/src"), want)
}

func TestTreeIsCanceled(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/src", 0o700))
	for i := range 20 {
		must(t, os.WriteFile(fmt.Sprint(dir, "/src/", i), pattern(8<<20, byte(i)), 0o600))
	}
	for n := range 10 {
		ctx, cancel := context.WithCancel(context.Background())
		must(t, os.Mkdir(fmt.Sprint(dir, "/dst", n), 0o700))
		src, dst := open(t, dir+"/src", os.O_RDONLY), open(t, fmt.Sprint(dir, "/dst", n), os.O_RDONLY)
		o := Options{Workers: 3, Progress: new(Progress)}
		before, routines := descriptors(t, ""), runtime.NumGoroutine()
		_, err := Tree(cancelAt{ctx, cancel, o.Progress, int64(n) << 22}, src, dst, o)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Tree = %v, want Canceled", err)
		}
		leftNothing(t, before, routines)
		cancel()
	}
}

// cancelAt is a context that is canceled by the first look at its error after a number of bytes.
type cancelAt struct {
	context.Context
	cancel   context.CancelFunc
	progress *Progress
	bytes    int64
}

func (c cancelAt) Err() error {
	if c.progress.Bytes() >= c.bytes {
		c.cancel()
	}
	return c.Context.Err()
}

// leftNothing fails the test if more descriptors are open than before a copy, or if more goroutines
// run after a while: a goroutine may need a moment to end.
func leftNothing(t *testing.T, before, routines int) {
	t.Helper()
	if now := descriptors(t, ""); now != before {
		t.Fatalf("%d descriptors are open, %d before", now, before)
	}
	await.NoError(t, "the goroutines of the copy have ended", func() error {
		if now := runtime.NumGoroutine(); now > routines {
			return fmt.Errorf("%d goroutines run, %d before", now, routines)
		}
		return nil
	})
}

func TestTreeOnAFullDisk(t *testing.T) {
	src := t.TempDir()
	for i := range 20 {
		must(t, os.WriteFile(fmt.Sprint(src, "/", i), pattern(300_000, byte(i)), 0o600))
	}
	for name, options := range map[string]string{"blocks": "size=2m", "inodes": "nr_inodes=10"} {
		t.Run(name, func(t *testing.T) {
			dir := filesystem{name: "tmpfs", options: options}.mount(t)
			if _, err := copyTree(context.Background(), t, src, dir+"/dst", ways[0]); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("Tree = %v, want ENOSPC", err)
			}
		})
	}
}

func TestTreeIntoItself(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/sub", 0o700))
	_, err := copyTree(context.Background(), t, dir, dir+"/sub/dst", ways[0])
	if err == nil || !strings.Contains(err.Error(), `"sub/dst"`) {
		t.Errorf("Tree = %v", err)
	}
}

// asNobody is set in the environment of the test below when it runs as an unprivileged user, to the
// source of the copy.
const asNobody = "CAUSEWAY_TEST_AS_NOBODY"

// TestTreeWithoutPrivileges: an entry that cannot be read or made causes an error that names it,
// and is not silently missing.
func TestTreeWithoutPrivileges(t *testing.T) {
	if dir := os.Getenv(asNobody); dir != "" {
		_, err := copyTree(context.Background(), t, dir+"/src", dir+"/to/dst", ways[0])
		fmt.Println("it says:", err)
		return
	}
	if !inInitialNamespace(t) {
		t.Skip("only root of the machine can change its user")
	}
	for name, makeIt := range map[string]func(path string) error{
		"no permission": func(path string) error { return os.WriteFile(path, nil, 0) },
		"a directory":   func(path string) error { return os.Mkdir(path, 0) },
		"an owner":      func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"a device":      func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := publicDir(t)
			must(t, os.Mkdir(dir+"/src", 0o755))
			must(t, os.Mkdir(dir+"/to", 0o777))
			must(t, os.Chown(dir+"/src", otherUser, otherUser))
			must(t, unix.Chmod(dir+"/to", 0o777))
			must(t, makeIt(dir+"/src/cul\"prit"))
			cmd := again(t, dir, "TestTreeWithoutPrivileges", asNobody+"="+dir)
			out, err := cmd.CombinedOutput()
			must(t, err)
			if said := string(out); !strings.Contains(said, `"cul\"prit"`) || !strings.Contains(said, "ermi") &&
				!strings.Contains(said, "not permitted") {
				t.Errorf("%s", said)
			}
		})
	}
}

// TestTreeIsDurable: the power fails when Tree has returned. Data that the filesystem has not
// written by then is lost.
func TestTreeIsDurable(t *testing.T) {
	for _, f := range filesystems[1:] {
		if f.name != "xfs" {
			f.options += ",commit=300" // otherwise the filesystem would commit after 5 s
		}
		for _, files := range []int{8, 200} { // synced one by one (with 8 directories), and all at once
			t.Run(fmt.Sprint(f.name, files), func(t *testing.T) {
				powerCut(t, f, files)
			})
		}
	}
}

func powerCut(t *testing.T, f filesystem, files int) {
	dir, src := f.mount(t), t.TempDir()
	for i := range files {
		sub := fmt.Sprint(src, "/", i%7)
		must(t, os.MkdirAll(sub, 0o700))
		path := fmt.Sprint(sub, "/", i)
		must(t, os.WriteFile(path, pattern(10_000+i, byte(i)), 0o640))
		must(t, os.Lchown(path, i, i))
		stamp(t, path, int64(i))
	}
	_, err := copyTree(context.Background(), t, src, dir+"/dst", ways[0])
	must(t, err)
	top := open(t, dir, os.O_RDONLY)
	must(t, top.Sync()) // the caller syncs the entry of dst
	must(t, top.Close())
	name, err := os.ReadFile(filepath.Join(loopOf(t, dir), "loop/backing_file"))
	must(t, err)
	image, tries := strings.TrimSpace(string(name)), 0
	testdisk.CutPower(t, image, image+".after", func() {
		tries++
		must(t, os.WriteFile(fmt.Sprint(dir, "/unsynced", tries), nil, 0o600))
	})
	must(t, testdisk.Unmount(t, dir))
	after := t.TempDir()
	f.onDisk().Attach(t, image+".after", after)
	if _, err := os.Lstat(fmt.Sprint(after, "/unsynced", tries)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was not synced still exists, so the power was not cut: %v", err)
	}
	equal(t, describe(t, after+"/dst"), describe(t, src))
}

// loopOf returns the directory in sysfs of the loop device that is mounted on a directory.
func loopOf(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("findmnt", "-no", "SOURCE", dir).Output()
	must(t, err)
	return filepath.Join("/sys/block", filepath.Base(strings.TrimSpace(string(out))))
}

// TestYield: each worker calls Yield, between entries and within large files, and a copy pauses
// while all calls wait.
func TestYield(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	for i := range 100 {
		must(t, os.WriteFile(fmt.Sprint(src, "/f", i), []byte("data"), 0o600))
	}
	gate, asked := make(chan struct{}), make(chan struct{}, 100)
	o := Options{Workers: 2, Progress: &Progress{}, Yield: func() {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-gate
	}}
	ended := make(chan error, 1)
	from, to := open(t, src, os.O_RDONLY), open(t, dst, os.O_RDONLY)
	go func() {
		_, err := Tree(context.Background(), from, to, o)
		ended <- err
	}()
	select {
	case <-asked:
	case err := <-ended:
		t.Fatal(err)
	}
	if n := o.Progress.Entries(); n > 0 {
		t.Errorf("%d entries were copied before the first Yield returned", n)
	}
	close(gate)
	must(t, <-ended)
	if n := o.Progress.Entries(); n != 101 {
		t.Errorf("%d entries were copied, want 101", n)
	}

	large := writeParts(t, src+"/large", 40<<20, map[int64]int{0: 40 << 20})
	for _, w := range ways {
		calls := 0
		c := content{progress: &Progress{}, yield: func() { calls++ }}
		w.set(&c)
		must(t, c.copy(context.Background(), &worksite{}, int(large.Fd()),
			int(open(t, dst+"/"+w.name, os.O_RDWR|os.O_CREATE).Fd()), 40<<20))
		if calls == 0 {
			t.Errorf("%s: a large file is copied without a Yield", w.name)
		}
	}
}
