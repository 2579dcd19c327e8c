package hostpath

import (
	"errors"
	"fmt"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend/internal/copier"
)

// A copy or a removal of tenants' data can hang for any time: for example in the lock of an inode,
// which a write holds. So an executor runs both in helper processes, if the platform has helpers,
// and can give them up.

const (
	// progressLimit is the time after which a copy or a removal that makes no progress is given up.
	progressLimit = time.Minute
	// quotaLimit is the time in which a helper must open a directory, and read or set its limit.
	quotaLimit = 3 * time.Second
	// cloneLimit is the time for a FICLONE, which reports no progress: it takes some 30 µs for each
	// extent of an image on xfs, so an hour is enough for 100 million extents.
	cloneLimit = time.Hour
)

// burst is the number of files that a helper removes between two messages.
const burst = 64

// errNoProgress reports a copy or a removal that was given up.
var errNoProgress = errors.New("no progress")

// copyReport is the state of a copy.
type copyReport struct {
	Bytes  int64         `json:"bytes"` // copied so far, shared blocks and holes included
	OnDisk int64         `json:"held"`  // bytes of the disk that the copy takes, shared blocks included
	Yield  bool          `json:"yield"` // the copy gives way to calls: the helper waits for an answer
	Entry  string        `json:"entry"` // the entry being copied with the oldest progress
	Idle   time.Duration `json:"idle"`  // the time since that progress
}

// reportEvery is the time between two reports of a copy. A helper always sends them, so that the
// driver notices a helper that was stopped (SIGSTOP).
const reportEvery = time.Second

func reportOf(p *copier.Progress) copyReport {
	r := copyReport{Bytes: p.Bytes(), OnDisk: p.OnDisk()}
	if entry, since := p.Oldest(); entry != "" {
		r.Entry, r.Idle = entry, time.Since(since)
	}
	return r
}

// stalled returns errNoProgress if an entry that is being copied has made no progress for limit.
func (r copyReport) stalled(limit time.Duration) error {
	if r.Idle < limit {
		return nil
	}
	return fmt.Errorf("%w for %s at %q", errNoProgress, r.Idle.Round(time.Second), r.Entry)
}

// givenUp is the error of a task that may still run in the kernel: a helper that was killed ends
// when its system call returns. Until then its files must not be used.
type givenUp struct {
	error
	gone <-chan struct{} // closed when the helper has ended
}

func (g *givenUp) Unwrap() error { return g.error }

// Gone is closed when the helper has ended.
func (g *givenUp) Gone() <-chan struct{} { return g.gone }
