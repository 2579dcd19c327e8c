package smb

import (
	"context"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/lease"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
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

	process   *lease.Process // nil: a new one
	openShare openShare      // nil: of servers
}

// Backend stores volumes on shares. It implements backend.Backend, Lister, Expander, Modifier,
// Snapshotter, Cloner, HealthReporter, MetricsSource, Reacher and Grouper.
type Backend struct {
	cfg       Config
	pool      *client.Pool
	openShare openShare
	shares    *shareList
	process   *lease.Process
	// markerAge is the time after which a marker that has not changed is removed. It is long: the
	// repetition of a call reads the markers of the call.
	markerAge time.Duration
	jobs      *jobs.Jobs
	probes    prober
	space     spaces
	cache     records.Cache

	tickets  sync.Mutex // held while a credential cache is replaced
	mu       sync.Mutex
	copies   map[string]*fair.Slots   // by server: copies that wait for a server delay no other
	reserves map[string]chan struct{} // by source: full while the reserve is made, or a deletion uses its space
	emptying map[string]bool          // sources whose trash is being emptied; true: and once more at the end
	stuck    map[string]int           // by source: entries of the trash that could not be removed
	prepared map[string]bool          // sources whose store this process has seen
}

// openShare opens a share with a session. The caller calls Release.
type openShare func(ctx context.Context, source mounter.ShareSource, login client.Login,
	use client.Use) (share, error)

// share has the operations of client.Share that a store uses.
type share interface {
	lease.Share
	Release()
	Create(ctx context.Context, path string, content []byte) error
	Rename(ctx context.Context, from, to string) error
	RemoveTree(ctx context.Context, dir string) error
	CopyTree(ctx context.Context, from, to string, p *client.Progress) error
	Space(ctx context.Context, path string) (total, available int64, err error)
}

// Limits of copies at the same time, for each server.
var copyLimits = fair.Limits{Slots: 4, Tenant: 3, Kind: 4}

// startCopy waits for its turn among the copies on the server of a source. The caller calls leave.
func (b *Backend) startCopy(ctx context.Context, kind string, from records.Object,
	tenant string) (leave func(), err error) {
	b.mu.Lock()
	slots := b.copies[from.Source.Server]
	if slots == nil {
		slots = fair.New(copyLimits)
		b.copies[from.Source.Server] = slots
	}
	b.mu.Unlock()
	return slots.Acquire(ctx, fair.Request{Kind: kind, Tenant: tenant, Volume: from.Key})
}

func (b *Backend) openOnServer(ctx context.Context, source mounter.ShareSource, login client.Login,
	use client.Use) (share, error) {
	s, err := b.pool.Open(ctx, source, login, use)
	if err != nil {
		return nil, err
	}
	return s, nil
}
