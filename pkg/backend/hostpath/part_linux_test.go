package hostpath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// node is a world with what a node mounts with.
type node struct {
	*world
	*Backend
	mounter mounter.Host
	kubelet string
}

// newNode is a node whose root is an xfs of its own.
func newNode(t *testing.T, name string) *node {
	w := newRoot(t, testdisk.Filesystem{Type: "xfs"})
	testdisk.Filesystem{Type: "ext4"}.Need(t)
	n := &node{world: w, kubelet: filepath.Join(filepath.Dir(w.cfg.Root), "kubelet")}
	if err := os.Mkdir(n.kubelet, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.mounter, err = mounter.New(n.kubelet, n.kubelet+".frozen"); err != nil {
		t.Fatal(err)
	}
	uses(n.mounter)(&w.cfg)
	w.cfg.Node = name
	n.Backend = w.open()
	return n
}

// mount mounts a volume until the test is over, and returns a file in it.
func (n *node) mount(id string) string {
	n.Helper()
	m, err := n.Mount(context.Background(), id, backend.Access{})
	if err != nil {
		n.Fatal(err)
	}
	at := filepath.Join(n.kubelet, id)
	if err := n.mounter.Mount(context.Background(), m, at); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		if err := n.mounter.Unmount(context.Background(), at); err != nil {
			n.Error(err)
		}
	})
	return filepath.Join(at, "file")
}

// disk makes an image with a filesystem, and mounts it.
func (n *node) disk(name string) (id, file string) {
	n.Helper()
	v, err := n.Create(context.Background(), backend.CreateOptions{
		Name: name, Required: 32 * mib, Access: []backend.Access{{FSType: "ext4"}}, Parameters: map[string]string{kindKey: string(image)},
	})
	if err != nil {
		n.Fatal(err)
	}
	return v.ID, n.mount(v.ID)
}

// kept returns the number in the snapshot that a part has of one volume.
func (n *node) kept(part backend.Part) uint64 {
	n.Helper()
	v, err := n.Restore(context.Background(), part.Snapshots[0].ID, backend.CreateOptions{
		Name: "of " + part.Cut, Access: []backend.Access{{FSType: "ext4"}}, Parameters: map[string]string{kindKey: string(image)},
	})
	if err != nil {
		n.Fatal(err)
	}
	data := n.read(n.mount(v.ID))
	return binary.LittleEndian.Uint64(data)
}

// inTurns writes 1, 2, 3… to files, to each when the number is durable in the one before. last is
// durable in all. What it returns ends that.
func inTurns(t *testing.T, last *atomic.Uint64, names ...string) (end func()) {
	var files []*os.File
	for _, name := range names {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := uint64(1); ; n++ {
			for _, f := range files {
				_, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, n), 0)
				if err := errors.Join(err, f.Sync()); err != nil {
					t.Error(err)
					return
				}
			}
			last.Store(n)
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	return sync.OnceFunc(func() {
		close(stop)
		writer.Wait()
		for _, f := range files {
			f.Close()
		}
	})
}

