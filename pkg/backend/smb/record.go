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
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/lease"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// state is the state of a volume or snapshot in its record.
type state string

const (
	creating state = "creating" // the directory may exist: it is ours if it is empty and newer than the record
	made     state = "made"     // the directory exists, is ours, and may be incomplete
	ready    state = "ready"
	deleting state = "deleting" // the directory is moved to Target next
)

// common is the part of a record that volumes and snapshots share.
type common struct {
	State   state     `json:"state"`
	Name    string    `json:"name"`
	Size    int64     `json:"size"` // bytes
	Created time.Time `json:"created"`
	Target  string    `json:"target,omitempty"` // path in the store to which the directory of a deleted object moves

	// Written is the time at which the server wrote the first record of the state ready, once the
	// record was written again. Zero: the time of the file.
	Written time.Time `json:"written,omitzero"`
}

// volume is the record of a volume.
type volume struct {
	object `json:"-"`
	common
	SubDir     string            `json:"subDir"`           // path in the store
	Shared     bool              `json:"shared,omitempty"` // the directory existed before, and is never deleted
	Parameters map[string]string `json:"parameters"`       // with defaults
	OnDelete   string            `json:"onDelete,omitempty"`
	Volume     string            `json:"volume,omitempty"`   // ID of the volume from which the volume was cloned
	Snapshot   string            `json:"snapshot,omitempty"` // ID of the snapshot from which it was restored
}

// snapshot is the record of a snapshot.
type snapshot struct {
	object `json:"-"`
	common
	Volume string `json:"volume"` // ID of the source
}

// Formats of records on shares.
var (
	volumeFormat   = record.Format{Version: 1}
	snapshotFormat = record.Format{Version: 1}
)

// maxRecord is the maximum size of a record in bytes.
const maxRecord = 1 << 20

// public returns the volume as the contract describes it.
func (v *volume) public() backend.Volume {
	return backend.Volume{
		ID: v.String(), Size: v.Size, Parameters: maps.Clone(v.Parameters), Context: v.context(),
		Mutable: map[string]string{onDeleteKey: v.onDelete()}, SourceVolume: v.Volume, SourceSnapshot: v.Snapshot,
	}
}

// context returns the volume context.
func (v *volume) context() map[string]string {
	return map[string]string{sourceKey: v.source.String(), subDirKey: v.SubDir, encryptKey: v.Parameters[encryptKey],
		outageKey: v.Parameters[outageKey]}
}

func (v *volume) onDelete() string {
	if v.OnDelete != "" {
		return v.OnDelete
	}
	return v.Parameters[onDeleteKey]
}

