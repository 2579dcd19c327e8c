package fair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// claims is a test's view of Slots: claims are named "tenant/volume/kind".
type claims struct {
	t *testing.T
	*Slots
	releases map[string]func()
	mu       sync.Mutex
}

func start(t *testing.T, l Limits) *claims {
	return &claims{t: t, Slots: New(l), releases: map[string]func(){}}
}

// begin claims a slot in the background.
func (c *claims) begin(name string) {
	parts := strings.Split(name, "/")
	go func() {
		release, err := c.Acquire(c.t.Context(), Request{Tenant: parts[0], Volume: parts[1], Kind: parts[2]})
		if err != nil {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.releases[name] = release
	}()
	synctest.Wait()
}

func (c *claims) end(name string) {
	c.t.Helper()
	c.mu.Lock()
	release := c.releases[name]
	delete(c.releases, name)
	c.mu.Unlock()
	if release == nil {
		c.t.Fatalf("%s does not run", name)
	}
	release()
	release() // once more does nothing
	synctest.Wait()
}

// expect compares the claims that run.
func (c *claims) expect(want ...string) {
	c.t.Helper()
	var got []string
	for _, e := range c.Entries() {
		if e.Running {
			got = append(got, e.Tenant+"/"+e.Volume+"/"+e.Kind)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		c.t.Fatalf("running: %q, want %q", got, want)
	}
}

func TestNoTenantVolumeOrKindHoldsAllSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, Limits{Slots: 4, Tenant: 2, Kind: 3})
		for i := range 5 {
			c.begin(fmt.Sprintf("hog/v%d/snapshot", i))
		}
		c.expect("hog/v0/snapshot", "hog/v1/snapshot")
		c.begin("a/w/snapshot")
		c.expect("hog/v0/snapshot", "hog/v1/snapshot", "a/w/snapshot")
		c.begin("b/x/snapshot") // one kind at most holds three
		c.expect("hog/v0/snapshot", "hog/v1/snapshot", "a/w/snapshot")
		c.begin("b/x/clone")
		c.expect("hog/v0/snapshot", "hog/v1/snapshot", "a/w/snapshot", "b/x/clone")
		c.end("hog/v0/snapshot")
		c.expect("hog/v1/snapshot", "hog/v2/snapshot", "a/w/snapshot", "b/x/clone") // hog was served before b
		c.end("a/w/snapshot")
		c.expect("hog/v1/snapshot", "hog/v2/snapshot", "b/x/snapshot", "b/x/clone")
	})
}

func TestAVolumeOfNoKnownTenantIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, Limits{Slots: 4, Tenant: 2, Kind: 4})
		for _, name := range []string{"/v/a", "/v/b", "/v/c", "/w/a", "x/v/d"} {
			c.begin(name)
		}
		c.expect("/v/a", "/v/b", "/w/a") // v has its two, of any tenant
	})
}

func TestAFreeSlotGoesToTheTenantWithTheFewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, Limits{Slots: 2, Tenant: 2, Kind: 2})
		for i := range 100 {
			c.begin(fmt.Sprintf("hog/v%d/copy", i))
		}
		c.begin("late/w/copy")
		c.begin("later/x/copy")
		c.expect("hog/v0/copy", "hog/v1/copy")
		c.end("hog/v1/copy")
		c.expect("hog/v0/copy", "late/w/copy")
		c.end("hog/v0/copy") // late holds a slot, hog and later hold none: later was never served
		c.expect("late/w/copy", "later/x/copy")
		c.end("late/w/copy")
		c.expect("hog/v2/copy", "later/x/copy")
	})
}

func TestAClaimThatIsGivenUpLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, Limits{Slots: 1, Tenant: 1, Kind: 1})
		c.begin("a/v/copy")
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := c.Acquire(ctx, Request{Tenant: "b", Volume: "w", Kind: "copy"})
			failed <- err
		}()
		synctest.Wait()
		if n := len(c.Entries()); n != 2 {
			t.Fatalf("%d entries, want one that runs and one that waits", n)
		}
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "w") {
			t.Errorf("Acquire = %v, want Canceled that names the volume", err)
		}
		c.begin("c/x/copy")
		c.end("a/v/copy")
		c.expect("c/x/copy")
		c.end("c/x/copy")
		c.expect()
	})
}

// TestEveryClaimIsServed: many claims of many tenants at once, each of which holds its slot
// briefly.
func TestEveryClaimIsServed(t *testing.T) {
	limits := Limits{Slots: 4, Tenant: 2, Kind: 3}
	s := New(limits)
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			release, err := s.Acquire(t.Context(),
				Request{Kind: fmt.Sprint("k", i%2), Tenant: fmt.Sprint("t", i%7), Volume: fmt.Sprint("v", i%30)})
			if err != nil {
				t.Error(err)
				return
			}
			running := 0
			for _, e := range s.Entries() {
				if e.Running {
					running++
				}
			}
			if running > limits.Slots {
				t.Errorf("%d claims run", running)
			}
			release()
		})
	}
	wg.Wait()
	if left := s.Entries(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}
