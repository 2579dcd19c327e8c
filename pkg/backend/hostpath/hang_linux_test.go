package hostpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// xfs is a filesystem on which a write that hangs blocks readers of the file.
var xfs = testdisk.Filesystem{Type: "xfs", Reflinks: true}

// withFile makes a volume of a namespace, with a file of 4 KiB, and returns the path of the file.
func (w *world) withFile(b *Backend, name, namespace string) (backend.Volume, string) {
	w.Helper()
	v, err := b.Create(context.Background(), backend.CreateOptions{Name: name, Required: mib, Namespace: namespace})
	if err != nil {
		w.Fatal(err)
	}
	file := w.path(volumesDir, v.ID, dataDir, "held")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		w.Fatal(err)
	}
	return v, file
}

// reasons returns the reasons of a volume's conditions, and their messages.
func (w *world) reasons(b *Backend, id string) (reasons []string, messages string) {
	w.Helper()
	conditions, err := b.Health(context.Background(), id)
	if err != nil {
		w.Fatal(err)
	}
	for _, c := range conditions {
		reasons = append(reasons, c.Reason)
		messages += c.Message
	}
	return reasons, messages
}

// TestACopyThatHangsIsGivenUp: a process of a pod can hold the lock of a file for any time.
func TestACopyThatHangsIsGivenUp(t *testing.T) {
	ctx := context.Background()
	w := newRoot(t, xfs)
	b := w.open()
	b.exec.limit = 2 * time.Second
	v, file := w.withFile(b, "hostile", "")
	good, _ := w.withFile(b, "good", "")
	p := hang.Write(t, file)

	_, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "n", Source: v.ID})
	if !errors.Is(err, backend.ErrPrecondition) || !strings.Contains(err.Error(), `"held"`) {
		t.Fatalf("Snapshot = %v, want ErrPrecondition and the name of the file", err)
	}
	if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "m", Source: v.ID}); !errors.Is(err,
		backend.ErrPrecondition) || !strings.Contains(err.Error(), "still hangs") {
		t.Errorf("the next Snapshot = %v, want the time since which the first hangs", err)
	}
	if reasons, messages := w.reasons(b, v.ID); fmt.Sprint(reasons) != "[CopyStalled]" ||
		!strings.Contains(messages, `"held"`) {
		t.Errorf("the health is %v: %s", reasons, messages)
	}
	if n := b.troubles.stalledSources(); n != 1 {
		t.Errorf("%d copies hang, want 1", n)
	}
	b.exec.limit = progressLimit // for the copies that do not hang
	if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "of the good volume", Source: good.ID}); err != nil {
		t.Errorf("another volume: %v", err)
	}

	p.Release()
	await.True(w.T, "the volume is healthy", func() bool {
		reasons, _ := w.reasons(b, v.ID)
		return len(reasons) == 0
	})
	if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "later", Source: v.ID}); err != nil {
		t.Errorf("after the write: %v", err)
	}
	w.emptied()
}

// TestAListingThatHangsIsReported: on btrfs a process that lists a directory can block the open of
// this directory.
func TestAListingThatHangsIsReported(t *testing.T) {
	ctx := context.Background()
	w := newRoot(t, testdisk.Filesystem{Type: "btrfs", Reflinks: true})
	w.quotas("enable")
	w.cfg.quotaLimit = quotaLimit
	b := w.open()
	v, file := w.withFile(b, "hostile", "")
	good, _ := w.withFile(b, "good", "")
	listing := hang.Readdir(t, filepath.Dir(file))
	maker := exec.Command("touch", filepath.Join(filepath.Dir(file), "f")) // waits for the lock, and blocks readers
	if err := maker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		listing.Kill()
		maker.Wait()
	})
	if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "n", Source: v.ID}); err != nil &&
		!errors.Is(err, backend.ErrPrecondition) {
		t.Errorf("Snapshot = %v, want ErrPrecondition or none", err)
	}
	if _, _, err := b.Usage(ctx, v.ID); err != nil && !errors.Is(err, backend.ErrPrecondition) {
		t.Errorf("Usage = %v, want ErrPrecondition or none", err)
	}
	if _, err := b.Health(ctx, v.ID); err != nil {
		t.Errorf("Health = %v", err)
	}
	b.exec.quotaLimit = progressLimit // for the directories whose open does not hang
	if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "good", Source: good.ID}); err != nil {
		t.Errorf("another volume: %v", err)
	}
	listing.Release()
	if err := maker.Wait(); err != nil {
		t.Error(err)
	}
	await.True(w.T, "no copy hangs", func() bool { return b.troubles.stalledSources() == 0 })
	if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "later", Source: v.ID}); err != nil {
		t.Errorf("after the listing: %v", err)
	}
}

