package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// cloudDir returns a directory on a filesystem with reflinks, for one test. When the test is over, no
// disk of the cloud is attached.
func cloudDir(t *testing.T) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "xfs"), t.TempDir()
	if os.Geteuid() != 0 {
		skip(t, "loop devices need root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		skip(t, err.Error())
	}
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 2<<30)); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.xfs", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", command, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount the cloud: %v", err)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	t.Cleanup(func() { unplugAll(t, dir) })
	return dir
}

// skip skips the test, unless CAUSEWAY_MUST_MOUNT says that the machine can mount.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CAUSEWAY_MUST_MOUNT") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// unplugAll detaches all loop devices of a cloud.
func unplugAll(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(backing), dir+"/") {
			continue
		}
		device := "/dev/" + strings.Split(file, "/")[3]
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Errorf("losetup -d %s: %v: %s", device, err, out)
		}
	}
}

// anySize leaves the size out: the mounter of backendtest takes the length of a device's node for the
// size of the device.
type anySize struct{ *storage }

func (s anySize) Mount(ctx context.Context, id string, a backend.Access) (mounter.Mount, error) {
	m, err := s.storage.Mount(ctx, id, a)
	m.Size = 0
	return m, err
}

// TestStorageKeepsTheContract opens the cloud anew between the calls of each test, as a controller
// that was killed does.
func TestStorageKeepsTheContract(t *testing.T) {
	backendtest.Run(t, backendtest.Kind{}, func(t *testing.T, _ mounter.Images) func() backend.Backend {
		dir := cloudDir(t)
		return func() backend.Backend {
			c, err := openCloud(dir, backendtest.Nodes, 16, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return anySize{&storage{cloud: c, node: backendtest.Nodes[0], limit: 16}}
		}
	})
}
