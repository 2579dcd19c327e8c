// Package smb stores volumes as directories on the shares of SMB servers.
//
// The controller works over the network, in user space: it needs no mount, no privilege and no
// program (internal/client). All records are on the share, in the directory .causeway of the source
// of a class, so that every replica knows every volume:
//
//	.causeway/volumes/ID.json     record of a volume
//	.causeway/snapshots/ID.json   record of a snapshot; its data is in the directory ID
//	.causeway/work/ID             marker of the process that changes the object
//	.causeway/work/ID+/OTHER      marker of the process that copies the object ID to OTHER
//	.causeway/trash/ID-RANDOM     directory of a deleted volume or snapshot, until it is empty
//	.causeway/reserve             space for the records of a deletion on a full share
//
// The rename and the removal of an entry are not exclusive on a share: of several callers, more
// than one may succeed. The creation of a file and of a directory is. So a process creates a marker
// before it changes an object, and every step can be repeated by another process.
//
// A node uses the methods Mount, Owned and Reach only. It has no shares of its own: a call brings
// its secrets.
package smb

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/joberrors"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Directories and files of a store.
const (
	metaDir      = ".causeway"
	volumesDir   = "volumes"
	snapshotsDir = "snapshots"
	workDir      = "work"
	trashDir     = "trash"
	reserveFile  = "reserve"
	recordSuffix = ".json"
)

// Config is the configuration of a Backend.
type Config struct {
	// Shares is the path of a file with shares, for calls without secrets. "" on a node.
	Shares string

	// Krb5Conf is the path of the configuration of Kerberos.
	Krb5Conf string

	// Krb5Caches is the directory of the host's credential caches, on a node. "": Mount writes
	// none.
	Krb5Caches string

	// Images is the Host of this node, whose Supports decides which default options a mount has.
	// nil in a process that does not mount: all.
	Images mounter.Images

	// Report is called with each error of a background task. nil: ignored.
	Report func(err error)
}

// Backend stores volumes on shares. It implements backend.Backend, Lister, Expander, Modifier,
// Snapshotter, Cloner, HealthReporter, MetricsSource, Reacher and Grouper.
type Backend struct {
	cfg    Config
	pool   *client.Pool
	shares *shareList
	owner  string        // identifies this process in markers
	life   time.Duration // time after which a marker that does not change belongs to a process that has ended
	lease  time.Duration // time after its last change in which a marker of this process is valid
	// markerAge is the time after which a marker that has not changed is removed. It is long: the
	// repetition of a call reads the markers of the call.
	markerAge time.Duration
	jobs      *jobs.Jobs
	probes    prober
	space     spaces
	cache     recordCache

	tickets  sync.Mutex // held while a credential cache is replaced
	mu       sync.Mutex
	copies   map[string]*fair.Slots // by server: copies that wait for a server delay no other
	seen     map[string]sighting    // markers of other processes, by path with the source
	emptying map[string]bool        // sources whose trash is being emptied
	stuck    map[string]int         // by source: entries of the trash that could not be removed
	prepared map[string]bool        // sources whose store this process has seen
}

// Limits of copies at the same time, for each server.
var copyLimits = fair.Limits{Slots: 4, Tenant: 3, Kind: 4}

// markerLife is the time after which a marker that does not change belongs to a process that has
// ended. A process gives up its own marker long before.
const markerLife = 30 * time.Second

// New returns a Backend. Errors: those of the file of shares.
func New(cfg Config) (*Backend, error) { return open(cfg, markerLife) }

func open(cfg Config, life time.Duration) (*Backend, error) {
	if cfg.Report == nil {
		cfg.Report = func(error) {}
	}
	shares, err := openShares(cfg)
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: cfg, pool: client.NewPool(), shares: shares, owner: random(), life: life,
		lease: life / 3, markerAge: 24 * time.Hour, jobs: jobs.New(),
		copies: map[string]*fair.Slots{}, seen: map[string]sighting{}, emptying: map[string]bool{},
		stuck: map[string]int{}, prepared: map[string]bool{}}
	b.probes.ask = client.Answers
	b.jobs.Go(b.watch)
	return b, nil
}

// Close ends all background tasks and all sessions.
func (b *Backend) Close() error {
	b.jobs.Close()
	b.pool.Close()
	return nil
}

// startCopy waits for its turn among the copies on the server of a source. The caller calls leave.
func (b *Backend) startCopy(ctx context.Context, kind string, from object, tenant string) (leave func(), err error) {
	b.mu.Lock()
	slots := b.copies[from.source.Server]
	if slots == nil {
		slots = fair.New(copyLimits)
		b.copies[from.source.Server] = slots
	}
	b.mu.Unlock()
	return slots.Acquire(ctx, fair.Request{Kind: kind, Tenant: tenant, Volume: from.key})
}

