package copier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// deepName is the name of the directories of a chain.
const deepName = "a directory with a name"

// sameChain fails the test if two chains differ. It compares level by level, as the paths of the
// lower levels are too long.
func sameChain(t *testing.T, got, want string, depth int) {
	t.Helper()
	var at [2]int
	for i, path := range []string{got, want} {
		fd, err := unix.Open(path, openDir, 0)
		must(t, err)
		at[i] = fd
	}
	for level := range depth + 1 {
		var levels [2]map[string]string
		for i, dir := range at {
			levels[i] = map[string]string{}
			for _, name := range append(names(t, dir), ".") {
				fd, err := openAt(dir, name, openPath)
				must(t, err)
				var st unix.Statx_t
				must(t, statx(fd, &st))
				levels[i][fmt.Sprint(level, "/", name)] = describeNode(t, fd, &st)
				must(t, unix.Close(fd))
			}
		}
		if want := 4; len(levels[1]) != want && level < depth {
			t.Fatalf("level %d has %d entries, want %d", level, len(levels[1]), want)
		}
		if equal(t, levels[0], levels[1]); t.Failed() {
			break
		}
		for i, dir := range at {
			if level < depth {
				fd, err := openAt(dir, deepName, openDir)
				must(t, err)
				at[i] = fd
			}
			must(t, unix.Close(dir))
		}
	}
}

// TestTreeOfManyLevels: the kernel rejects the paths from the top to the lower levels as too long.
func TestTreeOfManyLevels(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		depth := 600
		if f.name == "tmpfs" {
			depth = 10_000
		}
		must(t, os.Mkdir(dir+"/src", 0o700))
		chain(t, dir+"/src", depth, deepName)
		var p Progress
		_, err := copyTreeWith(context.Background(), t, dir+"/src", dir+"/dst", ways[0],
			Options{Workers: 3, Progress: &p})
		must(t, err)
		if want := int64(1 + 3*depth); p.Entries() != want {
			t.Errorf("%d entries are done, want %d", p.Entries(), want)
		}
		sameChain(t, dir+"/dst", dir+"/src", depth)
	})
}

// TestTreeThatIsTooDeep: the limit is exactly MaxDepth.
func TestTreeThatIsTooDeep(t *testing.T) {
	dir := filesystems[0].mount(t)
	must(t, os.Mkdir(dir+"/src", 0o700))
	at, err := unix.Open(dir+"/src", openDir, 0)
	must(t, err)
	for range MaxDepth {
		must(t, unix.Mkdirat(at, deepName, 0o700))
		next, err := openAt(at, deepName, openDir)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	defer func() { unix.Close(at) }()
	_, err = copyTree(context.Background(), t, dir+"/src", dir+"/dst", ways[0])
	must(t, err)
	must(t, unix.Mkdirat(at, "the last straw", 0o700))
	_, err = copyTree(context.Background(), t, dir+"/src", dir+"/dst2", ways[0])
	if want := "directory tree is too deep: more than 16384 levels, below \"" + deepName; !errors.Is(err, ErrDepth) ||
		!strings.HasPrefix(err.Error(), want) || len(err.Error()) > maxTop+200 {
		t.Errorf("Tree = %v, want ErrDepth with %q, and short", err, want)
	}
}

// bush makes nested directories with many subdirectories, of which every fourth begins a chain that
// is deeper than a window. So each of the upper directories leaves the window, and is opened again,
// many times.
func bush(t testing.TB, top string, depth, wide int) {
	t.Helper()
	for level := range depth {
		must(t, os.Mkdir(top, 0o755))
		for i := range wide {
			sub := fmt.Sprintf("%s/%d", top, i)
			must(t, os.Mkdir(sub, 0o755))
			if i%4 == 0 {
				must(t, os.MkdirAll(sub+strings.Repeat("/x/y", window), 0o755))
				must(t, os.MkdirAll(sub+strings.Repeat("/x/z", window), 0o755))
			}
			must(t, os.WriteFile(sub+"/file", fmt.Append(nil, level, i), 0o600))
		}
		must(t, os.WriteFile(top+"/file", []byte("content"), 0o600))
		top += "/deeper"
	}
}

// TestTreeWithoutTypes: the filesystem of this test does not report the types of entries in
// listings.
func TestTreeWithoutTypes(t *testing.T) {
	f := filesystems[1]
	f.make = []string{"-O", "^filetype"}
	dir := f.mount(t)
	must(t, os.Mkdir(dir+"/src", 0o700))
	plant(t, dir+"/src")
	bush(t, dir+"/src/bush", 3, 4)
	want := describe(t, dir+"/src")
	_, err := copyTree(context.Background(), t, dir+"/src", dir+"/dst", ways[0])
	must(t, err)
	equal(t, describe(t, dir+"/dst"), want)
}

func TestWindow(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		bush(t, dir+"/src", 12, 8)
		for i := range 600 { // more than a single read returns
			must(t, os.MkdirAll(fmt.Sprintf("%s/src/deeper/wide/a directory of many %d/sub", dir, i), 0o755))
		}
		for i := range 5 {
			must(t, os.MkdirAll(fmt.Sprintf("%s/src/deeper/wide/a directory of many %d%s", dir, i*100,
				strings.Repeat("/x", 2*window)), 0o755))
			must(t, os.Mkdir(fmt.Sprintf("%s/src/deeper/wide/a directory of many %d%s/y", dir, i*100,
				strings.Repeat("/x", window)), 0o755))
		}
		want := describe(t, dir+"/src")
		for _, workers := range []int{1, 2, 8} {
			dst := fmt.Sprint(dir, "/dst", workers)
			_, err := copyTreeWith(context.Background(), t, dir+"/src", dst, ways[0], Options{Workers: workers})
			must(t, err)
			equal(t, describe(t, dst), want)
		}
	})
}

