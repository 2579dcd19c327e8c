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

// Make makes the object id in dir. fill durably puts a record and data into the incomplete
// directory. After an error no part of the object is left, unless the error is ErrUndecided.
func (s *Store) Make(ctx context.Context, dir, id string, fill func(half *beneath.Dir) error) error {
	half, err := s.prepare(ctx, id, fill)
	if err != nil {
		return err
	}
	final := path.Join(dir, id)
	if err := s.dir.Rename(half, final); err != nil {
		return errors.Join(err, s.discard(half))
	}
	crashpoint.Reached("create:renamed")
	if err := s.dir.Sync(dir); err != nil {
		if undo := s.dir.Rename(final, half); undo != nil { // the next start finds the whole object
			return fmt.Errorf("%w: %w", ErrUndecided, errors.Join(err, undo))
		}
		return errors.Join(err, s.discard(half))
	}
	crashpoint.Reached("create:durable")
	return nil
}

// prepare makes an incomplete directory, durably but for its entry in staging/, and returns its
// path.
func (s *Store) prepare(ctx context.Context, id string, fill func(half *beneath.Dir) error) (half string, err error) {
	if half, err = s.NewIncomplete(id); err != nil {
		return "", err
	}
	crashpoint.Reached("create:half-made")
	if err := errors.Join(s.filled(half, fill), ctx.Err()); err != nil {
		return "", errors.Join(err, s.Drop(half, err))
	}
	return half, nil
}

// NewIncomplete makes an incomplete directory for the object called id, and returns its path below
// the root.
func (s *Store) NewIncomplete(id string) (half string, err error) {
	half = path.Join(Incomplete, id+"-"+Random())
	return half, s.dir.Mkdir(half, 0o700)
}

// filled calls fill. filled leaves no file open: Windows renames no directory that is open.
func (s *Store) filled(half string, fill func(half *beneath.Dir) error) error {
	dir, err := s.dir.OpenDir(half)
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
func (s *Store) MoveIn(half, dir, id string) error {
	if _, err := s.dir.Lstat(half); errors.Is(err, fs.ErrNotExist) {
		return nil // the object has its final name
	}
	return s.dir.Rename(half, path.Join(dir, id))
}

// Drop removes an incomplete directory after the error why. If why is InUse, Drop moves the
// directory to the trash and parks it there: the removal of a file would wait for a lock of the
// hanging process.
func (s *Store) Drop(half string, why error) error {
	var use InUse
	if !errors.As(why, &use) {
		return s.discard(half)
	}
	name := path.Base(half)
	if err := s.dir.Rename(half, path.Join(Trash, name)); err != nil {
		return err
	}
	s.parked.Add(name, "a copy to it hangs", use.Gone())
	return nil
}

// discard removes an incomplete directory: at once, or by way of the trash if it holds a tree.
func (s *Store) discard(half string) error {
	if err := DiscardData(s.dir, half, nil); err != nil { // the emptying of the trash tries again
		return s.dir.Rename(half, path.Join(Trash, path.Base(half)))
	}
	for _, name := range []string{path.Join(half, Record), path.Join(half, Image), path.Join(half, Data), half} {
		if err := s.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.dir.Rename(half, path.Join(Trash, path.Base(half)))
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
