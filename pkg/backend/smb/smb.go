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
	"time"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/lease"
)

// New returns a Backend. Errors: those of the file of shares.
func New(cfg Config) (*Backend, error) {
	if cfg.Report == nil {
		cfg.Report = func(error) {}
	}
	shares, err := openShares(cfg)
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: cfg, pool: client.NewPool(), openShare: cfg.openShare, shares: shares, process: cfg.process,
		markerAge: 24 * time.Hour, jobs: jobs.New(), copies: map[string]*fair.Slots{}, emptying: map[string]bool{},
		stuck: map[string]int{}, prepared: map[string]bool{}, reserves: map[string]chan struct{}{}}
	if b.openShare == nil {
		b.openShare = b.openOnServer
	}
	if b.process == nil {
		b.process = lease.NewProcess(lease.Random(), nil)
	}
	b.probes.answers = client.Answers
	b.jobs.Go(b.watch)
	return b, nil
}

// Close ends all background tasks and all sessions.
func (b *Backend) Close() error {
	b.jobs.Close()
	b.pool.Close()
	return nil
}
