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
	// remembered is the time for which a failure is reported: later the reason may no longer exist.
	remembered = 5 * time.Minute
	// stallAfter is the time without progress after which a copy counts as stalled. The copy then
	// gives its slot back, as it does not use the disk.
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

// failed records the reason why the source of c could not be copied.
func (t *troubles) failed(c fair.Request, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if entry := t.troubleOf(c); entry.hangs == 0 {
		entry.message, entry.since = message, time.Now()
	}
}

// well records a successful copy of the source.
func (t *troubles) well(c fair.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if entry := t.bySource[c.Volume]; entry != nil && entry.hangs == 0 {
		delete(t.bySource, c.Volume)
	}
}

// hang records that a copy hangs in the source since a time, until ends is called.
func (t *troubles) hang(c fair.Request, since time.Time, message string) (ends func()) {
	t.mu.Lock()
	entry := t.troubleOf(c)
	entry.hangs++
	first := entry.hangs == 1
	if first {
		entry.message, entry.since = message, since
	}
	t.mu.Unlock()
	if first {
		t.warned(c, "CopyStalled", message)
	}
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if entry.hangs--; entry.hangs == 0 {
			delete(t.bySource, c.Volume)
		}
	})
}

// warned logs an event for the operator.
func (t *troubles) warned(c fair.Request, reason, message string) {
	if t.warn != nil {
		t.warn(c.Volume, reason, message)
	}
}

// troubleOf returns the trouble of a source, which it adds if necessary. It removes old troubles.
func (t *troubles) troubleOf(c fair.Request) *trouble {
	if t.bySource == nil {
		t.bySource = map[string]*trouble{}
	}
	for id, entry := range t.bySource {
		if entry.hangs == 0 && time.Since(entry.since) > remembered {
			delete(t.bySource, id)
		}
	}
	entry := t.bySource[c.Volume]
	if entry == nil {
		entry = &trouble{tenant: tenantOf(c)}
		t.bySource[c.Volume] = entry
	}
	return entry
}

// tenantOf returns the namespace of a claim, or the volume where the namespace is not known.
func tenantOf(c fair.Request) string { return cmp.Or(c.Tenant, c.Volume) }

// check returns ErrPrecondition while a copy hangs in the source, as another copy would also hang,
// or while copies hang in too many volumes of the tenant.
func (t *troubles) check(c fair.Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if entry := t.bySource[c.Volume]; entry != nil && entry.hangs > 0 {
		return fmt.Errorf("%w: an earlier copy still hangs since %s: %s", backend.ErrPrecondition,
			entry.since.UTC().Format(time.RFC3339), entry.message)
	}
	var stalled []string
	for id, entry := range t.bySource {
		if entry.hangs > 0 && entry.tenant == tenantOf(c) {
			stalled = append(stalled, id)
		}
	}
	if len(stalled) >= maxHanging {
		slices.Sort(stalled)
		return fmt.Errorf("%w: copies hang in %d volumes of namespace %s: end the pods that use these: %s",
			backend.ErrPrecondition, len(stalled), c.Tenant, strings.Join(stalled, ", "))
	}
	return nil
}

// conditions returns the conditions of the volume that concern copies.
func (t *troubles) conditions(id string) []backend.Condition {
	t.mu.Lock()
	defer t.mu.Unlock()
	entry := t.bySource[id]
	if entry == nil {
		return nil
	}
	switch since := entry.since.UTC().Format(time.RFC3339); {
	case entry.hangs > 0:
		return condition(backend.Degraded, "CopyStalled", "a snapshot or clone hangs since %s: %s", since,
			entry.message)
	case time.Since(entry.since) <= remembered:
		return condition(backend.Degraded, "CopyFailed", "the last snapshot or clone failed at %s: %s", since,
			entry.message)
	}
	return nil
}

// stalledSources returns the number of sources in which a copy hangs.
func (t *troubles) stalledSources() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, entry := range t.bySource {
		if entry.hangs > 0 {
			n++
		}
	}
	return n
}

// watch is a copy that may hang.
type watch struct {
	troubles *troubles
	claim    fair.Request
	leave    func() // leaves the slot of the copy
	after    time.Duration
	ends     func() // not nil while the copy hangs
}

// report records whether the copy makes progress.
func (w *watch) report(r copyReport) {
	switch {
	case r.Idle >= w.after && w.ends == nil:
		w.ends = w.troubles.hang(w.claim, time.Now().Add(-r.Idle),
			fmt.Sprintf("no progress at %q: most often a process in a pod that uses the volume blocks this entry: "+
				"end the pod",
				r.Entry))
		w.leave()
	case r.Idle < w.after && w.ends != nil:
		w.ends()
		w.ends = nil
	}
}

// end records the end of the copy. A copy that was given up hangs until gone is closed.
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
