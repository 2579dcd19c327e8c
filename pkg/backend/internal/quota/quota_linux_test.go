package quota

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/testdisk"
)

const mib = 1 << 20

// slack is how much of a limit a filesystem may use for itself, in bytes.
const slack = mib

// The contract of all filesystems has a test for each kind, as no kernel supports all kinds.

func TestProjectsKeepTheContract(t *testing.T) { testContract(t, projectFilesystems) }
func TestGroupsKeepTheContract(t *testing.T)   { testContract(t, groupFilesystems) }
func TestSimpleGroupsKeepTheContract(t *testing.T) {
	testContract(t, simpleFilesystems)
}

// testContract runs tests on each filesystem, each test in a directory of its own.
func testContract(t *testing.T, all []filesystem) {
	onEach(t, all, func(t *testing.T, f filesystem, top *os.File) {
		for name, test := range map[string]func(t *testing.T, f filesystem, root *os.File){
			"no byte beyond the limit":                       limitHolds,
			"a limit is raised, lowered and removed":         limitChanges,
			"sizes are rounded up to at most a block":        sizesAreRounded,
			"the whole tree counts, and cannot be moved out": allOfTheTreeCounts,
			"an error leaves nothing":                        errorsLeaveNothing,
			"at the same time":                               manyAtOnce,
			"without a limit":                                noLimit,
			"Look and Set reject other directories":          lookRejectsOtherDirectories,
			"Discard keeps plain files and directories":      discardKeepsPlainFiles,
			"Discard": discard,
		} {
			t.Run(name, func(t *testing.T) {
				dir, err := os.MkdirTemp(top.Name(), "")
				must(t, err)
				test(t, f, open(t, dir))
			})
		}
		t.Run("a power cut", func(t *testing.T) { powerCut(t, f, f.mount(t)) })
	})
}

func limitHolds(t *testing.T, f filesystem, root *os.File) {
	const size = 8 * mib
	dir, mark := f.volume(t, root, "volume", size)
	other, otherMark := f.volume(t, root, "other", size)
	info, err := dir.Stat()
	if err != nil || info.Mode() != fs.ModeDir|0o757 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
	if u := look(t, dir, mark); !u.Holds(size) || u.Used > 64<<10 {
		t.Errorf("a new volume: %+v", u)
	}
	path := filepath.Join(dir.Name(), "file")
	if n := fill(t, path, 2*size); n > size || n < size-slack {
		t.Errorf("%d bytes could be written, of %d", n, size)
	}
	if u := look(t, dir, mark); !u.Holds(size) || u.Used > size || u.Used < size-2*slack {
		t.Errorf("the full volume: %+v", u)
	}
	if u := look(t, other, otherMark); !u.Holds(size) || u.Used > 64<<10 {
		t.Errorf("the other volume: %+v", u)
	}
	if n := fill(t, filepath.Join(other.Name(), "file"), size/2); n != size/2 {
		t.Errorf("%d bytes could be written to the other volume", n)
	}
	must(t, os.Remove(path))
	must(t, with(dir, unix.Syncfs))
	if n := fill(t, path, size/2); n != size/2 {
		t.Errorf("%d bytes could be written after all files were removed", n)
	}
}

func limitChanges(t *testing.T, f filesystem, root *os.File) {
	dir, mark := f.volume(t, root, "volume", 4*mib)
	file := func(name string) string { return filepath.Join(dir.Name(), name) }
	fill(t, file("1"), 100*mib)
	for range 2 {
		must(t, Set(dir, mark, 8*mib))
	}
	if u := look(t, dir, mark); !u.Holds(8 * mib) {
		t.Errorf("raised: %+v", u)
	}
	if n := fill(t, file("2"), 100*mib); n < 4*mib-slack || n > 4*mib+slack {
		t.Errorf("%d more bytes could be written", n)
	}
	must(t, Set(dir, mark, 6*mib))
	if u := look(t, dir, mark); !u.Holds(6*mib) || u.Used < 7*mib {
		t.Errorf("a limit below the usage: %+v", u)
	}
	if n := fill(t, file("3"), mib); n != 0 {
		t.Errorf("%d bytes could be written beyond the lower limit", n)
	}
	must(t, Set(dir, mark, 0))
	if u := look(t, dir, mark); u.Limit != 0 {
		t.Errorf("without a limit: %+v", u)
	}
	if n := fill(t, file("4"), 10*mib); n != 10*mib {
		t.Errorf("%d bytes could be written without a limit", n)
	}
}

