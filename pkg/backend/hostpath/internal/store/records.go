package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
)

// readers is the number of goroutines that read records at start.
const readers = 4

// Kind is a kind of object.
type Kind[T any] struct {
	Dir    string
	Format record.Format
	IsName func(name string) bool             // reports whether an entry of Dir is an object
	Check  func(object *T, name string) error // returns an error for an invalid record of the object name
}

// ReadAll reads the records of all objects of a kind. broken are the errors of objects that cannot
// be used, by name.
func ReadAll[T any](s *Store, kind Kind[T]) (objects []*T, broken map[string]error, err error) {
	names, err := s.dir.Names(kind.Dir)
	if err != nil {
		return nil, nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !kind.IsName(name) })
	dir, err := s.dir.OpenDir(kind.Dir)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	objects, broken = make([]*T, 0, len(names)), map[string]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	queue := make(chan string)
	for range readers {
		wg.Go(func() {
			for name := range queue {
				object, err := guard.Value(func() (*T, error) { return kind.read(dir, name) })
				mu.Lock()
				if err != nil {
					broken[name] = err
				} else {
					objects = append(objects, object)
				}
				mu.Unlock()
			}
		})
	}
	for _, name := range names {
		queue <- name
	}
	close(queue)
	wg.Wait()
	return objects, broken, nil
}

// read reads the record of the object called name in dir.
func (kind Kind[T]) read(dir *beneath.Dir, name string) (*T, error) {
	object := new(T)
	err := kind.Format.Read(dir, path.Join(name, Record), object)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: missing", record.ErrDamaged)
	}
	if err == nil {
		err = kind.Check(object, name)
	}
	return object, err
}

// WriteRecord writes the record of an incomplete object, which the caller has opened, durably but
// for its entry.
func WriteRecord(incomplete *beneath.Dir, format record.Format, object any) error {
	return format.Create(incomplete, Record, object)
}

// RecordIncomplete durably writes the record of an incomplete object. incomplete is its path below
// the root.
func (s *Store) RecordIncomplete(incomplete string, format record.Format, object any) error {
	dir, err := s.dir.OpenDir(incomplete)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := WriteRecord(dir, format, object); err != nil {
		return err
	}
	return dir.Sync(".")
}

// ReadIncomplete reads the record of an entry of staging/. Errors: fs.ErrNotExist if the entry is
// no directory or has no record, those of record.Format.
func (s *Store) ReadIncomplete(name string, format record.Format, object any) error {
	dir, err := s.dir.OpenDir(path.Join(Incomplete, name))
	if errors.Is(err, beneath.ErrType) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return format.Read(dir, Record, object)
}

// Rewrite replaces the record of the object called id in dir, durably.
func (s *Store) Rewrite(dir, id string, format record.Format, object any) error {
	of, err := s.dir.OpenDir(path.Join(dir, id))
	if err != nil {
		return err
	}
	defer of.Close()
	return format.Replace(of, Record, object)
}
