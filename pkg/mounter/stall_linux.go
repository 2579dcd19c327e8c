package mounter

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// maxStalled is the number of stalled images of a tenant from which on no further image of the
// tenant gets a helper, so that helpers are left for the others.
const maxStalled = 8

// stalls are the stalled images: those with a helper or a program that the driver has given up, and
// that has not ended. Its zero value is empty and usable.
type stalls struct {
	mu      sync.Mutex
	byImage map[backing][]*stall
}

type stall struct {
	path   string // of the image
	tenant string // as Mount.Tenant
	why    string
	since  time.Time
}

func (s *stall) String() string {
	return fmt.Sprintf("%s (since %s)", s.why, s.since.UTC().Format(time.RFC3339))
}

// add records that image b of a tenant is stalled, until the caller calls done.
func (s *stalls) add(path string, b backing, tenant, why string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byImage == nil {
		s.byImage = map[backing][]*stall{}
	}
	added := &stall{path: path, tenant: tenant, why: why, since: time.Now()}
	s.byImage[b] = append(s.byImage[b], added)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.byImage[b] = slices.DeleteFunc(s.byImage[b], func(other *stall) bool { return other == added })
		if len(s.byImage[b]) == 0 {
			delete(s.byImage, b)
		}
	}
}

// check returns ErrStalled if image b is stalled.
func (s *stalls) check(b backing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all := s.byImage[b]; len(all) > 0 {
		return fmt.Errorf("%w: %s: %s", ErrStalled, all[0].path, all[0])
	}
	return nil
}

// admit returns ErrStalled while the tenant has maxStalled or more stalled images, so that no
// further image of the tenant can occupy a helper. It admits an unknown tenant ("").
func (s *stalls) admit(tenant string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, all := range s.byImage {
		if tenant != "" && slices.ContainsFunc(all, func(stalled *stall) bool { return stalled.tenant == tenant }) {
			n++
		}
	}
	if n >= maxStalled {
		return fmt.Errorf("%w: %d images of namespace %s are stalled: end the pods that use these images",
			ErrStalled, n, tenant)
	}
	return nil
}

// Supports returns errors.ErrUnsupported for a filesystem of another operating system.
func (l *linux) Supports(k Kind, fsType string, options []string) error {
	return Linux.Supports(k, fsType, options)
}

func (l *linux) Helpers() []Helpers {
	freezes, maxFreezes := l.freezers.Busy()
	others, maxOthers := l.helpers.Busy()
	shares, maxShares := l.shareHelpers.Busy()
	return []Helpers{{"freeze", freezes, maxFreezes}, {"mount", others, maxOthers}, {"share", shares, maxShares}}
}

// failures adds the stalled images to all, by path.
func (s *stalls) failures(all map[string]Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stalled := range s.byImage {
		all[stalled[0].path] = Failure{Stalled, stalled[0].String()}
	}
}