// fits returns ErrExists if a request for a volume of the same name asks for another volume.
func (v *volume) fits(want *volume, o backend.CreateOptions) error {
	differs := func(format string, args ...any) error {
		return fmt.Errorf("%w: volume %.64q %s", backend.ErrExists, v.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case v.Size < o.Required:
		return differs("has %d bytes, and %d are requested", v.Size, o.Required)
	case o.Limit > 0 && v.Size > o.Limit:
		return differs("has %d bytes, and at most %d are requested", v.Size, o.Limit)
	case v.Volume != want.Volume || v.Snapshot != want.Snapshot:
		return differs("was created from another source")
	}
	for _, key := range slices.Sorted(maps.Keys(v.Parameters)) {
		if key != sourceKey && v.Parameters[key] != want.Parameters[key] {
			return differs("has the parameter %s=%.64q, and %.64q is requested", key, v.Parameters[key],
				want.Parameters[key])
		}
	}
	if value, ok := o.Mutable[onDeleteKey]; ok && value != v.onDelete() {
		return differs("has %s=%s, and %s is requested", onDeleteKey, v.onDelete(), value)
	}
	return nil
}

func (n *snapshot) public() backend.Snapshot {
	return backend.Snapshot{ID: n.String(), Source: n.Volume, Size: n.Size, Created: n.Created}
}

// recordPath returns the path of a record.
func (s *store) recordPath(dir, key string) string { return s.meta(dir, key+recordSuffix) }

// readVolume reads the record of a volume in any state. Errors: backend.ErrNotFound.
func (s *store) readVolume(ctx context.Context, o object) (*volume, error) {
	v := &volume{object: o}
	if err := s.read(ctx, volumesDir, volumeFormat, o, v); err != nil {
		return nil, err
	}
	return v, nil
}

// readSnapshot reads the record of a snapshot in any state. Errors: backend.ErrNotFound.
func (s *store) readSnapshot(ctx context.Context, o object) (*snapshot, error) {
	n := &snapshot{object: o}
	if err := s.read(ctx, snapshotsDir, snapshotFormat, o, n); err != nil {
		return nil, err
	}
	return n, nil
}

func (s *store) read(ctx context.Context, dir string, f record.Format, o object, into any) error {
	var content []byte
	err := client.Retry(ctx, func() (err error) {
		content, err = s.share.Read(ctx, s.recordPath(dir, o.key), maxRecord)
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s", backend.ErrNotFound, o)
	case errors.Is(err, client.ErrTooLarge):
		return fmt.Errorf("%w: the record of %s: %w: %w", backend.ErrNotReady, o, record.ErrDamaged, err)
	case err != nil:
		return err
	case len(content) == 0: // another process has created the file and not written it yet, or has died then
		return fmt.Errorf("%w: %w: %s", backend.ErrNotFound, errEmpty, o)
	}
	if err := f.Decode(content, into); err != nil {
		return fmt.Errorf("%w: the record of %s: %w", backend.ErrNotReady, o, err)
	}
	return nil
}

// isUnreadable reports whether err is about a record whose content cannot be used. No list has its
// object, and no call changes it. A call that compares the directories of all volumes fails: the
// record may be that of a directory around another.
func isUnreadable(err error) bool {
	return errors.Is(err, record.ErrDamaged) || errors.Is(err, record.ErrNewer)
}

// errEmpty is the error for a record without content.
var errEmpty = errors.New("the record is empty")

// create writes the record of a new object. The caller has claimed the object. An empty record of a
// process that has died is replaced.
func (s *store) create(ctx context.Context, dir string, f record.Format, o object, r any) error {
	content, err := f.Encode(r)
	if err != nil {
		return err
	}
	path := s.recordPath(dir, o.key)
	err = s.share.Create(ctx, path, content)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	old, err := s.share.Read(ctx, path, maxRecord)
	switch {
	case err != nil:
		return err
	case len(old) > 0:
		return fmt.Errorf("%w: another process has made %s", backend.ErrUnavailable, o)
	}
	if err := s.remove(ctx, path); err != nil {
		return err
	}
	return s.share.Create(ctx, path, content)
}

// replace writes the record of an existing object. The caller has claimed the object.
func (s *store) replace(ctx context.Context, dir string, f record.Format, o object, r any) error {
	content, err := f.Encode(r)
	if err != nil {
		return err
	}
	temporary := s.meta(workDir, o.key+"."+lease.Random())
	if err := s.share.Create(ctx, temporary, content); err != nil {
		return err
	}
	err = client.Retry(ctx, func() error {
		err := s.share.Rename(ctx, temporary, s.recordPath(dir, o.key))
		if errors.Is(err, backend.ErrDenied) { // the status of a target that a reader has open
			err = fmt.Errorf("%w: %w", client.ErrShared, err)
		}
		return err
	})
	if err != nil {
		return errors.Join(err, s.share.Remove(ctx, temporary))
	}
	return nil
}

// remove removes a file of the store.
func (s *store) remove(ctx context.Context, path string) error {
	return client.Retry(ctx, func() error { return s.share.Remove(ctx, path) })
}

// keys lists the keys of all records in a directory, sorted, with the time and size of each file.
func (s *store) keys(ctx context.Context, dir string, kind volumeid.Kind) ([]client.Entry, error) {
	var entries []client.Entry
	err := s.share.List(ctx, s.meta(dir), func(e client.Entry) error {
		key, ok := strings.CutSuffix(e.Name, recordSuffix)
		if id, err := volumeid.Parse(key); ok && err == nil && id.Kind == kind && !e.Dir {
			e.Name = key
			entries = append(entries, e)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) { // no volume was created yet
		return nil, nil
	}
	slices.SortFunc(entries, func(a, b client.Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, err
}
