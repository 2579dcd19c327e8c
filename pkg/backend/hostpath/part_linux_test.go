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

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// node is a world with a Host that mounts its volumes.
type node struct {
	*world
	*Backend
	mounter mounter.Host
	kubelet string
}

// newNode returns a node whose root is an xfs.
func newNode(t *testing.T, name string) *node {
	w := newRoot(t, testdisk.Filesystem{Type: "xfs"})
	testdisk.Filesystem{Type: "ext4"}.Need(t)
	n := &node{world: w, kubelet: filepath.Join(filepath.Dir(w.cfg.Root), "kubelet")}
	if err := os.Mkdir(n.kubelet, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.mounter, err = host.New(n.kubelet, n.kubelet+".frozen"); err != nil {
		t.Fatal(err)
	}
	uses(n.mounter)(&w.cfg)
	w.cfg.Node = name
	n.Backend = w.open()
	return n
}

// mount mounts a volume until the end of the test, and returns the path of a file in the volume.
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
		// A child that another test starts has the files of this process until its exec.
		await.NoError(n, "no process uses "+at, func() error {
			return n.mounter.Unmount(context.Background(), at)
		})
	})
	return filepath.Join(at, "file")
}

// disk makes an image with a filesystem, and mounts it.
func (n *node) disk(name string) (id, file string) {
	n.Helper()
	v, err := n.Create(context.Background(), backend.CreateOptions{
		Name: name, Required: 32 * mib, Access: []backend.Access{{FSType: "ext4"}},
		Parameters: map[string]string{kindKey: string(image)},
	})
	if err != nil {
		n.Fatal(err)
	}
	return v.ID, n.mount(v.ID)
}

// kept returns the number in the only snapshot of a part.
func (n *node) kept(part backend.Part) uint64 {
	n.Helper()
	v, err := n.Restore(context.Background(), part.Snapshots[0].ID, backend.CreateOptions{
		Name: "of " + part.AttemptID, Access: []backend.Access{{FSType: "ext4"}},
		Parameters: map[string]string{kindKey: string(image)},
	})
	if err != nil {
		n.Fatal(err)
	}
	data := n.read(n.mount(v.ID))
	return binary.LittleEndian.Uint64(data)
}

// inTurns writes 1, 2, 3… to files in turns: to a file once the number is durable in the file
// before. last is durable in all files. end stops the writer.
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

// together returns a hook that waits until it was called by all parts, and returns nil then.
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

// partsOf makes the parts of a group, with one volume on each node, as a slow router does: a node
// is frozen before the next node gets the call.
func partsOf(t *testing.T, name string, nodes []*node, ids []string) []backend.Part {
	t.Helper()
	all := slices.Sorted(slices.Values(ids))
	for try := 0; ; try++ { // on a slow machine the first attempts can exceed the limit of a freeze
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
						Sources: ids[i : i+1]}, All: all, AttemptID: cut, Durable: durable,
					Frozen: func(ctx context.Context) error { begin(); return frozen(ctx) },
				})
				if errs[i] != nil {
					cancel() // the other parts need not wait for this part
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
			} else if err = n.CommitPart(context.Background(), parts[i].ID, cut); err == nil {
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
			t.Fatalf("the last of %d attempts: %v", try, failed)
		}
	}
}

func TestPartsOnTwoNodesShareAPointInTime(t *testing.T) {
	t.Parallel()
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
		await.True(nodes[0].T, "the image is written to", func() bool { return last.Load() > start })
		before = append(before, last.Load())
		groups = append(groups, partsOf(t, fmt.Sprint("g", i), nodes, ids))
		slices.Reverse(nodes)
		slices.Reverse(ids)
	}
	end()
	for i, parts := range groups {
		if parts[0].ID != parts[1].ID || !parts[0].Committed || !parts[1].Committed || len(parts[0].Snapshots) != 1 ||
			parts[0].Snapshots[0].ID == parts[1].Snapshots[0].ID {
			t.Errorf("the parts are %+v", parts)
		}
		if i%2 == 1 {
			slices.Reverse(parts)
		}
		early, late := nodes[0].kept(parts[0]), nodes[1].kept(parts[1])
		if late > early || early > late+1 || late < before[i] {
			t.Errorf("group %d: the part of the first node has %d, the part of the second, which is written later, "+
				"has %d; %d was durable before", i, early, late, before[i])
		}
	}
}

// left checks that no object of a part is left.
func (n *node) left(id string, reserved int64) {
	n.Helper()
	if got := slices.Concat(n.names(stagingDir), n.names(snapshotsDir), n.names(groupsDir)); len(got) > 0 ||
		n.catalog.Reserved() != reserved {
		n.Errorf("left: %v, %d bytes", got, n.catalog.Reserved()-reserved)
	}
	if _, err := n.GetPart(context.Background(), id); !errors.Is(err, backend.ErrNotFound) {
		n.Errorf("GetPart = %v, want ErrNotFound", err)
	}
}

