// Package hostpath is the backend of storage on the node itself: a volume is a directory below one root directory, or
// an image, a file that is a disk.
//
// On disk:
//
//	<root>/identity.json         which root this is; see identity.go
//	<root>/volumes/<id>/         record.json, and data/ or image.raw, which is what pods see
//	<root>/snapshots/<id>/       the same of a snapshot, which nobody sees
//	<root>/groups/<id>/          record.json, which names the snapshots of one moment; see group.go
//	<root>/staging/              half-made things; moved to trash/ at start
//	<root>/trash/                deleted things, emptied in the background
//
// Everything is made in staging/, made durable, and renamed into its place: nothing half-made is
// ever seen there, and a SIGKILL or a power cut at any moment leaves it wholly there or not at all.
// Deleting is a rename to trash/. The records are read once, at start, into an index; what a call
// costs doesn't grow with the number of volumes, but for the lists.
//
// Every path below the root is resolved by package beneath, which follows no link. The content of
// data/ belongs to tenants and is never followed either.
package hostpath

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

const (
	volumesDir   = store.Volumes
	snapshotsDir = store.Snapshots
	groupsDir    = store.Groups
	stagingDir   = store.Incomplete
	trashDir     = store.Trash
	recordFile   = store.Record
	dataDir      = store.Data
	imageFile    = store.Image
)

// Pauses until a root that can't be used is opened again: after an error, and after a panic, which
// is reported with its stack each time.
const (
	retryOpen  = 500 * time.Millisecond
	retryPanic = 30 * time.Second
)

// Config is what a Backend needs to know. All fields but Init, Adopt, Lost, Report and Warn are required.
type Config struct {
	Root    string // absolute path of an existing directory; best the top of a filesystem of its own
	Node    string // name of this node
	Seen    string // a file outside Root that remembers which root was served, in a directory that exists
	Release string // of the driver, for people who read identity.json
	Init    bool   // take Root if it is empty and nothing is remembered: a first start
	Adopt   bool   // take Root as it is, even if it is another one than Seen remembers or another node's
	// Lost are roots that never come back, by their UUIDs: that Seen remembers one means nothing, and one that is there all the
	// same is refused, as nobody would miss it when it is gone again.
	Lost []string

	// Report is called with a panic of a task in the background, a *guard.Panic. It may be nil.
	Report func(error)
	// Warn is called when a copy of a volume hangs, or is made without a freeze. It must not wait. It may be nil.
	Warn func(volume, reason, message string)

	// Images works on images, and finds where volumes are mounted. It belongs to the Host that mounts them.
	Images mounter.Images
}

// Backend keeps volumes below a root directory. It serves one root, exclusively.
type Backend struct {
	cfg   Config
	jobs  *jobs.Jobs
	exec  executor
	slots slots
	wake  chan struct{} // the trash has an entry

	troubles troubles
	catalog  index
	count    counters
	traffic  traffic
	emptying time.Time // start of the slice in which the trash is emptied

	mu     sync.Mutex
	store  *root // nil until the root is open and read
	reason error // why it isn't yet
}

var (
	_ backend.Backend          = (*Backend)(nil)
	_ backend.Lister           = (*Backend)(nil)
	_ backend.Sizer            = (*Backend)(nil)
	_ backend.Expander         = (*Backend)(nil)
	_ backend.NodeLocal        = (*Backend)(nil)
	_ backend.Inliner          = (*Backend)(nil)
	_ backend.Prober           = (*Backend)(nil)
	_ backend.Doctor           = (*Backend)(nil)
	_ backend.Meter            = (*Backend)(nil)
	_ backend.Measurer         = (*Backend)(nil)
	_ backend.Modifier         = (*Backend)(nil)
	_ backend.Cloner           = (*Backend)(nil)
	_ backend.GroupSnapshotter = (*Backend)(nil)
	_ backend.PartSnapshotter  = (*Backend)(nil)
	_ backend.Differ           = (*Backend)(nil)
)

