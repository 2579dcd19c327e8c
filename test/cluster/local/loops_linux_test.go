package local

import (
	"slices"
	"testing"
)

func TestWhoseALoopDeviceIs(t *testing.T) {
	all := []loop{
		{path: "on its loop's loop", number: 4, backing: "/image.raw", on: 3},
		{path: "of a block volume", number: 3, backing: "/dev/loop2", device: 2},
		{path: "on its disk", number: 2, backing: "/volumes/x/image.raw", on: 1},
		{path: "its disk", number: 1, backing: "/var/lib/c/mine/nodes/node-1/disk.img", on: 99},
		{path: "another's", number: 5, backing: "/var/lib/c/mine2/nodes/node-1/disk.img", on: 99},
		{path: "on another's", number: 6, backing: "/volumes/x/image.raw", on: 5},
	}
	var got []string
	for _, l := range (files{"/var/lib/c/mine"}).ours(all) {
		got = append(got, l.path)
	}
	slices.Sort(got)
	if want := []string{"its disk", "of a block volume", "on its disk", "on its loop's loop"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
