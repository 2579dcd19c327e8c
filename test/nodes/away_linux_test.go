package nodes

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
)

// reads asks for a volume.
func (w *world) reads(ctx context.Context, id string) error {
	return second(w.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id}))
}

// noticed waits until calls for a volume are UNAVAILABLE. Until then they end by their deadline.
func (w *world) noticed(id string) {
	w.Helper()
	await.True(w, "the router notices", func() bool {
		ctx, cancel := context.WithTimeout(w.soon(), time.Second)
		defer cancel()
		err := w.reads(ctx, id)
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
			w.Fatalf("while nobody answers: %v", err)
		}
		return status.Code(err) == codes.Unavailable
	})
}

// listsFail makes sure that lists of everything are UNAVAILABLE, and say why.
func (w *world) listsFail(words ...string) {
	w.Helper()
	ctx := w.soon()
	wantCode(w, second(w.ListVolumes(ctx, &csi.ListVolumesRequest{})), codes.Unavailable, words...)
	wantCode(w, second(w.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})), codes.Unavailable, words...)
	wantCode(w, second(w.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{})), codes.Unavailable,
		words...)
}

// health returns the only condition of a volume.
func (w *world) health(id string) csi.VolumeHealthErrorType {
	w.Helper()
	resp, err := w.ControllerGetVolumeHealth(w.soon(), &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
	sick := resp.GetVolumeHealth().GetHealthStatuses()
	if err != nil || len(sick) != 1 || sick[0].GetMessage() == "" {
		w.Fatalf("the health of %s: %v, %v", id, resp, err)
	}
	return sick[0].GetStatus()
}

func TestANodeBehindACutNetworkIsAwayAndTheOthersGoOn(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	ctx, a := w.soon(), w.nodes["a"]
	va, vb := w.volume("va", "a").GetVolumeId(), w.volume("vb", "b").GetVolumeId()
	sa, sb := w.snapshot("sa", va), w.snapshot("sb", vb)
	w.must(a.host.cut())

	late, cancel := context.WithTimeout(ctx, time.Second) // no program has noticed yet
	defer cancel()
	if _, err := w.CreateVolume(late, create("late", "a")); !again(err) {
		t.Errorf("a volume on a node that is cut off: %v", err)
	}
	during := w.volume("during", "b").GetVolumeId()
	w.must(w.reads(w.soon(), vb))
	w.noticed(va)

	name := "a (" + a.peer()
	w.lost(a)
	wantCode(t, w.reads(w.soon(), va), codes.Unavailable, name)
	for what, err := range map[string]error{
		"create":   second(w.CreateVolume(ctx, create("on-a", "a"))),
		"anywhere": second(w.CreateVolume(ctx, create("anywhere"))),
		"delete":   second(w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: va})),
		"snapshot": second(w.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s2", SourceVolumeId: va})),
		"unsnap":   second(w.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: sa})),
		"expand": second(w.ControllerExpandVolume(ctx,
			&csi.ControllerExpandVolumeRequest{VolumeId: va,
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * mib}})),
		"of one": second(w.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: sa})),
	} {
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), a.peer()) {
			t.Errorf("%s: %v, want %s", what, err, codes.Unavailable)
		}
	}
	w.listsFail(name)
	if got := w.health(va); got != csi.VolumeHealthErrorType_INACCESSIBLE {
		t.Errorf("its volume is %s", got)
	}
	w.must(second(w.identity.Probe(ctx, &csi.ProbeRequest{})))
	w.must(second(w.GetCapacity(ctx, &csi.GetCapacityRequest{AccessibleTopology: topology("b")})))
	if got, err := w.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: sb}); err != nil ||
		len(got.GetEntries()) != 1 {
		t.Errorf("the snapshot of another node: %v, %v", got, err)
	}
	w.must(second(w.ControllerExpandVolume(ctx,
		&csi.ControllerExpandVolumeRequest{VolumeId: vb, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * mib}})))
	w.wantMetrics(`causeway_router_peers{state="silent"} 1`, `causeway_router_peers{state="answers"} 2`)
	if got := w.get("/metrics"); !strings.Contains(got, "\ncauseway_peer_certificate_expiry_timestamp_seconds 1.") {
		t.Error("nothing says when the router's certificate expires")
	}

	w.must(a.host.repair())
	w.settled(3)
	w.must(w.reads(w.soon(), va))
	w.holds(va, vb, during, w.volume("late", "a").GetVolumeId())
	w.holdsSnapshots(sa, sb)
}

