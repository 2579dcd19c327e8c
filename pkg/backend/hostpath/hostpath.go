// Package hostpath is the backend of storage on the node itself: a volume is a directory below one
// root directory, or an image, which is a file with a filesystem or a block device in it.
//
// On disk:
//
//	<root>/identity.json         identity of the root
//	<root>/volumes/<id>/         record.json, and data/ or image.raw, the content that pods see; on
//	                             Windows an image is called image.vhdx
//	<root>/snapshots/<id>/       the same of a snapshot
//	<root>/groups/<id>/          record.json, which names the snapshots of one point in time
//	<root>/staging/              incomplete objects; moved to trash/ at start
//	<root>/trash/                deleted objects, emptied in the background
//
// Each object is made in staging/, made durable, and renamed to its final path. After a SIGKILL or
// a power cut at any moment the whole object exists, or no part of it. A deletion is a rename to
// trash/. The records are read once, at start, so the cost of a call does not grow with the number
// of volumes, except for lists.
//
// Every path below the root is resolved by package beneath, which follows no link. The content of
// data/ belongs to tenants, and the driver never follows it either.
//
// Paths of objects are relative to the root. Absolute paths occur in messages and in the calls of
// package mounter.
//
// This package makes the decisions, and maps errors to the classes of package backend. It calls
// three packages that do not import each other: internal/store keeps objects on the disk,
// internal/catalog finds them in memory, and internal/jobs runs copies that take longer than a
// call.
//
// Create takes these steps. Create plans the content of the volume from the request (content.go)
// and looks in the catalog for a volume of that name: an existing volume must fit the plan, and
// Create ends. Create asks package jobs whether a job is creating a volume with this ID, and
// reserves the capacity in the catalog. Then store.Make makes a directory in staging/. Create fills
// this directory with a data directory that has a limit (enforce.go) or with an image and its
// filesystem (volume.go), and with the record. store.Make syncs the directory, renames it to
// volumes/<id>, and syncs volumes/. Last, Create adds the volume to the catalog. After an error up
// to the rename, store.Make removes the incomplete directory, and Create releases the reservation.
// After an error of the last sync, store.Make undoes the rename. If that fails, too, only the next
// start finds out whether the volume exists: until then the catalog has the error instead of the
// volume, and the capacity stays reserved. Restore and Clone differ in two points: a job runs the
// steps from the reservation on, and the directory is filled with a copy.
package hostpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
)

// Pauses before a root that cannot be used is opened again: after an error, and after a panic. Each
// panic is reported with its stack.
const (
	retryOpen  = 500 * time.Millisecond
	retryPanic = 30 * time.Second
)

var (
	_ backend.Backend          = (*Backend)(nil)
	_ backend.Lister           = (*Backend)(nil)
	_ backend.CapacityReporter = (*Backend)(nil)
	_ backend.Expander         = (*Backend)(nil)
	_ backend.NodeLocal        = (*Backend)(nil)
	_ backend.Inliner          = (*Backend)(nil)
	_ backend.Prober           = (*Backend)(nil)
	_ backend.HealthReporter   = (*Backend)(nil)
	_ backend.MetricsSource    = (*Backend)(nil)
	_ backend.UsageReporter    = (*Backend)(nil)
	_ backend.Modifier         = (*Backend)(nil)
	_ backend.Cloner           = (*Backend)(nil)
	_ backend.GroupSnapshotter = (*Backend)(nil)
	_ backend.PartSnapshotter  = (*Backend)(nil)
	_ backend.Differ           = (*Backend)(nil)
)

// New returns a Backend, which opens its root in the background and retries until that succeeds.
// Until then every call returns ErrUnavailable, and Probe reports the state. The caller calls
// Close.
func New(cfg Config) (*Backend, error) {
	if !filepath.IsAbs(cfg.Root) || filepath.Clean(cfg.Root) != cfg.Root {
		return nil, fmt.Errorf("%w: invalid root %q: must be an absolute, clean path", backend.ErrInvalid, cfg.Root)
	}
	if cfg.WindowsImageClone && plain(cfg.Images) {
		return nil, fmt.Errorf("%w: --windows-image-clone is for Windows: elsewhere images are always cloned and "+
			"restored", backend.ErrInvalid)
	}
	if err := checkTrim(cfg); err != nil {
		return nil, err
	}
	kinds, err := parseKinds(cfg.Kinds)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	b := &Backend{cfg: cfg, kinds: kinds, jobs: jobs.New(), slots: newSlots(), wake: make(chan struct{}, 1)}
	b.exec.limit, b.exec.quotaLimit = progressLimit, cmp.Or(cfg.quotaLimit, quotaLimit)
	b.exec.giveWay = b.traffic.giveWay
	b.troubles.warn = cfg.Warn
	b.jobs.Go(func(ctx context.Context) {
		s := b.open(ctx)
		if s == nil {
			return
		}
		b.panicked(guard.Do(func() error { b.repairLimits(ctx, s); return nil }))
		if cfg.TrimInterval > 0 {
			b.jobs.Go(func(ctx context.Context) {
				guard.Keep(ctx, func(err error) { b.panicked(err) }, func() { b.trimImages(ctx, s) })
			})
		}
		guard.Keep(ctx, func(err error) { b.panicked(err) }, func() { b.emptyTrash(ctx, s) })
	})
	return b, nil
}

// Close stops the background tasks, copies included, and closes the root. No call may be running.
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

// openOnce opens the root and reads its records.
func (b *Backend) openOnce() (*root, error) {
	s, err := openRoot(b.cfg)
	if err != nil {
		return nil, err
	}
	loaded := false
	defer func() {
		if !loaded { // also after a panic: the next attempt needs the lock
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

// openRoot opens the root. Errors: ErrUnavailable.
func openRoot(cfg Config) (*root, error) {
	s, err := store.Open(store.Config{
		Root: cfg.Root, Node: cfg.Node, RootRecord: cfg.RootRecord, Release: cfg.Release,
		Init: cfg.Init, Adopt: cfg.Adopt, Lost: cfg.Lost,
		ImageExt: cfg.Images.ImageExt(), IsFilesystem: cfg.Images.IsFilesystem,
	})
	if err != nil {
		return nil, available(err)
	}
	return &root{Store: s, images: cfg.Images}, nil
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
