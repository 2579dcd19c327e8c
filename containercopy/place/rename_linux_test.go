package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/unprivileged"
)

// TestAMountPointIsNotReplaced: a file of a ConfigMap, for example.
func TestAMountPointIsNotReplaced(t *testing.T) {
	root := newRoot(t)
	grow(t, root, "f=mounted", "of=x", "d/", "e/")
	for _, name := range []string{"f", "d"} {
		from := map[string]string{"f": "of", "d": "e"}[name]
		path := filepath.Join(root.Name(), name)
		if err := unix.Mount(filepath.Join(root.Name(), from), path, "", unix.MS_BIND, ""); err != nil {
			namespace.Skip(t, err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	for name, s := range map[string]Source{"f": {Name: "f"}, "d": {Name: "d", Dir: true}} {
		d, err := at(root, name, s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(t, d, s, Tree); !errors.Is(err, ErrMounted) {
			t.Errorf("%s: %v, want ErrMounted", name, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(root.Name(), "f")); string(got) != "x" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// elsewhere calls f in a thread with a mount namespace of its own, and returns a root for a
// directory as that thread sees it: the kernel does not protect its mount points from this process.
func elsewhere(t *testing.T, dir string, mount func() error) *os.Root {
	t.Helper()
	roots, end := make(chan any, 1), make(chan struct{})
	go func() { // the thread ends with its goroutine
		runtime.LockOSThread()
		err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), mount())
		if err != nil {
			roots <- err
			return
		}
		roots <- fmt.Sprintf("/proc/self/task/%d/root", unix.Gettid())
		<-end
	}()
	t.Cleanup(func() { close(end) })
	at, ok := (<-roots).(string)
	if !ok {
		namespace.Skip(t, "no mount namespace here")
	}
	root, err := os.OpenRoot(at + dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// TestMountsOfAnotherNamespace stay as they are, below the destination too. The control is a
// rename(2) without a check, which detaches one.
func TestMountsOfAnotherNamespace(t *testing.T) {
	here := newRoot(t)
	grow(t, here, "site/uploads/", "site/old=1", "file=", "of=mounted", "control=")
	dir := here.Name()
	root := elsewhere(t, dir, func() error {
		return errors.Join(unix.Mount("none", dir+"/site/uploads", "tmpfs", 0, ""), os.WriteFile(dir+"/site/uploads/precious", []byte("2"), 0o600),
			unix.Mount(dir+"/of", dir+"/file", "", unix.MS_BIND, ""), unix.Mount(dir+"/of", dir+"/control", "", unix.MS_BIND, ""))
	})
	const want = "control=mounted file=mounted of=mounted site/old=1 site/uploads/precious=2"
	if got := grown(t, root); got != want {
		t.Fatalf("before: %q", got)
	}
	for name, s := range map[string]Source{"site": {Name: "site", Dir: true}, "file": {Name: "file"}} {
		d, err := at(root, name, s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(t, d, s, Tree); !errors.Is(err, ErrMounted) {
			t.Errorf("%s: %v, want ErrMounted", name, err)
		}
		if got := grown(t, root); got != want {
			t.Errorf("after %s: %q", name, got)
		}
	}
	staging, err := NewStaging(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := rename(root, "site", staging.Root, "replaced", false); err != nil { // as a mount after the check
		t.Fatal(err)
	}
	if err := staging.Remove(); !errors.Is(err, ErrMounted) {
		t.Errorf("Remove = %v, want ErrMounted", err)
	}
	if got, err := os.ReadFile(filepath.Join(root.Name(), staging.name, "replaced/uploads/precious")); string(got) != "2" {
		t.Errorf("the volume has %q, %v", got, err)
	}
	if err := root.Rename("of", "control"); err != nil {
		t.Errorf("the control: %v", err)
	}
}

// TestARemovalFollowsNoLink, although a program exchanges a directory with a link all the time.
func TestARemovalFollowsNoLink(t *testing.T) {
	root := newRoot(t)
	for range 50 {
		grow(t, root, "victim/x=1")
		staging, err := NewStaging(root)
		if err != nil {
			t.Fatal(err)
		}
		grow(t, staging.Root, "d/x=2", "link->../victim")
		stop := make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					exchange(staging.Root, "d", staging.Root, "link")
				}
			}
		})
		err = staging.Remove()
		close(stop)
		group.Wait()
		if got := grown(t, root); !strings.Contains(got, "victim/x=1") {
			t.Fatalf("%q, %v", got, err)
		}
		staging.Remove()
	}
}

// TestAFilesystemWithoutFlags, such as NFS: renameat2 has none.
func TestAFilesystemWithoutFlags(t *testing.T) {
	renameat2 = func(fromDir int, from string, toDir int, to string, flags uint) error {
		if flags != 0 {
			return unix.EINVAL
		}
		return unix.Renameat2(fromDir, from, toDir, to, 0)
	}
	t.Cleanup(func() { renameat2 = unix.Renameat2 })
	root := newRoot(t)
	grow(t, root, "f=1", "d/x=1", "old/x=1", "e=2", "l->f")
	for _, tc := range []struct {
		from, to string
		err      error
	}{{"f", "g", nil}, {"g", "d", fs.ErrExist}, {"g", "e", fs.ErrExist}, {"l", "m", nil}, {"d", "new", nil}, {"new", "old", fs.ErrExist}, {"none", "n", fs.ErrNotExist}} {
		if err := rename(root, tc.from, root, tc.to, false); !errors.Is(err, tc.err) {
			t.Errorf("%s to %s: %v, want %v", tc.from, tc.to, err, tc.err)
		}
	}
	if err := exchange(root, "new", root, "e"); err != nil {
		t.Error(err)
	}
	if got, want := grown(t, root), "e/x=1 g=1 m->f new=2 old/x=1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAFilesystemWithoutHardLinks: a file that exists stays, and a failed rename leaves none.
func TestAFilesystemWithoutHardLinks(t *testing.T) {
	var fails error
	renameat2 = func(fromDir int, from string, toDir int, to string, flags uint) error {
		if flags != 0 {
			return unix.EINVAL
		}
		if fails != nil {
			return fails
		}
		return unix.Renameat2(fromDir, from, toDir, to, 0)
	}
	linkat = func(int, string, int, string, int) error { return unix.EPERM }
	t.Cleanup(func() { renameat2, linkat = unix.Renameat2, unix.Linkat })
	root := newRoot(t)
	grow(t, root, "f=1", "e=2", "d/x=1", "l->f")
	for _, tc := range []struct {
		from, to string
		err      error
	}{{"f", "e", fs.ErrExist}, {"f", "d", fs.ErrExist}, {"f", "g", nil}, {"l", "m", nil}, {"none", "n", fs.ErrNotExist}} {
		if err := rename(root, tc.from, root, tc.to, false); !errors.Is(err, tc.err) {
			t.Errorf("%s to %s: %v, want %v", tc.from, tc.to, err, tc.err)
		}
	}
	fails = unix.EIO
	if err := rename(root, "g", root, "h", false); !errors.Is(err, unix.EIO) {
		t.Errorf("rename = %v, want EIO", err)
	}
	if got, want := grown(t, root), "d/x=1 e=2 g=1 m->f"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAReadOnlyDirectoryIsReplacedByThreeRenames, by a user that is not root: the last of them moves
// it to another directory.
func TestAReadOnlyDirectoryIsReplacedByThreeRenames(t *testing.T) {
	if unprivileged.Again(t) {
		return
	}
	renameat2 = func(fromDir int, from string, toDir int, to string, flags uint) error {
		if flags&unix.RENAME_EXCHANGE != 0 {
			return unix.EINVAL
		}
		return unix.Renameat2(fromDir, from, toDir, to, flags)
	}
	t.Cleanup(func() { renameat2 = unix.Renameat2 })
	root := newRoot(t)
	grow(t, root, "d/x=old")
	if err := root.Chmod("d", 0o555); err != nil {
		t.Fatal(err)
	}
	s, err := NewStaging(root)
	if err != nil {
		t.Fatal(err)
	}
	grow(t, s.Root, "d/x=new")
	d, err := Into(root, Source{Name: "d", Dir: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Commit(s, "d", Tree); err != nil {
		t.Error(err)
	}
	if err := s.Remove(); err != nil {
		t.Error(err)
	}
	if got, want := grown(t, root), "d/x=new"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestAnExchangeWhoseLastRenameFails names both entries.
func TestAnExchangeWhoseLastRenameFails(t *testing.T) {
	calls := 0
	renameat2 = func(fromDir int, from string, toDir int, to string, flags uint) error {
		if calls++; calls == 3 {
			return unix.EIO
		}
		return unix.Renameat2(fromDir, from, toDir, to, flags)
	}
	t.Cleanup(func() { renameat2 = unix.Renameat2 })
	root := newRoot(t)
	grow(t, root, "a/x=new", "b/y=old")
	err := exchangeByThree(root, "a", root, "b")
	if !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), `the copy is at "b"`) || !strings.Contains(err.Error(), `"kcopy-replaced-`) {
		t.Errorf("exchangeByThree = %v", err)
	}
	if got := grown(t, root); !strings.HasPrefix(got, "b/x=new kcopy-replaced-") || !strings.HasSuffix(got, "/y=old") {
		t.Errorf("got %q", got)
	}
}

// TestATreeIsDurableBeforeItReplacesAnother, also one that its owner cannot read.
func TestATreeIsDurableBeforeItReplacesAnother(t *testing.T) {
	root := newRoot(t)
	grow(t, root, "d/f=old")
	var during string
	syncfs = func(int) error {
		content, err := root.ReadFile("d/f")
		during += string(content)
		return err
	}
	t.Cleanup(func() { syncfs = unix.Syncfs })
	s := Source{Name: "s", Dir: true}
	d, err := at(root, "d", s)
	if err != nil {
		t.Fatal(err)
	}
	staging, err := NewStaging(root)
	if err != nil {
		t.Fatal(err)
	}
	grow(t, staging.Root, "s/f=new")
	if err := staging.Root.Chmod("s", 0o300); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Commit(staging, "s", Tree); err != nil || during != "old" {
		t.Errorf("Commit = %v, at syncfs the destination had %q", err, during)
	}
	if err := errors.Join(root.Chmod("d", 0o700), staging.Remove()); err != nil || grown(t, root) != "d/f=new" {
		t.Errorf("%v, %s", err, grown(t, root))
	}
}

// TestAFilesystemWithOwnersOfItsOwn, such as a share: each directory has the owner and mode of its
// mount.
func TestAFilesystemWithOwnersOfItsOwn(t *testing.T) {
	root := newRoot(t)
	for kind, want := range map[int64]error{unix.CIFS_SUPER_MAGIC: nil, unix.FUSE_SUPER_MAGIC: nil, unix.EXT4_SUPER_MAGIC: fs.ErrPermission, unix.OVERLAYFS_SUPER_MAGIC: fs.ErrPermission} {
		fstatfs = func(_ int, f *unix.Statfs_t) error { f.Type = kind; return nil }
		t.Cleanup(func() { fstatfs = unix.Fstatfs })
		s, err := NewStaging(root)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.own(), s.Root.Chmod(".", 0o777)); err != nil {
			t.Fatal(err)
		}
		if err := s.own(); !errors.Is(err, want) {
			t.Errorf("own of a directory of mode 0777 on %x = %v, want %v", kind, err, want)
		}
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	}
}

// TestAStagingDirectoryThatIsRenamed keeps the copy: its name leads elsewhere.
func TestAStagingDirectoryThatIsRenamed(t *testing.T) {
	root := newRoot(t)
	grow(t, root, "other/f=wrong", "precious/x=1")
	s := Source{Name: "f"}
	d, err := at(root, "f", s)
	if err != nil {
		t.Fatal(err)
	}
	staging, err := NewStaging(root)
	if err != nil {
		t.Fatal(err)
	}
	grow(t, staging.Root, "f=right", "rest/x=1")
	if err := errors.Join(root.Rename(staging.name, "away"), root.Rename("other", staging.name)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Commit(staging, "f", Never); err != nil {
		t.Fatal(err)
	}
	if err := staging.Remove(); err == nil {
		t.Error("Remove has removed another directory")
	}
	if got, want := grown(t, root), staging.name+"/f=wrong away/ f=right precious/x=1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestTheProgressOfACommit: each entry that is moved or removed counts.
func TestTheProgressOfACommit(t *testing.T) {
	root := newRoot(t)
	grow(t, root, "d/a=old", "d/b=old")
	s, err := NewStaging(root)
	if err != nil {
		t.Fatal(err)
	}
	grow(t, s.Root, "d/a=new", "d/b=new", "rest/c=1")
	d, err := Into(root, Source{Name: "d", Dir: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Commit(s, "d", Files); err != nil || s.Done() != 2 {
		t.Errorf("after the commit of 2 files: %d, %v", s.Done(), err)
	}
	if err := s.Remove(); err != nil || s.Done() != 5 { // rest/c, rest and d
		t.Errorf("after the removal of the rest: %d, %v", s.Done(), err)
	}
}