// New returns a Backend that opens its root in the background, and goes on trying until it can: Probe tells. Until
// then every call is ErrUnavailable. Close ends it.
func New(cfg Config) (*Backend, error) {
	if !filepath.IsAbs(cfg.Root) || filepath.Clean(cfg.Root) != cfg.Root {
		return nil, fmt.Errorf("%w: the root %q is not an absolute, clean path", backend.ErrInvalid, cfg.Root)
	}
	b := &Backend{cfg: cfg, jobs: jobs.New(), slots: newSlots(), wake: make(chan struct{}, 1)}
	b.exec.limit, b.exec.giveWay = progressLimit, b.traffic.giveWay
	b.troubles.warn = cfg.Warn
	b.jobs.Go(func(ctx context.Context) {
		s := b.open(ctx)
		if s == nil {
			return
		}
		b.panicked(guard.Do(func() error { b.heal(ctx, s); return nil }))
		guard.Keep(ctx, func(err error) { b.panicked(err) }, func() { b.emptyTrash(ctx, s) })
	})
	return b, nil
}

// Close stops the work in the background, copies too, and gives the root up. No call may be running.
func (b *Backend) Close() error {
	b.jobs.Close()
	b.exec.close()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.store == nil {
		return nil
	}
	defer func() { b.store, b.reason = nil, errors.New("the driver is shutting down") }()
	return b.store.Close()
}

// Node returns the name of the node that holds the volumes.
func (b *Backend) Node() string { return b.cfg.Node }

// open returns the root when it can be served, or nil when ctx is done first.
func (b *Backend) open(ctx context.Context) *root {
	for {
		start := time.Now()
		s, err := guard.Value(b.openOnce)
		pause := retryOpen
		if b.panicked(err) {
			pause = retryPanic
		}
		b.mu.Lock()
		if b.reason = err; err == nil {
			b.store = s
		}
		b.mu.Unlock()
		if err == nil {
			b.count.openTime.Store(int64(time.Since(start)))
			return s
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// openOnce opens the root and reads it.
func (b *Backend) openOnce() (*root, error) {
	s, err := openRoot(b.cfg)
	if err != nil {
		return nil, err
	}
	loaded := false
	defer func() {
		if !loaded { // also after a panic: the next try needs the lock
			s.Close()
		}
	}()
	s.reflinks()
	s.subvolumes()
	if err := b.load(s); err != nil {
		return nil, err
	}
	loaded = true
	return s, nil
}

// panicked reports err, and returns true, if it is that of a background task that panicked.
func (b *Backend) panicked(err error) bool {
	if p := (*guard.Panic)(nil); !errors.As(err, &p) {
		return false
	}
	why := err.Error()
	b.count.panics.Add(1)
	b.count.lastPanic.Store(&why)
	if b.cfg.Report != nil {
		b.cfg.Report(err)
	}
	return true
}

// ready returns the open root if it is in its place still, or ErrUnavailable.
func (b *Backend) ready() (*root, error) {
	b.mu.Lock()
	s, reason := b.store, b.reason
	b.mu.Unlock()
	switch {
	case s != nil:
		return s, s.inPlace()
	case reason != nil:
		return nil, fmt.Errorf("%w: %w", backend.ErrUnavailable, reason)
	}
	return nil, fmt.Errorf("%w: the driver is still reading the records of its volumes", backend.ErrUnavailable)
}

// Probe reports whether the root is open and can be written to.
func (b *Backend) Probe(context.Context) (bool, error) {
	b.mu.Lock()
	s, reason := b.store, b.reason
	b.mu.Unlock()
	if s == nil && reason == nil {
		return false, nil
	}
	if s != nil {
		reason = errors.Join(s.inPlace(), s.Writable())
	}
	if reason != nil {
		return false, fmt.Errorf("%w: %w", backend.ErrNotReady, reason)
	}
	return true, nil
}

// counters are what Metrics reports beside what is in the index.
type counters struct {
	openTime     atomic.Int64           // nanoseconds
	swept        atomic.Int64           // half-made or leftover things that the start found
	unswept      atomic.Pointer[string] // why the start could not move an entry to the trash
	panics       atomic.Int64           // of tasks in the background
	lastPanic    atomic.Pointer[string]
	trashed      atomic.Int64 // entries of trash/ that wait
	removedFiles atomic.Int64
	trashErrors  atomic.Int64
	stuck        atomic.Pointer[string] // why the last try to empty the trash failed
	unfrozen     atomic.Int64           // cuts of mounted images without a freeze
}
