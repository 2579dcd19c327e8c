package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Health returns the conditions of a volume.
func (b *Backend) Health(ctx context.Context, id string) ([]backend.Condition, error) {
	o, err := parseObject(volumeid.Volume, id)
	if err != nil {
		return nil, err
	}
	s, err := b.store(ctx, o.source, nil, client.Calls)
	if err == nil {
		defer s.close()
		var v *volume
		if v, err = s.liveVolume(ctx, o); err == nil {
			return s.conditions(ctx, v)
		}
	}
	if c, ok := unreadable(o, err); ok {
		return []backend.Condition{c}, nil
	}
	if c, ok := condition(o.source, err); ok && !errors.Is(err, errNotListed) {
		return []backend.Condition{c}, nil
	}
	return nil, err
}

// unreadable returns the condition of a volume whose record cannot be used because of err.
func unreadable(o object, err error) (backend.Condition, bool) {
	switch {
	case errors.Is(err, record.ErrNewer):
		return backend.Condition{Severity: backend.Inaccessible, Reason: "RecordOfNewerVersion",
			Message: fmt.Sprintf("%v: run the release that made it, or a newer release", err)}, true
	case isUnreadable(err):
		return backend.Condition{Severity: backend.Inaccessible, Reason: "RecordUnreadable",
			Message: fmt.Sprintf("%v: restore %s/%s/%s/%s from a backup of the server", err, o.source, metaDir,
				volumesDir, o.key+recordSuffix)}, true
	}
	return backend.Condition{}, false
}

// conditions returns the conditions of a volume whose record could be read.
func (s *store) conditions(ctx context.Context, v *volume) ([]backend.Condition, error) {
	e, err := s.share.Stat(ctx, s.path(v.SubDir))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !e.Dir:
		return []backend.Condition{{
			Severity: backend.DataLoss, Reason: "DirectoryMissing",
			Message: fmt.Sprintf("%s is gone: restore the directory on the server, or delete the volume", s.where(v)),
		}}, nil
	case err != nil:
		if c, ok := condition(s.source, err); ok {
			return []backend.Condition{c}, nil
		}
		return nil, err
	}
	return nil, nil
}

// condition returns the condition of a store that could not be used because of err.
func condition(source mounter.ShareSource, err error) (backend.Condition, bool) {
	switch {
	case errors.Is(err, backend.ErrUnauthenticated):
		return backend.Condition{Severity: backend.Inaccessible, Reason: "CredentialsRejected",
			Message: fmt.Sprintf("%s: %v: correct the credentials of the share", source, err)}, true
	case errors.Is(err, backend.ErrDenied):
		return backend.Condition{Severity: backend.Inaccessible, Reason: "AccessDenied",
			Message: fmt.Sprintf("%s: %v: grant the account access on the server", source, err)}, true
	case errors.Is(err, backend.ErrUnavailable):
		return unreachable(source, err), true
	case errors.Is(err, backend.ErrPrecondition):
		return backend.Condition{Severity: backend.Inaccessible, Reason: "ShareMissing",
			Message: fmt.Sprintf("%s: %v: export the share again", source, err)}, true
	}
	return backend.Condition{}, false
}

// ListHealth returns the unhealthy volumes of the shares in the file of shares. If a share cannot
// be listed, the call fails: the caller then asks for each volume.
func (b *Backend) ListHealth(ctx context.Context, after string,
	limit int) (unhealthy []backend.VolumeHealth, more bool, err error) {
	type sick struct {
		id         string
		conditions []backend.Condition
	}
	found, more, err := listed(ctx, b, b.shares.sources(), volumesDir, volumeid.Volume, after, limit,
		func(ctx context.Context, s *store, e client.Entry) (*sick, error) {
			v, err := s.listedVolume(ctx, e)
			if c, ok := unreadable(object{e.Name, s.source}, err); ok {
				return &sick{object{e.Name, s.source}.String(), []backend.Condition{c}}, nil
			}
			if err != nil || v.State != ready {
				return nil, err
			}
			conditions, err := s.conditions(ctx, v)
			if err != nil || len(conditions) == 0 {
				return nil, err
			}
			return &sick{v.String(), conditions}, nil
		})
	for _, f := range found {
		unhealthy = append(unhealthy, backend.VolumeHealth{ID: f.id, Conditions: f.conditions})
	}
	return unhealthy, more, err
}

