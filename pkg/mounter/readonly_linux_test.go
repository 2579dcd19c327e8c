package mounter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/crashpoint"
)

// dirtyCopy returns a disk with a log to replay, as a power cut of its node leaves it. The content
// of file is "synced".
func (b *bench) dirtyCopy(fsType string) Mount {
	b.t.Helper()
	m, staging := b.attachDisk("disk", fsType, diskSize), b.path("staging")
	b.mount(m, staging)
	write(b.t, filepath.Join(staging, "other"), "data")
	runTool(b.t, "sync", "-f", staging)
	writeSynced(b.t, filepath.Join(staging, "file"), "synced")
	copied := filepath.Join(b.storage, "copied")
	runTool(b.t, "cp", filepath.Join(b.storage, "disk"), copied)
	b.unmount(staging)
	dirty := b.attachDisk("dirty", fsType, diskSize)
	runTool(b.t, "dd", "if="+copied, "of="+dirty.Source, "bs=1M", "conv=fsync,sparse", "status=none")
	return dirty
}

func readOnlyState(t *testing.T, device string) string {
	t.Helper()
	return strings.TrimSpace(runTool(t, "blockdev", "--getro", device))
}

// TestReadOnlyMountWritesNothing: a read-only mount does not write to the disk, with or without a
// log to replay.
func TestReadOnlyMountWritesNothing(t *testing.T) {
	for _, old := range []bool{false, true} {
		for _, fsType := range linuxFSTypes() {
			t.Run(fmt.Sprintf("%s, legacy=%v", fsType, old), func(t *testing.T) {
				b := newLoopBench(t)
				b.Host.(*linux).legacy.Store(old)
				m, staging := b.dirtyCopy(fsType), b.path("staging")
				readOnly := m
				readOnly.ReadOnly = true
				before := b.sumOf("dirty")
				for _, attached := range []string{"0", "1"} { // writable, and read-only
					if attached == "1" {
						runTool(t, "blockdev", "--setro", m.Source)
					}
					err := b.Mount(context.Background(), readOnly, staging)
					if !errors.Is(err, ErrDevice) || !strings.Contains(err.Error(), "once for writing") {
						t.Errorf("Mount = %v, want ErrDevice with the remedy", err)
					}
					if got := readOnlyState(t, m.Source); got != attached {
						t.Errorf("the device is read-only: %s, want %s", got, attached)
					}
				}
				runTool(t, "blockdev", "--setrw", m.Source)
				if b.sumOf("dirty") != before {
					t.Error("the disk was changed")
				}
				b.mount(m, staging)
				b.unmount(staging)
				before = b.sumOf("dirty")
				b.mount(readOnly, staging)
				if got := readOnlyState(t, m.Source); got != "0" ||
					read(t, filepath.Join(staging, "file")) != "synced" {
					t.Errorf("the device is read-only: %s, or the data are gone", got)
				}
				b.unmount(staging)
				if b.sumOf("dirty") != before {
					t.Error("the mount of a filesystem without a log changed the disk")
				}
			})
		}
	}
}

// TestCrashInAReadOnlyMountLeavesARemedy: after the crash the device stays read-only.
func TestCrashInAReadOnlyMountLeavesARemedy(t *testing.T) {
	b := newLoopBench(t)
	m, staging := b.attachDisk("disk", "ext4", diskSize), b.path("staging")
	b.mount(m, staging)
	b.unmount(staging)
	readOnly := m
	readOnly.ReadOnly = true
	bin, err := buildFreezer()
	if err != nil {
		t.Fatal(err)
	}
	order, err := json.Marshal(mountProcess{b.kubelet, b.state(), staging, readOnly})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), asMounter+"="+string(order), crashpoint.Env+"=device:read-only")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("the process ended with %v and wrote %s", err, out)
	}
	err = b.Mount(context.Background(), m, staging)
	if remedy := "blockdev --setrw " + m.Source; !errors.Is(err, ErrReadOnly) ||
		!strings.Contains(err.Error(), remedy) {
		t.Errorf("Mount = %v, want ErrReadOnly with %q", err, remedy)
	}
	b.mount(readOnly, staging)
	b.unmount(staging)
	runTool(t, "blockdev", "--setrw", m.Source)
	b.mount(m, staging)
	b.unmount(staging)
}
