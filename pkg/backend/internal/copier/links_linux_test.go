package copier

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nlink returns the number of names of a file.
func nlink(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return uint64(st.Nlink) //nolint:unconvert // 32 bits on arm64
}

// TestHardLinks: files with many names in many directories, which several workers find at the same
// time, some of them also with names outside the tree.
func TestHardLinks(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		r := rand.New(rand.NewPCG(7, 0))
		const dirs, files = 24, 300
		must(t, os.MkdirAll(dir+"/outside", 0o700))
		for i := range dirs {
			must(t, os.MkdirAll(fmt.Sprint(dir, "/src/", i), 0o700))
		}
		for i := range files {
			first := fmt.Sprint(dir, "/src/", r.IntN(dirs), "/first", i)
			switch i % 10 {
			case 0:
				must(t, unix.Mkfifo(first, 0o600))
			case 1:
				must(t, os.Symlink(fmt.Sprint("to ", i), first))
			default:
				must(t, os.WriteFile(first, pattern(r.IntN(10_000), byte(i)), 0o600))
			}
			for j := range 1 + r.IntN(8) {
				must(t, os.Link(first, fmt.Sprint(dir, "/src/", r.IntN(dirs), "/name", i, ".", j)))
			}
			if i%3 == 0 {
				must(t, os.Link(first, fmt.Sprint(dir, "/outside/", i)))
			}
		}
		stamp(t, dir+"/src", 3)
		want := describe(t, dir+"/src")
		for _, w := range []way{ways[0], ways[2]} {
			dst := dir + "/" + w.name
			_, err := copyTree(context.Background(), t, dir+"/src", dst, w)
			must(t, err)
			equal(t, describe(t, dst), want) // also the times of the top, without additional names
			for path, description := range want {
				if !strings.Contains(path, "/first") {
					continue
				}
				_, list, _ := strings.Cut(description, " is [")
				if names := strings.Count(list, `"`) / 2; nlink(t,
					dst+"/"+path) != uint64(names) {
					t.Errorf("%s has %d names, want %d", path, nlink(t, dst+"/"+path), names)
				}
			}
		}
	})
}

// TestHardLinksWithoutNeed: a tree without hard links needs no directory for them.
func TestHardLinksWithoutNeed(t *testing.T) {
	base := t.TempDir()
	must(t, os.MkdirAll(base+"/src/sub", 0o700))
	must(t, os.WriteFile(base+"/src/sub/file", nil, 0o600))
	w, top := begin(t, base+"/src", base+"/dst")
	must(t, w.subtree(top))
	if w.links.fd >= 0 {
		t.Error("the directory for hard links was made")
	}
}

// TestHardLinksUpToTheLimit: the copy of a file with as many names as the filesystem permits cannot
// have an additional name.
func TestHardLinksUpToTheLimit(t *testing.T) {
	const most = 65000 // EXT4_LINK_MAX
	f := filesystems[1]
	dir := f.mount(t)
	for _, sub := range []string{"a", "b/c"} {
		must(t, os.MkdirAll(dir+"/src/"+sub, 0o700))
	}
	must(t, os.WriteFile(dir+"/src/file", []byte("content"), 0o600))
	for i := range most - 1 {
		must(t, os.Link(dir+"/src/file", fmt.Sprint(dir, "/src/", []string{"a", "b/c"}[i%2], "/", i)))
	}
	if err := os.Link(dir+"/src/file", dir+"/src/one more"); !errors.Is(err, unix.EMLINK) {
		t.Fatalf("an additional name: %v, want EMLINK", err)
	}
	var p Progress
	_, err := copyTreeWith(context.Background(), t, dir+"/src", dir+"/dst", ways[0], Options{Workers: 3, Progress: &p})
	must(t, err)
	if n := nlink(t, dir+"/dst/file"); n != most {
		t.Errorf("the copy has %d names, want %d", n, most)
	}
	if want := int64(most + 4); p.Entries() != want {
		t.Errorf("%d entries are done, want %d", p.Entries(), want)
	}
	for _, sub := range []string{"a", "b/c"} {
		if all, err := os.ReadDir(dir + "/dst/" + sub); err != nil || len(all) != most/2-len(sub)/3 {
			t.Errorf("%s has %d entries, %v", sub, len(all), err)
		}
	}
}

// TestHardLinksOfFilesThatChange: names are added and removed during the copy. Each name in the
// copy has the content of its file, and the directory for hard links is removed.
func TestHardLinksOfFilesThatChange(t *testing.T) {
	dir := filesystems[0].mount(t)
	const dirs, files = 8, 40
	for i := range dirs {
		must(t, os.MkdirAll(fmt.Sprint(dir, "/src/", i), 0o700))
	}
	name := func(i, j int) string { return fmt.Sprintf("%s/src/%d/file %d", dir, j%dirs, i) }
	for i := range files {
		must(t, os.WriteFile(name(i, 0), fmt.Append(nil, "content ", i), 0o600))
	}
	stop := churn(func() {
		for i := range files {
			for j := 1; j < dirs; j++ {
				os.Link(name(i, 0), name(i, j))
			}
			for j := 1; j < dirs; j += 2 {
				os.Remove(name(i, j))
			}
		}
	})
	defer stop()
	for i := range 60 {
		dst := fmt.Sprint(dir, "/dst", i)
		_, err := copyTree(context.Background(), t, dir+"/src", dst, ways[0])
		must(t, err)
		all, err := os.ReadDir(dst)
		must(t, err)
		if len(all) != dirs {
			t.Fatalf("the copy has %v", all)
		}
		for _, sub := range all {
			names, err := os.ReadDir(dst + "/" + sub.Name())
			must(t, err)
			for _, e := range names {
				got, err := os.ReadFile(dst + "/" + sub.Name() + "/" + e.Name())
				if _, n, _ := strings.Cut(e.Name(), " "); err != nil || string(got) != "content "+n {
					t.Fatalf("%s/%s is %q, %v", sub.Name(), e.Name(), got, err)
				}
			}
			if sub.Name() == "0" && len(names) != files {
				t.Fatalf("%d files are in the copy, want %d", len(names), files)
			}
		}
		must(t, os.RemoveAll(dst))
	}
}

// TestHardLinksOfManyFilesOutside: a single listing does not return all names that are left in the
// directory.
func TestHardLinksOfManyFilesOutside(t *testing.T) {
	everywhere(t, func(t *testing.T, dir string, f filesystem) {
		must(t, os.MkdirAll(dir+"/src/sub", 0o700))
		must(t, os.Mkdir(dir+"/outside", 0o700))
		for i := range 3000 {
			path := fmt.Sprint(dir, "/src/sub/", i)
			must(t, os.WriteFile(path, nil, 0o600))
			must(t, os.Link(path, fmt.Sprint(dir, "/outside/", i)))
		}
		stamp(t, dir+"/src", 3)
		_, err := copyTree(context.Background(), t, dir+"/src", dir+"/dst", ways[0])
		must(t, err)
		equal(t, describe(t, dir+"/dst"), describe(t, dir+"/src"))
	})
}
