package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"

	"github.com/causeway-csi/causeway/internal/crashpoint"
)

// Delete moves the object id in dir to the trash, durably. An object that an earlier attempt has
// moved is no error. Errors: ErrUnavailable on a filesystem that is read-only.
func (s *Store) Delete(dir, id string) error {
	err := s.dir.Rename(path.Join(dir, id), path.Join(Trash, id+"-"+Random()))
	if IsReadOnly(err) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	crashpoint.Reached("delete:renamed")
	// One fsync of the new parent makes a rename durable on ext4, xfs and btrfs.
	if err := s.dir.Sync(Trash); err != nil {
		return err
	}
	crashpoint.Reached("delete:durable")
	return nil
}

// Sweep moves the entry name in dir, which a crash has left, to the trash.
func (s *Store) Sweep(dir, name string) error {
	if err := s.dir.Rename(path.Join(dir, name), path.Join(Trash, name+"-"+Random())); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	crashpoint.Reached("sweep:moved")
	return nil
}

// Parked returns the entries of the trash that must not be removed yet.
func (s *Store) Parked() *Parked { return s.parked }

// maxRemovals is the number of removals that may hang: each of them keeps a helper process.
const maxRemovals = 16

// Parked are entries of the trash whose files may still be in use.
type Parked struct {
	freed chan struct{} // receives when an entry is no longer parked

	mu       sync.Mutex
	names    map[string]string // with the reason
	removals int               // of names: their removal hangs
}

func newParked() *Parked { return &Parked{freed: make(chan struct{}, 1), names: map[string]string{}} }

// Freed returns a channel that receives when an entry is no longer parked.
func (p *Parked) Freed() <-chan struct{} { return p.freed }

// Add parks an entry until gone is closed.
func (p *Parked) Add(name, why string, gone <-chan struct{}) { p.park(name, why, 0, gone) }

// AddRemoval parks an entry whose removal hangs until gone is closed.
func (p *Parked) AddRemoval(name, why string, gone <-chan struct{}) { p.park(name, why, 1, gone) }

func (p *Parked) park(name, why string, removals int, gone <-chan struct{}) {
	p.mu.Lock()
	p.names[name] = why
	p.removals += removals
	p.mu.Unlock()
	go func() {
		<-gone
		p.mu.Lock()
		delete(p.names, name)
		p.removals -= removals
		p.mu.Unlock()
		select {
		case p.freed <- struct{}{}:
		default:
		}
	}()
}

// Without returns the names of entries that are not parked, and an error about a parked entry.
func (p *Parked) Without(names []string) (free []string, parked error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		if why, ok := p.names[name]; ok {
			parked = fmt.Errorf("in %s: %s", name, why)
		} else {
			free = append(free, name)
		}
	}
	return free, parked
}

// Full returns an error if so many removals hang that no further removal may begin.
func (p *Parked) Full() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removals < maxRemovals {
		return nil
	}
	return fmt.Errorf("%d removals hang", p.removals)
}
