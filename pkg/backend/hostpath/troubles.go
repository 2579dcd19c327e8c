package hostpath

import (
	"fmt"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// remembered is the time for which a failure is worth telling: later its reason may be gone.
const remembered = 5 * time.Minute

// troubles are the reasons for which volumes or snapshots could not be copied. Its zero value is
// empty.
type troubles struct {
	mu       sync.Mutex
	bySource map[string]trouble
}

type trouble struct {
	message string
	since   time.Time
	hangs   bool // a helper hangs in the source still
}

// failed notes why the source could not be copied.
func (t *troubles) failed(source, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.bySource[source].hangs {
		t.set(source, trouble{message: message, since: time.Now()})
	}
}

// hang notes that a helper hangs in the source until gone is closed.
func (t *troubles) hang(source, message string, gone <-chan struct{}) {
	t.mu.Lock()
	t.set(source, trouble{message: message, since: time.Now(), hangs: true})
	t.mu.Unlock()
	go func() {
		<-gone
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.bySource, source)
	}()
}

func (t *troubles) set(source string, one trouble) {
	if t.bySource == nil {
		t.bySource = map[string]trouble{}
	}
	t.bySource[source] = one
	for id, other := range t.bySource {
		if !other.hangs && time.Since(other.since) > remembered {
			delete(t.bySource, id)
		}
	}
}

// check returns ErrPrecondition while a helper hangs in the source: another one would hang too.
func (t *troubles) check(source string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one, ok := t.bySource[source]; ok && one.hangs {
		return fmt.Errorf("%w: an earlier copy still hangs since %s: %s", backend.ErrPrecondition, one.since.UTC().Format(time.RFC3339), one.message)
	}
	return nil
}

// conditions returns what is wrong with copies of the volume.
func (t *troubles) conditions(id string) []backend.Condition {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, ok := t.bySource[id]
	switch since := one.since.UTC().Format(time.RFC3339); {
	case ok && one.hangs:
		return condition(backend.Degraded, "CopyStalled", "a snapshot or clone hangs since %s: %s", since, one.message)
	case ok && time.Since(one.since) <= remembered:
		return condition(backend.Degraded, "CopyFailed", "the last snapshot or clone failed at %s: %s", since, one.message)
	}
	return nil
}

// hanging returns the number of sources in which a helper hangs.
func (t *troubles) hanging() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.bySource {
		if one.hangs {
			n++
		}
	}
	return n
}
