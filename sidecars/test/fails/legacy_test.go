package fails

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// legacy starts upstream's provisioner, of the release whose packages csi-sidecars has.
func (s *scene) legacy(args ...string) *replica {
	s.Helper()
	paths, err := rig.Upstream(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return s.program(paths["csi-provisioner"], nil, append(append([]string{}, quickly...), args...)...)
}

// makes waits until upstream's provisioner has its lease and works.
func (r *replica) makes() {
	r.s.Helper()
	r.says("Started provisioner controller")
}

// from fails unless all calls to make a volume since the last time came from this process, and
// there were some.
func (s *scene) from(r *replica) {
	s.Helper()
	calls := s.driver.Calls("CreateVolume")
	if len(calls) == 0 {
		s.Error("nobody made a volume")
	}
	for _, c := range calls {
		if c.PID != r.Pid() {
			s.Errorf("%s was made by process %d, not by %d", c.VolumeName(), c.PID, r.Pid())
		}
	}
	s.driver.Forget()
}

// held waits until a lease of the scene has a holder, or has none.
func (s *scene) held(name string, want bool) {
	s.Helper()
	s.until(fmt.Sprintf("somebody has the lease %s: %t", name, want), func(ctx context.Context) error {
		l, err := s.lease(ctx, name)
		if err == nil && (holder(l) != "") != want {
			err = fmt.Errorf("its holder is %q", holder(l))
		}
		return err
	})
}

// migrated fails unless the single lease records that the old leases were taken.
func (s *scene) migrated() {
	s.Helper()
	l, err := s.lease(s.Context(), s.combined())
	if err != nil || l.Annotations["migration.csi.k8s.io/status"] != "completed" {
		s.Errorf("the lease is not noted as migrated: %v, %v", l.GetAnnotations(), err)
	}
}

func TestAnOldProvisionerIsWaitedForAndReplaced(t *testing.T) {
	s := newScene(t)
	old := s.legacy()
	old.makes()
	first := s.start(works)
	first.says("Waiting for the lease of an old sidecar")
	first.says(fmt.Sprintf("lease=%q", s.dashed()))
	second := s.start(works)
	second.waits()
	s.claim(0, 20)
	s.bound(20)
	s.from(old)
	first.healthy()
	second.healthy()

	old.send(syscall.SIGTERM)
	<-old.Ended()
	first.says(`"Controller starts" name="provisioner"`)
	s.claim(20, 40)
	s.bound(40)
	s.from(first)
	s.migrated()
	s.held(s.dashed(), true) // the old sidecar may have a second replica

	first.send(syscall.SIGTERM)
	first.ends(0)
	s.held(s.dashed(), false)
	second.says(`"Controller starts"`)
	third := s.start(works)
	third.waits()
	second.send(syscall.SIGTERM)
	second.ends(0)
	third.says(`"Controller starts"`)
	for _, r := range []*replica{second, third} {
		if contains(r, "Taking the lease") {
			t.Errorf("process %d took the old leases again", r.Pid())
		}
	}
	s.claim(40, 50)
	s.bound(50)
	s.emptied()
}

func TestAnOldProvisionerThatReturnsTakesOver(t *testing.T) {
	s := newScene(t)
	ours := s.start(works)
	ours.says(`"Controller starts"`)
	s.claim(0, 10)
	s.bound(10)
	s.from(ours)

	old := s.legacy()
	old.makes()
	ours.says("has taken the lease " + s.dashed())
	ours.ends(1)
	s.held(s.combined(), false)
	s.claim(10, 20)
	s.bound(20)
	s.from(old)

	next := s.start(works)
	next.says("Waiting for the lease of an old sidecar")
	next.healthy()
	s.claim(20, 30)
	s.bound(30)
	s.from(old)

	old.send(syscall.SIGTERM)
	<-old.Ended()
	next.says(`"Controller starts"`)
	s.emptied()
}

// While csi-sidecars holds the old leases, an old sidecar that comes back (helm rollback) waits
// until the rollout ends csi-sidecars.
func TestAnOldProvisionerThatReturnsAtOnceWaits(t *testing.T) {
	s := newScene(t)
	old := s.legacy()
	old.makes()
	ours := s.start(works)
	old.send(syscall.SIGTERM)
	<-old.Ended()
	ours.says(`"Controller starts" name="provisioner"`)
	again := s.legacy()
	s.claim(0, 10)
	s.bound(10)
	s.from(ours)
	ours.healthy()
	ours.send(syscall.SIGTERM)
	ours.ends(0)
	again.makes()
	s.claim(10, 20)
	s.bound(20)
	s.from(again)
	s.emptied()
}

func TestADeadOldProvisionerIsReplaced(t *testing.T) {
	s := newScene(t)
	old := s.legacy()
	old.makes()
	old.send(syscall.SIGKILL)
	<-old.Ended()
	s.held(s.dashed(), true)
	ours := s.start(append(slices.Clone(handsOver), works)...)
	ours.says(`"Controller starts"`)
	s.held(s.dashed(), false)
	s.migrated()
	s.claim(0, 10)
	s.bound(10)
	s.from(ours)
	s.emptied()
}

// separately has each controller elected by a lease of its own: upstream's.
const separately = "--leader-election-mode=per-controller"

func TestControllersWithOldLeasesWorkBesideAnOldProvisioner(t *testing.T) {
	s := newScene(t)
	old := s.legacy()
	old.makes()
	ours := s.start(separately, works)
	for _, name := range []string{"external-attacher-leader-" + s.dashed(), "external-resizer-" + s.dashed()} {
		s.held(name, true)
	}
	s.claim(0, 10)
	s.bound(10)
	s.from(old)
	s.grow("claim-003")
	for _, c := range s.driver.Calls("ControllerExpandVolume") {
		if c.PID != ours.Pid() {
			t.Errorf("process %d grew a volume", c.PID)
		}
	}
	ours.healthy()
	old.send(syscall.SIGKILL)
	<-old.Ended()
	ours.says(`"Controller starts" name="provisioner"`)
	s.claim(10, 20)
	s.bound(20)
	s.emptied()
}

// grow asks for more, and waits until the volume has it.
func (s *scene) grow(claim string) {
	s.Helper()
	more := resource.MustParse("8Mi")
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, more.String())
	claims := s.plane.Kube.CoreV1().PersistentVolumeClaims(s.ns)
	if _, err := claims.Patch(s.Context(), claim, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
	s.until("the volume grows", func(ctx context.Context) error {
		c, err := claims.Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		volume, err := s.plane.Kube.CoreV1().PersistentVolumes().Get(ctx, c.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if size := volume.Spec.Capacity[corev1.ResourceStorage]; size.Cmp(more) != 0 {
			return fmt.Errorf("it has %s", &size)
		}
		return nil
	})
}

// From the single lease to those of upstream and back, with new claims all the time.
func TestModesOfElectionChangeWithoutTwoAtWork(t *testing.T) {
	s := newScene(t)
	s.slow(time.Second)
	one := s.start(works)
	one.says(`"Controller starts"`)
	several := s.start(separately, works)
	several.says("Waiting for the lease of a process that runs all controllers")
	s.claim(0, 20)
	s.bound(20)
	s.from(one)
	one.healthy()
	several.healthy()

	s.claim(20, 40)
	one.send(syscall.SIGTERM)
	one.ends(0)
	several.says(`"Controller starts" name="provisioner"`)
	s.bound(40)
	s.alone()
	s.driver.Forget()

	s.claim(40, 60)
	again := s.start(works)
	several.ends(1)
	again.says(`"Controller starts" name="provisioner"`)
	s.bound(60)
	s.alone()
	for _, name := range []string{"external-attacher-leader-" + s.dashed(), "external-resizer-" + s.dashed(),
		s.dashed()} {
		s.held(name, false)
	}
	s.emptied()
}

// A lease that is not renewed has a dead holder, which is not mistaken for a holder that returns.
func TestADeadProcessWithTheOneLeaseDoesNotStopTheOthers(t *testing.T) {
	s := newScene(t)
	one := s.start(works)
	one.says(`"Controller starts"`)
	one.send(syscall.SIGKILL)
	<-one.Ended()
	several := s.start(separately, works)
	several.says(`"Controller starts" name="provisioner"`)
	for range 3 { // each of which takes longer than it takes to look again
		s.renewed(s.dashed())
	}
	several.healthy()
	s.claim(0, 10)
	s.bound(10)
	s.from(several)
	s.emptied()
}

// renewed waits until a lease's holder has renewed it several times, which is as long as the lease
// lasts.
func (s *scene) renewed(name string) {
	s.Helper()
	first, err := s.lease(s.Context(), name)
	if err != nil {
		s.Fatal(err)
	}
	s.until("the lease is renewed", func(ctx context.Context) error {
		l, err := s.lease(ctx, name)
		if err == nil && l.Spec.RenewTime.Sub(first.Spec.RenewTime.Time).Seconds() < float64(*l.Spec.LeaseDurationSeconds) {
			err = errors.New("not often enough")
		}
		return err
	})
}

// Both at once from nothing: each finds the other's leases, and one of them gives way.
func TestBothModesAtOnceDoNotWaitForEachOther(t *testing.T) {
	s := newScene(t)
	one, several := s.start(works), s.start(separately, works)
	s.claim(0, 10)
	s.until("all are bound, whoever has to be started again", func(ctx context.Context) error {
		if ended(several) {
			several = s.start(separately, works)
		}
		if ended(one) {
			one = s.start(works)
		}
		if n := s.stored(); n != 10 {
			return fmt.Errorf("%d volumes", n)
		}
		return nil
	})
	s.bound(10)
	s.alone()
	s.emptied()
}

// ended reports whether a process has.
func ended(r *replica) bool {
	select {
	case <-r.Ended():
		return true
	default:
		return false
	}
}
