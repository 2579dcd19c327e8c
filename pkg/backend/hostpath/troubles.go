package hostpath

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
)

const (
	// remembered is the time for which a failure is reported: later its reason may be gone.
	remembered = 5 * time.Minute
	// stallAfter is the time without progress after which a copy counts as hanging. It then leaves
	// its slot, as it does not use the disk.
	stallAfter = 3 * time.Second
	// maxHanging is the number of volumes of a tenant in which copies may hang. Each of them keeps
	// a helper process, of which there are few.
	maxHanging = 8
)

// troubles are the reasons for which volumes or snapshots could not be copied. Its zero value is
// empty.
type troubles struct {
	warn func(volume, reason, message string) // may be nil

	mu       sync.Mutex
	bySource map[string]*trouble
}

type trouble struct {
	tenant  string
	message string
	since   time.Time
	hangs   int // copies that hang in the source
}

// failed records the reason why the source could not be copied.
func (t *troubles) failed(c fair.Claim, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.of(c); one.hangs == 0 {
		one.message, one.since = message, time.Now()
	}
}

// well records a successful copy of the source.
func (t *troubles) well(c fair.Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.bySource[c.Volume]; one != nil && one.hangs == 0 {
		delete(t.bySource, c.Volume)
	}
}

// hang records that a copy hangs in the source since a time, until ends is called.
func (t *troubles) hang(c fair.Claim, since time.Time, message string) (ends func()) {
	t.mu.Lock()
	one := t.of(c)
	one.hangs++
	first := one.hangs == 1
	if first {
		one.message, one.since = message, since
	}
	t.mu.Unlock()
	if first {
		t.warned(c, "CopyStalled", message)
	}
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.hangs--; one.hangs == 0 {
			delete(t.bySource, c.Volume)
		}
	})
}

// warned logs an event for the operator.
func (t *troubles) warned(c fair.Claim, reason, message string) {
	if t.warn != nil {
		t.warn(c.Volume, reason, message)
	}
}

// of returns the trouble of a source, and makes it if necessary. It drops old troubles.
func (t *troubles) of(c fair.Claim) *trouble {
	if t.bySource == nil {
		t.bySource = map[string]*trouble{}
	}
	for id, one := range t.bySource {
		if one.hangs == 0 && time.Since(one.since) > remembered {
			delete(t.bySource, id)
		}
	}
	one := t.bySource[c.Volume]
	if one == nil {
		one = &trouble{tenant: tenantOf(c)}
		t.bySource[c.Volume] = one
	}
	return one
}

// tenantOf returns the namespace of a claim, or the volume where the namespace is not known.
func tenantOf(c fair.Claim) string { return cmp.Or(c.Tenant, c.Volume) }

// check returns ErrPrecondition while a copy hangs in the source, as another copy would hang too,
// or while copies hang in too many volumes of the tenant.
func (t *troubles) check(c fair.Claim) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.bySource[c.Volume]; one != nil && one.hangs > 0 {
		return fmt.Errorf("%w: an earlier copy still hangs since %s: %s", backend.ErrPrecondition,
			one.since.UTC().Format(time.RFC3339), one.message)
	}
	var hanging []string
	for id, one := range t.bySource {
		if one.hangs > 0 && one.tenant == tenantOf(c) {
			hanging = append(hanging, id)
		}
	}
	if len(hanging) >= maxHanging {
		slices.Sort(hanging)
		return fmt.Errorf("%w: copies hang in %d volumes of namespace %s: end the pods that use these: %s",
			backend.ErrPrecondition, len(hanging), c.Tenant, strings.Join(hanging, ", "))
	}
	return nil
}

// conditions returns the conditions of the volume that concern copies.
func (t *troubles) conditions(id string) []backend.Condition {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.bySource[id]
	if one == nil {
		return nil
	}
	switch since := one.since.UTC().Format(time.RFC3339); {
	case one.hangs > 0:
		return condition(backend.Degraded, "CopyStalled", "a snapshot or clone hangs since %s: %s", since, one.message)
	case time.Since(one.since) <= remembered:
		return condition(backend.Degraded, "CopyFailed", "the last snapshot or clone failed at %s: %s", since,
			one.message)
	}
	return nil
}

// hanging returns the number of sources in which a copy hangs.
func (t *troubles) hanging() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.bySource {
		if one.hangs > 0 {
			n++
		}
	}
	return n
}

// watch is a copy that may hang.
type watch struct {
	troubles *troubles
	claim    fair.Claim
	leave    func() // leaves the slot of the copy
	after    time.Duration
	ends     func() // not nil while the copy hangs
}

// report records whether the copy makes progress.
func (w *watch) report(r copyReport) {
	switch {
	case r.Idle >= w.after && w.ends == nil:
		w.ends = w.troubles.hang(w.claim, time.Now().Add(-r.Idle),
			fmt.Sprintf("no progress at %q: most often a process in a pod that uses the volume holds it: end the pod",
				r.Entry))
		w.leave()
	case r.Idle < w.after && w.ends != nil:
		w.ends()
		w.ends = nil
	}
}

// end records the end of the copy. If it was given up, it hangs until gone is closed.
func (w *watch) end(gone <-chan struct{}) {
	if gone != nil && w.ends == nil { // a helper that does not answer
		w.ends = w.troubles.hang(w.claim, time.Now(), "its helper process does not answer")
	}
	switch {
	case w.ends == nil:
	case gone == nil:
		w.ends()
	default:
		go func() {
			<-gone
			w.ends()
		}()
	}
}

func condition(s backend.Severity, reason, format string, a ...any) []backend.Condition {
	return []backend.Condition{{Severity: s, Reason: reason, Message: fmt.Sprintf(format, a...)}}
}
