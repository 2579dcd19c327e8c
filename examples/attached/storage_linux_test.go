package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// cloudDir returns a directory on a filesystem with reflinks, for one test. When the test is over,
// no disk of the cloud is attached.
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
		ctx, cancel := life(t)
		defer cancel()
		err := unix.Unmount(dir, 0)
		for ; errors.Is(err, unix.EBUSY) && ctx.Err() == nil; err = unix.Unmount(dir, 0) {
			time.Sleep(10 * time.Millisecond) // another process may have a disk open for a moment
		}
		if err != nil {
			t.Errorf("unmount the cloud: %v", err)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	t.Cleanup(func() { unplugAll(t, dir) })
	return dir
}

// skip skips the test, unless CAUSEWAY_MUST_MOUNT is set.
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

// reopen opens the storage of a directory, as a controller that was killed does.
func reopen(t *testing.T, dir string) *storage {
	t.Helper()
	c, err := openCloud(dir, backendtest.Nodes, 16, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &storage{cloud: c, node: backendtest.Nodes[0], limit: 16, find: findLoops(backendtest.Nodes[0])}
}

// TestStorageKeepsTheContract opens the cloud anew between the calls of each test.
func TestStorageKeepsTheContract(t *testing.T) {
	backendtest.Run(t, backendtest.Kind{}, func(t *testing.T, _ mounter.Images) func() backend.Backend {
		dir := cloudDir(t)
		return func() backend.Backend { return reopen(t, dir) }
	})
}

// TestADiskThatIsNotAttachedAgainIsNotPublished to its node, and not to be had by another node. The
// device of another process has its label, so that the controller cannot attach it at its start.
func TestADiskThatIsNotAttachedAgainIsNotPublished(t *testing.T) {
	ctx, dir := t.Context(), cloudDir(t)
	s := reopen(t, dir)
	v, err := s.Create(ctx, backend.CreateOptions{Name: "v", Access: []backend.Access{{}}})
	if err != nil {
		t.Fatal(err)
	}
	alone := func(node string) backend.AttachOptions { return backend.AttachOptions{Node: node, Capability: "alone"} }
	one, two := backendtest.Nodes[0], backendtest.Nodes[1]
	wantNodes := func(want ...string) {
		t.Helper()
		got, err := s.Get(ctx, v.ID, nil)
		all, _, listErr := s.List(ctx, "", 10)
		if err := errors.Join(err, listErr); err != nil || !slices.Equal(got.Nodes, want) || len(all) != 1 ||
			!slices.Equal(all[0].Nodes, want) {
			t.Errorf("attached to %q, in the list %+v, %v, want %q", got.Nodes, all, err, want)
		}
	}
	publish, err := s.Attach(ctx, v.ID, alone(one))
	if err != nil {
		t.Fatal(err)
	}
	wantNodes(one)

	same := label(publish[serialKey], v.ID, one)
	reboot := func() { // with the disk attached in a way that is not the record's
		t.Helper()
		if err := errors.Join(s.Close(), unplug(ctx, same),
			plug(filepath.Join(dir, disksDir, v.ID, imageName), same, true)); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, dir)
	}
	reboot()
	wantNodes()
	if _, err := s.Attach(ctx, v.ID, alone(one)); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("attach while it cannot be attached: %v", err)
	}
	if _, err := s.Attach(ctx, v.ID, alone(two)); !errors.Is(err, backend.ErrInUse) {
		t.Errorf("attach to another node: %v", err)
	}
	if err := s.Delete(ctx, v.ID, nil); !errors.Is(err, backend.ErrInUse) {
		t.Errorf("delete: %v", err)
	}
	wantNodes()
	if err := unplug(ctx, same); err != nil {
		t.Fatal(err)
	}
	if again, err := s.Attach(ctx, v.ID, alone(one)); err != nil || !maps.Equal(again, publish) {
		t.Errorf("attach again = %q, %v, before %q", again, err, publish)
	}
	wantNodes(one)

	reboot()
	if err := s.Detach(ctx, v.ID, "", nil); err != nil {
		t.Errorf("detach of what is not published: %v", err)
	}
	if _, err := s.Attach(ctx, v.ID, alone(two)); err != nil {
		t.Errorf("attach to another node after detach: %v", err)
	}
	wantNodes(two)
}

// TestAMountHasTheSequenceNumberOfItsDevice, so that the mounter refuses another device that got
// its name meanwhile.
func TestAMountHasTheSequenceNumberOfItsDevice(t *testing.T) {
	s := reopen(t, cloudDir(t))
	v, err := s.Create(t.Context(), backend.CreateOptions{Name: "v", Access: []backend.Access{{}}})
	if err != nil {
		t.Fatal(err)
	}
	publish, err := s.Attach(t.Context(), v.ID, backend.AttachOptions{Node: s.node, Capability: "alone"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Mount(t.Context(), v.ID, backend.Access{PublishContext: publish})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(m.Source), "diskseq"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("Linux before 5.15 has no sequence numbers")
	}
	if err != nil || fmt.Sprintln(m.Sequence) != string(want) {
		t.Errorf("the mount is %+v, %v, want the sequence number %s", m, err, want)
	}
}
