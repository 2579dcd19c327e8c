//go:build unix

package place

import (
	"io/fs"
	"os"
	"testing"

	"github.com/causeway-csi/causeway/internal/unprivileged"
)

// TestReadOnlyDirectoriesAreCopied for a user that is not root, as a Go module cache is
// (moby/moby#35987): rename(2) needs the right to write to the directory that it moves. The modes of
// the copy are those of the source.
func TestReadOnlyDirectoriesAreCopied(t *testing.T) {
	if unprivileged.Again(t) {
		return
	}
	for name, tc := range map[string]struct {
		existing  []string
		closed    []string // existing directories without the right to write
		overwrite Overwrite
		want      string
	}{
		"new":                  {nil, nil, Never, "d/e/ d/g/h=s"},
		"into a directory":     {[]string{"d/x=old"}, nil, Files, "d/e/ d/g/h=s d/x=old"},
		"in place of one":      {[]string{"d/x=old"}, nil, Tree, "d/e/ d/g/h=s"},
		"in place of a closed": {[]string{"d/y/x=old"}, []string{"d/y", "d"}, Tree, "d/e/ d/g/h=s"},
	} {
		t.Run(name, func(t *testing.T) {
			root := newRoot(t)
			grow(t, root, tc.existing...)
			s, err := NewStaging(root)
			if err != nil {
				t.Fatal(err)
			}
			grow(t, s.Root, "d/e/", "d/g/h=s")
			for _, dir := range []string{"d/e", "d/g", "d"} {
				if err := s.Root.Chmod(dir, 0o555); err != nil {
					t.Fatal(err)
				}
			}
			for _, dir := range tc.closed {
				if err := root.Chmod(dir, 0o500); err != nil {
					t.Fatal(err)
				}
			}
			d, err := Into(root, Source{Name: "d", Dir: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Commit(s, "d", tc.overwrite); err != nil {
				t.Error(err)
			}
			if err := s.Remove(); err != nil {
				t.Error(err)
			}
			if got := grown(t, root); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			modes := map[string]fs.FileMode{"d": 0o555, "d/e": 0o555, "d/g": 0o555}
			if tc.overwrite == Files {
				modes["d"] = 0o755 // that of the existing directory
			}
			for path, want := range modes {
				info, err := root.Stat(path)
				if err != nil {
					t.Error(err)
				} else if info.Mode().Perm() != want {
					t.Errorf("%s has %v, want %v", path, info.Mode(), want)
				}
			}
			for _, dir := range []string{"d", "d/e", "d/g"} { // for the removal of the test's directory
				os.Chmod(root.Name()+"/"+dir, 0o755)
			}
		})
	}
}
