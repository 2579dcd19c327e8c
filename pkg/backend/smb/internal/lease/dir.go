package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
)

// Share has the operations on a share that markers need. Its errors and paths are those of
// client.Share.
type Share interface {
	Mkdir(ctx context.Context, path string) error
	Stat(ctx context.Context, path string) (client.Entry, error)
	List(ctx context.Context, path string, each func(client.Entry) error) error
	Read(ctx context.Context, path string, limit int64) ([]byte, error)
	CreateMarker(ctx context.Context, path string, content []byte) error
	Rewrite(ctx context.Context, path string, limit int64, check func(old []byte) error, content []byte) error
	Remove(ctx context.Context, path string) error
}

// Clock is the clock of a process. It may stop together with the process.
type Clock interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	return time.AfterFunc(d, f).Stop
}

// Life is the time after which a marker that does not change belongs to a process that has ended.
const Life = 30 * time.Second

// Process is the process of the driver that holds markers.
type Process struct {
	Life  time.Duration // see Life
	Lease time.Duration // time after its last change in which a marker of this process is valid

	owner string // identifies the process in markers
	clock Clock

	mu   sync.Mutex
	seen map[string]sighting // chains of other processes, by path with the share
}

// NewProcess returns a process. owner identifies the process for a person who reads its markers. A
// clock that is nil is that of the system.
func NewProcess(owner string, clock Clock) *Process {
	if clock == nil {
		clock = systemClock{}
	}
	return &Process{Life: Life, Lease: Life / 3, owner: owner, clock: clock, seen: map[string]sighting{}}
}

// sighting is a chain, and the time since when the chain is the same.
type sighting struct {
	chain Chain
	since time.Time
}

// maxSeen is the maximum number of chains that a process remembers.
const maxSeen = 10000

// age returns the time since t by the clock that shows more: the monotonic clock stands still while
// the machine is suspended.
func (p *Process) age(t time.Time) time.Duration {
	now := p.clock.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// sleep waits for d, or for the end of ctx.
func (p *Process) sleep(ctx context.Context, d time.Duration) error {
	passed := make(chan struct{})
	defer p.clock.AfterFunc(d, func() { close(passed) })()
	select {
	case <-passed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withTimeout is context.WithTimeout by the clock of the process.
func (p *Process) withTimeout(ctx context.Context, d time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := p.clock.AfterFunc(d, cancel)
	return ctx, func() { stop(); cancel() }
}

// Dir is a directory of markers on a share.
type Dir struct {
	*Process
	Share Share
	Path  string // of the directory, on the share
	Store string // identifies the share and the directory among those of the process

	// OpenShare opens the share for the renewals of a marker: a copy must not delay them.
	OpenShare func(ctx context.Context) (share Share, release func(), err error)

	// Prepare makes the directory, or returns an error if it must not. It is called when the
	// directory does not exist.
	Prepare func(ctx context.Context) error
}

func (d *Dir) path(name string) string { return path.Join(d.Path, name) }

// Chain reads the markers of an object. It is empty if no process has the right to the object.
func (d *Dir) Chain(ctx context.Context, name string) (chain Chain, err error) {
	head := d.path(name)
	for next := head; len(chain) < maxChain; {
		l, err := d.link(ctx, next)
		if errors.Is(err, fs.ErrNotExist) {
			return chain, nil
		} else if err != nil {
			return nil, err
		}
		chain = append(chain, l)
		next = l.successor(head)
	}
	return nil, fmt.Errorf("%w: %s has more than %d successors: remove these files while no controller runs",
		backend.ErrNotReady, head, maxChain)
}

// maxChain is the maximum length of a chain. Each link is a process that ended during the change of
// the same object.
const maxChain = 100

// link reads a marker. Markers without content are told apart by the time of their creation: a
// process may create the second one when the first one is gone.
func (d *Dir) link(ctx context.Context, path string) (link, error) {
	l := link{path: path}
	content, err := d.read(ctx, path)
	l.content, l.random = string(content), parse(string(content)).Random
	if err == nil && l.content == "" {
		var e client.Entry
		e, err = d.Share.Stat(ctx, path)
		l.written = e.Modified
	}
	return l, err
}

func (d *Dir) read(ctx context.Context, path string) (content []byte, err error) {
	err = client.Retry(ctx, func() (err error) {
		content, err = d.Share.Read(ctx, path, maxMarker)
		return err
	})
	return content, err
}

func (d *Dir) remove(ctx context.Context, path string) error {
	return client.Retry(ctx, func() error { return d.Share.Remove(ctx, path) })
}

// HasEnded reports whether nothing in a chain, which is not empty, has changed for the life of
// markers: the process of the last marker has ended.
func (d *Dir) HasEnded(chain Chain) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := d.Store + "\x00" + chain[0].path
	seen, ok := d.seen[key]
	if !ok || !seen.chain.equal(chain) {
		if len(d.seen) >= maxSeen {
			clear(d.seen)
		}
		d.seen[key] = sighting{chain, d.clock.Now()}
		return false
	}
	return d.clock.Now().Sub(seen.since) > d.Life
}