// TestAListContinues: a listing that was closed resumes behind any entry, even from the position of
// another entry.
func TestAListContinues(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		for i := range 700 {
			must(t, os.Mkdir(fmt.Sprint(dir, "/", i), 0o700))
		}
		begin := func() *listing {
			fd, err := unix.Open(dir, openDir, 0)
			must(t, err)
			l := &listing{}
			l.open(fd)
			return l
		}
		rest := func(l *listing) (all []string, positions []int64) {
			for {
				e, at, ok, err := l.next()
				must(t, err)
				if !ok {
					return all, positions
				}
				all, positions = append(all, string(e.name)), append(positions, at)
			}
		}
		l := begin()
		want, positions := rest(l)
		l.close()
		if len(want) < 702 {
			t.Fatalf("%d entries", len(want))
		}
		for i := 0; i < len(want); i += 7 {
			for _, at := range []int64{positions[i], 0, positions[len(want)-1]} {
				l := begin()
				must(t, l.resume(want[i], at))
				if got, _ := rest(l); !slices.Equal(got, want[i+1:]) {
					t.Errorf("behind entry %d of %d, from position %d, are %d entries", i, len(want), at, len(got))
				}
				l.close()
			}
		}
		l = begin()
		defer l.close()
		if err := l.resume("there is none", 0); !errors.Is(err, errListing) {
			t.Errorf("resume = %v, want errListing", err)
		}
	})
}

// walkDown fills the directories of a copy from the top down to a depth, and returns the last
// directory, filled.
func walkDown(t *testing.T, w *walker, d *dir, depth int) *dir {
	t.Helper()
	for {
		must(t, w.fill(d))
		must(t, w.push(d))
		if d.depth == depth {
			return d
		}
		var err error
		if d, err = w.descend(); d == nil || err != nil {
			t.Fatal(d, err)
		}
	}
}

// goOn completes a copy that walkDown has begun.
func goOn(w *walker) error {
	d, err := w.descend()
	if d == nil || err != nil {
		return err
	}
	return w.subtree(d)
}

