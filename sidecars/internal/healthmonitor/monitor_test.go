package healthmonitor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

func TestNewMonitor(t *testing.T) {
	_, err := NewMonitor(Config{Driver: driverName,
		Capabilities: rpc.ControllerCapabilitySet{csi.ControllerServiceCapability_RPC_LIST_VOLUMES: true}})
	if !errors.Is(err, sidecar.ErrNotSupported) || !strings.Contains(err.Error(), driverName) {
		t.Errorf("a driver without health: %v, want ErrNotSupported that names it", err)
	}
}

func TestAConditionAndItsEndAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{"vol-a": {degraded("SlowDisk", "slow")}, "vol-b": nil})
		h := start(t, newAPI(true, bounds("a", "b")...), d)

		h.runRound()
		h.wants("status", h.health("claim-a"), "Degraded(SlowDisk) slow")
		h.wants("status of the healthy", h.health("claim-b"))
		h.wants("events", h.events.said(),
			"Warning VolumeConditionAbnormal PersistentVolumeClaim claim-a: Degraded (SlowDisk): slow")
		since := h.since("claim-a")

		h.api.written()
		time.Sleep(time.Hour)
		h.runRound()
		h.runRound()
		if n := h.api.written(); n != 0 {
			t.Errorf("%d writes though nothing changed", n)
		}
		h.wants("events of a condition that stands", h.events.said())

		d.set(func(d *fakeDriver) { d.volumes["vol-a"] = append(d.volumes["vol-a"], lost("BadBlocks", "")) })
		h.runRound()
		h.wants("status with two", h.health("claim-a"), "DataLoss(BadBlocks)", "Degraded(SlowDisk) slow")
		h.wants("events of the second", h.events.said(),
			"Warning VolumeConditionAbnormal PersistentVolumeClaim claim-a: DataLoss (BadBlocks)")
		if now := h.since("claim-a"); !now.After(since.Time) {
			t.Errorf("since %v, want later than %v: the set of conditions is another", now, since)
		}

		d.set(func(d *fakeDriver) { d.volumes["vol-a"] = d.volumes["vol-a"][1:] })
		h.runRound()
		h.wants("events of a part", h.events.said(),
			"Normal VolumeConditionImproved PersistentVolumeClaim claim-a: no longer Degraded (SlowDisk), but still "+
				"DataLoss (BadBlocks)")

		d.set(func(d *fakeDriver) { d.volumes["vol-a"] = nil })
		h.runRound()
		h.wants("status after recovery", h.health("claim-a"))
		h.wants("events of recovery", h.events.said(),
			"Normal VolumeConditionNormal PersistentVolumeClaim claim-a: the volume is healthy again, no longer DataLoss "+
				"(BadBlocks)")
		h.api.written()
		h.runRound()
		if n := h.api.written(); n != 0 || len(h.memories) != 0 {
			t.Errorf("%d writes and %d memories after recovery, want none", n, len(h.memories))
		}
	})
}

// since returns a claim's lastTransitionTime.
func (h *harness) since(claim string) metav1.Time {
	h.Helper()
	c, err := h.api.CoreV1().PersistentVolumeClaims("team").Get(h.Context(), claim, metav1.GetOptions{})
	if err != nil || c.Status.HealthStatus == nil {
		h.Fatal("no health status:", err)
	}
	return c.Status.HealthStatus.LastTransitionTime
}

func TestTwoReasonsOfOneStatusAreTwoConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, newAPI(true, bound("a")...),
			holding(sickness{"vol-a": {degraded("Slow", "9 s"), degraded("Full", ""), degraded("Full", "again")}}))
		h.runRound()
		h.wants("status", h.health("claim-a"), "Degraded(Full)", "Degraded(Slow) 9 s")
		h.wants("one event", h.events.said(),
			"Warning VolumeConditionAbnormal PersistentVolumeClaim claim-a: Degraded (Full); Degraded (Slow): 9 s")
	})
}

