package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
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
		{path: "on its dead disk", number: 7, mute: true, backing: mine.dir + "/nodes/node-1/disk"},
		{path: "on another's dead disk", number: 8, mute: true, backing: mine.dir + "-2/disk"},
	}
	var got []string
	for _, l := range mine.ours(all) {
		got = append(got, l.path)
	}
	slices.Sort(got)
	if want := []string{"its disk", "of a block volume", "on its dead disk", "on its disk",
		"on its loop's loop"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A device that holds a deleted disk is left, though nothing else of the cluster is there.
func TestALoopDeviceOfADeletedDiskIsLeft(t *testing.T) {
	c, err := New("deleted-disk")
	if err != nil {
		t.Fatal(err)
	}
	c.dir = filepath.Join(t.TempDir(), "deleted-disk")
	disk := c.node("node-1").disk()
	if err := errors.Join(os.MkdirAll(filepath.Dir(disk), 0o700),
		os.WriteFile(disk, make([]byte, 1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--show", "-f", disk).Output()
	if err != nil {
		t.Fatal(err)
	}
	device := strings.TrimSpace(string(out))
	detach := func() error { return exec.Command("losetup", "-d", device).Run() }
	detached := false
	t.Cleanup(func() {
		if !detached {
			detach()
		}
	})
	if err := os.RemoveAll(c.dir); err != nil {
		t.Fatal(err)
	}
	left, err := c.leftLoops()
	if err != nil || len(left) != 1 || !strings.HasPrefix(left[0], "loop device "+device+" ") {
		t.Errorf("got %q, %v", left, err)
	}
	if err := detach(); err != nil {
		t.Fatal(err)
	}
	detached = true
	// It goes when the last who has it open closes it, and drivers that look for theirs open all
	// there are.
	await.NoError(t, device+" is gone", func() error {
		left, err := c.leftLoops()
		if err == nil && len(left) != 0 {
			err = fmt.Errorf("there is %q", left)
		}
		return err
	})
}
