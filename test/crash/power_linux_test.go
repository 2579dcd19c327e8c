package crash

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/testdisk"
)

// When only the driver dies, the kernel still writes out its cache, and a missing fsync is never
// seen. Here the root is a filesystem in a file. The file is copied at the moment of the power cut,
// and the next driver gets the copy: data that the filesystem had not written by then is lost. A
// disk with a false write cache is not simulated.

// filesystem is the filesystem of a root.
type filesystem struct {
	name    string
	size    int64  // of an image, in bytes: about the least that mkfs takes
	options string // for mount
}

// Time alone writes everything out, after 5 s on ext4 and 30 s on the others. Where it can be, that
// is put off: a missing fsync must show on a slow machine too.
var filesystems = []filesystem{
	{"ext4", 64 << 20, "loop,commit=300"},
	{"xfs", 300 << 20, "loop"},
	{"btrfs", 128 << 20, "loop,commit=300"},
}

// need skips the test where the filesystem cannot be made or mounted.
func (f filesystem) need(t *testing.T) {
	t.Helper()
	testdisk.Filesystem{Type: f.name}.Need(t)
}

// disk is a world whose root is a filesystem of its own, in an image.
type disk struct {
	*world
	filesystem
	image string
	tries int // copies of the image
}

func newDisk(t *testing.T, bin string, f filesystem) *disk {
	t.Helper()
	d := &disk{filesystem: f, image: testdisk.Filesystem{Type: f.name, Size: f.size}.Image(t)}
	t.Cleanup(func() { testdisk.Detached(t, d.image) }) // after the world's own, before the removal of the image
	d.world = newWorld(t, bin)
	d.mount()
	if loops := d.loops(); len(loops) != 1 {
		t.Fatalf("loop devices of %s: %v, want one", d.image, loops)
	}
	return d
}

func (d *disk) run(name string, args ...string) {
	d.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

func (d *disk) mount() {
	d.Helper()
	d.run("mount", "-t", d.filesystem.name, "-o", d.options, d.image, d.root)
}

// flush writes everything out, as time does on a node that has been running for long.
func (d *disk) flush() {
	d.Helper()
	root, err := os.Open(d.root)
	if err != nil {
		d.Fatal(err)
	}
	defer root.Close()
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		d.Fatal(err)
	}
}

// loops returns the loop devices that hold an image of this disk.
func (d *disk) loops() []string { return testdisk.Loops(d.T, d.image) }

// cut takes the power away, and gives it back. The driver dies if it still runs.
func (d *disk) cut() {
	d.Helper()
	after := d.survivors()
	if d.cmd != nil {
		if err := d.cmd.Process.Kill(); err != nil {
			d.Fatal(err)
		}
		d.gone()
	}
	d.replace(after)
	d.lost()
}

// survivors returns a copy of the disk, with the data that the filesystem has written to it by now:
// the disk of a single moment, as nothing was written while it was copied. Each try has a new file
// that is not synced, because the filesystem may have written the last one.
func (d *disk) survivors() string {
	d.Helper()
	after := d.image + ".after"
	testdisk.CutPower(d, d.image, after, func() {
		d.tries++
		if err := os.WriteFile(d.unsynced(), nil, 0o600); err != nil {
			d.Fatal(err)
		}
	})
	return after
}

// unsynced returns the path of a file that no power cut leaves.
func (d *disk) unsynced() string { return filepath.Join(d.root, fmt.Sprint("unsynced-", d.tries)) }

// replace mounts a copy of the disk in its place. No process uses the disk any more, or soon none
// does.
func (d *disk) replace(after string) {
	d.Helper()
	// a helper process of the driver ends a moment later
	if err := testdisk.Unmount(d, d.root); err != nil {
		d.Fatal(err)
	}
	if err := os.Rename(after, d.image); err != nil {
		d.Fatal(err)
	}
	d.mount()
}

// lost makes sure that the disk was without power.
func (d *disk) lost() {
	d.Helper()
	if _, err := os.Lstat(d.unsynced()); !errors.Is(err, fs.ErrNotExist) {
		d.Errorf("what nobody synced is not lost, so this was no power cut: %v", err)
	}
}

// known checks that the driver reports a volume as acknowledged.
func (l *life) known() {
	l.Helper()
	_, err := l.ControllerGetVolumeHealth(context.Background(), &csi.ControllerGetVolumeHealthRequest{VolumeId: l.id})
	switch code := status.Code(err); {
	case l.next == l.after("create") && code != codes.OK:
		l.Errorf("an acknowledged volume: %v", err)
	case l.next == l.after("expand"):
		v, err := l.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: l.id})
		if err != nil || v.GetVolume().GetCapacityBytes() != expanded {
			l.Errorf("a volume whose expansion was acknowledged: %v, %v", v, err)
		}
	case l.next == l.after("delete") && code != codes.NotFound:
		l.Errorf("a volume whose delete was acknowledged: %v", err)
	}
}

// outage is a moment at which the power goes.
type outage struct {
	name    string
	kind    kind
	during  string // a step, or "identity", which is the first start
	point   string // where the driver dies; it lives if this is ""
	retried bool   // the next driver recovers from the death of this driver, and then the power is cut
}

// ways are the crash points on the way of a step, by the first part of their names.
var ways = map[string][]string{
	"identity": {"identity"}, "create": {"create"}, "expand": {"expand"}, "delete": {"delete"}, "delete snapshot": {"delete"},
	"snapshot": {"create", "copy", "snapshot"}, "restore": {"create", "copy", "restore"}, "group": {"create",
		"group"}, "end group": {"delete", "group"},
}

