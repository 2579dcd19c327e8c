package quota

import (
	"os"
	"path/filepath"
	"testing"
)

func TestProjectsOfOtherProgramsAreUnchanged(t *testing.T) {
	onEach(t, projectFilesystems, func(t *testing.T, f filesystem, root *os.File) {
		const people, limit = 7, 3 * mib
		must(t, os.Mkdir(filepath.Join(root.Name(), "theirs"), 0o755))
		theirs := open(t, filepath.Join(root.Name(), "theirs"))
		must(t, enterProject(theirs, people))
		// a project with a file, and a project with only a limit
		for _, id := range []uint32{people, candidate("volume", 0)} {
			must(t, limitProject(root, id, limit))
		}
		must(t, os.Mkdir(filepath.Join(root.Name(), "used"), 0o755)) // a project with only files
		must(t, enterProject(open(t, filepath.Join(root.Name(), "used")), candidate("volume", 1)))

		taken := func(id uint32) bool { return id == candidate("volume", 2) }
		mark, err := Make(f.want, root, "volume", Options{Mode: 0o700, Size: mib, Volume: "volume", Taken: taken})
		if want := candidate("volume", 3); err != nil || mark.Project != want {
			t.Errorf("project %d, %v, want %d", mark.Project, err, want)
		}
		for _, name := range []string{"theirs", "volume"} {
			must(t, Discard(root, name, nil))
		}
		for id, want := range map[uint32]int64{people: limit, candidate("volume", 0): limit, mark.Project: 0} {
			if q, err := getProject(root, id); err != nil || int64(q.hardLimit)*unit != want {
				t.Errorf("the limit of project %d is %d units, %v", id, q.hardLimit, err)
			}
		}
		// Inside a project of another program, each volume nevertheless has its own project.
		mark, err = Make(f.want, theirs, "inside", Options{Mode: 0o700, Size: mib, Volume: "inside"})
		must(t, err)
		inside := open(t, filepath.Join(theirs.Name(), "inside"))
		if n := fill(t, filepath.Join(inside.Name(), "file"), 100*mib); n > mib || !look(t, inside, mark).Holds(mib) {
			t.Errorf("%d bytes could be written, with %+v", n, look(t, inside, mark))
		}
	})
}