func TestANewMessageIsWrittenRarelyAndCausesNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{"vol-a": {degraded("Slow", "1 s")}})
		h := start(t, newAPI(true, bound("a")...), d)
		h.runRound()
		h.events.said()
		since := h.since("claim-a")
		d.set(func(d *fakeDriver) {
			d.volumes["vol-a"] = []*csi.VolumeHealth_VolumeHealthEntry{degraded("Slow", "2 s")}
		})
		h.runRound()
		h.wants("status after a minute", h.health("claim-a"), "Degraded(Slow) 1 s")
		time.Sleep(textEvery)
		h.runRound()
		h.wants("status after the pause", h.health("claim-a"), "Degraded(Slow) 2 s")
		h.wants("events", h.events.said())
		if now := h.since("claim-a"); !now.Equal(&since) {
			t.Errorf("lastTransitionTime %v, want %v: the condition is the same", now, since)
		}
	})
}

func TestAfterARestart(t *testing.T) {
	for _, c := range []struct {
		name   string
		gate   bool
		change func(*fakeDriver)
		want   []string
	}{
		{"what the status has is not told again", true, func(*fakeDriver) {}, nil},
		{"a recovery in between is told", true, func(d *fakeDriver) { d.volumes["vol-a"] = nil },
			[]string{"Normal VolumeConditionNormal PersistentVolumeClaim claim-a: the volume is healthy again, no " +
				"longer Degraded (Slow)"}},
		{"with the gate off a condition is told once more", false, func(*fakeDriver) {},
			[]string{"Warning VolumeConditionAbnormal PersistentVolumeClaim claim-a: Degraded (Slow)"}},
		{"with the gate off a recovery in between goes unsaid", false, func(d *fakeDriver) { d.volumes["vol-a"] = nil },
			nil},
	} {
		t.Run(c.name, bubble(func(t *testing.T) {
			d := holding(sickness{"vol-a": {degraded("Slow", "")}})
			h := start(t, newAPI(c.gate, bound("a")...), d)
			h.runRound()
			d.set(c.change)
			h.restart()
			h.runRound()
			h.runRound()
			h.wants("events", h.events.said(), c.want...)
		}))
	}
}

func TestWithTheGateOffItStopsWritingAndTriesAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(false, bounds("a", "b", "c")...)
		h := start(t, api, holding(sickness{"vol-a": {degraded("Slow", "")}, "vol-b": {degraded("Slow", "")},
			"vol-c": nil}))
		h.runRound()
		h.runRound()
		if n := api.written(); n != 1 {
			t.Errorf("%d writes, want one that shows that they are dropped", n)
		}
		if n := len(h.events.said()); n != 2 {
			t.Errorf("%d events, want one for each of two claims", n)
		}
		time.Sleep(fieldRetry)
		h.runRound()
		if n := api.written(); n != 1 {
			t.Errorf("%d writes after the pause, want one", n)
		}
		api.set(func(a *fakeAPI) { a.gate = true })
		time.Sleep(fieldRetry)
		h.runRound()
		h.wants("status with the gate on at last", h.health("claim-a"), "Degraded(Slow)")
		h.wants("and the other", h.health("claim-b"), "Degraded(Slow)")
		h.wants("events of that", h.events.said())
	})
}

func TestAFieldThatIsSetIsKeptUpWithTheGateOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(true, bounds("a", "b")...)
		d := holding(sickness{"vol-a": {degraded("Slow", "")}, "vol-b": nil})
		h := start(t, api, d)
		h.runRound()
		api.set(func(a *fakeAPI) { a.gate = false })
		d.set(func(d *fakeDriver) {
			d.volumes["vol-a"] = append(d.volumes["vol-a"], lost("Gone", ""))
			d.volumes["vol-b"] = d.volumes["vol-a"]
		})
		h.runRound()
		h.wants("status that was there", h.health("claim-a"), "DataLoss(Gone)", "Degraded(Slow)")
		h.wants("status that was not", h.health("claim-b"))
		h.api.written()
		d.set(func(d *fakeDriver) { d.volumes["vol-a"] = d.volumes["vol-a"][1:] })
		h.runRound()
		h.runRound()
		if n := h.api.written(); n != 1 {
			t.Errorf("%d writes, want 1: that one claim keeps its field says nothing of the other", n)
		}
		d.set(func(d *fakeDriver) { d.volumes["vol-a"] = nil })
		h.runRound()
		h.wants("status after recovery", h.health("claim-a"))
	})
}