func TestAStoppedNodeKeepsNoCallBeyondItsDeadline(t *testing.T) {
	w := newWorld(t, "a", "b")
	a := w.nodes["a"]
	v := w.volume("v", "a").GetVolumeId()
	ids := []string{v}
	for i := range 5 {
		a.stop(t)
		before, name := len(w.process.said()), fmt.Sprint("slow-", i)
		impatient := func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := w.CreateVolume(ctx, create(name, "a"))
			return err
		}
		wantCode(t, impatient(), codes.DeadlineExceeded)
		call := "name=" + name + " "
		await.True(w, "the router's own call ends", func() bool {
			ended := w.process.hasSaid(call)
			if !ended {
				impatient() // on a busy machine the router may not have got the call in its time
			}
			return ended
		})
		if !w.process.hasSaid(call, "code=DeadlineExceeded") && !w.process.hasSaid(call, "code=Canceled") {
			t.Errorf("the router's call of %s ended, but not with its caller's", name)
		}
		said, _, _ := strings.Cut(w.process.said()[before:], call)
		if strings.Contains(said, "no node answers at a") { // which it says much later
			t.Errorf("the router's call of %s ended with the connection, and not with its caller's", name)
		}
		w.volume(fmt.Sprint("other-", i), "b")
		w.must(a.goOn())
		ids = append(ids, w.volume(name, "a").GetVolumeId(), w.volume(fmt.Sprint("other-", i), "b").GetVolumeId())
	}
	w.holds(ids...)
	// For longer than the router waits, with a call on its way that would wait for longer still.
	a.stop(t)
	answered := make(chan error, 1)
	go func() { answered <- second(w.CreateVolume(w.soon(), create("long", "a"))) }()
	w.noticed(v)
	wantCode(t, <-answered, codes.Unavailable, "a (")
	if got := w.health(v); got != csi.VolumeHealthErrorType_INACCESSIBLE {
		t.Errorf("its volume is %s", got)
	}
	w.must(a.goOn())
	w.settled(2)
	w.must(w.reads(w.soon(), v))
	w.holds(append(ids, w.volume("long", "a").GetVolumeId())...)
}

func TestANodeStoppedInTheMiddleOfACallFinishesItOnce(t *testing.T) {
	w := newWorld(t, "a")
	a := w.nodes["a"]
	v := w.volume("v", "a").GetVolumeId()
	var ids, snapshots []string
	for i := range 20 { // stopped a little later each time
		name := fmt.Sprint("v", i)
		ctx, cancel := context.WithCancel(w.soon())
		both(func() { w.CreateVolume(ctx, create(name, "a")) },
			func() { w.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: v}) },
			func() {
				pauseIn(i)
				a.stop(t)
				cancel()
			})
		w.must(a.goOn())
		ids, snapshots = append(ids, w.volume(name, "a").GetVolumeId()), append(snapshots, w.snapshot(name, v))
	}
	w.holds(append(ids, v)...)
	w.holdsSnapshots(snapshots...)
}

func TestANodeComesBackWithAnotherAddress(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	a, b, c := w.nodes["a"], w.nodes["b"], w.nodes["c"]
	v := w.volume("v", "a").GetVolumeId()
	old := a.peer()
	a.kill()
	w.must(a.host.move("10.9.0.21"))
	a.start()
	w.lostAt(old)
	wantCode(t, w.reads(w.soon(), v), codes.Unavailable, "a ("+old)
	w.dns.say("10.9.0.11", a.host.address, b.host.address, c.host.address)
	w.restartB()
	w.wantReady("ok: 3 of 4 nodes answer", old)
	w.must(w.reads(w.soon(), v))
	w.must(second(w.DeleteSnapshot(w.soon(), &csi.DeleteSnapshotRequest{SnapshotId: w.snapshot("s", v)})))
	w.listsFail(old)
	w.dns.say(a.host.address, b.host.address, c.host.address)
	w.restartB()
	w.settled(3)
	w.holds(v)

	// Two change places, and the name server has nothing new to say.
	vb := w.volume("vb", "b").GetVolumeId()
	b.kill()
	c.kill()
	atB, atC := b.host.address, c.host.address
	w.must(b.host.move("10.9.0.31"))
	w.must(c.host.move(atB))
	w.must(b.host.move(atC))
	b.start()
	c.start()
	await.True(w, "b answers where c was", func() bool { return w.reads(w.soon(), vb) == nil })
	w.settled(3)
	w.must(second(w.DeleteVolume(w.soon(), &csi.DeleteVolumeRequest{VolumeId: vb})))
	w.holds(v)
	w.holdsSnapshots()
}

// restartB restarts b. The router looks for addresses soon after it has lost a node.
func (w *world) restartB() {
	w.nodes["b"].kill()
	w.nodes["b"].start()
}

// lostAt waits until no node answers at an address.
func (w *world) lostAt(address string) {
	w.Helper()
	w.wantReady("(" + address + ")")
}

func TestMoreAddressesThanFitInAPacket(t *testing.T) {
	w := newWorld(t, "a", "b")
	v := w.volume("v", "a").GetVolumeId()
	known := []string{"10.9.0.11", "10.9.0.12"}
	many := known
	for i := range 60 {
		many = append(many, fmt.Sprintf("10.9.1.%d", i)) // to which no way leads
	}
	w.dns.say(many...)
	w.restartB()
	w.wantReady(fmt.Sprintf("ok: 2 of %d nodes answer", len(many)))
	if w.dns.mu.Lock(); w.dns.overTCP == 0 {
		t.Error("nobody asked over TCP")
	}
	w.dns.mu.Unlock()
	w.listsFail("10.9.1.")
	w.must(w.reads(w.soon(), v))
	w.dns.say(known...)
	w.settled(2) // this time it looks of its own accord

	// A name server that is silent changes nothing.
	w.dns.fallSilent(true)
	w.restartB()
	w.wantReady("ok: 2 of 2 nodes answer", "addresses are old")
	w.wantMetrics("causeway_router_discovery_up 0")
	w.holds(v, w.volume("w").GetVolumeId())
	w.dns.fallSilent(false)
	w.restartB()
	w.settled(2)
}
