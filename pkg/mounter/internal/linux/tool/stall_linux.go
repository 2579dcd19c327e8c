package tool

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// MaxStalled is the number of stalled images of a tenant from which on no further image of the
// tenant gets a helper, so that helpers are left for the others.
const MaxStalled = 8

// Stalls are the stalled images: those with a helper or a program that the driver has given up, and
// that has not ended. Its zero value is empty and usable.
type Stalls struct {
	mu      sync.Mutex
	byImage map[tree.Backing][]*stall
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

// Add records that image b of a tenant is stalled, until the caller calls done.
func (s *Stalls) Add(path string, b tree.Backing, tenant, why string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byImage == nil {
		s.byImage = map[tree.Backing][]*stall{}
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

// Check returns ErrStalled if image b is stalled.
func (s *Stalls) Check(b tree.Backing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all := s.byImage[b]; len(all) > 0 {
		return fmt.Errorf("%w: %s: %s", mounter.ErrStalled, all[0].path, all[0])
	}
	return nil
}

// Admit returns ErrStalled while the tenant has MaxStalled or more stalled images, so that no
// further image of the tenant can occupy a helper. It admits an unknown tenant ("").
func (s *Stalls) Admit(tenant string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, all := range s.byImage {
		if tenant != "" && slices.ContainsFunc(all, func(stalled *stall) bool { return stalled.tenant == tenant }) {
			n++
		}
	}
	if n >= MaxStalled {
		return fmt.Errorf("%w: %d images of namespace %s are stalled: end the pods that use these images",
			mounter.ErrStalled, n, tenant)
	}
	return nil
}

// Failures adds the stalled images to all, by path.
func (s *Stalls) Failures(all map[string]mounter.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stalled := range s.byImage {
		all[stalled[0].path] = mounter.Failure{Kind: mounter.Stalled, Message: stalled[0].String()}
	}
}
