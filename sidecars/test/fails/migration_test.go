package fails

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// upstreamLeases is for measuring how long a migration stands still:
//
//	go test ./fails -run TestAMigrationThereAndBack -v -upstream-leases
var upstreamLeases = flag.Bool("upstream-leases", false,
	"Let leases last as long as upstream's do by default (15 s) in the migration test.")

// work is a kind of work: the controller, upstream's program, its lease, and the driver calls of
// the work.
type work struct {
	controller, program, lease string
	calls                      []string
}

// works returns the four kinds that upstream has a program for.
func (m *migration) works() []work {
	return []work{
		{"provisioner", "csi-provisioner", m.dashed(), []string{"CreateVolume", "DeleteVolume"}},
		{"attacher", "csi-attacher", "external-attacher-leader-" + m.dashed(),
			[]string{"ControllerPublishVolume", "ControllerUnpublishVolume"}},
		{"resizer", "csi-resizer", "external-resizer-" + m.dashed(), []string{"ControllerExpandVolume"}},
		{"snapshotter", "csi-snapshotter", "external-snapshotter-leader-" + m.dashed(),
			[]string{"CreateSnapshot", "DeleteSnapshot"}},
	}
}

// migration is a driver whose sidecars change. Objects have numbers: object n of each kind of work
// belongs to prepared claim n, except for the claim that is provisioned, which has the number
// pool+n.
type migration struct {
	*scene
	flags []string // of every sidecar
	tick  time.Duration
	given int // objects of each kind of work
}

// pool is the number of claims that are prepared for the attacher, the resizer and the snapshotter
// to work on.
const pool = 120

// newMigration prepares a driver of another vendor. Each of its calls takes a while, so that calls
// of two processes at a time are seen.
func newMigration(t *testing.T) *migration {
	t.Parallel()
	m := &migration{scene: sceneWith(t, world.Plane, rig.DriverOptions{Foreign: true}),
		flags: slices.Concat(quickly, handsOver), tick: time.Second}
	if *upstreamLeases {
		m.flags, m.tick = []string{"--leader-election", "--kube-api-qps=200", "--kube-api-burst=400"}, 2*time.Second
	}
	m.driver.Hook(func(ctx context.Context, c *rig.Call) error {
		if !slices.ContainsFunc(m.works(), func(w work) bool { return slices.Contains(w.calls, c.Method) }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
			return nil
		}
	})
	_, err := m.plane.Kube.StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: m.ns},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: m.driver.Name, NodeID: "node-1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	class := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: m.ns}, Driver: m.driver.Name,
		DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete}
	if _, err := m.plane.Snapshots.SnapshotV1().VolumeSnapshotClasses().Create(t.Context(), class,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// workers are the processes that do the work, by controller.
type workers map[string]*replica

// upstream starts upstream's four sidecars, each with a lease of its own.
func (m *migration) upstream() workers {
	m.Helper()
	paths, err := rig.Upstream(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	all := workers{}
	for _, w := range m.works() {
		all[w.controller] = m.program(paths[w.program], nil, m.flags...)
	}
	return all
}

// combinedProcess starts csi-sidecars with the four controllers, and waits until it is ready.
func (m *migration) combinedProcess() (*replica, workers) {
	m.Helper()
	r := m.program(world.binary, nil,
		append(slices.Clone(m.flags), "--controllers=provisioner,attacher,resizer,snapshotter")...)
	r.healthy()
	all := workers{}
	for _, w := range m.works() {
		all[w.controller] = r
	}
	return r, all
}

// give makes object n of each kind of work.
func (m *migration) give(ctx context.Context, n int) error {
	prepared, err := m.plane.Kube.CoreV1().PersistentVolumeClaims(m.ns).Get(ctx, claimName(n), metav1.GetOptions{})
	if err != nil {
		return err
	}
	volume, err := m.plane.Kube.CoreV1().PersistentVolumes().Get(ctx, prepared.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	grow := []byte(`{"spec":{"resources":{"requests":{"storage":"8Mi"}}}}`)
	_, growing := m.plane.Kube.CoreV1().PersistentVolumeClaims(m.ns).Patch(ctx, prepared.Name, types.MergePatchType,
		grow, metav1.PatchOptions{})
	_, attaching := m.plane.Kube.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: volume.Name},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: m.driver.Name, NodeName: m.ns,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume.Name}},
	}, metav1.CreateOptions{})
	return errors.Join(m.makeClaim(ctx, claimName(pool+n)), growing, attaching, m.snapshot(ctx, volume))
}

// snapshot makes the content for a snapshot of a volume, as the snapshot-controller does.
func (m *migration) snapshot(ctx context.Context, volume *corev1.PersistentVolume) error {
	_, err := m.plane.Snapshots.SnapshotV1().VolumeSnapshotContents().Create(ctx, &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: volume.Name},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: m.driver.Name, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeSnapshotClassName: &m.ns,
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &volume.Spec.CSI.VolumeHandle},
			VolumeSnapshotRef: corev1.ObjectReference{APIVersion: "snapshot.storage.k8s.io/v1", Kind: "VolumeSnapshot",
				Namespace: m.ns, Name: volume.Name, UID: volume.UID},
		},
	}, metav1.CreateOptions{})
	return err
}

