package mounter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/fair"
)

// silentDir mounts a filesystem that never answers, as a share whose server is silent, and returns
// its root.
func silentDir(t *testing.T, path string) *os.File {
	t.Helper()
	mkdir(t, path)
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
	b := newRealBench(t)
	l := b.Host.(*linux)
	for i := range unmountSlots.Slots {
		server := fmt.Sprint("silent-", i/unmountSlots.Tenant)
		leave, err := l.unmountSlots.Acquire(t.Context(), fair.Request{Kind: unmountShareTask.Name, Tenant: server,
			Volume: server})
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := l.onShare(ctx, "alive", nil, unmountShareTask, shareRequest{Name: "none"}, nil, rootFile(t, b.storage))
	if !errors.Is(err, errNoSlot) {
		t.Errorf("without a helper: %v, want errNoSlot", err)
	}
	if l.silent.is("alive") {
		t.Error("a server of which nothing is known counts as silent")
	}
	if l.silent.set("silent"); !l.silent.is("silent") {
		t.Error("a silent server does not count as silent")
	}
}

// TestASilentServerLeavesHelpers: more calls on a silent server than there are helpers leave
// helpers for the calls on another server, and end within their deadline.
func TestASilentServerLeavesHelpers(t *testing.T) {
	b := newRealBench(t)
	l := b.Host.(*linux)
	silent, alive := silentDir(t, b.path("silent")), rootFile(t, b.storage)
	_, helpers := l.shareHelpers.Busy()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var group sync.WaitGroup
	for range helpers + 16 {
		group.Go(func() {
			err := l.onShare(ctx, "silent", nil, usageTask, shareRequest{}, new(Usage), silent)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("on a silent server: %v", err)
			}
		})
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if busy, _ := l.shareHelpers.Busy(); busy >= shareSlots.Tenant {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no helper waits for the silent server")
		}
	}
	for range 20 {
		var u Usage
		if err := l.onShare(ctx, "alive", nil, usageTask, shareRequest{}, &u, alive); err != nil || u == (Usage{}) {
			t.Errorf("on another server: %+v, %v", u, err)
		}
	}
	group.Wait()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		busy, _ := l.shareHelpers.Busy()
		if busy == 0 && len(l.shareSlots.Entries()) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d helpers are busy, and %v", busy, l.shareSlots.Entries())
		}
	}
}