// TestDirectoriesThatMove: the tenant changes a directory above the current directory of the copy,
// outside the window. The changed directory has 11 subdirectories, each with a chain below it. The
// copy is in the first subdirectory.
func TestDirectoriesThatMove(t *testing.T) {
	const level = 3
	names := func(i int) string { return fmt.Sprint("subdirectory ", i) }
	for _, test := range []struct {
		name   string
		change func(src, changed, sub string) error // sub is the current subdirectory of changed
		whole  bool                                 // the whole directory is copied
		before int32                                // searches from the top before the change
		moves  int32                                // searches after the change, for the directory and its parent
		err    error
	}{
		{"it", func(src, changed, _ string) error { return os.Rename(changed, src+"/elsewhere") }, true, 0, 1, nil},
		{"its subdirectory", func(src, _, sub string) error { return os.Rename(sub, src+"/elsewhere") }, true, 0, 1,
			nil},
		{"both", func(src, changed, sub string) error {
			return errors.Join(os.Rename(sub, src+"/elsewhere"), os.Rename(changed, src+"/another"))
		}, false, 0, 2, nil},
		{"both, and another directory has its name", func(src, changed, sub string) error {
			err := errors.Join(os.Rename(sub, src+"/elsewhere"), os.Rename(changed, src+"/another"))
			for i := range 11 {
				err = errors.Join(err, os.MkdirAll(changed+"/"+names(i)+"/secret", 0o700))
			}
			return err
		}, false, 0, 2, nil},
		{"both, and a link has its name", func(src, changed, sub string) error {
			err := errors.Join(os.Rename(sub, src+"/elsewhere"), os.Rename(changed, src+"/another"))
			for i := range 11 {
				err = errors.Join(err, os.MkdirAll(src+".precious/"+names(i)+"/secret", 0o700))
			}
			return errors.Join(err, os.Symlink(src+".precious", changed))
		}, false, 0, 2, nil},
		{"its subdirectory, too often", func(src, _, sub string) error { return os.Rename(sub, src+"/elsewhere") },
			false, maxMoves, maxMoves + 1, ErrMoved},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := t.TempDir()
			src, changed := base+"/src", strings.Repeat("/d", level)
			for i := range 11 {
				bottom := src + changed + "/" + names(i) + strings.Repeat("/d", window+3)
				must(t, os.MkdirAll(bottom, 0o700))
				must(t, os.WriteFile(bottom+"/file", []byte("mine"), 0o600))
			}
			want := describe(t, src+changed)
			w, top := begin(t, src, base+"/dst")
			walkDown(t, w, top, level+window+2)
			if d := w.pending[level]; d.open != nil || d.left != 10 || d.path("") != changed[1:] {
				t.Fatalf("%s has %d directories to come, and is open: %v", d.path(""), d.left, d.open != nil)
			}
			w.moves.Store(test.before)
			must(t, test.change(src, src+changed, src+"/"+w.pending[level+1].path("")))
			if err := goOn(w); !errors.Is(err, test.err) {
				t.Fatalf("the copy ends with %v, want %v", err, test.err)
			}
			if got := w.moves.Load(); got != test.moves {
				t.Errorf("%d searches from the top, want %d", got, test.moves)
			}
			got := describe(t, base+"/dst"+changed)
			for path := range got {
				if strings.Contains(path, "secret") {
					t.Errorf("%s is in the copy", path)
				}
			}
			if test.whole {
				equal(t, got, want)
			} else if test.err == nil && len(got) != 1+(len(want)-1)/11 { // only the entries of the first subdirectory
				t.Errorf("%d entries are in the copy, %d in the source", len(got), len(want))
			}
		})
	}
}

// TestDirectoriesThatKeepMoving: for all moves at any time, no data from outside the tree gets into
// the copy, all entries that are not moved do, and the copy ends.
func TestDirectoriesThatKeepMoving(t *testing.T) {
	dir := filesystems[0].mount(t)
	src := dir + "/src"
	bush(t, src, 4, 5)
	must(t, os.Mkdir(src+"/stays", 0o700))
	bush(t, src+"/stays/here", 2, 5)
	want := describe(t, src+"/stays")
	bush(t, dir+"/precious", 4, 5) // with the same names
	must(t, filepath.WalkDir(dir+"/precious", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.WriteFile(path+"/secret", nil, 0o600)
		}
		return err
	}))
	must(t, os.Symlink(dir+"/precious", src+"/link"))
	chain := "/deeper/0" + strings.Repeat("/x/y", window/2)
	top := int(open(t, src, os.O_RDONLY).Fd())
	rename := func(from, to string, flags uint) { // follows no link: a tenant's link cannot lead out of the volume
		a, err := openAt(top, "."+filepath.Dir(from), openDir)
		if err != nil {
			return
		}
		defer unix.Close(a)
		b, err := openAt(top, "."+filepath.Dir(to), openDir)
		if err != nil {
			return
		}
		defer unix.Close(b)
		_ = unix.Renameat2(a, filepath.Base(from), b, filepath.Base(to), flags)
	}
	var stops []func()
	for _, move := range []struct {
		from, to string
		flags    uint
	}{
		{"/deeper", "/link", unix.RENAME_EXCHANGE},
		{chain, "/4", unix.RENAME_EXCHANGE},
		{"/deeper/deeper/0/x/y/x", "/0/x", unix.RENAME_EXCHANGE},
		{"/0/x/y/x", "/away", 0},
		{"/deeper/deeper", "/moved", 0},
	} {
		stops = append(stops, churn(func() {
			rename(move.from, move.to, move.flags)
			rename(move.to, move.from, move.flags)
		}))
	}
	for i := range 20 {
		dst := fmt.Sprint(dir, "/dst", i)
		_, err := copyTreeWith(context.Background(), t, src, dst, ways[0], Options{Workers: 1 + i%4})
		if err != nil && !errors.Is(err, ErrMoved) {
			t.Fatal(err)
		}
		if err == nil {
			equal(t, describe(t, dst+"/stays"), want)
		}
		must(t, filepath.WalkDir(dst, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == "secret" {
				t.Fatalf("%s is in the copy", path)
			}
			return err
		}))
		must(t, os.RemoveAll(dst))
	}
	for _, stop := range stops {
		stop()
	}
}