// traffic makes objects of each kind, an object in each tick, until the returned function is
// called.
func (m *migration) traffic() (stop func()) {
	m.Helper()
	ctx, cancel := context.WithCancel(m.Context())
	ended := make(chan error)
	go func() {
		tick := time.NewTicker(m.tick)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-tick.C:
			}
			if m.given == pool {
				continue
			}
			if err := m.give(m.Context(), m.given); err != nil {
				ended <- err
				<-ctx.Done()
				return
			}
			m.given++
		}
	}()
	return func() {
		m.Helper()
		cancel()
		if err := <-ended; err != nil {
			m.Fatal(err)
		}
	}
}

// finished waits until all work that was given is done, and checks that there is a volume for each
// claim and no other.
func (m *migration) finished() {
	m.Helper()
	m.bound(pool + m.given)
	m.until("all attachments are attached", func(ctx context.Context) error {
		all, err := m.plane.Kube.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		n := 0
		for _, a := range all.Items {
			if a.Spec.Attacher == m.driver.Name && a.Status.Attached {
				n++
			}
		}
		return m.all(n, err)
	})
	m.until("all snapshots are ready", func(ctx context.Context) error {
		all, err := m.plane.Snapshots.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		n := 0
		for _, c := range all.Items {
			if c.Spec.Driver == m.driver.Name && c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false) {
				n++
			}
		}
		return m.all(n, err)
	})
	m.until("all volumes have grown", func(ctx context.Context) error {
		volumes, err := m.volumes(ctx)
		n, large := 0, resource.MustParse("8Mi")
		for _, v := range volumes {
			if size := v.Spec.Capacity[corev1.ResourceStorage]; size.Cmp(large) >= 0 {
				n++
			}
		}
		return m.all(n, err)
	})
}

// all returns an error unless n objects are done.
func (m *migration) all(n int, err error) error {
	if err == nil && n != m.given {
		err = fmt.Errorf("%d of %d", n, m.given)
	}
	return err
}

