package filesystem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// TestNoTenantGrowsInAllHelpers: growths that begin at the same time are not yet known to hang.
func TestNoTenantGrowsInAllHelpers(t *testing.T) {
	b := linuxtest.NewFreezeBench(t)
	l := b.Host.(*linux.Host)
	m := b.Image("image", "ext4")
	b.MustMount(m, b.Path("staging"))
	for i := range filesystem.GrowSlots.Tenant {
		leave, err := l.Filesystems.GrowthSlots.Acquire(t.Context(), fair.Request{Kind: "grow", Tenant: "a",
			Volume: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	for _, tenant := range []string{"b", ""} {
		m.Tenant = tenant
		if err := b.Grow(t.Context(), m, b.Path("staging")); err != nil {
			t.Errorf("Grow of tenant %q = %v", tenant, err)
		}
	}
	m.Tenant = "a"
	ctx, cancel := context.WithCancel(t.Context())
	grown := make(chan error, 1)
	go func() { grown <- b.Grow(ctx, m, b.Path("staging")) }()
	await.True(t, "the growth of tenant a waits", func() bool {
		waits := func(e fair.Entry) bool { return !e.Running }
		return len(grown) > 0 || slices.ContainsFunc(l.Filesystems.GrowthSlots.Entries(), waits)
	})
	cancel()
	if err := <-grown; !errors.Is(err, context.Canceled) {
		t.Errorf("Grow of tenant a = %v, want %v", err, context.Canceled)
	}
	b.MustUnmount(b.Path("staging"))
}

// TestTenantGetsOnlyHalfOfTheCheckSlots: many checks for a tenant hold half of the slots, and a
// check for another tenant begins at once.
func TestTenantGetsOnlyHalfOfTheCheckSlots(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	hold := filepath.Join(t.TempDir(), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var images []mounter.Mount
	for i, tenant := range []string{"a", "a", "a", "a", "a", "a", "b"} {
		m := b.Image(fmt.Sprint("image", i), "ext4")
		m.Tenant = tenant
		images = append(images, m)
		linuxtest.Mkdir(t, b.Path(fmt.Sprint("staging", i)))
	}
	linuxtest.UseTool(t, "e2fsck", "while [ -e "+hold+" ]; do echo; sleep 0.1; done")
	var mounts sync.WaitGroup
	for i, m := range images {
		mounts.Go(func() {
			if err := b.Mount(context.Background(), m, b.Path(fmt.Sprint("staging", i))); err != nil {
				t.Errorf("Mount of image %d = %v", i, err)
			}
		})
	}
	running := map[string]int{}
	await.True(t, "tenant b's check runs and all others have begun to wait", func() bool {
		clear(running)
		checks := b.Checks()
		for _, c := range checks {
			if c.Running {
				running[c.Tenant]++
			}
		}
		return len(checks) == len(images) && running["b"] == 1
	})
	if running["a"] != 4 {
		t.Errorf("tenant a holds %d of 8 slots, want 4", running["a"])
	}
	if err := os.Remove(hold); err != nil {
		t.Error(err)
	}
	mounts.Wait()
	for i := range images {
		b.MustUnmount(b.Path(fmt.Sprint("staging", i)))
	}
}
