package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// TestMain gives the disks of these tests a mount namespace of their own. In the machine's
// namespace, any namespace that another program makes meanwhile (a test of another package, the
// demo) would have a copy of their mounts, and with that their loop devices. Without a namespace,
// tests that need a disk are skipped unless this is root.
func TestMain(m *testing.M) {
	helper.Main(host.HelperTasks(), hostpath.HelperTasks())
	if err := namespace.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "the tests run in the machine's mount namespace:", err)
	}
	os.Exit(m.Run())
}

// groupCluster is a cluster whose nodes can take images in a moment, and images: two on a, one on b
// and one on c.
func groupCluster(t *testing.T) (c *cluster, images []string) {
	t.Helper()
	dir := shortDir(t)
	testdisk.Filesystem{Type: "xfs", Size: 1 << 30}.Mount(t, dir)
	c = newClusterIn(t, dir, "a", "b", "c")
	for i, node := range []string{"a", "a", "b", "c"} {
		images = append(images, c.image(fmt.Sprint("v", i), node))
	}
	return c, images
}

func (c *cluster) image(name, node string) string {
	c.Helper()
	req := create(name, node)
	req.Parameters = map[string]string{"kind": "image"}
	req.CapacityRange.RequiredBytes = 64 * mib
	resp, err := c.CreateVolume(context.Background(), req)
	if err != nil {
		c.Fatal(err)
	}
	return resp.GetVolume().GetVolumeId()
}

func (c *cluster) group(name string, volumes ...string) (*csi.VolumeGroupSnapshot, error) {
	resp, err := c.CreateVolumeGroupSnapshot(context.Background(),
		&csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: volumes})
	return resp.GetGroupSnapshot(), err
}

// groupAgain is group after another call for the same group. A node can still hold the lock of that
// call, whose stream has ended; until then the answer is ABORTED, and the sidecars retry.
func (c *cluster) groupAgain(name string, volumes ...string) (made *csi.VolumeGroupSnapshot, err error) {
	await.True(c.TB, "no other call holds group "+name, func() bool {
		made, err = c.group(name, volumes...)
		return status.Code(err) != codes.Aborted
	})
	return made, err
}

func (c *cluster) dropGroup(id string, members ...string) error {
	return second(c.DeleteVolumeGroupSnapshot(context.Background(),
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members}))
}

// wantOnDisk fails the test unless the nodes hold so many snapshots and groups. Objects of an
// abandoned call may be removed a little later.
func (c *cluster) wantOnDisk(snapshots, groups int) {
	c.Helper()
	await.NoError(c.TB, "the disks hold these objects only", func() error {
		s, g, h := c.onDisk("snapshots"), c.onDisk("groups"), c.onDisk("staging")
		if len(s) == snapshots && len(g) == groups && len(h) == 0 {
			return nil
		}
		return fmt.Errorf("there are the snapshots %q, want %d, groups %q, want %d, and in staging %q", s, snapshots, g,
			groups, h)
	})
}

