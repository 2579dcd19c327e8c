package local

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhoseALoopDeviceIs(t *testing.T) {
	mine := files{t.TempDir()}
	disk := func(f files) file {
		path := f.node("node-1").disk()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var s unix.Stat_t
		if err := unix.Stat(path, &s); err != nil {
			t.Fatal(err)
		}
		return file{s.Dev, s.Ino}
	}
	all := []loop{
		{path: "on its loop's loop", number: 4, file: file{3, 1}},
		{path: "of a block volume", number: 3, file: file{98, 1}, device: 2},
		{path: "on its disk", number: 2, file: file{1, 1}},
		{path: "its disk", number: 1, file: disk(mine)},
		{path: "another's", number: 5, file: disk(files{t.TempDir()})},
		{path: "on another's", number: 6, file: file{5, 1}},
	}
	var got []string
	for _, l := range mine.ours(all) {
		got = append(got, l.path)
	}
	slices.Sort(got)
	if want := []string{"its disk", "of a block volume", "on its disk", "on its loop's loop"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
