package hostpath

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/catalog"
	"github.com/causeway-csi/causeway/pkg/backend/internal/joberrors"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Config configures a Backend. All fields except Init, Adopt, Lost, Kinds, TrimInterval, Report and
// Warn are required.
type Config struct {
	Root       string // absolute path of an existing directory; best the top of a filesystem of its own
	Node       string // name of this node
	RootRecord string // a file outside Root that records which root was served, in a directory that exists
	Release    string // of the driver, for operators who read identity.json
	Init       bool   // take Root if it is empty and RootRecord records no root: a first start
	Adopt      bool   // take Root even if RootRecord records another root, or Root is that of another node
	// Lost are the UUIDs of roots that never come back. A record of such a root in RootRecord
	// does not count. The backend rejects such a root if it is found again, because its next loss
	// would not be noticed.
	Lost []string
	// WindowsImageClone permits the restoring and cloning of images on Windows, where the copy has
	// the GUIDs of its source. Elsewhere it is an error.
	WindowsImageClone bool
	// TrimInterval is the time between two trims of the mounted images; 0 trims none. On Windows it
	// is an error.
	TrimInterval time.Duration
	// Kinds are the kinds of volumes that may be created: "directory", "image"; all if it is empty.
	// The first is that of volumes without the parameter kind.
	Kinds []string

	// Report is called with the panic of a background task, a *guard.Panic. May be nil.
	Report func(error)
	// Warn is called when a copy of a volume hangs, or is made without a freeze, and when an image
	// cannot be trimmed. Warn must not wait. May be nil.
	Warn func(volume, reason, message string)

	// Images makes and freezes the filesystems of images, and finds the mount points of volumes. It
	// must belong to the Host that mounts the volumes.
	Images mounter.Images

	// For tests; 0 stands for the constant.
	quotaLimit time.Duration
	almostFull int64
}

// objectCatalog is the catalog of the objects below a root. contents is its content.
type (
	objectCatalog = catalog.Catalog[*volume, *snapshot, *group]
	contents      = catalog.Contents[*volume, *snapshot, *group]
)

// Backend keeps volumes below a root directory. It serves one root, exclusively.
type Backend struct {
	cfg   Config
	kinds []kind // of Config.Kinds
	jobs  *jobs.Jobs
	exec  executor
	slots slots
	wake  chan struct{} // the trash has an entry

	troubles troubles
	catalog  objectCatalog
	count    counters
	traffic  traffic
	emptying time.Time // start of the time slice in which the trash is emptied

	mu     sync.Mutex
	store  *root // nil until the root is open and read
	reason error // the reason why the root is not open yet
}

// counters are the figures of Metrics beside those of the catalog.
type counters struct {
	openTime     atomic.Int64           // nanoseconds
	swept        atomic.Int64           // incomplete objects that the start found
	unswept      atomic.Pointer[string] // the error for an entry that the start could not move to the trash
	panics       atomic.Int64           // of tasks in the background
	lastPanic    atomic.Pointer[string]
	trashed      atomic.Int64 // entries of trash/ that wait
	removedFiles atomic.Int64
	trashErrors  atomic.Int64
	stuck        atomic.Pointer[string] // the error of the last attempt to empty the trash
	unfrozen     atomic.Int64           // copies of mounted images without a freeze
	trimmed      atomic.Int64           // bytes that trims have given back
	trimErrors   atomic.Int64
}

// Node returns the name of the node that holds the volumes.
func (b *Backend) Node() string { return b.cfg.Node }

// ready returns the open root, or ErrUnavailable if the root is not open or no longer at its path.
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

// panicked reports whether err is the panic of a background task, and passes such an err to Report.
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

// volume returns the volume with this ID, or the inline volume with this handle. Errors:
// ErrNotFound, or the reason why the record cannot be used.
func (b *Backend) volume(id string) (*volume, error) {
	v, err := b.catalog.Volume(id)
	return v, found(err)
}

// persistent returns the volume with this ID if it is not inline. Errors: as volume.
func (b *Backend) persistent(id string) (*volume, error) {
	v, err := b.volume(id)
	if err == nil && v.Inline {
		return nil, fmt.Errorf("%w: volume %.128q is an inline volume", backend.ErrNotFound, id)
	}
	return v, err
}

// snapshot returns the snapshot with this ID. Errors: as volume.
func (b *Backend) snapshot(id string) (*snapshot, error) {
	n, err := b.catalog.Snapshot(id)
	return n, found(err)
}

// group returns the group with this ID. Errors: as volume.
func (b *Backend) group(id string) (*group, error) {
	g, err := b.catalog.Group(id)
	return g, found(err)
}

// part returns the group with this ID, if it is a part.
func (b *Backend) part(id string) (*group, error) {
	g, err := b.group(id)
	if err == nil {
		err = g.checkAttempt(g.AttemptID)
	}
	return g, err
}

// runOrJoin is jobs.RunOrJoin. Errors: ErrBusy, ErrExists, ErrUnavailable, those of run and of ctx.
func (b *Backend) runOrJoin(ctx context.Context, id, description string, sources []string,
	run func(ctx context.Context, job *jobs.Job) error) error {
	return joberrors.Classify(b.jobs.RunOrJoin(ctx, id, description, sources, run))
}

// exclusive is jobs.Exclusive. Errors: ErrInUse, ErrBusy.
func (b *Backend) exclusive(ids ...string) (release func(), err error) {
	release, err = b.jobs.Exclusive(ids...)
	return release, joberrors.Classify(err)
}

// reserve reserves size bytes, or returns ErrExhausted.
func (b *Backend) reserve(s *root, size int64) error {
	disk, err := s.Space()
	if err != nil {
		return err
	}
	if disk.ReadOnly {
		return fmt.Errorf("%w: the root %s is read-only", backend.ErrExhausted, s.Path())
	}
	err = b.catalog.Reserve(size, disk.Available)
	if err != nil {
		err = fmt.Errorf("%w: %w", backend.ErrExhausted, err)
	}
	return err
}

// wakeTrash makes emptyTrash check the trash.
func (b *Backend) wakeTrash() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