// together returns a question that is answered with yes when all have asked it.
func together(all int64) func(context.Context) error {
	done := make(chan struct{})
	var asked atomic.Int64
	return func(ctx context.Context) error {
		if asked.Add(1) == all {
			close(done)
		}
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// partsOf makes the parts of a group, with one volume on each node, as a router does that is slow:
// one node is frozen already when the next one hears of it.
func partsOf(t *testing.T, name string, nodes []*node, ids []string) []backend.Part {
	t.Helper()
	all := slices.Sorted(slices.Values(ids))
	for try := 0; ; try++ { // a slow machine may not make it under a freeze at once
		parts, errs := make([]backend.Part, len(nodes)), make([]error, len(nodes))
		frozen, durable := together(int64(len(nodes))), together(int64(len(nodes)))
		cut := fmt.Sprint(name, " ", try)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for i, n := range nodes {
			begun, begin := context.WithCancel(ctx)
			wg.Go(func() {
				defer begin()
				parts[i], errs[i] = n.SnapshotPart(ctx, backend.PartOptions{
					GroupOptions: backend.GroupOptions{Name: name,
						Sources: ids[i : i+1]}, All: all, Cut: cut, Durable: durable,
					Frozen: func(ctx context.Context) error { begin(); return frozen(ctx) },
				})
				if errs[i] != nil {
					cancel() // nobody need wait for this one
				}
			})
			<-begun.Done()
		}
		wg.Wait()
		cancel()
		failed := errors.Join(errs...)
		for i, n := range nodes {
			var err error
			if failed != nil {
				err = n.DiscardPart(context.Background(), volumeid.New(volumeid.Group, volumeid.SeveralNodes, name),
					cut)
			} else if err = n.SettlePart(context.Background(), parts[i].ID, cut); err == nil {
				parts[i], err = n.GetPart(context.Background(), parts[i].ID)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if failed == nil {
			return parts
		}
		if try == 20 {
			t.Fatalf("the last of %d tries: %v", try, failed)
		}
	}
}

func TestPartsOnTwoNodesAreOfOneMoment(t *testing.T) {
	nodes := []*node{newNode(t, "node-1"), newNode(t, "node-2")}
	var ids, files []string
	for _, n := range nodes {
		id, file := n.disk("v")
		ids, files = append(ids, id), append(files, file)
	}
	var last atomic.Uint64
	end := inTurns(t, &last, files...)
	defer end()
	var groups [][]backend.Part
	var before []uint64
	for i := range 8 {
		start := last.Load()
		nodes[0].eventually("written to", func() bool { return last.Load() > start })
		before = append(before, last.Load())
		groups = append(groups, partsOf(t, fmt.Sprint("g", i), nodes, ids))
		slices.Reverse(nodes)
		slices.Reverse(ids)
	}
	end()
	for i, parts := range groups {
		if parts[0].ID != parts[1].ID || !parts[0].Settled || !parts[1].Settled || len(parts[0].Snapshots) != 1 ||
			parts[0].Snapshots[0].ID == parts[1].Snapshots[0].ID {
			t.Errorf("the parts are %+v", parts)
		}
		if i%2 == 1 {
			slices.Reverse(parts)
		}
		early, late := nodes[0].kept(parts[0]), nodes[1].kept(parts[1])
		if late > early || early > late+1 || late < before[i] {
			t.Errorf("group %d: the first node's part has %d, the other one's, which is written later, %d; %d was "+
				"acknowledged before", i, early, late, before[i])
		}
	}
}

// left makes sure that there is nothing of a part.
func (n *node) left(id string, promised int64) {
	n.Helper()
	if got := slices.Concat(n.names(stagingDir), n.names(snapshotsDir), n.names(groupsDir)); len(got) > 0 ||
		n.catalog.Reserved() != promised {
		n.Errorf("left: %v, %d bytes", got, n.catalog.Reserved()-promised)
	}
	if _, err := n.GetPart(context.Background(), id); !errors.Is(err, backend.ErrNotFound) {
		n.Errorf("GetPart = %v, want ErrNotFound", err)
	}
}

func TestAPartThatIsWaitedForTooLongIsNotMade(t *testing.T) {
	n := newNode(t, "node-1")
	images := n.Backend.cfg.Images
	n.Backend.cfg.Images = changed{Images: images,
		freeze: func(ctx context.Context, tenant string, paths []string, _ time.Duration,
			cut func(context.Context) error) error {
			return images.Freeze(ctx, tenant, paths, 500*time.Millisecond, cut)
		}}
	id, file := n.disk("v")
	var last atomic.Uint64
	defer inTurns(t, &last, file)()
	promised, nobody := n.catalog.Reserved(), errors.New("nobody has answered")
	for name, tc := range map[string]struct {
		late func(ctx context.Context) error
		want error
	}{
		"it says so":  {func(ctx context.Context) error { <-ctx.Done(); return nobody }, nobody},
		"it says yes": {func(ctx context.Context) error { <-ctx.Done(); return nil }, context.DeadlineExceeded},
		"nobody looks": {func(ctx context.Context) error {
			<-ctx.Done()
			start := last.Load() // and nobody need wait for it
			n.eventually("written to", func() bool { return last.Load() > start+1 })
			return nil
		}, mounter.ErrThawed},
	} {
		t.Run(name, func(t *testing.T) {
			o, asked, err := partOf(id), false, error(nil)
			o.Frozen = func(ctx context.Context) error { asked = true; return tc.late(ctx) }
			o.Durable = func(context.Context) error { t.Error("it is said to be durable"); return nil }
			for try := 0; !asked && try < 20; try++ { // a slow machine may take as long to freeze
				_, err = n.SnapshotPart(context.Background(), o)
			}
			if !errors.Is(err, mounter.ErrThawed) || !errors.Is(err, tc.want) {
				t.Errorf("SnapshotPart = %v, want %v, and ErrThawed", err, tc.want)
			}
			n.left(volumeid.New(volumeid.Group, volumeid.SeveralNodes, "g"), promised)
		})
	}
}

// partOf are the options of a part that has all volumes of its group.
func partOf(ids ...string) backend.PartOptions {
	return backend.PartOptions{
		GroupOptions: backend.GroupOptions{Name: "g", Sources: ids}, All: slices.Sorted(slices.Values(ids)), Cut: "c",
	}
}

func TestCloseEndsAPartAndLeavesNothing(t *testing.T) {
	w := newRoot(t, testdisk.Filesystem{Type: "btrfs"})
	b := w.open()
	o := partOf(w.images(b, "a", "b")...)
	promised := b.catalog.Reserved()
	for _, hook := range []*func(context.Context) error{&o.Frozen, &o.Durable} {
		o.Frozen, o.Durable = nil, nil
		closed := make(chan error)
		*hook = func(ctx context.Context) error {
			go func() { closed <- b.Close() }()
			<-ctx.Done()
			return ctx.Err()
		}
		if _, err := b.SnapshotPart(context.Background(), o); !errors.Is(err, backend.ErrUnavailable) ||
			!errors.Is(err, context.Canceled) {
			t.Errorf("SnapshotPart = %v, want ErrUnavailable, and what the question ended with", err)
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		b = w.open()
		if got := b.count.swept.Load(); got > 0 {
			t.Errorf("%d things were left", got)
		}
		(&node{world: w, Backend: b}).left(volumeid.New(volumeid.Group, volumeid.SeveralNodes, "g"), promised)
	}
}

func TestAnOlderReleaseLeavesPartsAlone(t *testing.T) {
	ctx := context.Background()
	w := newRoot(t, testdisk.Filesystem{Type: "btrfs"})
	b := w.open()
	ids := w.images(b, "a", "b")
	whole, err := b.SnapshotGroup(ctx, backend.GroupOptions{Name: "g", Sources: ids})
	if err != nil {
		t.Fatal(err)
	}
	part, err := b.SnapshotPart(ctx, partOf(ids...))
	if err != nil {
		t.Fatal(err)
	}
	// What the first release reads, it still gets.
	var first struct {
		ID      string    `json:"id"`
		Name    string    `json:"name"`
		Members []member  `json:"members"`
		Created time.Time `json:"created"`
	}
	if err := (record.Format{Version: 1}).Decode(w.read(w.path(groupsDir, whole.ID, recordFile)), &first); err != nil {
		t.Errorf("the first release reads a group: %v", err)
	}
	current := partFormat
	defer func() { partFormat = current }()
	for _, settled := range []bool{false, true} {
		if settled {
			if err := b.SettlePart(ctx, part.ID, part.Cut); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		partFormat = groupFormat // is all that it knows
		b = w.open()
		_, err := b.GetGroup(ctx, part.ID, nil, nil)
		for _, err := range []error{err, b.DeleteGroup(ctx, part.ID, nil, nil)} {
			if !errors.Is(err, record.ErrNewer) || errors.Is(err, backend.ErrNotFound) {
				t.Errorf("an older release says %v, want that a newer one wrote it", err)
			}
		}
		if got, err := b.GetGroup(ctx, whole.ID, nil, nil); err != nil || len(got.Snapshots) != 2 {
			t.Errorf("a group is %+v, %v", got, err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		partFormat = current
		b = w.open()
		if got, err := b.GetPart(ctx, part.ID); err != nil || got.Settled != settled || len(got.Snapshots) != 2 {
			t.Errorf("afterwards the part is %+v, %v", got, err)
		}
	}
}

func TestASettleThatFailsIsMadeAgain(t *testing.T) {
	ctx := context.Background()
	w := newRoot(t, testdisk.Filesystem{Type: "btrfs"})
	b := w.open()
	part, err := b.SnapshotPart(ctx, partOf(w.images(b, "a", "b")...))
	if err != nil {
		t.Fatal(err)
	}
	next := w.path(groupsDir, part.ID, recordFile+".new")
	if err := os.MkdirAll(filepath.Join(next, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := b.SettlePart(ctx, part.ID, part.Cut); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("SettlePart = %v, want ErrUnavailable", err)
	}
	if err := os.RemoveAll(next); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(next, []byte("what a crash left"), 0o600); err != nil {
		t.Fatal(err)
	}
	b = w.restart(b)
	if got, err := b.GetPart(ctx, part.ID); err != nil || got.Settled {
		t.Errorf("GetPart = %+v, %v", got, err)
	}
	if err := b.SettlePart(ctx, part.ID, part.Cut); err != nil {
		t.Fatal(err)
	}
	b = w.restart(b)
	if got, err := b.GetPart(ctx, part.ID); err != nil || !got.Settled {
		t.Errorf("GetPart = %+v, %v", got, err)
	}
	if got := w.names(filepath.Join(groupsDir, part.ID)); !slices.Equal(got, []string{recordFile}) {
		t.Errorf("beside the record: %v", got)
	}
}