func TestAFailedWriteIsRetriedWithoutAnotherEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(true, bound("a")...)
		api.patchErr = errors.New("forbidden")
		h := start(t, api, holding(sickness{"vol-a": {degraded("Slow", "")}}))
		if _, err := h.round(t.Context()); err == nil || !strings.Contains(err.Error(), "team/claim-a") {
			t.Errorf("round: %v, want an error that names the claim", err)
		}
		api.set(func(a *fakeAPI) { a.patchErr = nil })
		h.runRound()
		h.wants("status", h.health("claim-a"), "Degraded(Slow)")
		if n := len(h.events.said()); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})
}

func TestACacheThatLagsBehindCostsNoWriteAndNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{"vol-a": slow})
		h := start(t, newAPI(true, bound("a")...), d)
		h.freeze()
		round := func(writes, events int) {
			t.Helper()
			if _, err := h.round(t.Context()); err != nil {
				t.Error(err)
			}
			if w, e := h.api.written(), len(h.events.said()); w != writes || e != events {
				t.Errorf("%d writes and %d events, want %d and %d", w, e, writes, events)
			}
		}
		round(1, 1)
		round(0, 0)
		d.set(func(d *fakeDriver) { d.volumes["vol-a"] = nil })
		round(1, 1)
		round(0, 0)
		h.wants("status", h.health("claim-a"))
		d.set(func(d *fakeDriver) { d.volumes["vol-a"] = slow })
		round(1, 1)
	})
}

func TestAClaimThatIsGoneByNowIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, newAPI(true, bound("a")...), holding(sickness{"vol-a": slow}))
		h.freeze()
		if err := h.api.CoreV1().PersistentVolumeClaims("team").Delete(t.Context(), "claim-a",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.round(t.Context()); err != nil {
			t.Errorf("round: %v", err)
		}
	})
}

func TestAClaimOfTheSameNameThatCameSinceIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, newAPI(true, bound("a")...), holding(sickness{"vol-a": slow}))
		h.freeze()
		claim := bound("a")[1].(*v1.PersistentVolumeClaim)
		claim.UID = "another"
		if _, err := h.api.CoreV1().PersistentVolumeClaims("team").Update(t.Context(), claim,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.round(t.Context()); err == nil {
			t.Error("no error")
		}
		h.wants("status", h.health("claim-a"))
	})
}

func TestAnAPIServerThatIsAwayMakesAShortError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(true, bounds("a", "b", "c", "d", "e")...)
		api.patchErr = errors.New("away")
		h := start(t, api, five())
		if _, err := h.round(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "\nand 2 more") {
			t.Errorf("round: %v, want three errors and two more", err)
		}
	})
}

