package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// emptyTrash removes the content of the trash of a store in the background. If a task is already
// doing it, the task begins again at its end. secrets are those of the call that filled the trash.
func (b *Backend) emptyTrash(source mounter.ShareSource, secrets map[string]string) {
	name := records.Fold(source.String())
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, running := b.emptying[name]; running {
		b.emptying[name] = true
		return
	}
	b.emptying[name] = false
	b.jobs.Go(func(ctx context.Context) {
		for again := true; again; {
			err := b.emptyTrashNow(ctx, source, secrets)
			if err != nil && ctx.Err() == nil {
				b.cfg.Report(fmt.Errorf("empty the trash of %s: %w", source, err))
			}
			b.mu.Lock()
			if again = b.emptying[name] && ctx.Err() == nil; again {
				b.emptying[name] = false
			} else {
				delete(b.emptying, name)
			}
			b.mu.Unlock()
		}
	})
}

// emptyTrashNow removes the content of the trash, and the markers of processes that ended long ago.
// An entry that cannot be removed does not stop the others.
func (b *Backend) emptyTrashNow(ctx context.Context, source mounter.ShareSource, secrets map[string]string) error {
	s, err := b.store(ctx, source, secrets, client.Jobs)
	if err != nil {
		return err
	}
	defer s.close()
	left := map[string]error{}
	for {
		var names []string
		err := s.share.List(ctx, s.meta(trashDir), func(e client.Entry) error {
			if left[e.Name] == nil {
				names = append(names, e.Name)
			}
			return nil
		})
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		if len(names) == 0 {
			break
		}
		for _, name := range names {
			if err := s.removeTrash(ctx, name); err != nil {
				left[name] = err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	s.mu.Lock()
	s.stuck[s.source.String()] = len(left)
	s.mu.Unlock()
	var failed error
	for _, name := range slices.Sorted(maps.Keys(left)) {
		err := left[name]
		if !errors.Is(err, client.ErrShared) && !errors.Is(err, client.ErrNotEmpty) &&
			!errors.Is(err, backend.ErrBusy) {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(failed, s.sweep(ctx), s.fillReserve(ctx))
}

// removeTrash removes an entry of the trash. The record of a volume that is being deleted goes
// first: finishDelete takes a missing entry for a directory that was not moved yet.
func (s *store) removeTrash(ctx context.Context, name string) error {
	key, _, _ := strings.Cut(name, "-")
	if id, err := volumeid.Parse(key); err == nil && id.Kind == volumeid.Volume {
		o := records.Object{Key: key, Source: s.source}
		v, err := s.records().ReadVolume(ctx, o)
		if err == nil && v.Target == strings.Join([]string{records.MetaDir, trashDir, name}, "/") {
			err = s.exclusively(ctx, o, func(ctx context.Context) error {
				v, err := s.records().ReadVolume(ctx, o)
				if err == nil && v.State == records.Deleting {
					err = s.finishDelete(ctx, v)
				}
				return err
			})
		}
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return err
		}
	}
	return s.share.RemoveTree(ctx, s.meta(trashDir, name))
}

// sweep removes entries in the directory of markers that have not changed for long, by the clock of
// the server: another file of the directory shows it.
func (s *store) sweep(ctx context.Context) error {
	entries, newest, err := s.listMarkers(ctx, "")
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name] = true
	}
	var full error
	for _, e := range entries {
		head, _, succeeds := strings.Cut(e.Name, "~")
		switch {
		case newest.Sub(e.Modified) <= s.markerAge:
		case succeeds && names[head]: // removed with the head of its chain
		case e.Dir:
			err = s.sweepCopies(ctx, e.Name, newest)
		case succeeds, strings.Contains(e.Name, "."): // of a record that was not written
			err = s.records().Remove(ctx, s.meta(records.WorkDir, e.Name))
		default:
			err = s.sweepMarker(ctx, e.Name)
		}
		if errors.Is(err, backend.ErrExhausted) { // the removal of other entries needs no space
			full = err
		} else if err != nil {
			return err
		}
	}
	return full
}

// sweepMarker removes the markers of an object that has no record, if their process has ended. With
// a record, the next call for the object removes them.
func (s *store) sweepMarker(ctx context.Context, name string) error {
	if s.hasRecord(ctx, name) {
		return nil
	}
	l, err := s.markers().TryClaim(ctx, name, "")
	if l == nil {
		return err
	}
	defer l.Release(ctx)
	if s.hasRecord(l.Context(), name) {
		return nil
	}
	return s.newClaim(l).dropUnrecorded(records.Object{Key: name, Source: s.source})
}

// sweepCopies removes the old markers of copies of an object, and their directory if it is empty.
// The directory does not change when a marker in it is written.
func (s *store) sweepCopies(ctx context.Context, name string, newest time.Time) error {
	entries, _, err := s.listMarkers(ctx, name)
	if err != nil {
		return ignore(err, fs.ErrNotExist)
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name] = true
	}
	var full error
	for _, e := range entries {
		head, _, succeeds := strings.Cut(e.Name, "~")
		switch {
		case newest.Sub(e.Modified) <= s.markerAge, succeeds && names[head]: // see sweep
		case succeeds:
			err = s.records().Remove(ctx, s.meta(records.WorkDir, name, e.Name))
		default:
			err = s.markers().Drop(ctx, name+"/"+e.Name)
		}
		if errors.Is(err, backend.ErrExhausted) { // the removal of other entries needs no space
			full = err
		} else if err != nil {
			return err
		}
	}
	if full != nil {
		return full
	}
	return ignore(s.share.Remove(ctx, s.meta(records.WorkDir, name)), client.ErrNotEmpty)
}
