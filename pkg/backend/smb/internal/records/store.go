package records

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/lease"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Directories and files of a store.
const (
	MetaDir      = ".causeway"
	VolumesDir   = "volumes"
	SnapshotsDir = "snapshots"
	WorkDir      = "work"
	RecordSuffix = ".json"
)

// MaxSize is the maximum size of a record in bytes.
const MaxSize = 1 << 20

// Share has the operations on a share that records need. Its errors and paths are those of
// client.Share.
type Share interface {
	List(ctx context.Context, path string, each func(client.Entry) error) error
	Read(ctx context.Context, path string, limit int64) ([]byte, error)
	Create(ctx context.Context, path string, content []byte) error
	Rename(ctx context.Context, from, to string) error
	Remove(ctx context.Context, path string) error
}

// Store has the records of a source.
type Store struct {
	Share  Share
	Source mounter.ShareSource
}

// Path returns the path on the share of a path in the store.
func (s *Store) Path(elements ...string) string {
	return path.Join(append([]string{s.Source.Path}, elements...)...)
}

// Meta returns the path on the share of a path in .causeway.
func (s *Store) Meta(elements ...string) string {
	return s.Path(append([]string{MetaDir}, elements...)...)
}

// RecordPath returns the path of a record.
func (s *Store) RecordPath(dir, key string) string { return s.Meta(dir, key+RecordSuffix) }

// ReadVolume reads the record of a volume in any state. Errors: backend.ErrNotFound; record.ErrNewer
// for a record with a value that this release does not know.
func (s *Store) ReadVolume(ctx context.Context, o Object) (*Volume, error) {
	v, err := s.DecodeVolume(ctx, o)
	if err == nil {
		err = v.Check()
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// DecodeVolume is ReadVolume, but for records with values that this release does not know: they still
// have the directory of a volume. Only comparisons of directories may use such a record.
func (s *Store) DecodeVolume(ctx context.Context, o Object) (*Volume, error) {
	v := &Volume{Object: o}
	if err := s.read(ctx, VolumesDir, VolumeFormat, o, v); err != nil {
		return nil, err
	}
	return v, nil
}

// ReadSnapshot reads the record of a snapshot in any state. Errors: backend.ErrNotFound.
func (s *Store) ReadSnapshot(ctx context.Context, o Object) (*Snapshot, error) {
	n := &Snapshot{Object: o}
	if err := s.read(ctx, SnapshotsDir, SnapshotFormat, o, n); err != nil {
		return nil, err
	}
	if err := n.State.check(); err != nil {
		return nil, unusable(o, err)
	}
	return n, nil
}

func (s *Store) read(ctx context.Context, dir string, f record.Format, o Object, into any) error {
	var content []byte
	err := client.Retry(ctx, func() (err error) {
		content, err = s.Share.Read(ctx, s.RecordPath(dir, o.Key), MaxSize)
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
		return fmt.Errorf("%w: %w: %s", backend.ErrNotFound, ErrEmpty, o)
	}
	if err := f.Decode(content, into); err != nil {
		return unusable(o, err)
	}
	return nil
}

// unusable returns the error for a record whose content cannot be used because of err.
func unusable(o Object, err error) error {
	return fmt.Errorf("%w: the record of %s: %w", backend.ErrNotReady, o, err)
}

// IsUnreadable reports whether err is about a record whose content cannot be used. No list has its
// Object, and no call changes it. A call that compares the directories of all volumes fails: the
// record may be that of a directory around another.
func IsUnreadable(err error) bool {
	return errors.Is(err, record.ErrDamaged) || errors.Is(err, record.ErrNewer)
}

// ErrEmpty is the error for a record without content.
var ErrEmpty = errors.New("the record is empty")

// Create writes the record of a new object. The caller has claimed the object. An empty record of a
// process that has died is replaced.
func (s *Store) Create(ctx context.Context, dir string, f record.Format, o Object, r any) error {
	content, err := f.Encode(r)
	if err != nil {
		return err
	}
	path := s.RecordPath(dir, o.Key)
	err = s.Share.Create(ctx, path, content)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	old, err := s.Share.Read(ctx, path, MaxSize)
	switch {
	case err != nil:
		return err
	case len(old) > 0:
		return fmt.Errorf("%w: another process has made %s", backend.ErrUnavailable, o)
	}
	if err := s.Remove(ctx, path); err != nil {
		return err
	}
	return s.Share.Create(ctx, path, content)
}

// Replace writes the record of an existing object. The caller has claimed the object.
func (s *Store) Replace(ctx context.Context, dir string, f record.Format, o Object, r any) error {
	content, err := f.Encode(r)
	if err != nil {
		return err
	}
	temporary := s.Meta(WorkDir, o.Key+"."+lease.Random())
	if err := s.Share.Create(ctx, temporary, content); err != nil {
		return err
	}
	err = client.Retry(ctx, func() error {
		err := s.Share.Rename(ctx, temporary, s.RecordPath(dir, o.Key))
		if errors.Is(err, backend.ErrDenied) { // the status of a target that a reader has open
			err = fmt.Errorf("%w: %w", client.ErrShared, err)
		}
		return err
	})
	if err != nil {
		return errors.Join(err, s.Share.Remove(ctx, temporary))
	}
	return nil
}

// Remove removes a file of the store.
func (s *Store) Remove(ctx context.Context, path string) error {
	return client.Retry(ctx, func() error { return s.Share.Remove(ctx, path) })
}

// Keys lists the keys of all records in a directory, sorted, with the time and size of each file.
func (s *Store) Keys(ctx context.Context, dir string, kind volumeid.Kind) ([]client.Entry, error) {
	var entries []client.Entry
	err := s.Share.List(ctx, s.Meta(dir), func(e client.Entry) error {
		key, ok := strings.CutSuffix(e.Name, RecordSuffix)
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