func TestAGroupOverNodes(t *testing.T) {
	c, images := groupCluster(t)
	ctx := context.Background()
	made, err := c.group("g", images...)
	if err != nil {
		t.Fatal(err)
	}
	if want := volumeid.New(volumeid.Group, volumeid.SeveralNodes, "g"); made.GetGroupSnapshotId() != want ||
		!made.GetReadyToUse() || made.GetCreationTime() == nil {
		t.Errorf("made %v", made)
	}
	members := snapshotIDs(made)
	var sources []string
	for _, s := range made.GetSnapshots() {
		sources = append(sources, s.GetSourceVolumeId())
		if s.GetGroupSnapshotId() != made.GetGroupSnapshotId() || !s.GetReadyToUse() {
			t.Errorf("a member: %v", s)
		}
	}
	if slices.Sort(sources); !slices.Equal(sources, slices.Sorted(slices.Values(images))) {
		t.Errorf("the members are of %q", sources)
	}
	c.wantOnDisk(4, 3)

	again, err := c.groupAgain("g", images[3], images[1], images[0], images[2])
	if err != nil || again.String() != made.String() {
		t.Errorf("once more: %v, %v, want %v", again, err, made)
	}
	_, err = c.groupAgain("g", images[0], images[2])
	wantCode(t, err, codes.AlreadyExists)
	for _, ids := range [][]string{nil, members} {
		got, err := c.GetVolumeGroupSnapshot(ctx,
			&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: made.GetGroupSnapshotId(), SnapshotIds: ids})
		if err != nil || got.GetGroupSnapshot().String() != made.String() {
			t.Errorf("Get with %q: %v, %v", ids, got, err)
		}
	}
	_, err = c.GetVolumeGroupSnapshot(ctx,
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: volumeid.New(volumeid.Group, volumeid.SeveralNodes,
			"none")})
	wantCode(t, err, codes.NotFound)
	_, err = c.GetVolumeGroupSnapshot(ctx,
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: made.GetGroupSnapshotId(), SnapshotIds: members[1:]})
	if code := status.Code(err); code != codes.InvalidArgument && code != codes.NotFound {
		t.Errorf("Get with too few members: %v", err)
	}
	wantCode(t, c.dropGroup(made.GetGroupSnapshotId(), members[:1]...), codes.InvalidArgument)
	wantCode(t, second(c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: members[0]})),
		codes.InvalidArgument)
	c.wantOnDisk(4, 3)

	req := create("restored", "c", "a", "b")
	req.CapacityRange.RequiredBytes = 64 * mib
	req.Parameters = map[string]string{"kind": "image"}
	req.VolumeContentSource = fromSnapshot(members[0])
	if _, err := c.CreateVolume(ctx, req); err != nil {
		t.Error(err)
	}

	c.nodes["b"].stop()
	c.lost(2)
	_, err = c.GetVolumeGroupSnapshot(ctx,
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: made.GetGroupSnapshotId(), SnapshotIds: members})
	wantCode(t, err, codes.Unavailable, "b (")
	wantCode(t, c.dropGroup(made.GetGroupSnapshotId(), members...), codes.Unavailable, "b (")
	wantCode(t, c.dropGroup(made.GetGroupSnapshotId()), codes.Unavailable, "b (")
	c.wantOnDisk(4, 3)
	c.nodes["b"].start()
	c.settled(3)
	for range 2 {
		if err := c.dropGroup(made.GetGroupSnapshotId(), members...); err != nil {
			t.Error(err)
		}
	}
	c.wantOnDisk(0, 0)
}

func TestAGroupOnOneNodeIsThatNodesOwn(t *testing.T) {
	c, images := groupCluster(t)
	made, err := c.group("g", images[0], images[1])
	if want := volumeid.New(volumeid.Group, "a", "g"); err != nil || made.GetGroupSnapshotId() != want {
		t.Fatalf("made %v, %v", made, err)
	}
	got, err := c.GetVolumeGroupSnapshot(context.Background(),
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: made.GetGroupSnapshotId()})
	if err != nil || got.GetGroupSnapshot().String() != made.String() {
		t.Errorf("Get: %v, %v", got, err)
	}
	if err := c.dropGroup(made.GetGroupSnapshotId(), snapshotIDs(made)...); err != nil {
		t.Error(err)
	}
	c.wantOnDisk(0, 0)
}

func TestGroupsThatCantBe(t *testing.T) {
	c, images := groupCluster(t)
	directory := c.volume("directory", "b")
	for name, tc := range map[string]struct {
		volumes []string
		code    codes.Code
	}{
		"with a directory":      {[]string{images[0], directory}, codes.FailedPrecondition},
		"with an unknown one":   {[]string{images[0], volumeid.New(volumeid.Volume, "b", "unknown")}, codes.NotFound},
		"with a malformed ID":   {[]string{images[0], "x"}, codes.NotFound},
		"with one twice":        {[]string{images[0], images[2], images[2]}, codes.InvalidArgument},
		"with none":             {nil, codes.InvalidArgument},
		"with an absent node's": {[]string{images[0], volumeid.New(volumeid.Volume, "z", "v")}, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.group("g", tc.volumes...)
			wantCode(t, err, tc.code)
			c.wantOnDisk(0, 0)
		})
	}
	c.nodes["b"].stop()
	c.lost(2)
	_, err := c.group("g", images...)
	wantCode(t, err, codes.Unavailable, "b (")
	c.wantOnDisk(0, 0)
}

