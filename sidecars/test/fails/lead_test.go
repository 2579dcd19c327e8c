package fails

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// many is how many claims there are when something fails.
const many = 80

// pair starts two replicas, of which the first leads.
func (s *scene) pair(args ...string) (leader, other *replica) {
	s.Helper()
	leader = s.start(args...)
	leader.leads()
	other = s.start(args...)
	other.waits()
	return leader, other
}

// load creates claims, and returns when the driver has calls for some of them. The returned
// function waits for all.
func (s *scene) load() (all func()) {
	s.Helper()
	s.slow(time.Second)
	s.claim(0, many/4)
	s.called(10)
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		s.claim(many/4, many)
	}()
	return func() { <-rest }
}

// settled is the end of each of these tests.
func (s *scene) settled() {
	s.Helper()
	s.bound(many)
	s.alone()
	s.emptied()
}

func TestALeaderThatEndsHandsItsLeasesOver(t *testing.T) {
	s := newScene(t)
	leader, other := s.pair(works)
	all := s.load()
	leader.send(syscall.SIGTERM)
	leader.ends(0)
	all()
	other.leads()
	s.settled()
	other.send(syscall.SIGTERM)
	other.ends(0)
	s.released()
}

func TestALeaderThatIsKilledIsReplaced(t *testing.T) {
	s := newScene(t)
	leader, other := s.pair(works)
	all := s.load()
	leader.send(syscall.SIGKILL)
	leader.ends(-1)
	all()
	other.leads()
	s.settled()
}

// A stopped process does not see its lease end, and acts as the leader when it continues: with
// calls that it was about to make, and for a whole renew deadline, if it only asked client-go.
func TestALeaderThatWasAsleepDoesNothingMore(t *testing.T) {
	s := newScene(t)
	leader, other := s.pair(works)
	all := s.load()
	leader.send(syscall.SIGSTOP)
	other.leads()
	asleep := time.Now() // calls that it made before may have arrived later
	all()
	s.bound(many)
	s.claim(many, many+20) // which the sleeper hears of when it wakes
	awake := time.Now()
	leader.send(syscall.SIGCONT)
	leader.ends(1)
	for _, c := range s.driver.Calls("CreateVolume") {
		if c.PID == leader.Pid() && c.Start.After(awake) {
			t.Errorf("%s: a call of the old leader %v after it woke up", c.VolumeName(), c.Start.Sub(awake))
		}
		if c.PID == leader.Pid() && c.Start.After(asleep) && c.Start.Before(awake) {
			t.Errorf("%s: a call of a process that sleeps", c.VolumeName())
		}
	}
	s.bound(many + 20)
	s.alone()
	s.emptied()
}

// The driver finishes its calls though no caller waits any more: the ordinary driver.
func TestADriverThatFinishesForAKilledLeaderMakesNothingTwice(t *testing.T) {
	s := newScene(t)
	leader, other := s.pair(works)
	all := s.load()
	killed := make(chan struct{})
	var held atomic.Int32
	s.driver.Hook(func(_ context.Context, c *rig.Call) error {
		if c.Method == "CreateVolume" {
			held.Add(1)
			<-killed
		}
		return nil
	})
	s.until("a call is under way", func(context.Context) error {
		if held.Load() == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	leader.send(syscall.SIGKILL)
	leader.ends(-1)
	close(killed)
	all()
	other.leads()
	s.settled()
}

// stopped ends a leader in the middle of its work, and has another finish it.
func (s *scene) stopped(before func(*replica), args ...string) {
	s.Helper()
	leader, other := s.pair(args...)
	all := s.load()
	before(leader)
	leader.send(syscall.SIGTERM)
	s.Logf("the process ended %v after SIGTERM", leader.ends(0).Round(time.Second))
	if l, err := s.lease(s.Context(), s.combined()); err != nil || holder(l) == leader.identity() {
		s.Error("the lease is not released: ", errors.Join(err))
	}
	all()
	other.leads()
	s.settled()
}

func TestAProcessEndsInTimeInTheMiddleOfItsWork(t *testing.T) {
	s := newScene(t)
	var first *replica
	s.stopped(func(leader *replica) { first = leader }, works)
	if contains(first, late) {
		t.Error("the process waited for the whole time")
	}
}

// late is in the log of a process that ended before its controllers.
const late = "Controllers still run at the end of their time"

// Upstream's snapshotter v8.7.0 never ends its workers for groups: it is waited for as long as
// patience goes, and no longer. When a release ends them, this fails:
// docs/explanation/csi-sidecars.md speaks of it.
func TestAProcessEndsInTimeWithSnapshotsOfGroups(t *testing.T) {
	s := newScene(t)
	var first *replica
	s.stopped(func(leader *replica) {
		first = leader
		s.groupOfNobody()
		s.until("the workers for groups to begin", func(context.Context) error {
			if !worked.MatchString(leader.answers("/metrics", http.StatusOK)) {
				return errors.New("nothing was worked on")
			}
			return nil
		})
	}, "--controllers=provisioner,snapshotter")
	first.says(late)
}

// worked matches the count of objects that the workers for groups have read, if it is at least 1.
var worked = regexp.MustCompile(`workqueue_work_duration_seconds_count\{[^}]*name="csi-snapshotter-groupsnapshotcontent"[^}]*\} [1-9]`)

// groupOfNobody makes an object that the workers for groups look at, and leave alone.
func (s *scene) groupOfNobody() {
	s.Helper()
	groups := s.plane.Snapshots.GroupsnapshotV1().VolumeGroupSnapshotContents()
	_, err := groups.Create(s.Context(), &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: s.dashed()},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			Driver: "nobody.example.com", DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain,
			VolumeGroupSnapshotRef: corev1.ObjectReference{Name: "group", Namespace: "default"},
			Source: groupv1.VolumeGroupSnapshotContentSource{
				GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{VolumeGroupSnapshotHandle: "group",
					VolumeSnapshotHandles: []string{"snapshot"}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
}