func random() string {
	var n [8]byte
	rand.Read(n[:])
	return hex.EncodeToString(n[:])
}

// store is the directory of a share that a class names as its source, with a session.
type store struct {
	*Backend
	share      *client.Share
	login      client.Login
	source     mounter.ShareSource
	mayPrepare bool // the call may make the directories of the store
	untouched  bool // the last deletion put nothing into the trash
}

// store opens the store of a source. The caller calls close.
func (b *Backend) store(ctx context.Context, source mounter.ShareSource, secrets map[string]string,
	use client.Use) (*store, error) {
	login, err := b.login(source, secrets, nil)
	if err != nil {
		return nil, err
	}
	share, err := b.pool.Open(ctx, source, login, use)
	if err != nil {
		return nil, err
	}
	return &store{Backend: b, share: share, login: login, source: source}, nil
}

func (s *store) close() { s.share.Release() }

// path returns the path on the share of a path in the store.
func (s *store) path(elements ...string) string {
	return path.Join(append([]string{s.source.Path}, elements...)...)
}

// meta returns the path on the share of a path in .causeway.
func (s *store) meta(elements ...string) string {
	return s.path(append([]string{metaDir}, elements...)...)
}

// saw remembers that the store has its directories.
func (s *store) saw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepared[fold(s.source.String())] = true
}

// prepare makes the directories of the store. Errors: errUnprepared if this process has seen them
// before; backend.ErrPrecondition if the directory of the source does not exist, or is inside a
// volume.
func (s *store) prepare(ctx context.Context) error {
	s.mu.Lock()
	seen := s.prepared[fold(s.source.String())]
	s.mu.Unlock()
	if seen { // perhaps another call has just made them
		_, err := s.share.Stat(ctx, s.meta(workDir))
		if errors.Is(err, fs.ErrNotExist) {
			err = errUnprepared
		}
		return err
	}
	if err := s.checkAncestors(ctx); err != nil {
		return err
	}
	// A missing directory of markers shows that the store is not prepared, so this directory is
	// last.
	for _, dir := range []string{"", volumesDir, snapshotsDir, trashDir, workDir} {
		switch err := s.share.Mkdir(ctx, s.meta(dir)); {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: there is no directory %s", backend.ErrPrecondition, s.source)
		case err != nil && !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	return s.fillReserve(ctx)
}

// checkAncestors returns backend.ErrPrecondition if the source is a volume of another source, or a
// directory in a volume: the deletion of that volume would delete the volumes of this source.
func (s *store) checkAncestors(ctx context.Context) error {
	elements := strings.Split(s.source.Path, "/")
	for i := range elements {
		if s.source.Path == "" {
			return nil
		}
		outer := &store{Backend: s.Backend, share: s.share, source: s.source}
		outer.source.Path = path.Join(elements[:i]...)
		inner := fold(path.Join(elements[i:]...))
		err := outer.eachVolume(ctx, func(v *volume) error {
			if theirs := fold(v.SubDir); theirs == inner || within(inner, theirs) {
				return fmt.Errorf("%w: source %s is in the directory of volume %s: choose another source",
					backend.ErrPrecondition, s.source, v)
			}
			return nil
		})
		if err != nil && !errors.Is(err, backend.ErrDenied) { // an account that cannot see the other source
			return err
		}
	}
	return nil
}

// reserveSize is the size of the reserve in bytes.
const reserveSize = 256 << 10

// fillReserve makes the reserve, if there is space for it.
func (s *store) fillReserve(ctx context.Context) error {
	content := make([]byte, reserveSize)
	rand.Read(content) // not compressible
	err := s.share.Create(ctx, s.meta(reserveFile), content)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, backend.ErrExhausted) {
		return nil
	}
	return err
}

// withReserve calls a deletion, again without the reserve if the share is full.
func (s *store) withReserve(ctx context.Context, deletion func() error) error {
	err := deletion()
	if !errors.Is(err, backend.ErrExhausted) {
		return err
	}
	if err := s.remove(ctx, s.meta(reserveFile)); err != nil {
		return err
	}
	if err := deletion(); !errors.Is(err, backend.ErrExhausted) {
		return err
	}
	return fmt.Errorf("%w: %s is full: delete files on the server, or wait until the trash is empty",
		backend.ErrUnavailable, s.source)
}

// retry repeats an operation on a file that another process has open for a moment.
func retry(ctx context.Context, operation func() error) error {
	for i := 0; ; i++ {
		err := operation()
		if i == 20 || !errors.Is(err, client.ErrShared) {
			return err
		}
		select {
		case <-time.After(time.Duration(i) * 10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// jobError gives an error of package jobs its class.
func jobError(err error) error { return joberrors.Classify(err) }