// TestAGroupIsCutShort cuts the connection to a node at each message, kills a node there, and makes
// a node fail there. Another attempt makes a group of a single moment, at any state of the first
// attempt.
func TestAGroupIsCutShort(t *testing.T) {
	t.Parallel()
	c, images := groupCluster(t)
	n := 0
	for _, at := range []string{"recv BEGIN", "send BEGIN", "recv CUT", "send CUT", "recv COMMIT", "send COMMIT",
		"SettlePart before", "SettlePart after", "DiscardPart before", "DiscardPart after"} {
		for how, wrong := range map[string]func(m *machine) *fault{
			"the connection breaks": func(m *machine) *fault { return &fault{before: m.conns.cut, after: m.conns.cut} },
			"it fails": func(m *machine) *fault {
				return &fault{err: status.Error(codes.Internal, "as the test wants")}
			},
		} {
			t.Run(at+": "+how, func(t *testing.T) {
				n++
				name := fmt.Sprint("g", n)
				if strings.HasPrefix(at, "DiscardPart") { // there is something to discard where b has no part
					c.nodes["b"].fails("recv COMMIT", codes.Internal)
					_, err := c.group(name, images...)
					wantCode(t, err, codes.Unavailable)
				}
				c.nodes["b"].fault.Store(faultAt(at, wrong(c.nodes["b"])))
				if strings.HasPrefix(at, "DiscardPart") {
					c.nodes["b"].heals()
					c.nodes["a"].fault.Store(faultAt(at, wrong(c.nodes["a"])))
				}
				_, err := c.groupAgain(name, images...)
				if err == nil {
					t.Error("the call did not fail")
				}
				if strings.Contains(at, "COMMIT") || strings.Contains(at, "Part") {
					wantCode(t, err, codes.Unavailable)
				}
				for _, m := range c.nodes {
					m.heals()
				}
				c.settled(3)
				made := c.until(name, images)
				if len(made.GetSnapshots()) != len(images) {
					t.Errorf("made %v", made)
				}
				c.wantOnDisk(4, 3)
				got, err := c.GetVolumeGroupSnapshot(context.Background(),
					&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: made.GetGroupSnapshotId()})
				if err != nil || got.GetGroupSnapshot().String() != made.String() {
					t.Errorf("Get: %v, %v", got, err)
				}
				if err := c.dropGroup(made.GetGroupSnapshotId(), snapshotIDs(made)...); err != nil {
					t.Error(err)
				}
				c.wantOnDisk(0, 0)
			})
		}
	}
}

// faultAt puts a fault at a message of a stream, or before or after a call.
func faultAt(at string, f *fault) *fault {
	method, when, _ := strings.Cut(at, " ")
	if f.method = at; method == "recv" || method == "send" {
		return f
	}
	if f.method = method; when == "after" {
		f.before = nil
		if f.after == nil {
			f.err, f.lost = nil, f.err
		}
	} else {
		f.after = nil
	}
	return f
}

// TestAFinalErrorLeavesNoRestsOfAGroup fails a group for good after an earlier call has made some
// of its parts. No caller would return for those parts.
func TestAFinalErrorLeavesNoRestsOfAGroup(t *testing.T) {
	c, images := groupCluster(t)
	b := c.nodes["b"]
	b.fails("recv COMMIT", codes.Internal)
	_, err := c.group("g", images...)
	wantCode(t, err, codes.Unavailable)
	c.wantOnDisk(3, 2)
	b.fails("recv BEGIN", codes.ResourceExhausted)
	c.nodes["a"].fails("DiscardPart", codes.Aborted) // while a part exists, the error is not final
	_, err = c.groupAgain("g", images...)
	wantCode(t, err, codes.Unavailable)
	c.nodes["a"].heals()
	_, err = c.groupAgain("g", images...)
	wantCode(t, err, codes.ResourceExhausted)
	c.wantOnDisk(0, 0)

	// Acknowledged objects stay.
	b.heals()
	c.until("g", images)
	b.fails("recv BEGIN", codes.ResourceExhausted)
	_, err = c.groupAgain("g", images...)
	wantCode(t, err, codes.ResourceExhausted)
	c.wantOnDisk(4, 3)
}