func TestWhoseVolumesAreLookedAt(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*v1.PersistentVolume, *v1.PersistentVolumeClaim)
		want   bool
	}{
		{"a bound volume of this driver", func(*v1.PersistentVolume, *v1.PersistentVolumeClaim) {}, true},
		{"another driver's", func(v *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { v.Spec.CSI.Driver = "other" },
			false},
		{"an in-tree volume that is migrated to this driver",
			func(v *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) {
				v.Annotations = map[string]string{"pv.kubernetes.io/migrated-to": driverName}
				v.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}}
			}, false},
		{"one without a claim", func(v *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { v.Spec.ClaimRef = nil },
			false},
		{"one whose claim came back as another",
			func(v *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { v.Spec.ClaimRef.UID = "old" }, false},
		{"one that is reserved by name only",
			func(v *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { v.Spec.ClaimRef.UID = "" }, false},
		{"one whose claim has another volume",
			func(_ *v1.PersistentVolume, c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv-z" }, false},
	} {
		t.Run(c.name, bubble(func(t *testing.T) {
			objects := bound("a")
			c.change(objects[0].(*v1.PersistentVolume), objects[1].(*v1.PersistentVolumeClaim))
			h := start(t, newAPI(true, objects...), holding(sickness{"vol-a": {degraded("Slow", "")}}))
			h.runRound()
			if got := len(h.health("claim-a")) == 1; got != c.want {
				t.Errorf("reported: %v, want %v", got, c.want)
			}
		}))
	}
}

func TestPodsOfTheVolumeGetTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		controlled := true
		pod := func(name string, phase v1.PodPhase, s v1.VolumeSource) kruntime.Object {
			return &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: "pod-uid"},
				Spec:       v1.PodSpec{Volumes: []v1.Volume{{Name: "data", VolumeSource: s}}},
				Status:     v1.PodStatus{Phase: phase},
			}
		}
		claim := func(name string) v1.VolumeSource {
			return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
		}
		objects := bounds("a", "b")
		inline := objects[3].(*v1.PersistentVolumeClaim) // the claim of pod "app" and its volume "data"
		inline.Name = "app-data"
		inline.OwnerReferences = []metav1.OwnerReference{{UID: "pod-uid", Controller: &controlled}}
		objects[2].(*v1.PersistentVolume).Spec.ClaimRef.Name = "app-data"
		objects = append(objects, pod("user", v1.PodRunning, claim("claim-a")),
			pod("other", v1.PodRunning, claim("claim-z")),
			pod("done", v1.PodSucceeded, claim("claim-a")), pod("app", v1.PodRunning,
				v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}))

		d := holding(sickness{"vol-a": {degraded("Slow", "")}, "vol-b": nil})
		h := start(t, newAPI(true, objects...), d)
		h.runRound()
		h.wants("events", h.events.said(), "Warning VolumeConditionAbnormal PersistentVolumeClaim claim-a: Degraded (Slow)",
			"Warning VolumeConditionAbnormal Pod user: volume of claim claim-a: Degraded (Slow)")
		d.set(func(d *fakeDriver) { d.volumes = sickness{"vol-a": nil, "vol-b": {lost("Gone", "")}} })
		h.runRound()
		got := strings.Join(h.events.said(), "\n")
		for _, want := range []string{"Normal VolumeConditionNormal Pod user: ",
			"Warning VolumeConditionAbnormal Pod app: volume of claim app-data: DataLoss (Gone)"} {
			if !strings.Contains(got, want) {
				t.Errorf("events:\n%s\nwant %q in them", got, want)
			}
		}
	})
}

func TestUses(t *testing.T) {
	claim := bound("a")[1].(*v1.PersistentVolumeClaim)
	for _, c := range []struct {
		name   string
		volume v1.Volume
		want   bool
	}{
		{"a claim by name", v1.Volume{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-a"}}}, true},
		{"another claim", v1.Volume{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-b"}}}, false},
		{"an ephemeral volume whose claim would have that name, but is somebody else's",
			v1.Volume{Name: "a", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}, false},
		{"no claim", v1.Volume{Name: "a"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "claim", UID: "pod-uid"},
				Spec: v1.PodSpec{Volumes: []v1.Volume{c.volume}}}
			if got := uses(pod, claim); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestWithoutPodEventsPodsAreNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, newAPI(true, bound("a")...), holding(sickness{"vol-a": {degraded("Slow", "")}}),
			func(c *Config) { c.PodEvents = false })
		h.runRound()
		h.wants("events", h.events.said(), "Warning VolumeConditionAbnormal PersistentVolumeClaim claim-a: Degraded (Slow)")
		for _, a := range h.api.Actions() {
			if a.GetResource().Resource == "pods" {
				t.Errorf("%s of pods", a.GetVerb())
			}
		}
	})
}

func TestTwoThousandHealthyVolumesCostOneListAndNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, sick, page = 2000, 45, 10
		var objects []kruntime.Object
		d := holding(sickness{})
		for i := range n {
			name := fmt.Sprintf("%04d", i)
			objects = append(objects, bound(name)...)
			d.volumes["vol-"+name] = nil
			if i < sick {
				d.volumes["vol-"+name] = []*csi.VolumeHealth_VolumeHealthEntry{degraded("Slow", "")}
			}
		}
		h := start(t, newAPI(true, objects...), d, func(c *Config) { c.PageSize, c.Workers = page, 10 })
		h.runRound()
		d.calls()
		if got := h.api.written(); got != sick {
			t.Errorf("%d writes in the first round, want %d", got, sick)
		}
		for _, round := range []string{"second", "third"} {
			h.runRound()
			lists, gets := d.calls()
			if writes := h.api.written(); lists != (sick+page-1)/page || gets != 0 || writes != 0 {
				t.Errorf("the %s round: %d lists, %d gets, %d writes, want %d, 0 and 0", round, lists, gets, writes,
					(sick+page-1)/page)
			}
		}
	})
}

func TestRunEndsWithAllItStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{"vol-a": slow, "vol-b": nil, "vol-c": nil})
		d.hang = true
		d.listErr = status.Error(codes.Unavailable, "a node is away")
		h := start(t, newAPI(true, bounds("a", "b", "c")...), d, func(c *Config) { c.Workers = 2 })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.Monitor.Run(ctx) }()
		synctest.Wait()
		if _, gets := d.calls(); gets != 3 {
			t.Fatalf("%d volumes are queried, want 3", gets)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for _, own := range []string{"healthmonitor.(*inquiry)", "healthmonitor.(*Monitor).Run",
			"healthmonitor.(*Monitor).reportAll"} {
			if strings.Contains(string(stacks), own) {
				t.Errorf("%s is still there:\n%s", own, stacks)
			}
		}
		h.wants("events of a round that was cut short", h.events.said())
	})
}

func TestRunLooksAgainAndAgain(t *testing.T) {
	for _, c := range []struct {
		name     string
		err      error // of a list
		interval time.Duration
	}{
		{"lists succeed", nil, defaults.ListInterval},
		{"lists fail", status.Error(codes.Internal, "no list"), defaults.GetInterval},
	} {
		t.Run(c.name, bubble(func(t *testing.T) {
			d := holding(sickness{"vol-a": {degraded("Slow", "")}})
			d.listErr = c.err
			h := start(t, newAPI(true, bound("a")...), d)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- h.Monitor.Run(ctx) }()
			synctest.Wait()
			for round := range 5 {
				if lists, _ := d.calls(); lists != 1 {
					t.Errorf("%d lists in round %d, want 1", lists, round)
				}
				time.Sleep(c.interval - time.Second)
				synctest.Wait()
				if lists, _ := d.calls(); lists != 0 {
					t.Errorf("round %d began before its time", round+1)
				}
				time.Sleep(time.Second)
				synctest.Wait()
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
		}))
	}
}

