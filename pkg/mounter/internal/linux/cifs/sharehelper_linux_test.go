package cifs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/cifs"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// silentDir mounts a filesystem that never answers, as a share whose server is silent, and returns
// its root.
func silentDir(t *testing.T, path string) *os.File {
	t.Helper()
	linuxtest.Mkdir(t, path)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no fuse: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("silent", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Skipf("no fuse mounts: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	return rootFile(t, path)
}

func rootFile(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { f.Close() })
	return f
}

// TestAnUnmountWithoutAHelper: silent servers have all helpers for unmounts, so nothing is known of
// another server. An unmount on it does not end as if that server were silent.
func TestAnUnmountWithoutAHelper(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	l := b.Host.(*linux.Host)
	for i := range cifs.UnmountSlots.Slots {
		server := fmt.Sprint("silent-", i/cifs.UnmountSlots.Tenant)
		leave, err := cifs.UnmountSlotsOf(l.Shares).Acquire(t.Context(), fair.Request{Kind: cifs.UnmountShareTask.Name,
			Tenant: server,
			Volume: server})
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // an unmount gets a free helper even then
	err := cifs.Run(l.Shares, ctx, "alive", nil, cifs.UnmountShareTask, cifs.ShareRequest{Name: "none"}, nil,
		rootFile(t, b.Storage))
	if !errors.Is(err, cifs.ErrNoSlot) {
		t.Errorf("without a helper: %v, want errNoSlot", err)
	}
	if cifs.IsSilent(l.Shares, "alive") {
		t.Error("a server of which nothing is known counts as silent")
	}
	if cifs.SetSilent(l.Shares, "silent"); !cifs.IsSilent(l.Shares, "silent") {
		t.Error("a silent server does not count as silent")
	}
}

// TestASilentServerLeavesHelpers: more calls on a silent server than there are helpers leave
// helpers for the calls on another server, and end with their context.
func TestASilentServerLeavesHelpers(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	l := b.Host.(*linux.Host)
	silent, alive := silentDir(t, b.Path("silent")), rootFile(t, b.Storage)
	_, helpers := l.Shares.Helpers.Busy()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	for range helpers + 16 {
		group.Go(func() {
			err := cifs.Run(l.Shares, ctx, "silent", nil, cifs.UsageTask, cifs.ShareRequest{}, new(mounter.Usage), silent)
			// A call has its own limit, too, which passes first on a slow machine.
			if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("on a silent server: %v", err)
			}
		})
	}
	await.True(t, "helpers wait for the silent server", func() bool {
		busy, _ := l.Shares.Helpers.Busy()
		return busy >= cifs.ShareSlots.Tenant
	})
	for range 20 {
		var u mounter.Usage
		err := cifs.Run(l.Shares, t.Context(), "alive", nil, cifs.UsageTask, cifs.ShareRequest{}, &u, alive)
		if err != nil || u == (mounter.Usage{}) {
			t.Errorf("on another server: %+v, %v", u, err)
		}
	}
	cancel()
	group.Wait()
	await.True(t, "all helpers and slots are free", func() bool {
		busy, _ := l.Shares.Helpers.Busy()
		return busy == 0 && len(cifs.SlotsOf(l.Shares).Entries()) == 0
	})
}