// until repeats the call until the group exists.
func (c *cluster) until(name string, images []string) (made *csi.VolumeGroupSnapshot) {
	c.Helper()
	var err error
	await.True(c.TB, "group "+name+" exists", func() bool {
		made, err = c.group(name, images...)
		return status.Code(err) != codes.Aborted && status.Code(err) != codes.Unavailable
	})
	if err != nil {
		c.Fatal(err)
	}
	return made
}

// TestAcknowledgedDataIsNotDiscarded removes a part of an acknowledged group from a node's disk.
func TestAcknowledgedDataIsNotDiscarded(t *testing.T) {
	c, images := groupCluster(t)
	made := c.until("g", images)
	b := c.nodes["b"]
	b.stop()
	for _, dir := range []string{"groups", "snapshots"} {
		if err := os.RemoveAll(filepath.Join(b.dir, "root", dir)); err != nil {
			t.Fatal(err)
		}
	}
	b.start()
	c.settled(3)
	_, err := c.group("g", images...)
	wantCode(t, err, codes.DataLoss)
	c.wantOnDisk(3, 2)
	_, err = c.GetVolumeGroupSnapshot(context.Background(),
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: made.GetGroupSnapshotId()})
	wantCode(t, err, codes.NotFound, "not all of it")
	if err := c.dropGroup(made.GetGroupSnapshotId(), snapshotIDs(made)...); err != nil {
		t.Error(err)
	}
	c.wantOnDisk(0, 0)
}

func TestOneGroupIsMadeByManyCallers(t *testing.T) {
	c, images := groupCluster(t)
	var calling sync.WaitGroup
	var mu sync.Mutex
	made := map[string]bool{}
	for range 4 {
		calling.Go(func() {
			group := c.until("g", images)
			mu.Lock()
			defer mu.Unlock()
			made[group.String()] = true
		})
	}
	calling.Wait()
	if len(made) != 1 {
		t.Errorf("%d groups were made", len(made))
	}
	c.wantOnDisk(4, 3)
}

// TestChangedBlocksOfAnImage compares the response through the router with the response of the
// node.
func TestChangedBlocksOfAnImage(t *testing.T) {
	c, images := groupCluster(t)
	ctx := context.Background()
	first := c.snapshot("first", images[2])
	disk, err := os.OpenFile(filepath.Join(c.nodes["b"].dir, "root", "volumes", images[2], "image.raw"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(3000) { // more ranges than a message has
		if _, err := disk.WriteAt([]byte("changed"), i*2*4096); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(disk.Sync(), disk.Close()); err != nil {
		t.Fatal(err)
	}
	second := c.snapshot("second", images[2])
	var want [][2]int64
	err = c.nodes["b"].storage.Delta(ctx, first, second, 0, nil, func(offset, length int64) error {
		want = append(want, [2]int64{offset, length})
		return nil
	})
	if err != nil || len(want) < 2500 {
		t.Fatalf("the node has %d ranges, %v", len(want), err)
	}
	stream, err := c.GetMetadataDelta(ctx,
		&csi.GetMetadataDeltaRequest{BaseSnapshotId: first, TargetSnapshotId: second})
	if err != nil {
		t.Fatal(err)
	}
	var got [][2]int64
	for messages := 0; ; messages++ {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if messages < 2 {
				t.Errorf("%d messages came", messages)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetVolumeCapacityBytes() != 64*mib {
			t.Errorf("the volume has %d bytes", resp.GetVolumeCapacityBytes())
		}
		for _, b := range resp.GetBlockMetadata() {
			got = append(got, [2]int64{b.GetByteOffset(), b.GetSizeBytes()})
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d ranges came through the router, want %d", len(got), len(want))
	}
	elsewhere := c.snapshot("elsewhere", images[3])
	stream, err = c.GetMetadataDelta(ctx,
		&csi.GetMetadataDeltaRequest{BaseSnapshotId: elsewhere, TargetSnapshotId: second})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantCode(t, err, codes.NotFound)
	c.nodes["b"].stop()
	c.lost(2)
	if stream, err = c.GetMetadataDelta(ctx,
		&csi.GetMetadataDeltaRequest{BaseSnapshotId: first, TargetSnapshotId: second}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantCode(t, err, codes.Unavailable, "b (")
}