// TestTargetThatChanges: if another process adds or removes directories of the target, the copy
// fails.
func TestTargetThatChanges(t *testing.T) {
	for name, change := range map[string]func(dst string) error{
		"an additional directory": func(dst string) error { return os.Mkdir(dst+"/one more", 0o700) },
		"a missing directory":     func(dst string) error { return os.Remove(dst + "/3") },
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			for i := range 10 {
				must(t, os.MkdirAll(fmt.Sprint(base, "/src/", i), 0o700))
			}
			w, top := begin(t, base+"/src", base+"/dst")
			must(t, w.fill(top))
			must(t, w.push(top))
			must(t, change(base+"/dst"))
			if err := goOn(w); !errors.Is(err, errListing) {
				t.Errorf("the copy ends with %v, want errListing", err)
			}
		})
	}
}

// TestEntriesThatComeTwice: a listing of a directory that changes may return a name again.
func TestEntriesThatComeTwice(t *testing.T) {
	everywhere(t, func(t *testing.T, base string, f filesystem) {
		must(t, os.Mkdir(base+"/src", 0o700))
		plant(t, base+"/src")
		want := describe(t, base+"/src")
		w, top := begin(t, base+"/src", base+"/dst")
		w.top = top.open.st
		must(t, w.everything(top.open))
		left := top.left
		_, err := unix.Seek(top.open.src, 0, unix.SEEK_SET)
		must(t, err)
		must(t, w.everything(top.open))
		if top.left != left {
			t.Errorf("%d directories are left, %d after the first listing", top.left, left)
		}
		must(t, w.leave(top.open))
		must(t, w.push(top))
		must(t, goOn(w))
		must(t, w.finish(&dir{}))
		equal(t, describe(t, base+"/dst"), want)
	})
}

// TestTreeIntoADirectoryWithEntries: the copy could mistake existing entries for its own.
func TestTreeIntoADirectoryWithEntries(t *testing.T) {
	base := t.TempDir()
	must(t, os.MkdirAll(base+"/src", 0o700))
	must(t, os.MkdirAll(base+"/dst/entry", 0o700))
	_, err := Tree(context.Background(), open(t, base+"/src", os.O_RDONLY), open(t, base+"/dst", os.O_RDONLY),
		Options{})
	if !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("Tree = %v, want ENOTEMPTY", err)
	}
}

// countdown is a context that ends at the n-th call of Err.
type countdown struct {
	context.Context
	n atomic.Int64
}

func (c *countdown) Err() error {
	if c.n.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestTreeEndsAnywhere: a copy that ends early at any point leaves no descriptor and no goroutine.
func TestTreeEndsAnywhere(t *testing.T) {
	dir := filesystems[0].mount(t)
	bush(t, dir+"/src", 3, 5)
	for i := range 10 {
		must(t, os.Link(dir+"/src/file", fmt.Sprint(dir, "/src/deeper/link", i)))
	}
	must(t, os.Link(dir+"/src/file", dir+"/outside"))
	src := open(t, dir+"/src", os.O_RDONLY)
	for n, done := int64(0), false; !done; n++ {
		path := fmt.Sprint(dir, "/dst", n)
		must(t, os.Mkdir(path, 0o700))
		dst := open(t, path, os.O_RDONLY)
		ctx := &countdown{Context: context.Background()}
		ctx.n.Store(n)
		before, routines := descriptors(t, ""), runtime.NumGoroutine()
		_, err := Tree(ctx, src, dst, Options{Workers: 1 + int(n%4)})
		if done = err == nil; !done && !errors.Is(err, context.Canceled) {
			t.Fatalf("Tree = %v", err)
		}
		leftNothing(t, before, routines)
		must(t, dst.Close())
		if n > 100 && !done { // the others only take longer
			n += n / 10
		}
	}
}
