package nodes

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
)

// points are the moments at which a node dies while it makes a volume, or a snapshot, of a
// directory.
var points = []string{"create:half-made", "create:recorded", "create:renamed", "create:durable"}

func TestANodeThatIsKilledWhileItMakesAVolumeHasOne(t *testing.T) {
	w := newWorld(t, "a", "b")
	var ids []string
	for i, point := range points {
		for _, on := range [][]string{{"a"}, nil} { // nil is anywhere
			for _, n := range w.nodes {
				n.kill()
				n.startToDie(point)
			}
			w.settled(2)
			name := fmt.Sprintf("v%d-%d", i, len(on))
			wantCode(t, second(w.CreateVolume(w.soon(), create(name, on...))), codes.Unavailable)
			w.revived(point)
			ids = append(ids, w.volume(name, on...).GetVolumeId())
			w.holds(ids...)
		}
	}
	// Before it heard of the call, and after it has answered.
	a := w.nodes["a"]
	a.kill()
	wantCode(t, second(w.CreateVolume(w.soon(), create("before", "a"))), codes.Unavailable)
	a.start()
	ids = append(ids, w.volume("before", "a").GetVolumeId(), w.volume("after", "a").GetVolumeId())
	a.kill()
	a.start()
	if got := w.volume("after", "a").GetVolumeId(); got != ids[len(ids)-1] {
		t.Errorf("after it was killed it is %s, and was %s", got, ids[len(ids)-1])
	}
	w.holds(ids...)
}

// revived checks that a node has died at a crash point, and starts it again, and with it those that
// would die there too: another attempt may use any node, and uses the node with the largest
// capacity. That is another node as soon as a program on this machine has written to the disk that
// they share.
func (w *world) revived(point string) {
	w.Helper()
	var dead []*node
	await.True(w, "a node has died at "+point, func() bool {
		dead = nil
		for _, n := range w.nodes {
			if n.killed() {
				dead = append(dead, n)
			}
		}
		return len(dead) > 0
	})
	if len(dead) != 1 {
		w.Errorf("%d nodes have died at %s", len(dead), point)
	}
	for _, n := range w.nodes {
		if n.mortal {
			n.kill()
			n.start()
		}
	}
	w.settled(len(w.nodes))
}

func TestANodeThatIsKilledWhileItDeletesAVolumeHasNone(t *testing.T) {
	w := newWorld(t, "a", "b")
	a := w.nodes["a"]
	other := w.volume("other", "a").GetVolumeId()
	for _, point := range []string{"delete:checked", "delete:renamed", "delete:durable"} {
		v := w.volume("v", "a").GetVolumeId()
		a.kill()
		a.startToDie(point)
		w.settled(2)
		wantCode(t, second(w.DeleteVolume(w.soon(), &csi.DeleteVolumeRequest{VolumeId: v})), codes.Unavailable)
		w.revived(point)
		retry(w, func(ctx context.Context) (*csi.DeleteVolumeResponse, error) {
			return w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v})
		})
		w.holds(other)
	}
}

func TestANodeThatIsKilledWhileItMakesASnapshotHasOne(t *testing.T) {
	w := newWorld(t, "a", "b")
	a, v := w.nodes["a"], w.volume("v", "a").GetVolumeId()
	var ids []string
	for i, point := range append(points, "snapshot:placed") {
		a.kill()
		a.startToDie(point)
		w.settled(2)
		name := fmt.Sprint("s", i)
		wantCode(t, second(w.CreateSnapshot(w.soon(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: v})),
			codes.Unavailable)
		w.revived(point)
		ids = append(ids, w.snapshot(name, v))
		w.holdsSnapshots(ids...)
	}
	a.kill()
	wantCode(t, second(w.CreateSnapshot(w.soon(), &csi.CreateSnapshotRequest{Name: "before", SourceVolumeId: v})),
		codes.Unavailable)
	a.start()
	ids = append(ids, w.snapshot("before", v))
	w.holdsSnapshots(ids...)
	w.holds(v)
}