func TestAPartFailsWhenTheCallerAnswersTooLate(t *testing.T) {
	t.Parallel()
	n := newNode(t, "node-1")
	images := n.Backend.cfg.Images
	n.Backend.cfg.Images = changed{Images: images,
		freeze: func(ctx context.Context, tenant string, paths []string, _ time.Duration,
			cut func(context.Context) error) error {
			return images.Freeze(ctx, tenant, paths, time.Second, cut)
		}}
	id, file := n.disk("v")
	var last atomic.Uint64
	defer inTurns(t, &last, file)()
	reserved, noAnswer := n.catalog.Reserved(), errors.New("no answer")
	for name, tc := range map[string]struct {
		late func(ctx context.Context) error
		want error
	}{
		"an error": {func(ctx context.Context) error { <-ctx.Done(); return noAnswer }, noAnswer},
		"nil":      {func(ctx context.Context) error { <-ctx.Done(); return nil }, context.DeadlineExceeded},
		"nil after the thaw": {func(ctx context.Context) error {
			<-ctx.Done()
			start := last.Load() // and the caller returns only after further writes
			await.True(n.T, "the image is written to", func() bool { return last.Load() > start+1 })
			return nil
		}, mounter.ErrThawed},
	} {
		t.Run(name, func(t *testing.T) {
			o, asked, err := partOf(id), false, error(nil)
			o.Frozen = func(ctx context.Context) error { asked = true; return tc.late(ctx) }
			o.Durable = func(context.Context) error { t.Error("Durable was called"); return nil }
			for try := 0; !asked && try < 20; try++ { // on a slow machine the freeze alone can exceed the limit
				_, err = n.SnapshotPart(context.Background(), o)
			}
			if !errors.Is(err, mounter.ErrThawed) || !errors.Is(err, tc.want) {
				t.Errorf("SnapshotPart = %v, want %v, and ErrThawed", err, tc.want)
			}
			n.left(volumeid.New(volumeid.Group, volumeid.SeveralNodes, "g"), reserved)
		})
	}
}

// partOf returns the options of a part that has all volumes of its group.
func partOf(ids ...string) backend.PartOptions {
	return backend.PartOptions{
		GroupOptions: backend.GroupOptions{Name: "g", Sources: ids}, All: slices.Sorted(slices.Values(ids)), AttemptID: "c",
	}
}

func TestCloseRollsBackAPart(t *testing.T) {
	t.Parallel()
	w := newRoot(t, testdisk.Filesystem{Type: "btrfs"})
	b := w.open()
	o := partOf(w.images(b, "a", "b")...)
	reserved := b.catalog.Reserved()
	for _, hook := range []*func(context.Context) error{&o.Frozen, &o.Durable} {
		o.Frozen, o.Durable = nil, nil
		closed := make(chan error, 1)
		*hook = func(ctx context.Context) error {
			go func() { closed <- b.Close() }()
			<-ctx.Done()
			return ctx.Err()
		}
		if _, err := b.SnapshotPart(context.Background(), o); !errors.Is(err, backend.ErrUnavailable) ||
			!errors.Is(err, context.Canceled) {
			t.Errorf("SnapshotPart = %v, want ErrUnavailable and the error of the hook", err)
		}
		if err := await.Receive(t, "Close returns", closed); err != nil {
			t.Fatal(err)
		}
		b = w.open()
		if got := b.count.swept.Load(); got > 0 {
			t.Errorf("%d objects are left", got)
		}
		(&node{world: w, Backend: b}).left(volumeid.New(volumeid.Group, volumeid.SeveralNodes, "g"), reserved)
	}
}

// TestAnOlderReleaseLeavesPartsAlone sets a variable of the package, and so does not run in parallel.
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
	// The first release can still read all groups that are not parts.
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
	for _, committed := range []bool{false, true} {
		if committed {
			if err := b.CommitPart(ctx, part.ID, part.AttemptID); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		partFormat = groupFormat // the only format that it reads
		b = w.open()
		_, err := b.GetGroup(ctx, part.ID, nil, nil)
		for _, err := range []error{err, b.DeleteGroup(ctx, part.ID, nil, nil)} {
			if !errors.Is(err, record.ErrNewer) || errors.Is(err, backend.ErrNotFound) {
				t.Errorf("an older release returns %v, want ErrNewer", err)
			}
		}
		if got, err := b.GetGroup(ctx, whole.ID, nil, nil); err != nil || len(got.Snapshots) != 2 {
			t.Errorf("the group: %+v, %v", got, err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		partFormat = current
		b = w.open()
		if got, err := b.GetPart(ctx, part.ID); err != nil || got.Committed != committed || len(got.Snapshots) != 2 {
			t.Errorf("afterwards the part: %+v, %v", got, err)
		}
	}
}

func TestAFailedCommitPartCanBeRepeated(t *testing.T) {
	t.Parallel()
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
	if err := b.CommitPart(ctx, part.ID, part.AttemptID); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("CommitPart = %v, want ErrUnavailable", err)
	}
	if err := os.RemoveAll(next); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(next, []byte("left by a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	b = w.restart(b)
	if got, err := b.GetPart(ctx, part.ID); err != nil || got.Committed {
		t.Errorf("GetPart = %+v, %v", got, err)
	}
	if err := b.CommitPart(ctx, part.ID, part.AttemptID); err != nil {
		t.Fatal(err)
	}
	b = w.restart(b)
	if got, err := b.GetPart(ctx, part.ID); err != nil || !got.Committed {
		t.Errorf("GetPart = %+v, %v", got, err)
	}
	if got := w.names(filepath.Join(groupsDir, part.ID)); !slices.Equal(got, []string{recordFile}) {
		t.Errorf("beside the record: %v", got)
	}
}
