package mounter

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Few helpers may hang for one tenant, or it would take them from the others. Freezes have slots in
// the backend.
const (
	maxStalled = 8  // images of one tenant on which helpers hang that were given up
	maxGrowing = 32 // filesystems that grow at the same time
	tenantGrow = 4  // of one tenant
)

// stalls are the images on which a helper, or a program, hangs that was given up. Its zero
// value is empty.
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

// add notes that something hangs on an image, b, of a tenant, until done is called.
func (s *stalls) add(path string, b backing, tenant, why string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byImage == nil {
		s.byImage = map[backing][]*stall{}
	}
	one := &stall{path: path, tenant: tenant, why: why, since: time.Now()}
	s.byImage[b] = append(s.byImage[b], one)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.byImage[b] = slices.DeleteFunc(s.byImage[b], func(other *stall) bool { return other == one })
		if len(s.byImage[b]) == 0 {
			delete(s.byImage, b)
		}
	}
}

// check returns ErrStalled if something hangs on an image.
func (s *stalls) check(b backing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all := s.byImage[b]; len(all) > 0 {
		return fmt.Errorf("%w: %s: %s", ErrStalled, all[0].path, all[0])
	}
	return nil
}

// admit returns ErrStalled while too many images of a tenant are stalled for another one of them to
// be tried. A tenant that is not known ("") is admitted.
func (s *stalls) admit(tenant string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, hanging := range s.byImage {
		if tenant != "" && slices.ContainsFunc(hanging, func(one *stall) bool { return one.tenant == tenant }) {
			n++
		}
	}
	if n >= maxStalled {
		return fmt.Errorf("%w: system calls hang on %d images of namespace %s: end the pods that use these", ErrStalled, n, tenant)
	}
	return nil
}

func (l *linux) Helpers() []Helpers {
	freezes, maxFreezes := l.freezers.Busy()
	others, maxOthers := l.helpers.Busy()
	return []Helpers{{"freeze", freezes, maxFreezes}, {"mount", others, maxOthers}}
}

// failures adds the images that hang to all, by their paths.
func (s *stalls) failures(all map[string]Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, hanging := range s.byImage {
		all[hanging[0].path] = Failure{Stalled, hanging[0].String()}
	}
}