// A driver that hangs holds a round up for the time limit of two calls: of the query, and of the
// probe that follows.
func TestASilentDriverDelaysARoundOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{"vol-a": slow, "vol-b": nil, "vol-c": nil})
		h := start(t, newAPI(true, bounds("a", "b", "c")...), d)
		h.runRound()
		h.events.said()
		d.set(func(d *fakeDriver) { d.silent = true })
		began := time.Now()
		if _, err := h.round(t.Context()); err == nil {
			t.Error("the round has no error")
		}
		if took := time.Since(began); took != 3*h.Timeout { // of the list, a query and a probe
			t.Errorf("the round took %v, want %v", took, 3*h.Timeout)
		}
		h.wants("status", h.health("claim-a"), "Degraded(Slow)")
		h.wants("events", h.events.said())
		d.set(func(d *fakeDriver) { d.silent = false })
		h.runRound()
		h.wants("events of a driver that answers again", h.events.said())
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := holding(sickness{
			"vol-a": {degraded("Slow", ""), degraded("Full", ""), lost("Gone", "")},
			"vol-b": {degraded("Slow", ""), entry(99, "New", "")},
			"vol-c": nil,
		})
		h := start(t, newAPI(true, bounds("a", "b", "c")...), d)
		if n, _ := testutil.GatherAndCount(h.registry, prefix+"abnormal_volumes"); n != 0 {
			t.Errorf("%d totals before the first round, want none: nobody looked", n)
		}
		h.runRound()
		const want = `
# HELP csi_sidecars_volume_health_abnormal 1 for each claim whose volume has this status; a claim that is well has no series.
# TYPE csi_sidecars_volume_health_abnormal gauge
csi_sidecars_volume_health_abnormal{driver_name="health.csi.example.com",namespace="team",persistentvolumeclaim="claim-a",status="DataLoss"} 1
csi_sidecars_volume_health_abnormal{driver_name="health.csi.example.com",namespace="team",persistentvolumeclaim="claim-a",status="Degraded"} 1
csi_sidecars_volume_health_abnormal{driver_name="health.csi.example.com",namespace="team",persistentvolumeclaim="claim-b",status="Degraded"} 1
# HELP csi_sidecars_volume_health_abnormal_volumes Volumes with this status, as the driver's controller side has them.
# TYPE csi_sidecars_volume_health_abnormal_volumes gauge
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="Abnormal"} 0
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="DataLoss"} 1
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="Degraded"} 2
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="Inaccessible"} 0
csi_sidecars_volume_health_abnormal_volumes{driver_name="health.csi.example.com",status="Unknown"} 0
# HELP csi_sidecars_volume_health_unknown_conditions_total Conditions of a type that this monitor does not know.
# TYPE csi_sidecars_volume_health_unknown_conditions_total counter
csi_sidecars_volume_health_unknown_conditions_total{driver_name="health.csi.example.com"} 1
`
		h.gathers(want, prefix+"abnormal", prefix+"abnormal_volumes", prefix+"unknown_conditions_total")
		d.set(func(d *fakeDriver) {
			d.volumes = sickness{"vol-a": nil, "vol-b": nil}
			d.listErr = status.Error(codes.Internal, "no list")
		})
		h.runRound()
		h.gathers(`
# HELP csi_sidecars_volume_health_get_failures_total Single volumes for which the driver had no answer.
# TYPE csi_sidecars_volume_health_get_failures_total counter
csi_sidecars_volume_health_get_failures_total{driver_name="health.csi.example.com",grpc_status_code="NotFound"} 1
# HELP csi_sidecars_volume_health_list_failures_total Lists of volume health that failed, after which each volume is asked for.
# TYPE csi_sidecars_volume_health_list_failures_total counter
csi_sidecars_volume_health_list_failures_total{driver_name="health.csi.example.com",grpc_status_code="Internal"} 1
`, prefix+"abnormal", prefix+"get_failures_total", prefix+"list_failures_total")
		if problems, err := testutil.GatherAndLint(h.registry); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v %v", problems, err)
		}
	})
}

func (h *harness) gathers(want string, names ...string) {
	h.Helper()
	if err := testutil.GatherAndCompare(h.registry, strings.NewReader(want), names...); err != nil {
		h.Error(err)
	}
}

func TestManyUnhealthyClaimsHaveBoundedSeries(t *testing.T) {
	s := newSick(prometheus.Labels{"driver_name": driverName})
	memories := map[apiUID]*memory{}
	for i := range maxSeries + 7 {
		name := fmt.Sprint("claim-", i)
		memories[apiUID(name)] = &memory{held: []v1.VolumeHealthCondition{condition(v1.VolumeHealthDegraded, "Slow",
			"")}, claim: &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	}
	s.set(memories)
	if n := testutil.CollectAndCount(s, prefix+"abnormal"); n != maxSeries {
		t.Errorf("%d series, want %d", n, maxSeries)
	}
	if n := s.totals[v1.VolumeHealthDegraded]; n != maxSeries+7 {
		t.Errorf("total %d, want %d", n, maxSeries+7)
	}
}
