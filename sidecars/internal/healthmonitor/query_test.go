package healthmonitor

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
)

type apiUID = apitypes.UID

var slow = []*csi.VolumeHealth_VolumeHealthEntry{degraded("Slow", "")}

// five has five volumes that are not well, which is three pages.
func five() *fakeDriver {
	return holding(sickness{"vol-a": slow, "vol-b": slow, "vol-c": slow, "vol-d": slow, "vol-e": slow})
}

func TestLists(t *testing.T) {
	for _, c := range []struct {
		name        string
		change      func(*fakeDriver)
		lists, gets int
	}{
		{"it reads page after page", func(*fakeDriver) {}, 3, 0},
		{"entries of volumes that nobody claims are nothing", func(d *fakeDriver) { d.volumes["vol-x"] = slow }, 3, 0},
		{"a volume that comes twice counts as it was last", func(d *fakeDriver) { d.twice = true }, 5, 0},
		{"a token that went bad makes it start over", func(d *fakeDriver) { d.badTokens = 2 }, 2 + 2 + 3, 0},
		{"tokens that go bad again and again make it ask one by one", func(d *fakeDriver) { d.badTokens = 9 },
			2 + 2 + 2, 5},
		{"a list that fails at once makes it ask one by one",
			func(d *fakeDriver) { d.listErr = status.Error(codes.Unavailable, "node-7 is away") }, 1, 5},
		{"ABORTED without a token is no bad token",
			func(d *fakeDriver) { d.listErr = status.Error(codes.Aborted, "busy") }, 1, 5},
		{"a list that fails in the middle makes it ask one by one",
			func(d *fakeDriver) { d.lastErr = status.Error(codes.Unavailable, "node-7 is away") }, 2, 5},
		{"a list without end makes it ask one by one", func(d *fakeDriver) { d.sameToken = true }, 2, 5},
	} {
		t.Run(c.name, bubble(func(t *testing.T) {
			d := five()
			c.change(d)
			h := start(t, newAPI(true, bounds("a", "b", "c", "d", "e")...), d)
			h.runRound()
			if lists, gets := d.calls(); lists != c.lists || gets != c.gets {
				t.Errorf("%d lists and %d gets, want %d and %d", lists, gets, c.lists, c.gets)
			}
			for _, claim := range []string{"claim-a", "claim-b", "claim-c", "claim-d", "claim-e"} {
				h.wants("status of "+claim, h.health(claim), "Degraded(Slow)")
			}
		}))
	}
}

func TestTheNextRoundIsSoonerAfterAListThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := five()
		h := start(t, newAPI(true, bound("a")...), d)
		if wait, err := h.round(t.Context()); err != nil || wait != h.ListInterval {
			t.Errorf("after a list: %v, %v, want an hour", wait, err)
		}
		d.set(func(d *fakeDriver) { d.listErr = status.Error(codes.Unavailable, "away") })
		if wait, err := h.round(t.Context()); err == nil || wait != h.GetInterval {
			t.Errorf("after a list that failed: %v, %v, want a minute and an error for the log", wait, err)
		}
	})
}

func TestADriverWithoutListsIsQueriedForEachVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := five()
		h := start(t, newAPI(true, bounds("a", "b")...), d, func(c *Config) {
			c.Capabilities = rpc.ControllerCapabilitySet{csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH: true}
		})
		if wait, err := h.round(t.Context()); err != nil || wait != h.GetInterval {
			t.Errorf("round: %v, %v, want a minute", wait, err)
		}
		if lists, gets := d.calls(); lists != 0 || gets != 2 {
			t.Errorf("%d lists and %d gets, want 0 and 2", lists, gets)
		}
	})
}

func TestAVolumeMissingFromAListIsQueriedBeforeItCountsAsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{"vol-a": slow})
		h := start(t, newAPI(true, bound("a")...), d)
		h.runRound()
		d.set(func(d *fakeDriver) { d.unlisted["vol-a"] = true })
		h.restart() // the earlier condition is in the claim's status only
		d.calls()
		h.runRound()
		h.wants("status of a volume that was missed", h.health("claim-a"), "Degraded(Slow)")
		if _, gets := d.calls(); gets != 1 {
			t.Errorf("%d gets, want 1", gets)
		}
		d.set(func(d *fakeDriver) { d.errs["vol-a"] = status.Error(codes.Internal, "confused") })
		h.runRound()
		h.wants("status when that fails", h.health("claim-a"), "Degraded(Slow)")
		d.set(func(d *fakeDriver) { d.errs["vol-a"], d.volumes["vol-a"] = nil, nil })
		h.runRound()
		h.wants("status when it is well", h.health("claim-a"))
	})
}

// behind has a volume without an answer, and a list that fails for it.
func behind(err error) *fakeDriver {
	d := holding(sickness{"vol-a": slow, "vol-b": nil})
	d.listErr = status.Error(codes.Unavailable, "node-7 is away")
	d.errs["vol-a"] = err
	return d
}