func TestARouterThatIsKilledInTheMiddleOfACallLeavesOneVolume(t *testing.T) {
	w := newWorld(t, "a", "b")
	a := w.nodes["a"]
	var ids []string
	// When the node has the call, and has not read it.
	a.stop(t)
	before, err := a.waiting(peerPort)
	w.must(err)
	answered := make(chan error, 1)
	go func() { answered <- second(w.CreateVolume(w.soon(), create("unread", "a"))) }()
	await.True(w, "the call has reached the node", func() bool {
		now, err := a.waiting(peerPort)
		w.must(err)
		return now > before+100 // more than a ping
	})
	w.process.kill()
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("a router that dies: %v", err)
	}
	w.must(a.goOn())
	w.start()
	ids = append(ids, w.volume("unread", "a").GetVolumeId())
	// At some moment.
	for i := range 8 {
		name, on := fmt.Sprint("v", i), [][]string{{"a"}, nil}[i%2]
		w.settled(2)
		go func() { answered <- second(w.CreateVolume(w.soon(), create(name, on...))) }()
		pauseIn(i)
		w.process.kill()
		if err := <-answered; err != nil && status.Code(err) != codes.Unavailable {
			t.Errorf("a router that dies: %v", err)
		}
		w.start()
		ids = append(ids, w.volume(name, on...).GetVolumeId())
	}
	w.holds(ids...)
}

func TestTwoRoutersServeTheSameNodes(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	one, two := w.router, w.newRouter("router2", "10.9.0.3")
	two.start()
	two.settled(3)
	var ids, snapshots []string
	for i := range 10 {
		name, node := fmt.Sprint("v", i), string("abc"[i%3])
		var first, other *csi.Volume
		both(func() { first = one.volume(name, node) }, func() { other = two.volume(name, node) })
		if first.GetVolumeId() == "" || first.GetVolumeId() != other.GetVolumeId() {
			t.Errorf("by one it is %s, by the other %s", first.GetVolumeId(), other.GetVolumeId())
		}
		ids = append(ids, first.GetVolumeId())
	}
	w.holds(ids...)
	snapshots = append(snapshots, w.snapshot("s", ids[0]))
	one.process.kill()
	w.router = two // from here on
	w.must(w.reads(w.soon(), ids[0]))
	if got := w.snapshot("s", ids[0]); got != snapshots[0] {
		t.Errorf("the snapshot is %s, and was %s", got, snapshots[0])
	}
	w.must(second(w.DeleteVolume(w.soon(), &csi.DeleteVolumeRequest{VolumeId: ids[9]})))
	w.holds(ids[:9]...)
	one.start()
	one.settled(3)
	w.router = one
	w.holds(ids[:9]...)
	w.holdsSnapshots(snapshots...)
}

func TestNodesThatAreGoneForGoodAreForgottenAndRemembered(t *testing.T) {
	w := newWorld(t, "a", "b")
	a := w.nodes["a"]
	v := w.volume("v", "a").GetVolumeId()
	s := w.snapshot("s", v)
	ctx := w.soon()
	deletes := func() []error {
		return []error{
			second(w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v})),
			second(w.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s})),
		}
	}
	a.kill()
	w.lost(a)
	for _, err := range deletes() {
		wantCode(t, err, codes.Unavailable, a.peer())
	}
	w.must(os.WriteFile(w.forgotten+".new", []byte("# burnt down\na\n"), 0o600))
	w.must(os.Rename(w.forgotten+".new", w.forgotten))
	for _, err := range deletes() {
		w.must(err)
	}
	req := create("restored", "b")
	req.VolumeContentSource = fromSnapshot(s)
	wantCode(t, second(w.CreateVolume(ctx, req)), codes.NotFound, "node a")
	if got := w.health(v); got != csi.VolumeHealthErrorType_DATA_LOSS {
		t.Errorf("its volume is %s", got)
	}
	w.listsFail(a.peer()) // it has an address still
	a.start()
	w.settled(2)
	w.holds(v) // it answers, so it is not forgotten, and nothing of it was deleted
	w.holdsSnapshots(s)
	for _, err := range deletes() {
		w.must(err)
	}
	w.holds()
}