// TestARemovalThatHangsStopsNoOther: the kernel locks a file for its removal.
func TestARemovalThatHangsStopsNoOther(t *testing.T) {
	ctx := context.Background()
	w := newRoot(t, xfs)
	b := w.open()
	b.exec.limit = 2 * time.Second
	v, file := w.withFile(b, "hostile", "")
	p := hang.Write(t, file)
	if err := b.Delete(ctx, v.ID, nil); err != nil {
		t.Fatal(err)
	}
	if names := w.names(trashDir); len(names) != 1 {
		t.Fatalf("the trash holds %v", names)
	}
	hostile := w.names(trashDir)[0]
	await.True(w.T, "the storage has the condition TrashStuck", func() bool {
		c, err := b.StorageHealth(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(c) == 1 && c[0].Reason == "TrashStuck" && strings.Contains(c[0].Message, hostile)
	})
	for i := range 3 {
		good, _ := w.withFile(b, fmt.Sprint("good", i), "")
		if err := b.Delete(ctx, good.ID, nil); err != nil {
			t.Fatal(err)
		}
	}
	await.True(w.T, "the others are gone", func() bool { return fmt.Sprint(w.names(trashDir)) == "["+hostile+"]" })
	p.Release()
	w.emptied()
}

// TestCopiesThatHangLeaveTheirSlots: even several tenants together block the slots for seconds
// only.
func TestCopiesThatHangLeaveTheirSlots(t *testing.T) {
	ctx := context.Background()
	w := newRoot(t, xfs)
	b := w.open()
	b.exec.limit = time.Hour // the copies hang until the end of the test
	var processes []*hang.Process
	var ids []string
	ended := make(chan error)
	const hostile = 6
	for i := range hostile {
		tenant := fmt.Sprint("tenant", i%3)
		v, file := w.withFile(b, fmt.Sprint("hostile", i), tenant)
		processes, ids = append(processes, hang.Write(t, file)), append(ids, v.ID)
		go func() {
			_, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: fmt.Sprint("hostile", i), Source: v.ID,
				Namespace: tenant})
			ended <- err
		}()
	}
	await.True(w.T, "all copies hang", func() bool { return b.troubles.stalledSources() == hostile })
	await.NoError(w.T, "the slots are free", func() error {
		if entries := b.slots.copies.Entries(); len(entries) > 0 {
			return fmt.Errorf("in use or waited for: %v", entries)
		}
		return nil
	})
	for _, id := range ids {
		if reasons, _ := w.reasons(b, id); fmt.Sprint(reasons) != "[CopyStalled]" {
			t.Errorf("the health of %s is %v", id, reasons)
		}
	}
	good, _ := w.withFile(b, "good", "b")
	if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "good", Source: good.ID, Namespace: "b"}); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	for _, p := range processes {
		p.Release()
	}
	for range hostile {
		if err := <-ended; err != nil {
			t.Errorf("after the write: %v", err)
		}
	}
	if n := b.troubles.stalledSources(); n > 0 {
		t.Errorf("%d copies hang after the write", n)
	}
}

// TestAPoolWithoutAFreeHelperIsReported: helpers that hang are missing for other calls.
func TestAPoolWithoutAFreeHelperIsReported(t *testing.T) {
	w := newWorld(t)
	pool := mounter.Helpers{Pool: "freeze", Limit: 64}
	w.cfg.Images = changed{Images: w.cfg.Images, helpers: func() []mounter.Helpers { return []mounter.Helpers{pool} }}
	b := w.open()
	for busy, want := range map[int]string{63: "", 64: "HelpersExhausted"} {
		pool.Busy = busy
		got, err := b.StorageHealth(context.Background())
		if reasons := fmt.Sprint(got); err != nil || (want == "") != (len(got) == 0) ||
			!strings.Contains(reasons, want) || strings.Contains(reasons, "%!") {
			t.Errorf("StorageHealth with %d busy helpers = %v, %v, want %q", busy, got, err, want)
		}
		i := slices.IndexFunc(b.Metrics(), func(m backend.Metric) bool {
			return m.Name == "helpers" && m.Labels["pool"] == "freeze" && m.Value == float64(busy)
		})
		if i < 0 {
			t.Errorf("no metric has %d busy helpers", busy)
		}
	}
	for _, p := range b.exec.pools() {
		if withoutHelpers[p.Pool] == "" {
			t.Errorf("the condition does not have the effect of a pool %q without helpers", p.Pool)
		}
	}
}