func sizesAreRounded(t *testing.T, f filesystem, root *os.File) {
	dir, mark := f.volume(t, root, "volume", 1)
	for _, size := range []int64{1, 511, 512, 1000, 1025, 4097, 1<<20 - 1, 1<<40 + 1, 1 << 60} {
		must(t, Set(dir, mark, size))
		if u := look(t, dir, mark); !u.Holds(size) {
			t.Errorf("the limit for %d bytes is %d", size, u.Limit)
		}
	}
}

func allOfTheTreeCounts(t *testing.T, f filesystem, root *os.File) {
	dir, mark := f.volume(t, root, "volume", 8*mib)
	must(t, os.MkdirAll(filepath.Join(dir.Name(), "a", "b"), 0o700))
	deep := filepath.Join(dir.Name(), "a", "b", "file")
	fill(t, deep, 3*mib)
	u := look(t, dir, mark)
	if u.Used < 3*mib || u.Used > 4*mib {
		t.Errorf("with 3 MiB below: %+v", u)
	}
	if f.want.Kind == Project && u.Files != 4 {
		t.Errorf("%d files, want the directories and the file", u.Files)
	}
	other, _ := f.volume(t, root, "other", mib)
	for name, err := range map[string]error{
		"rename": os.Rename(deep, filepath.Join(other.Name(), "file")),
		"link":   os.Link(deep, filepath.Join(other.Name(), "file")),
	} {
		if !errors.Is(err, unix.EXDEV) {
			t.Errorf("%s to another volume: %v", name, err)
		}
	}
	// The parent directory moves with its content, as from staging/ to volumes/.
	must(t, os.Mkdir(filepath.Join(root.Name(), "half"), 0o700))
	must(t, os.Mkdir(filepath.Join(root.Name(), "volumes"), 0o700))
	half := open(t, filepath.Join(root.Name(), "half"))
	mark, err := Make(f.want, half, "data", Options{Size: 4 * mib, Volume: "moved"})
	must(t, err)
	must(t, os.Rename(half.Name(), filepath.Join(root.Name(), "volumes", "id")))
	moved := open(t, filepath.Join(root.Name(), "volumes", "id", "data"))
	if n := fill(t, filepath.Join(moved.Name(), "file"), 10*mib); n > 4*mib || n < 4*mib-slack ||
		!look(t, moved, mark).Holds(4*mib) {
		t.Errorf("%d bytes could be written after the move: %+v", n, look(t, moved, mark))
	}
}

