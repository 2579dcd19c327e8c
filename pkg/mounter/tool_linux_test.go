package mounter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/internal/testdisk"
)

// useTool replaces a program with a shell script.
func useTool(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// format formats an image, and gives up a program that makes no progress for limit.
func (b *bench) format(m Mount, limit time.Duration) error {
	b.t.Helper()
	b.Host.(*linux).toolLimit = limit
	f, err := os.OpenFile(m.Source, os.O_RDWR, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	return b.Host.(*linux).fillImage(context.Background(), f, 320<<20, "ext4")
}

func TestProgramWithoutProgressIsGivenUp(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "")
	file := filepath.Join(t.TempDir(), "pid")
	useTool(t, "mkfs.ext4", "echo $$ > "+file+"; exec sleep 1000")
	if err := b.format(m, time.Second); !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), "no progress") {
		t.Fatalf("fillImage = %v, want ErrStalled for lack of progress", err)
	}
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
		t.Error("the program still runs")
	}
	if all, err := b.Failing(); err != nil || len(all) > 0 {
		t.Errorf("after its end the image is in the state %v, %v", all, err)
	}
}

// TestProgramWithProgressIsNotGivenUp: a program may run longer than the limit while it makes
// progress.
func TestProgramWithProgressIsNotGivenUp(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "")
	useTool(t, "mkfs.ext4", "i=0; while [ $i -lt 60 ]; do echo; i=$((i+1)); sleep 0.1; done")
	if err := b.format(m, 4*time.Second); err != nil {
		t.Errorf("fillImage = %v", err)
	}
}

// TestUnkillableProgramMakesTheImageStalled: the program waits in the kernel for the lock of a
// file. No other call uses the image until the program ends.
func TestUnkillableProgramMakesTheImageStalled(t *testing.T) {
	b := newLoopBench(t)
	m := b.image("image", "ext4")
	dir := b.path("locked")
	mkdir(t, dir)
	testdisk.Filesystem{Type: "xfs"}.Mount(t, dir)
	held := filepath.Join(dir, "held")
	if err := os.WriteFile(held, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	p := hang.Write(t, held)
	useTool(t, "mkfs.ext4", "exec cat "+held)
	if err := b.format(m, time.Second); !errors.Is(err, ErrStalled) {
		t.Fatalf("fillImage = %v, want ErrStalled", err)
	}
	all, err := b.Failing()
	if err != nil || all[m.Source].Kind != Stalled || !strings.Contains(all[m.Source].Message, "mkfs.ext4") {
		t.Errorf("the image is in the state %+v, %v, want Stalled by mkfs.ext4", all, err)
	}
	b.refused(m, b.path("staging"), ErrStalled)
	if err := b.newUUID(m); !errors.Is(err, ErrStalled) {
		t.Errorf("NewUUID = %v, want ErrStalled", err)
	}
	p.Release()
	await.True(t, "the image is free", func() bool {
		all, err := b.Failing()
		return err == nil && len(all) == 0
	})
	b.mount(m, b.path("staging"))
	b.unmount(b.path("staging"))
}

// TestTenantGetsOnlyHalfOfTheCheckSlots: many checks for a tenant hold half of the slots, and a
// check for another tenant begins at once.
func TestTenantGetsOnlyHalfOfTheCheckSlots(t *testing.T) {
	b := newLoopBench(t)
	hold := filepath.Join(t.TempDir(), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var images []Mount
	for i, tenant := range []string{"a", "a", "a", "a", "a", "a", "b"} {
		m := b.image(fmt.Sprint("image", i), "ext4")
		m.Tenant = tenant
		images = append(images, m)
		mkdir(t, b.path(fmt.Sprint("staging", i)))
	}
	useTool(t, "e2fsck", "while [ -e "+hold+" ]; do echo; sleep 0.1; done")
	var mounts sync.WaitGroup
	for i, m := range images {
		mounts.Go(func() {
			if err := b.Mount(context.Background(), m, b.path(fmt.Sprint("staging", i))); err != nil {
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
		b.unmount(b.path(fmt.Sprint("staging", i)))
	}
}