// lowSpace is the part of a filesystem that is available when its volumes are degraded.
const lowSpace = 0.02

// StorageHealth returns the conditions of the shares in the file of shares.
func (b *Backend) StorageHealth(ctx context.Context) (all []backend.Condition, err error) {
	for _, source := range b.shares.sources() {
		u := b.measure(ctx, source)
		switch c, ok := condition(source, u.err); {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case ok:
			c.Severity = min(c.Severity, backend.Inaccessible)
			all = append(all, c)
		case u.err != nil:
			return nil, u.err
		case float64(u.available) < lowSpace*float64(u.total):
			all = append(all, backend.Condition{Severity: backend.Degraded, Reason: "ShareFull",
				Message: fmt.Sprintf("%s has %d bytes available: delete files, or extend its filesystem", source,
					u.available)})
		}
	}
	return all, nil
}

// space is the space of the filesystem of a share.
type space struct {
	total, available int64 // bytes
	err              error
}

// spaces keeps the space of each share in the file of shares, for the metrics.
type spaces struct {
	mu       sync.Mutex
	bySource map[string]space
}

// measure asks for the space of a source.
func (b *Backend) measure(ctx context.Context, source mounter.ShareSource) (u space) {
	s, err := b.store(ctx, source, nil, client.Calls)
	if err != nil {
		return space{err: err}
	}
	defer s.close()
	u.total, u.available, u.err = s.share.Space(ctx, source.Path)
	return u
}

const (
	spaceInterval = time.Minute
	trashRounds   = 60 // intervals between two rounds of the trash
	spaceLimit    = 10 * time.Second
)

// watch measures the shares in the file of shares again and again, and empties their trash: a
// process that has ended may have left something.
func (b *Backend) watch(ctx context.Context) {
	for i := 0; ; i++ {
		b.measureAll(ctx)
		if i%trashRounds == 0 {
			for _, source := range b.shares.sources() {
				b.emptyTrash(source, nil)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(spaceInterval):
		}
	}
}

func (b *Backend) measureAll(ctx context.Context) {
	var group sync.WaitGroup
	var mu sync.Mutex
	all := map[string]space{}
	for _, source := range b.shares.sources() {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, spaceLimit)
			defer cancel()
			u := b.measure(ctx, source)
			mu.Lock()
			defer mu.Unlock()
			all[source.String()] = u
		})
	}
	group.Wait()
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	b.space.bySource = all
}

// Metrics returns the space of the shares in the file of shares, at most a minute old, and the
// copies of this process. A share that could not be measured has the values 0.
func (b *Backend) Metrics() (all []backend.Metric) {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	for _, source := range b.shares.sources() {
		u, measured := b.space.bySource[source.String()]
		up := 0.0
		if measured && u.err == nil {
			up = 1
		}
		gauge := func(name, help string, value float64) {
			all = append(all, backend.Metric{Name: name, Help: help, Value: value,
				Labels: map[string]string{"source": source.String()}})
		}
		gauge("share_up", "1 if the controller could use the share when it last measured the share, otherwise 0.", up)
		gauge("share_size_bytes", "Size of the filesystem of the share.", float64(u.total))
		gauge("share_available_bytes", "Bytes that are available on the share.", float64(u.available))
	}
	b.mu.Lock()
	for _, source := range b.shares.sources() {
		all = append(all, backend.Metric{Name: "trash_entries", Labels: map[string]string{"source": source.String()},
			Help:  "Deleted objects whose directories could not be removed from the trash.",
			Value: float64(b.stuck[source.String()])})
	}
	b.mu.Unlock()
	stats := b.jobs.Stats()
	return append(all,
		backend.Metric{Name: "copies", Help: "Snapshots, restored volumes and clones that are being made.",
			Value: float64(stats.Running)},
		backend.Metric{Name: "copy_errors_total", Help: "Copies that failed.", Counter: true,
			Value: float64(stats.Failed)},
		backend.Metric{Name: "copied_bytes_total", Help: "Bytes of all copies.", Counter: true,
			Value: float64(stats.Bytes)})
}