func errorsLeaveNothing(t *testing.T, f filesystem, root *os.File) {
	m := f.found(t, root)
	must(t, os.Mkdir(filepath.Join(root.Name(), "there"), 0o755))
	if _, err := Make(m, root, "there", Options{Size: mib, Volume: "v"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Make of an existing name: %v", err)
	}
	if _, err := Make(m, root, "there/below", Options{Size: mib, Volume: "v"}); f.want.Kind == Subvolume && err == nil {
		t.Error("a name with a slash was accepted")
	}
	if _, err := Make(m, root, "", Options{Size: mib, Volume: "v"}); err == nil {
		t.Error("an empty name was accepted")
	}
	if _, err := Make(Mechanism{}, root, "none", Options{Volume: "v"}); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("Make without a mechanism: %v", err)
	}
	all := func(uint32) bool { return true }
	if _, err := Make(m, root, "taken", Options{Size: mib, Volume: "v", Taken: all}); f.want.Kind == Project &&
		err == nil {
		t.Error("a project was found although all are in use")
	}
	if _, err := os.Stat(filepath.Join(root.Name(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory is left: %v", err)
	}
}

func manyAtOnce(t *testing.T, f filesystem, root *os.File) {
	m := f.found(t, root)
	const n = 16
	marks := make([]Mark, n)
	var wg sync.WaitGroup
	for i := range marks {
		wg.Go(func() {
			mark, err := Make(m, root, fmt.Sprint(i), Options{Size: int64(i+1) * mib, Volume: "the same for all"})
			if err != nil {
				t.Error(err)
			}
			marks[i] = mark
		})
	}
	wg.Wait()
	seen := map[uint32]bool{}
	for i, mark := range marks {
		if f.want.Kind == Project && seen[mark.Project] {
			t.Errorf("two volumes have project %d", mark.Project)
		}
		seen[mark.Project] = true
		if u := look(t, open(t, filepath.Join(root.Name(), fmt.Sprint(i))), mark); !u.Holds(int64(i+1) * mib) {
			t.Errorf("%d has %+v", i, u)
		}
	}
}

func noLimit(t *testing.T, f filesystem, root *os.File) {
	dir, mark := f.volume(t, root, "volume", 0)
	if n := fill(t, filepath.Join(dir.Name(), "file"), 10*mib); n != 10*mib {
		t.Errorf("%d bytes could be written", n)
	}
	if u := look(t, dir, mark); u.Limit != 0 || u.Used < 10*mib || u.Used > 11*mib {
		t.Errorf("the usage is %+v", u)
	}
	must(t, Set(dir, mark, 12*mib))
	if n := fill(t, filepath.Join(dir.Name(), "more"), 10*mib); n > 2*mib {
		t.Errorf("%d bytes could be written beyond a limit that came later", n)
	}
}

func lookRejectsOtherDirectories(t *testing.T, f filesystem, root *os.File) {
	dir, mark := f.volume(t, root, "volume", mib)
	must(t, os.Mkdir(filepath.Join(root.Name(), "plain"), 0o755))
	plain := open(t, filepath.Join(root.Name(), "plain"))
	for name, err := range map[string]error{
		"Look at a plain directory":  func() error { _, err := Look(plain, mark); return err }(),
		"Set of a plain directory":   Set(plain, mark, mib),
		"Look with an unknown mark":  func() error { _, err := Look(dir, Mark{}); return err }(),
		"Set with an unknown mark":   Set(dir, Mark{}, mib),
		"Look with the wrong kind":   func() error { _, err := Look(dir, other(mark)); return err }(),
		"Set with the wrong kind":    Set(dir, other(mark), mib),
		"Look at another filesystem": func() error { _, err := Look(open(t, t.TempDir()), mark); return err }(),
		"Set of another filesystem":  Set(open(t, "/dev"), mark, mib),
		"Look at no subvolume's top": func() error { _, err := Look(plain, Mark{Kind: Subvolume}); return err }(),
		"Look in an unknown project": func() error {
			_,
				err := Look(dir, Mark{Kind: Project, Project: 7})
			return err
		}(),
	} {
		if !errors.Is(err, ErrNotEnforced) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// other returns a mark of the other kind.
func other(m Mark) Mark {
	if m.Kind == Project {
		return Mark{Kind: Subvolume}
	}
	return Mark{Kind: Project, Project: firstProject}
}

func discardKeepsPlainFiles(t *testing.T, f filesystem, root *os.File) {
	must(t, os.MkdirAll(filepath.Join(root.Name(), "plain", "below"), 0o755))
	must(t, os.WriteFile(filepath.Join(root.Name(), "file"), nil, 0o600))
	dir, mark := f.volume(t, root, "volume", 2*mib)
	must(t, os.Symlink("volume", filepath.Join(root.Name(), "link")))
	must(t, os.Mkdir(filepath.Join(dir.Name(), "inside"), 0o755))
	for _, name := range []string{"plain", "file", "link", "nothing"} {
		if err := Discard(root, name, nil); err != nil {
			t.Errorf("Discard(%s): %v", name, err)
		}
	}
	// The directory inside has the project of the volume, too.
	must(t, Discard(dir, "inside", nil))
	for _, name := range []string{"plain/below", "file", "link", "volume/inside"} {
		if _, err := os.Lstat(filepath.Join(root.Name(), name)); err != nil {
			t.Error(err)
		}
	}
	if u := look(t, dir, mark); !u.Holds(2 * mib) {
		t.Errorf("the limit is %+v", u)
	}
	if err := Discard(root, "../"+filepath.Base(root.Name()), nil); err == nil {
		t.Error("Discard followed a path out of the directory")
	}
}

func discard(t *testing.T, f filesystem, root *os.File) {
	for round := range 2 { // in the second round no trace of the first is left
		dir, mark := f.volume(t, root, "volume", 4*mib)
		must(t, os.Mkdir(filepath.Join(dir.Name(), "a"), 0o700))
		fill(t, filepath.Join(dir.Name(), "a", "file"), 100*mib)
		if f.want.Kind == Project {
			must(t, Discard(root, "volume", func(id uint32) bool { return id == mark.Project }))
			if u := look(t, dir, mark); !u.Holds(4 * mib) {
				t.Errorf("Discard removed a limit that another volume has, too: %+v", u)
			}
		}
		dir.Close()
		for range 2 {
			must(t, Discard(root, "volume", nil))
		}
		must(t, os.RemoveAll(dir.Name()))
		if f.want.Kind == Project {
			await.NoError(t, "no usage is left in the project", func() error { // xfs removes the usage with a delay
				q, err := getProject(root, mark.Project)
				if err != nil {
					t.Fatal(err)
				}
				if !q.empty() {
					return fmt.Errorf("usage left in project %d: %+v", mark.Project, q)
				}
				return nil
			})
			if want := candidate(dir.Name(), 0); mark.Project != want {
				t.Errorf("in round %d the project is %d, want %d", round, mark.Project, want)
			}
		}
	}
	if names, err := os.ReadDir(root.Name()); err != nil || strings.Contains(fmt.Sprint(names), "volume") {
		t.Errorf("left: %v, %v", names, err)
	}
}

// powerCut cuts the power after a file was synced that was made last, as the record of a volume is.
func powerCut(t *testing.T, f filesystem, root *os.File) {
	first, firstMark := f.volume(t, root, "first", 4*mib)
	must(t, Set(first, firstMark, 6*mib))
	second, secondMark := f.volume(t, root, "second", 5*mib)
	if f.want.Kind == Subvolume {
		_, err := Snapshot(second, root, "snapshot", 7*mib, false)
		must(t, err)
	}
	third, thirdMark := f.volume(t, root, "third", 4*mib)
	must(t, with(root, unix.Syncfs))
	must(t, Set(third, thirdMark, 8*mib))
	record, err := os.Create(filepath.Join(root.Name(), "record"))
	must(t, err)
	must(t, errors.Join(record.Sync(), with(root, unix.Fsync)))

	// The image has the writes of the filesystem so far: the state after a power cut.
	image := backing(t, root)
	copied := filepath.Join(t.TempDir(), "disk")
	testdisk.CutPower(t, image, copied, func() {})
	// two filesystems with the same UUID cannot be mounted at once
	must(t, errors.Join(record.Close(), first.Close(), second.Close(), third.Close(), root.Close()))
	must(t, unix.Unmount(root.Name(), 0))
	again := open(t, f.attach(t, copied))
	all := map[string]promise{"first": {firstMark, 6 * mib}, "second": {secondMark, 5 * mib},
		"third": {thirdMark, 8 * mib}}
	if f.want.Kind == Subvolume {
		all["snapshot"] = promise{Mark{Kind: Subvolume}, 7 * mib}
	}
	for name, want := range all {
		dir := open(t, filepath.Join(again.Name(), name))
		if u := look(t, dir, want.mark); !u.Holds(want.size) {
			t.Errorf("%s has %+v, want %d", name, u, want.size)
		}
		if n := fill(t, filepath.Join(dir.Name(), "file"), 100*mib); n > want.size || n < want.size-slack {
			t.Errorf("%d bytes could be written to %s", n, name)
		}
	}
}

// promise is the content of a volume's record.
type promise struct {
	mark Mark
	size int64
}

// backing returns the file of a mounted filesystem.
func backing(t *testing.T, root *os.File) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[1] == root.Name() {
			name, err := os.ReadFile("/sys/block/" + filepath.Base(fields[0]) + "/loop/backing_file")
			must(t, err)
			return strings.TrimSpace(string(name))
		}
	}
	t.Fatal("no such mount")
	return ""
}
