// Package store keeps objects below a root directory: volumes, snapshots and groups, each with a
// record and its data. The package makes them durable in the right order, and knows nothing of
// their meaning.
//
//	<root>/identity.json              identity of the root
//	<root>/volumes/<id>/record.json   beside the data of the volume
//	<root>/snapshots/<id>/record.json beside the data of the snapshot
//	<root>/groups/<id>/record.json
//	<root>/staging/                   incomplete objects; moved to trash/ at start
//	<root>/trash/                     deleted objects
//
// An object is filled in staging/, made durable, and renamed to its final name, so a SIGKILL or a
// power cut leaves the whole object or none. A deletion is a rename to trash/. Every path is
// resolved by package beneath, which follows no link.
package store

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/dacl"
)

// Directories of the root.
const (
	Volumes    = "volumes"
	Snapshots  = "snapshots"
	Groups     = "groups"
	Incomplete = "staging"
	Trash      = "trash"
)

// Names in the directory of an object.
const (
	Record = "record.json"
	Data   = "data"
	image  = "image"
)

// ErrUnavailable reports a root that cannot be used now. The object of the call may exist
// nevertheless.
var ErrUnavailable = errors.New("not available now")

// Config selects the root to open.
type Config struct {
	Root       string   // absolute path of an existing directory
	Node       string   // name of this node
	RootRecord string   // file outside Root that remembers the root that was served
	Release    string   // of the driver, for operators who read identity.json
	Init       bool     // take Root if it is empty and RootRecord records no root
	Adopt      bool     // take Root regardless of RootRecord
	Lost       []string // UUIDs of roots that never come back

	ImageExt     string                         // of the names of images: that of mounter.Images
	IsFilesystem func(dir string) (bool, error) // that of mounter.Images
}

// Store is an open root. Its methods may be called by many goroutines.
type Store struct {
	path   string // of the root, as it was configured: for messages
	real   string // the same without links, for the Mounter, which follows none
	dir    *beneath.Dir
	info   fs.FileInfo // of the root
	lock   *os.File
	parked *Parked
	image  string // name of an image in the directory of its object
	whole  bool   // the root is the top of a filesystem that belongs to the store alone
}

// Open opens the root, verifies that it is the right root and that no other process serves it, and
// makes its directories. Open never makes the root itself: on the mount point of an absent data
// disk, that would hide the mistake. The caller closes the store.
func Open(cfg Config) (_ *Store, err error) {
	s := &Store{path: cfg.Root, parked: newParked(), image: image + cmp.Or(cfg.ImageExt, ".raw")}
	if s.dir, err = beneath.Open(cfg.Root); err != nil {
		return nil, fmt.Errorf("the root must exist: mount its disk, or make the directory: %w", err)
	}
	opened := false
	defer func() {
		if !opened { // also after a panic: the next attempt needs the lock
			s.Close()
		}
	}()
	if s.info, err = s.dir.Stat(); err != nil {
		return nil, err
	}
	if s.real, err = filepath.EvalSymlinks(cfg.Root); err != nil {
		return nil, err
	}
	if err = s.InPlace(); err != nil {
		return nil, err
	}
	if s.lock, err = lockRoot(s.dir); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Root, err)
	}
	if err = identify(s.dir, cfg); err != nil {
		return nil, err
	}
	if err = dacl.Protect(cfg.Root); err != nil {
		return nil, err
	}
	if err = s.makeDirectories(); err != nil {
		return nil, err
	}
	// If the owner of the filesystem is unknown, the store counts as one of several users: the
	// available space is then too low, never too high.
	s.whole, err = cfg.IsFilesystem(cfg.Root)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	opened = true
	return s, nil
}

func (s *Store) makeDirectories() error {
	for _, dir := range []string{Volumes, Snapshots, Groups, Incomplete, Trash} {
		err := s.dir.Mkdir(dir, 0o700)
		if err == nil {
			err = s.dir.Chmod(dir, 0o700) // Windows: Mkdir ignores the mode
		} else if errors.Is(err, fs.ErrExist) {
			err = dacl.Protect(filepath.Join(s.dir.Path(), dir)) // a process may have died in between
		}
		if err != nil {
			return err
		}
	}
	return s.dir.Sync(".")
}

// Close closes the root.
func (s *Store) Close() error {
	err := s.dir.Close()
	if s.lock != nil {
		err = errors.Join(err, unlockRoot(s.lock))
	}
	return err
}

// Image returns the name of an image in the directory of its object: image.raw, or image.vhdx on
// Windows.
func (s *Store) Image() string { return s.image }

// Dir returns the root, for the data of objects. The store closes it.
func (s *Store) Dir() *beneath.Dir { return s.dir }

// Path returns the absolute path of an element of the root, for messages.
func (s *Store) Path(elem ...string) string {
	return filepath.Join(s.path, filepath.FromSlash(path.Join(elem...)))
}

// Real returns the absolute path of an element of the root without links, as the kernel shows it.
func (s *Store) Real(elem ...string) string {
	return filepath.Join(s.real, filepath.FromSlash(path.Join(elem...)))
}

// InPlace returns ErrUnavailable if the path of the root leads to another directory than the open
// root: its disk was unmounted, another disk was mounted over it, or a link in the path was
// changed.
func (s *Store) InPlace() error {
	paths := []string{s.path}
	if s.real != s.path {
		paths = append(paths, s.real)
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("%w: the root: %w", ErrUnavailable, err)
		}
		if !os.SameFile(info, s.info) {
			return fmt.Errorf("%w: the root %s is another directory than at the start: restart the driver",
				ErrUnavailable, path)
		}
	}
	return nil
}

// Writable returns an error if no file can be made. A full disk is no error: its volumes are
// served.
func (s *Store) Writable() error {
	f, name, err := s.Probe()
	if err == nil {
		err = errors.Join(f.Close(), s.dir.Remove(name))
	}
	if err == nil || IsFull(err) {
		return nil
	}
	if in := (*fs.PathError)(nil); errors.As(err, &in) {
		err = in.Err // without the name, so that the same reason always has the same text
	}
	return fmt.Errorf("the root %s is not writable: %w", s.path, err)
}

// Probe makes an empty file for tests of the filesystem's abilities, and returns its path below the
// root. The caller closes and removes it.
func (s *Store) Probe() (file *os.File, name string, err error) {
	name = path.Join(Incomplete, "probe-"+Random())
	file, err = s.dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return file, name, err
}

// Sync makes the entries of directories of the root durable.
func (s *Store) Sync(dirs ...string) error {
	for _, dir := range dirs {
		if err := s.dir.Sync(dir); err != nil {
			return err
		}
	}
	return nil
}

// Random returns a suffix that makes a name unique.
func Random() string { return strings.ToLower(rand.Text()[:10]) }
