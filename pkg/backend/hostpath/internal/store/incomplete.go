package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
)

// ErrUndecided reports an object that has its final name, but perhaps not durably: only the next
// start can decide.
var ErrUndecided = fmt.Errorf("%w: restart the driver", ErrUnavailable)

// InUse is an error after which a process may still use the files of an object, until Gone is
// closed.
type InUse interface {
	error
	Gone() <-chan struct{}
}

// MakeObject makes the object id in dir. fill durably puts a record and data into the incomplete
// directory. After an error other than ErrUndecided the object does not exist: its parts are
// removed or in the trash.
func (s *Store) MakeObject(ctx context.Context, dir, id string, fill func(incomplete *beneath.Dir) error) error {
	incomplete, err := s.prepare(ctx, id, fill)
	if err != nil {
		return err
	}
	final := path.Join(dir, id)
	if err := s.dir.Rename(incomplete, final); err != nil {
		return errors.Join(err, s.discard(incomplete))
	}
	crashpoint.Reached("create:renamed")
	if err := s.dir.Sync(dir); err != nil {
		if undo := s.dir.Rename(final, incomplete); undo != nil { // the next start finds the whole object
			return fmt.Errorf("%w: %w", ErrUndecided, errors.Join(err, undo))
		}
		return errors.Join(err, s.discard(incomplete))
	}
	crashpoint.Reached("create:durable")
	return nil
}

// prepare makes an incomplete directory, durably but for its entry in staging/, and returns its
// path.
func (s *Store) prepare(ctx context.Context, id string,
	fill func(incomplete *beneath.Dir) error) (incomplete string, err error) {
	if incomplete, err = s.NewIncomplete(id); err != nil {
		return "", err
	}
	crashpoint.Reached("create:half-made")
	if err := errors.Join(s.filled(incomplete, fill), ctx.Err()); err != nil {
		return "", errors.Join(err, s.Drop(incomplete, err))
	}
	return incomplete, nil
}

// NewIncomplete makes an incomplete directory for the object called id, and returns its path below
// the root.
func (s *Store) NewIncomplete(id string) (incomplete string, err error) {
	incomplete = path.Join(Incomplete, id+"-"+Random())
	return incomplete, s.dir.Mkdir(incomplete, 0o700)
}

// filled calls fill. filled leaves no file open: Windows renames no directory that is open.
func (s *Store) filled(incomplete string, fill func(incomplete *beneath.Dir) error) error {
	dir, err := s.dir.OpenDir(incomplete)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := fill(dir); err != nil {
		return err
	}
	crashpoint.Reached("create:recorded")
	return dir.Sync(".")
}

// MoveIn renames an incomplete directory, if present, to its final name id in dir. The caller
// syncs dir.
func (s *Store) MoveIn(incomplete, dir, id string) error {
	if _, err := s.dir.Lstat(incomplete); errors.Is(err, fs.ErrNotExist) {
		return nil // the object has its final name
	}
	return s.dir.Rename(incomplete, path.Join(dir, id))
}

// Drop removes an incomplete directory after the error why. If why is InUse, Drop moves the
// directory to the trash and parks it there: the removal of a file would wait for a lock of the
// stalled process.
func (s *Store) Drop(incomplete string, why error) error {
	var use InUse
	if !errors.As(why, &use) {
		return s.discard(incomplete)
	}
	name := path.Base(incomplete)
	if err := s.dir.Rename(incomplete, path.Join(Trash, name)); err != nil {
		return err
	}
	s.parked.Add(name, "a copy to it hangs", use.Gone())
	return nil
}

// discard removes an incomplete directory: at once, or through the trash if it contains a tree.
func (s *Store) discard(incomplete string) error {
	if err := DiscardData(s.dir, incomplete, nil); err != nil { // the trash is emptied with retries
		return s.dir.Rename(incomplete, path.Join(Trash, path.Base(incomplete)))
	}
	for _, name := range []string{path.Join(incomplete, Record), path.Join(incomplete, s.image),
		path.Join(incomplete, Data), incomplete} {
		if err := s.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.dir.Rename(incomplete, path.Join(Trash, path.Base(incomplete)))
		}
	}
	return nil
}

// DiscardData removes the limit from the data of an entry of trash/ or staging/ in root, so that
// the data can be removed. taken reports whether a volume has a project.
func DiscardData(root *beneath.Dir, entry string, taken func(uint32) bool) error {
	dir, err := root.OpenDirFile(entry)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, beneath.ErrType) { // a file that the driver did not make
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return quota.Discard(dir, Data, taken)
}
