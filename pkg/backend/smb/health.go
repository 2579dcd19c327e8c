package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Health returns the conditions of a volume.
func (b *Backend) Health(ctx context.Context, id string) ([]backend.Condition, error) {
	o, err := records.ParseObject(volumeid.Volume, id)
	if err != nil {
		return nil, err
	}
	s, err := b.store(ctx, o.Source, nil, client.Calls)
	if err == nil {
		defer s.close()
		var v *records.Volume
		if v, err = s.liveVolume(ctx, o); err == nil {
			return s.conditions(ctx, v)
		}
	}
	if c, ok := unreadable(o, err); ok {
		return []backend.Condition{c}, nil
	}
	if c, ok := condition(o.Source, err); ok && !errors.Is(err, errNotListed) {
		return []backend.Condition{c}, nil
	}
	return nil, err
}

// unreadable returns the condition of a volume whose record cannot be used because of err.
func unreadable(o records.Object, err error) (backend.Condition, bool) {
	switch {
	case errors.Is(err, record.ErrNewer):
		return backend.Condition{Severity: backend.Inaccessible, Reason: "RecordOfNewerVersion",
			Message: fmt.Sprintf("%v: run the release that made it, or a newer release", err)}, true
	case records.IsUnreadable(err):
		return backend.Condition{Severity: backend.Inaccessible, Reason: "RecordUnreadable",
			Message: fmt.Sprintf("%v: restore %s/%s/%s/%s from a backup of the server", err, o.Source, records.MetaDir,
				records.VolumesDir, o.Key+records.RecordSuffix)}, true
	}
	return backend.Condition{}, false
}

// conditions returns the conditions of a volume whose record could be read.
func (s *store) conditions(ctx context.Context, v *records.Volume) ([]backend.Condition, error) {
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
	found, more, err := listed(ctx, b, b.shares.sources(), records.VolumesDir, volumeid.Volume, after, limit,
		func(ctx context.Context, s *store, e client.Entry) (*sick, error) {
			v, err := s.listedVolume(ctx, e)
			if c, ok := unreadable(records.Object{Key: e.Name, Source: s.source}, err); ok {
				return &sick{records.Object{Key: e.Name, Source: s.source}.String(), []backend.Condition{c}}, nil
			}
			if err != nil || v.State != records.Ready {
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
