package hostpath

import (
	"errors"
	"fmt"
	"time"
)

// Copies of tenants' data, and the removal of it, can hang for as long as a tenant likes: in the
// lock of an inode, for example, that a write holds. So an executor runs them in helper processes,
// where there are such, and gives up waiting for them.

const (
	// progressLimit is the time after which a copy or a removal that makes no progress is given up.
	progressLimit = time.Minute
	// quotaLimit bounds the time in which a helper opens a directory, and reads or sets its limit.
	quotaLimit = 3 * time.Second
	// cloneLimit bounds one FICLONE, which shows no progress: some 30 µs for each extent of an
	// image on xfs, so an hour is enough for 100 million extents.
	cloneLimit = time.Hour
)

// burst is the number of files that a helper removes between two messages.
const burst = 64

// errNoProgress says that a copy or a removal was given up.
var errNoProgress = errors.New("no progress")

// copyReport is the state of a copy.
type copyReport struct {
	Bytes int64         `json:"bytes"` // that are copied, shared blocks and holes included
	Held  int64         `json:"held"`  // bytes of the disk that the copy takes, as if it shared none
	Yield bool          `json:"yield"` // the copy waits for an answer, and gives way to calls
	Entry string        `json:"entry"` // in work whose last progress is the longest ago
	Idle  time.Duration `json:"idle"`  // the time since then
}

// stalled returns errNoProgress if an entry in work has made no progress for limit.
func (r copyReport) stalled(limit time.Duration) error {
	if r.Idle < limit {
		return nil
	}
	return fmt.Errorf("%w for %s at %q", errNoProgress, r.Idle.Round(time.Second), r.Entry)
}

// givenUp is the error of work that may go on in the kernel: a helper that was killed ends when its
// system call returns. Until then the files that it works on must be left alone.
type givenUp struct {
	error
	gone <-chan struct{} // closed when the helper has ended
}

func (g *givenUp) Unwrap() error { return g.error }

// Gone is closed when the helper has ended.
func (g *givenUp) Gone() <-chan struct{} { return g.gone }