// TestTheNamespaceOfAVolumeIsKept: a mount's filesystem check, and a freeze, count for the tenant.
func TestTheNamespaceOfAVolumeIsKept(t *testing.T) {
	everywhere(t, func(w *world, f testdisk.Filesystem) {
		b := w.open()
		ctx := context.Background()
		o := imageOptions("v", map[string]string{"kind": "image"}, nil)
		o.Namespace = "team-a"
		v, err := b.Create(ctx, o)
		if err != nil {
			w.Fatal(err)
		}
		b = w.restart(b)
		m, err := b.Mount(ctx, v.ID, backend.Access{})
		if err != nil {
			w.Fatal(err)
		}
		if m.Tenant != "team-a" {
			w.Errorf("the tenant is %q", m.Tenant)
		}
		images, tenant := b.cfg.Images, ""
		b.cfg.Images = changed{Images: images,
			freeze: func(ctx context.Context, of string, paths []string, limit time.Duration,
				cut func(context.Context) error) error {
				tenant = of
				return images.Freeze(ctx, of, paths, limit, cut)
			}}
		if _, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "n", Source: v.ID,
			Namespace: "team-a"}); err != nil {
			w.Fatal(err)
		}
		if f.Reflinks && tenant != "team-a" {
			w.Errorf("the tenant of the freeze is %q", tenant)
		}
	})
}

// TestOldFailuresAreNotReported: the reason for a failure may no longer exist after some minutes,
// or after the next copy. A copy that hangs is reported until it ends.
func TestOldFailuresAreNotReported(t *testing.T) {
	var all troubles
	failed, hangs := fair.Request{Volume: "failed"}, fair.Request{Volume: "hangs"}
	all.failed(failed, "a lease")
	endsFirst, endsSecond := all.hang(hangs, time.Now(), "a lock"), all.hang(hangs, time.Now(), "a lock")
	all.failed(hangs, "a lease") // must not hide the copy that hangs
	all.well(hangs)
	for source, want := range map[string]string{"failed": "CopyFailed", "hangs": "CopyStalled"} {
		if c := all.conditions(source); len(c) != 1 || c[0].Reason != want {
			t.Errorf("%s: %v, want %s", source, c, want)
		}
	}
	if err := all.check(failed); err != nil {
		t.Errorf("a failed copy prevents the next copy: %v", err)
	}
	endsFirst()
	endsFirst()
	if err := all.check(hangs); !errors.Is(err, backend.ErrPrecondition) {
		t.Errorf("a copy beside a copy that hangs: %v", err)
	}
	all.mu.Lock()
	for _, old := range all.bySource {
		old.since = old.since.Add(-2 * remembered)
	}
	all.mu.Unlock()
	if c := all.conditions("failed"); c != nil {
		t.Errorf("an old failure is still reported: %v", c)
	}
	another := fair.Request{Volume: "another"}
	if all.failed(another, ""); len(all.bySource) != 2 {
		t.Errorf("kept: %v", all.bySource)
	}
	if all.well(another); all.conditions("another") != nil {
		t.Error("a failure is reported after a successful copy")
	}
	if endsSecond(); all.conditions("hangs") != nil || all.check(hangs) != nil || all.stalledSources() != 0 {
		t.Error("a copy that has ended still counts as stalled")
	}
}

// TestACopyWithoutAFreezeIsLogged: the copy has the state of a power cut.
func TestACopyWithoutAFreezeIsLogged(t *testing.T) {
	w := newRoot(t, xfs)
	var warnings []string
	w.cfg.Warn = func(volume, reason, message string) { warnings = append(warnings, volume+" "+reason+": "+message) }
	w.cfg.Images = changed{Images: w.cfg.Images,
		freeze: func(context.Context, string, []string, time.Duration, func(context.Context) error) error {
			return fmt.Errorf("%w: a write hangs", mounter.ErrStalled)
		}}
	b := w.open()
	v, err := b.Create(context.Background(), imageOptions("v", nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Snapshot(context.Background(), backend.SnapshotOptions{Name: "n", Source: v.ID}); err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], v.ID+" CopyUnfrozen: ") ||
		!strings.HasSuffix(warnings[0], "a write hangs") {
		t.Errorf("the warnings are %q, want a single warning with the volume and the reason", warnings)
	}
}

