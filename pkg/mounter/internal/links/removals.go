package links

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// One goroutine removes mappings: a removal took 225 s in the field (azurefile-csi-driver#1925). No
// call waits for it, but a mount of the same share.

// pin keeps a root mapped until unpin. It returns false while a removal of the root runs. A removal
// that has not begun is canceled.
func (s *mappings) pin(root string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.removals[root]; r != nil {
		if r.begun {
			return false
		}
		s.end(root, r, nil)
	}
	s.pins[root]++
	return true
}

func (s *mappings) unpin(root string) {
	s.mu.Lock()
	if s.pins[root]--; s.pins[root] == 0 {
		delete(s.pins, root)
	}
	s.mu.Unlock()
	s.sweep()
}

// used reports whether a link leads to a root, or another call uses it. own is the root that the
// caller has pinned itself.
func (s *mappings) used(root, own string) bool {
	s.mu.Lock()
	pins := s.pins[root]
	s.mu.Unlock()
	if root == own {
		pins--
	}
	return pins > 0 || s.hasLink(root)
}

// sweep lets the goroutine of removals remove each mapping of this driver that nothing uses.
func (s *mappings) sweep() {
	for _, r := range s.records.all() {
		if s.hasLink(r.Root) {
			continue
		}
		s.mu.Lock()
		if s.pins[r.Root] == 0 && s.removals[r.Root] == nil {
			s.removals[r.Root] = &removal{done: make(chan struct{})}
			s.queue = append(s.queue, r.Root)
			if !s.removing {
				s.removing = true
				go s.remove()
			}
		}
		s.mu.Unlock()
	}
}

// remove makes the removals of the queue, one at a time.
func (s *mappings) remove() {
	for {
		root, r := s.next()
		if r == nil {
			return
		}
		err := guard.Do(func() error { return s.removeRoot(root) })
		s.mu.Lock()
		s.end(root, r, err)
		s.mu.Unlock()
	}
}

// next begins a removal of the queue. It ends the goroutine of removals if there is none.
func (s *mappings) next() (root string, r *removal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		root, s.queue = s.queue[0], s.queue[1:]
		// A call that pins the root has canceled its removal. A sweep may have looked for links
		// before that call made one.
		if r := s.removals[root]; r != nil && !r.begun {
			if !s.hasLink(root) {
				r.begun = true
				return root, r
			}
			s.end(root, r, nil)
		}
	}
	s.removing = false
	return "", nil
}

// end ends a removal. s.mu is held.
func (s *mappings) end(root string, r *removal, err error) {
	r.err = err
	delete(s.removals, root)
	close(r.done)
}

// removeRoot removes a mapping, and then its record.
func (s *mappings) removeRoot(root string) error {
	if _, isOwn := s.records.get(root); !isOwn { // a sweep has read the record before its removal
		return nil
	}
	failed := s.host.UnmapShare(root)
	_, err := s.host.Mapping(root)
	switch {
	case err == nil && failed == nil:
		return fmt.Errorf("%w: the system reports success, and %s is still mapped", mounter.ErrBusy, root)
	case !errors.Is(err, fs.ErrNotExist):
		return errors.Join(failed, err)
	}
	s.mu.Lock()
	delete(s.digests, root)
	s.mu.Unlock()
	return s.records.remove(root)
}

// usage returns the usage of the share with a directory, until ctx ends.
func (s *mappings) usage(ctx context.Context, text string) (mounter.Usage, error) {
	u, err := s.flights.Do(ctx, "usage of "+text, func() (mounter.Usage, error) { return s.host.ShareUsage(text) })
	if err != nil {
		return mounter.Usage{}, fmt.Errorf("%s: %w", text, Classify(err))
	}
	return u, nil
}

// await waits for the removal of a root, until ctx ends.
func (s *mappings) await(ctx context.Context, root string) error {
	s.mu.Lock()
	r := s.removals[root]
	s.mu.Unlock()
	if r == nil { // it has ended
		return nil
	}
	select {
	case <-r.done:
		if r.err != nil {
			return fmt.Errorf("remove the old mapping of %s: %w", root, Classify(r.err))
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the removal of the old mapping of %s: %w", root, ctx.Err())
	}
}
