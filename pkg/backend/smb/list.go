package smb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Get returns the volume.
func (b *Backend) Get(ctx context.Context, id string, secrets map[string]string) (backend.Volume, error) {
	v, err := b.find(ctx, id, secrets)
	if err != nil {
		return backend.Volume{}, err
	}
	return v.Public(), nil
}

func (b *Backend) find(ctx context.Context, id string, secrets map[string]string) (*records.Volume, error) {
	o, err := records.ParseObject(volumeid.Volume, id)
	if err != nil {
		return nil, err
	}
	s, err := b.store(ctx, o.Source, secrets, client.Calls)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.liveVolume(ctx, o)
}

// List returns the volumes of the shares in the file of shares.
func (b *Backend) List(ctx context.Context, after string, limit int) (page []backend.Volume, more bool, err error) {
	found, more, err := listed(ctx, b, b.shares.sources(), records.VolumesDir, volumeid.Volume, after, limit,
		func(ctx context.Context, s *store, e client.Entry) (*records.Volume, error) {
			v, err := s.listedVolume(ctx, e)
			if err == nil && v.State != records.Ready {
				return nil, nil
			}
			return v, err
		})
	for _, v := range found {
		page = append(page, v.Public())
	}
	return page, more, err
}

// ListSnapshots returns the snapshots of the shares in the file of shares.
func (b *Backend) ListSnapshots(ctx context.Context, source, after string,
	limit int) (page []backend.Snapshot, more bool, err error) {
	sources := b.shares.sources()
	if source != "" {
		o, err := records.ParseObject(volumeid.Volume, source)
		if err != nil {
			return nil, false, nil
		}
		sources = slices.DeleteFunc(sources, func(s mounter.ShareSource) bool {
			return records.Fold(s.String()) != records.Fold(o.Source.String())
		})
	}
	found, more, err := listed(ctx, b, sources, records.SnapshotsDir, volumeid.Snapshot, after, limit,
		func(ctx context.Context, s *store, e client.Entry) (*records.Snapshot, error) {
			r, err := s.cache.Get(records.CacheKey(s.source, records.SnapshotsDir, e.Name), e, func() (any, error) {
				n, err := s.records().ReadSnapshot(ctx, records.Object{Key: e.Name, Source: s.source})
				return n, err
			})
			if err != nil {
				return nil, err
			}
			if n := r.(*records.Snapshot); n.State == records.Ready && (source == "" || n.Volume == source) {
				return n, nil
			}
			return nil, nil
		})
	for _, n := range found {
		page = append(page, n.Public())
	}
	return page, more, err
}

// listAtOnce is the number of records that are read at the same time.
const listAtOnce = 16