// callsOf returns the calls of a kind of work since a time.
func (m *migration) callsOf(w work, since time.Time) []rig.Call {
	var all []rig.Call
	for _, method := range w.calls {
		for _, c := range m.driver.Calls(method) {
			if !c.Start.Before(since) {
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(a, b rig.Call) int { return a.Start.Compare(b.Start) })
	return all
}

// doWork gives some work, and checks that these processes, and no others, do each kind of work.
func (m *migration) doWork(who workers) {
	m.Helper()
	since := time.Now()
	for range 5 {
		if err := m.give(m.Context(), m.given); err != nil {
			m.Fatal(err)
		}
		m.given++
	}
	m.finished()
	for _, w := range m.works() {
		calls := m.callsOf(w, since)
		if len(calls) < 5 {
			m.Errorf("%s: %d calls, want at least 5", w.controller, len(calls))
		}
		for _, c := range calls {
			if c.PID != who[w.controller].Pid() {
				m.Errorf("%s: process %d called %s, want only process %d", w.controller, c.PID, c.Method,
					who[w.controller].Pid())
			}
		}
	}
}

// called waits until each kind of work has had a call from its process.
func (m *migration) called(who workers) {
	m.Helper()
	for _, w := range m.works() {
		m.until(fmt.Sprintf("process %d works as %s", who[w.controller].Pid(), w.controller),
			func(context.Context) error {
				if ended(who[w.controller]) {
					m.Fatalf("process %d ended", who[w.controller].Pid())
				}
				if !slices.ContainsFunc(m.callsOf(w, time.Time{}),
					func(c rig.Call) bool { return c.PID == who[w.controller].Pid() }) {
					return errors.New("no call")
				}
				return nil
			})
	}
}

// busy waits until each kind of work has had some calls since a time.
func (m *migration) busy(since time.Time) {
	m.Helper()
	m.until("there is work of each kind", func(context.Context) error {
		for _, w := range m.works() {
			if n := len(m.callsOf(w, since)); n < 3 {
				return fmt.Errorf("%s: %d calls", w.controller, n)
			}
		}
		return nil
	})
}

// overlaps counts the pairs of calls of the same kind that two processes made at the same time.
func (m *migration) overlaps(w work) (n int) {
	calls := m.callsOf(w, time.Time{})
	for i, a := range calls {
		for _, b := range calls[i+1:] {
			if a.PID != b.PID && (a.End.IsZero() || a.End.After(b.Start)) {
				n++
			}
		}
	}
	return n
}

// standstill logs how long each kind of work stood still when the process that did it changed:
// until the first call after the old process's end, and the longest time without any call, though
// there was work all the time.
func (m *migration) standstill(title string, began, end time.Time, next workers) {
	for _, w := range m.works() {
		calls := m.callsOf(w, began)
		last, longest := began, time.Duration(0)
		for _, c := range calls {
			last, longest = c.Start, max(longest, c.Start.Sub(last))
		}
		first := calls[slices.IndexFunc(calls, func(c rig.Call) bool { return c.PID == next[w.controller].Pid() })]
		m.Logf("%s: %-11s first call %6.1f s after the end of the old process, longest time without a call %5.1f s%s",
			title, w.controller,
			first.Start.Sub(end).Seconds(), longest.Seconds(), startOf(next[w.controller], w.controller, end))
	}
}

// startOf returns when csi-sidecars started a controller, as its log has it. Upstream's programs do
// not log that.
func startOf(r *replica, controller string, end time.Time) string {
	line := regexp.MustCompile(`(?m)^I(\d{4} \d\d:\d\d:\d\d\.\d+) .*"Controller starts" name="` + controller + `"`).FindStringSubmatch(r.Log())
	if line == nil {
		return ""
	}
	at, err := time.ParseInLocation("20060102 15:04:05.000000", fmt.Sprint(end.Year())+line[1], time.Local)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(", controller starts after %.1f s", at.Sub(end).Seconds())
}

// A migration as a Deployment's rollout makes it, and the way back (helm rollback). There is work
// of all kinds all the time.
//
// On the way there no two processes do the same kind of work at a time. On the way back they may,
// once csi-sidecars has released the old leases: upstream's sidecars do not look for the one lease,
// and csi-sidecars sees theirs only when it looks again. Drivers have to be idempotent for that
// time, so that there is still one volume for each claim.
func TestAMigrationThereAndBack(t *testing.T) {
	m := newMigration(t)
	old := m.upstream()
	m.claim(0, pool)
	m.bound(pool)
	m.doWork(old)

	ours, us := m.combinedProcess()
	m.doWork(old)
	ours.healthy()

	stop := m.traffic()
	began := time.Now()
	m.busy(began)
	for _, r := range old {
		r.send(syscall.SIGTERM)
	}
	for _, r := range old {
		<-r.Ended()
	}
	end := time.Now()
	m.called(us)
	stop()
	m.standstill("there", began, end, us)
	m.doWork(us)
	for _, w := range m.works() {
		if n := m.overlaps(w); n > 0 {
			t.Errorf("%s: %d pairs of calls by two processes at a time", w.controller, n)
		}
		if !*upstreamLeases { // they would be held for five minutes
			m.held(w.lease, false)
		}
	}
	m.migrated()

	m.driver.Forget()
	stop = m.traffic()
	m.busy(time.Now())
	m.back(ours, stop)
}

// back goes back to upstream's sidecars while there is traffic, and deletes everything with them.
func (m *migration) back(ours *replica, stop func()) {
	m.Helper()
	began := time.Now()
	old := m.upstream()
	if *upstreamLeases { // the old leases are still held: the old sidecars wait for the end of the pod
		ours.healthy()
		ours.send(syscall.SIGTERM)
		ours.ends(0)
	} else {
		ours.ends(1)
	}
	end := time.Now()
	if *upstreamLeases { // before the next csi-sidecars starts, which would take the leases again
		m.called(old)
	}
	next, _ := m.combinedProcess()
	m.called(old)
	stop()
	m.standstill("back", began, end, old)
	m.doWork(old)
	m.doWork(old)
	next.healthy()
	for _, w := range m.works() {
		m.Logf("back: %-11s %d pairs of calls by two processes at a time", w.controller, m.overlaps(w))
	}
	m.removed()
	for _, w := range m.works() {
		if slices.ContainsFunc(m.callsOf(w, end), func(c rig.Call) bool { return c.PID != old[w.controller].Pid() }) {
			m.Errorf("%s: calls by another process than upstream's %s after the way back", w.controller, w.program)
		}
	}
}

// removed deletes all objects, and waits until the storage is empty.
func (m *migration) removed() {
	m.Helper()
	m.each(0, m.given, func(name string) error {
		claim, err := m.plane.Kube.CoreV1().PersistentVolumeClaims(m.ns).Get(m.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return errors.Join(
			m.plane.Kube.StorageV1().VolumeAttachments().Delete(m.Context(), claim.Spec.VolumeName,
				metav1.DeleteOptions{}),
			m.discard(claim.Spec.VolumeName))
	})
	m.until("no snapshot is left", func(ctx context.Context) error {
		all, err := m.plane.Snapshots.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		for _, c := range all.Items {
			if c.Spec.Driver == m.driver.Name && strings.HasPrefix(c.Name, "pvc-") {
				err = errors.Join(err, fmt.Errorf("%s is left", c.Name))
			}
		}
		return err
	})
	m.emptied()
}

// discard deletes the content for a snapshot, as the snapshot-controller does for a snapshot that
// was deleted.
func (m *migration) discard(name string) error {
	contents := m.plane.Snapshots.SnapshotV1().VolumeSnapshotContents()
	mark := []byte(`{"metadata":{"annotations":{"snapshot.storage.kubernetes.io/volumesnapshot-being-deleted":"yes"}}}`)
	if _, err := contents.Patch(m.Context(), name, types.MergePatchType, mark, metav1.PatchOptions{}); err != nil {
		return err
	}
	return contents.Delete(m.Context(), name, metav1.DeleteOptions{})
}