// TestACopyWithoutProgressNamesTheEntry: once in the log, in the health, and in the error of a call
// that joins the copy.
func TestACopyWithoutProgressNamesTheEntry(t *testing.T) {
	var warnings []string
	all := troubles{warn: func(volume, reason, message string) {
		warnings = append(warnings, volume+" "+reason+" "+message)
	}}
	job, w := &copyJob{Job: new(jobs.Job)}, watch{troubles: &all, claim: fair.Request{Volume: "v"}, leave: func() {},
		after: stallAfter}
	for _, tc := range []struct {
		idle time.Duration
		want string
	}{{0, ""}, {time.Hour, "held"}, {time.Hour, "held"}, {0, ""}} {
		before := time.Now().Add(-tc.idle).Truncate(time.Second)
		r := copyReport{Bytes: 50, Idle: tc.idle, Entry: "held"}
		job.report(r)
		w.report(r)
		if got := job.Progress().String(); !strings.HasPrefix(got, "50 bytes so far") ||
			strings.Contains(got, `no progress at "held" since `) != (tc.want != "") {
			t.Errorf("after %s without progress a call that joins returns %q", tc.idle, got)
		}
		conditions := all.conditions("v")
		if got := fmt.Sprint(conditions); (len(conditions) > 0) != (tc.want != "") || !strings.Contains(got, tc.want) {
			t.Errorf("after %s without progress the conditions are %s", tc.idle, got)
		}
		if entry := all.bySource["v"]; entry != nil &&
			(entry.since.Before(before) || time.Since(entry.since) < tc.idle) {
			t.Errorf("the copy hangs since %s, want the time of the last progress, %s", entry.since, before)
		}
	}
	if got := fmt.Sprint(warnings); len(warnings) != 1 || !strings.HasPrefix(got, "[v CopyStalled ") ||
		!strings.Contains(got, `"held"`) {
		t.Errorf("the warnings are %s, want a single warning", got)
	}
}

// TestCopiesThatHangAreLimitedByTenant: each of them keeps a helper process.
func TestCopiesThatHangAreLimitedByTenant(t *testing.T) {
	var all troubles
	claim := func(i int, tenant string) fair.Request {
		return fair.Request{Tenant: tenant, Volume: fmt.Sprint(tenant, i)}
	}
	for i := range maxHanging {
		if err := all.check(claim(i, "a")); err != nil {
			t.Fatalf("copy %d: %v", i, err)
		}
		all.hang(claim(i, "a"), time.Now(), "a lock")
		all.hang(fair.Request{Volume: fmt.Sprint("unknown", i)}, time.Now(), "a lock")
	}
	if err := all.check(claim(maxHanging, "a")); !errors.Is(err, backend.ErrPrecondition) ||
		!strings.HasSuffix(err.Error(), ": a0, a1, a2, a3, a4, a5, a6, a7") {
		t.Errorf("a further copy of the tenant: %v, want ErrPrecondition with the volumes", err)
	}
	for _, other := range []fair.Request{claim(0, "b"), {Volume: "unknown"}} {
		if err := all.check(other); err != nil {
			t.Errorf("another tenant: %v", err)
		}
	}
}

// held returns the number of slots in use.
func held(slots *fair.Slots) (n int) {
	for _, e := range slots.Entries() {
		if e.Running {
			n++
		}
	}
	return n
}

// TestNoTenantAndNoKindHoldsAllSlots: a hundred claims of a single tenant or volume get half of the
// slots of a resource. A hundred claims of a single kind get all slots but one.
func TestNoTenantAndNoKindHoldsAllSlots(t *testing.T) {
	s := newSlots()
	for name, resource := range map[string]struct {
		slots  *fair.Slots
		number int
	}{"copies": {s.copies, 4}, "cuts": {s.pointInTime, 4}, "formats": {s.formats, 8}} {
		for by, tc := range map[string]struct {
			claim func(i int) fair.Request
			most  int
		}{
			"tenant": {func(i int) fair.Request {
				return fair.Request{Kind: fmt.Sprint(i), Tenant: "a",
					Volume: fmt.Sprint(i)}
			}, resource.number / 2},
			"volume": {func(i int) fair.Request { return fair.Request{Kind: fmt.Sprint(i), Volume: "a"} },
				resource.number / 2},
			"kind": {func(i int) fair.Request {
				return fair.Request{Kind: "a", Tenant: fmt.Sprint(i),
					Volume: fmt.Sprint(i)}
			}, resource.number - 1},
		} {
			t.Run(name+"/"+by, func(t *testing.T) {
				const claims = 100
				ctx, cancel := context.WithCancel(context.Background())
				var ended sync.WaitGroup
				defer ended.Wait()
				defer cancel()
				for i := range claims {
					ended.Go(func() {
						if release, err := resource.slots.Acquire(ctx, tc.claim(i)); err == nil {
							<-ctx.Done()
							release()
						}
					})
				}
				await.True(t, "all claims hold a slot or wait", func() bool { return len(resource.slots.Entries()) == claims })
				if n := held(resource.slots); n != tc.most {
					t.Fatalf("%d of %d slots are in use, want %d", n, resource.number, tc.most)
				}
				for i := range resource.number - tc.most { // other claims get all remaining slots
					other := fmt.Sprint("other", i)
					release, err := resource.slots.Acquire(ctx, fair.Request{Kind: other, Tenant: other, Volume: other})
					if err != nil {
						t.Fatal(err)
					}
					defer release()
				}
				if n := held(resource.slots); n != resource.number {
					t.Errorf("%d slots are in use, want %d", n, resource.number)
				}
			})
		}
	}
}