// passes reports whether a step gets to a point, on a filesystem.
func (o outage) passes(point string, f filesystem) bool {
	first, second, _ := strings.Cut(point, ":")
	switch {
	case !slices.Contains(ways[o.during], first):
		return false
	case point == "delete:checked":
		return o.during == "delete"
	case second == "formatted":
		return o.during == "create" && o.kind == image
	case first == "restore", point == "copy:image":
		return o.kind == image
	case point == "copy:tree":
		return o.kind == directory && f.name != "btrfs"
	case point == "copy:subvolume":
		return o.kind == directory && f.name == "btrfs"
	case first == "group":
		return (second == "ended") == (o.during == "end group")
	}
	return true
}

// outages has an outage for each acknowledged object, and two for each crash point on the way
// there.
func outages(t *testing.T, f filesystem) []outage {
	t.Helper()
	all := []outage{
		{"right after the first start", directory, "identity", "", false},
		{"right after a create", directory, "create", "", false},
		{"right after a create of an image", image, "create", "", false},
		{"right after an expansion", directory, "expand", "", false},
		{"right after an expansion of an image", image, "expand", "", false},
		{"right after a delete", directory, "delete", "", false},
		{"right after a snapshot", directory, "snapshot", "", false},
		{"right after a snapshot of an image", image, "snapshot", "", false},
		{"right after a restore", directory, "restore", "", false},
		{"right after a restore of an image", image, "restore", "", false},
		{"right after the delete of a snapshot", directory, "delete snapshot", "", false},
		{"right after a group", image, "group", "", false},
		{"right after the end of a group", image, "end group", "", false},
	}
	names := points(t)
	for _, o := range slices.Clone(all) {
		before := len(all)
		for _, point := range names {
			if o.passes(point, f) {
				of := fmt.Sprintf("%s of a %s in %s", point, o.kind, o.during)
				all = append(all, outage{"as the driver dies at " + of, o.kind, o.during, point, false},
					outage{"right after the retry of what died at " + of, o.kind, o.during, point, true})
			}
		}
		if len(all) == before {
			t.Fatalf("no point of %s in %v", o.during, names)
		}
	}
	return all
}

// happen gets to the moment and takes the power away. l is the volume that is made or deleted.
func (o outage) happen(d *disk, l *life) {
	d.Helper()
	try := func(point string) (died bool) {
		if !d.start(point) {
			return true
		}
		if o.during == "identity" {
			return false
		}
		err := l.step()
		if err != nil && !interrupted(err) {
			d.Fatal(err)
		}
		return err != nil
	}
	died := try(o.point)
	if died != (o.point != "") {
		d.Fatalf("the driver died: %v", died)
	}
	if died {
		d.gone()
	}
	if o.retried && try("") {
		d.Fatalf("the driver died again: %s", d.logged())
	}
	d.cut()
}

// lead makes the objects that must exist before the moment: acknowledged, and written out before.
func (o outage) lead(l *life) error {
	l.unwritten = true
	if o.during == "create" {
		return nil
	}
	before := []string{"create"}
	switch o.during {
	case "restore", "delete snapshot":
		before = append(before, "snapshot")
	case "end group":
		before = append(before, "group")
	}
	for _, name := range before {
		l.next = l.stepNumber(name)
		if err := l.step(); err != nil {
			return err
		}
	}
	l.next = l.stepNumber(o.during)
	return nil
}

// retry repeats the interrupted call, and undoes it.
func (o outage) retry(l *life) error {
	undo := map[string]string{"snapshot": "delete snapshot", "restore": "delete what was restored",
		"group": "end group"}[o.during]
	for _, name := range []string{o.during, undo, "delete snapshot", "delete"} {
		if name == "" || name == "identity" || (name == "delete snapshot" && l.snapshot == "") {
			continue
		}
		if err := l.do(steps[l.stepNumber(name)]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (o outage) test(t *testing.T, bin string, f filesystem) {
	if strings.HasSuffix(o.during, "group") && f.name == "ext4" {
		t.Skip("a group takes reflinks")
	}
	d := newDisk(t, bin, f)
	l, other := d.newLife("life", o.kind), d.newLife("other", o.kind)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, d.logged())
		}
	}
	if o.during != "identity" { // on a node that has been running for long
		d.start("")
		must(other.step())
		must(o.lead(l))
		d.stop()
		d.flush()
	}
	o.happen(d, l)
	d.start("")
	for _, l := range []*life{l, other} {
		l.kept()
		l.known()
	}
	d.whole()
	if o.during == "identity" {
		must(l.do(steps[l.stepNumber("create")]))
	}
	must(o.retry(l)) // a missing object can be made, and an existing object can be found
	for _, name := range []string{"create", "delete"} {
		must(other.do(steps[other.stepNumber(name)]))
	}
	d.clean()
	d.stop()
}

func TestPowerCut(t *testing.T) {
	t.Parallel()
	testdisk.NeedLoops(t)
	bin := driver(t)
	for _, f := range filesystems {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.need(t)
			for _, o := range part(t, outages(t, f), 10) {
				t.Run(o.name, func(t *testing.T) {
					t.Parallel()
					o.test(t, bin, f)
				})
			}
		})
	}
}
