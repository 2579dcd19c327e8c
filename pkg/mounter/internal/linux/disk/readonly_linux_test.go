package disk_test

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
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// dirtyCopy returns a disk with a log to replay, as a power cut of its node leaves it. The content
// of file is "synced".
func dirtyCopy(b *linuxtest.Bench, fsType string) mounter.Mount {
	b.T.Helper()
	m, staging := attachDisk(b, "disk", fsType, diskSize), b.Path("staging")
	b.MustMount(m, staging)
	linuxtest.Write(b.T, filepath.Join(staging, "other"), "data")
	linuxtest.RunTool(b.T, "sync", "-f", staging)
	writeSynced(b.T, filepath.Join(staging, "file"), "synced")
	copied := filepath.Join(b.Storage, "copied")
	linuxtest.RunTool(b.T, "cp", filepath.Join(b.Storage, "disk"), copied)
	b.MustUnmount(staging)
	dirty := attachDisk(b, "dirty", fsType, diskSize)
	linuxtest.RunTool(b.T, "dd", "if="+copied, "of="+dirty.Source, "bs=1M", "conv=fsync,sparse", "status=none")
	return dirty
}

func readOnlyState(t *testing.T, device string) string {
	t.Helper()
	return strings.TrimSpace(linuxtest.RunTool(t, "blockdev", "--getro", device))
}

// TestReadOnlyMountWritesNothing: a read-only mount does not write to the disk, with or without a
// log to replay.
func TestReadOnlyMountWritesNothing(t *testing.T) {
	for _, old := range []bool{false, true} {
		for _, fsType := range linuxtest.LinuxFSTypes() {
			t.Run(fmt.Sprintf("%s, legacy=%v", fsType, old), func(t *testing.T) {
				b := linuxtest.NewLoopBench(t)
				b.Host.(*linux.Host).Tree.Legacy.Store(old)
				m, staging := dirtyCopy(b, fsType), b.Path("staging")
				readOnly := m
				readOnly.ReadOnly = true
				before := sumOf(b, "dirty")
				for _, attached := range []string{"0", "1"} { // writable, and read-only
					if attached == "1" {
						linuxtest.RunTool(t, "blockdev", "--setro", m.Source)
					}
					err := b.Mount(context.Background(), readOnly, staging)
					if !errors.Is(err, mounter.ErrDevice) || !strings.Contains(err.Error(), "once for writing") {
						t.Errorf("Mount = %v, want ErrDevice with the remedy", err)
					}
					if got := readOnlyState(t, m.Source); got != attached {
						t.Errorf("the device is read-only: %s, want %s", got, attached)
					}
				}
				linuxtest.RunTool(t, "blockdev", "--setrw", m.Source)
				if sumOf(b, "dirty") != before {
					t.Error("the disk was changed")
				}
				b.MustMount(m, staging)
				b.MustUnmount(staging)
				before = sumOf(b, "dirty")
				b.MustMount(readOnly, staging)
				if got := readOnlyState(t, m.Source); got != "0" ||
					linuxtest.Read(t, filepath.Join(staging, "file")) != "synced" {
					t.Errorf("the device is read-only: %s, or the data are gone", got)
				}
				b.MustUnmount(staging)
				if sumOf(b, "dirty") != before {
					t.Error("the mount of a filesystem without a log changed the disk")
				}
			})
		}
	}
}

// TestCrashInAReadOnlyMountLeavesARemedy: after the crash the device stays read-only.
func TestCrashInAReadOnlyMountLeavesARemedy(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m, staging := attachDisk(b, "disk", "ext4", diskSize), b.Path("staging")
	b.MustMount(m, staging)
	b.MustUnmount(staging)
	readOnly := m
	readOnly.ReadOnly = true
	bin, err := linuxtest.BuildFreezer()
	if err != nil {
		t.Fatal(err)
	}
	order, err := json.Marshal(linuxtest.MountProcess{Kubelet: b.Kubelet, State: b.State(), Path: staging,
		Mount: readOnly})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), linuxtest.AsMounter+"="+string(order), crashpoint.Env+"=device:read-only")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("the process ended with %v and wrote %s", err, out)
	}
	err = b.Mount(context.Background(), m, staging)
	if remedy := "blockdev --setrw " + m.Source; !errors.Is(err, mounter.ErrReadOnly) ||
		!strings.Contains(err.Error(), remedy) {
		t.Errorf("Mount = %v, want ErrReadOnly with %q", err, remedy)
	}
	b.MustMount(readOnly, staging)
	b.MustUnmount(staging)
	linuxtest.RunTool(t, "blockdev", "--setrw", m.Source)
	b.MustMount(m, staging)
	b.MustUnmount(staging)
}