// listed returns up to limit records of the stores of sources with an ID greater than after. read
// returns nil for a record that is not in the list. Unreadable records are not in the list. Records
// of another source are not, either: a copy of a store, or the address of a server under another
// name, makes other IDs.
func listed[R any](ctx context.Context, b *Backend, sources []mounter.ShareSource, dir string, kind volumeid.Kind,
	after string, limit int,
	read func(ctx context.Context, s *store, e client.Entry) (*R, error)) (page []*R, more bool, err error) {
	stores, err := b.openStores(ctx, sources)
	if err != nil {
		return nil, false, err
	}
	defer func() {
		for _, s := range stores {
			s.close()
		}
	}()
	type candidate struct {
		store *store
		entry client.Entry
		id    string
	}
	var candidates []candidate
	for _, s := range stores {
		entries, err := s.records().Keys(ctx, dir, kind)
		if err != nil {
			return nil, false, err
		}
		for _, e := range entries {
			id := records.Object{Key: e.Name, Source: s.source}.String()
			if _, err := records.ParseObject(kind, id); err == nil && id > after {
				candidates = append(candidates, candidate{s, e, id})
			}
		}
	}
	slices.SortFunc(candidates, func(a, b candidate) int { return strings.Compare(a.id, b.id) })
	for len(candidates) > 0 && len(page) < limit {
		part := candidates[:min(len(candidates), limit-len(page))]
		candidates = candidates[len(part):]
		found := make([]*R, len(part))
		var group errgroup.Group // an error must not end the requests of the others, and with them the session
		group.SetLimit(listAtOnce)
		for i, c := range part {
			group.Go(func() (err error) {
				found[i], err = read(ctx, c.store, c.entry)
				deleted := errors.Is(err, backend.ErrNotFound) // meanwhile
				if deleted || records.IsUnreadable(err) {
					return nil
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, false, err
		}
		for _, r := range found {
			if r != nil {
				page = append(page, r)
			}
		}
	}
	return page, len(candidates) > 0, nil
}

// openStores opens the stores of sources, with the credentials of the file of shares. The caller
// closes them.
func (b *Backend) openStores(ctx context.Context, sources []mounter.ShareSource) ([]*store, error) {
	stores := make([]*store, len(sources))
	var group errgroup.Group
	for i, source := range sources {
		group.Go(func() (err error) {
			stores[i], err = b.store(ctx, source, nil, client.Calls)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		for _, s := range stores {
			if s != nil {
				s.close()
			}
		}
		return nil, err
	}
	return stores, nil
}

// Expand raises the recorded size of a volume. Nothing enforces it.
func (b *Backend) Expand(ctx context.Context, id string, o backend.ExpandOptions) (size int64, node bool, err error) {
	size = max(o.Required, 1)
	if size > maxSize {
		return 0, false, fmt.Errorf("%w: %d bytes: must be at most %d", backend.ErrOutOfRange, size, int64(maxSize))
	}
	v, err := b.change(ctx, id, o.Secrets, func(v *records.Volume) (changed bool, err error) {
		if o.Limit > 0 && v.Size > o.Limit {
			return false, fmt.Errorf("%w: volume %s has %d bytes, and at most %d are requested",
				backend.ErrOutOfRange, id, v.Size, o.Limit)
		}
		changed = v.Size < size
		v.Size = max(v.Size, size)
		return changed, nil
	})
	if err != nil {
		return 0, false, err
	}
	return v.Size, false, nil
}

// Modify changes what Delete does with the directory of a volume.
func (b *Backend) Modify(ctx context.Context, id string, parameters, secrets map[string]string) error {
	if _, err := records.ParseObject(volumeid.Volume, id); err != nil {
		return err
	}
	if err := checkMutable(parameters, true); err != nil {
		return err
	}
	_, err := b.change(ctx, id, secrets, func(v *records.Volume) (changed bool, err error) {
		value, ok := parameters[onDeleteKey]
		if !ok || value == v.OnDelete {
			return false, nil
		}
		v.OnDelete = value
		return true, nil
	})
	return err
}

// change changes the record of a volume, and returns the volume.
func (b *Backend) change(ctx context.Context, id string, secrets map[string]string,
	edit func(v *records.Volume) (changed bool, err error)) (*records.Volume, error) {
	o, err := records.ParseObject(volumeid.Volume, id)
	if err != nil {
		return nil, err
	}
	s, err := b.store(ctx, o.Source, secrets, client.Calls)
	if err != nil {
		return nil, repeated(err)
	}
	defer s.close()
	if _, err := s.liveVolume(ctx, o); err != nil {
		return nil, repeated(err)
	}
	var v *records.Volume
	err = s.exclusively(ctx, o, func(ctx context.Context) error {
		if v, err = s.liveVolume(ctx, o); err != nil {
			return err
		}
		changed, err := edit(v)
		if err != nil || !changed {
			return err
		}
		if err := s.keepWritten(ctx, v); err != nil {
			return err
		}
		return s.records().Replace(ctx, records.VolumesDir, records.VolumeFormat, o, v)
	})
	return v, repeated(err)
}