func TestAVolumeWithoutAnswer(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "node-7 is away")
	for _, c := range []struct {
		name   string
		err    error
		second func(*fakeDriver) // before the second round
		want   string            // the beginning of the condition after it
	}{
		{"UNAVAILABLE in two rounds is inaccessible", unavailable, func(*fakeDriver) {},
			"Inaccessible(NoAnswer) the CSI driver works, but"},
		{"DEADLINE_EXCEEDED in two rounds is inaccessible", status.Error(codes.DeadlineExceeded, "late"),
			func(*fakeDriver) {}, "Inaccessible(NoAnswer) "},
		{"NOT_FOUND in two rounds is inaccessible, and not said to be lost", status.Error(codes.NotFound, "no volume"),
			func(*fakeDriver) {}, "Inaccessible(VolumeNotFound) to the CSI driver there is no such volume"},
		{"the driver's own word counts", nil, func(*fakeDriver) {}, "Degraded(Slow)"},
		{"an answer in between makes it nothing", unavailable,
			func(d *fakeDriver) { d.errs["vol-a"], d.volumes["vol-a"] = nil, nil }, ""},
		{"a list that succeeds in between makes it nothing", unavailable,
			func(d *fakeDriver) { d.listErr, d.volumes["vol-a"] = nil, nil }, ""},
		{"another kind of failure starts to count anew", unavailable,
			func(d *fakeDriver) { d.errs["vol-a"] = status.Error(codes.NotFound, "no volume") }, ""},
		{"INTERNAL says nothing of a volume", status.Error(codes.Internal, "bug"), func(*fakeDriver) {}, ""},
		{"a driver that is away says nothing of its volumes", unavailable, func(d *fakeDriver) { d.away = true }, ""},
	} {
		t.Run(c.name, bubble(func(t *testing.T) {
			d := behind(c.err)
			h := start(t, newAPI(true, bounds("a", "b")...), d)
			h.runRound()
			if got := h.health("claim-a"); c.err != nil && len(got) > 0 {
				t.Errorf("%q after one round", got)
			}
			d.set(c.second)
			h.runRound()
			if got := strings.Join(h.health("claim-a"), "; "); !strings.HasPrefix(got, c.want) ||
				(got == "") != (c.want == "") {
				t.Errorf("got %q, want %q…", got, c.want)
			}
			h.wants("the volume beside it", h.health("claim-b"))
		}))
	}
}

func TestAFailedCallIsNoRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := behind(nil)
		h := start(t, newAPI(true, bounds("a", "b")...), d)
		h.runRound()
		for round := range 4 {
			d.set(func(d *fakeDriver) { d.errs["vol-a"] = status.Errorf(codes.Unavailable, "attempt %d", round) })
			h.runRound()
		}
		got := h.health("claim-a")
		if len(got) != 2 || !strings.HasPrefix(got[0], "Inaccessible(NoAnswer)") || got[1] != "Degraded(Slow)" {
			t.Errorf("status %q, want what it had, and that it is inaccessible", got)
		}
		if n := h.api.written(); n != 2 {
			t.Errorf("%d writes, want 2: words that differ each time cost none", n)
		}
		d.set(func(d *fakeDriver) { d.errs["vol-a"] = nil })
		h.runRound()
		h.wants("status when it answers again", h.health("claim-a"), "Degraded(Slow)")
	})
}

func TestAnAbsentDriverIsNotQueriedForEveryVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := five()
		d.away = true
		h := start(t, newAPI(true, bounds("a", "b", "c", "d", "e")...), d)
		h.runRound()
		if _, gets := d.calls(); gets != 1 {
			t.Errorf("%d gets, want 1", gets)
		}
	})
}

func TestAVolumeThatIsNotFoundIsQueriedAtGrowingIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := behind(status.Error(codes.NotFound, "no volume"))
		h := start(t, newAPI(true, bound("a")...), d)
		var asked []int
		for round := range 50 {
			h.runRound()
			if _, gets := d.calls(); gets > 0 {
				asked = append(asked, round)
			}
		}
		if want := []int{0, 1, 3, 7, 15, 30, 45}; !slices.Equal(asked, want) {
			t.Errorf("asked in minutes %v, want %v", asked, want)
		}
		if n := len(h.events.said()); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})
}

func TestAVolumeThatIsBeingDeletedMayBeGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects, now := bound("a"), metav1.Now()
		objects[1].(*v1.PersistentVolumeClaim).DeletionTimestamp = &now
		h := start(t, newAPI(true, objects...), behind(status.Error(codes.NotFound, "no volume")))
		h.runRound()
		h.runRound()
		h.wants("status", h.health("claim-a"))
	})
}

// The controller of a driver need not know the volume of a PV that an administrator wrote.
func TestAStaticVolumeNeedNotBeKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := bound("a")
		objects[0].(*v1.PersistentVolume).Annotations = nil
		d := behind(status.Error(codes.NotFound, "no volume"))
		h := start(t, newAPI(true, objects...), d)
		for range 4 {
			h.runRound()
		}
		h.wants("status", h.health("claim-a"))
		if _, gets := d.calls(); gets == 0 {
			t.Error("the monitor did not query the volume")
		}
		d.set(func(d *fakeDriver) { d.errs["vol-a"] = status.Error(codes.Unavailable, "its server is away") })
		h.runRound()
		h.runRound()
		h.wants("status", h.health("claim-a"), "Inaccessible(NoAnswer) the CSI driver works, but has no "+
			"answer for this volume, as if its node or storage were away: its server is away")
	})
}

func TestAnAnswerForAnotherVolumeIsNoAnswer(t *testing.T) {
	for name, instead := range map[string]*csi.ControllerGetVolumeHealthResponse{
		"nothing":           {},
		"a health of no ID": {VolumeHealth: &csi.VolumeHealth{}},
		"another volume's":  {VolumeHealth: &csi.VolumeHealth{VolumeId: "vol-b"}},
	} {
		t.Run(name, bubble(func(t *testing.T) {
			d := behind(nil)
			h := start(t, newAPI(true, bound("a")...), d)
			h.runRound()
			d.set(func(d *fakeDriver) { d.instead = instead })
			h.runRound()
			h.wants("status", h.health("claim-a"), "Degraded(Slow)")
		}))
	}
}
