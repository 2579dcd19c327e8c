package linuxtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// lastLoop is the number of the last device of OwnLoop, less an offset.
var lastLoop atomic.Int32

// OwnLoop returns the path of a free loop device, whose number no other process knows. Another
// process gets it from LOOP_CTL_GET_FREE, which returns the lowest number, only while it is free
// and all lower numbers are in use: see AttachTo.
func OwnLoop(t *testing.T) string {
	t.Helper()
	control, err := os.Open("/dev/loop-control")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { control.Close() })
	number := 1000 + os.Getpid()%100_000*8 + int(lastLoop.Add(1))%8
	if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number); err != nil {
		t.Fatalf("LOOP_CTL_ADD %d: %v", number, err)
	}
	t.Cleanup(func() {
		untilIdle(t, func() error { return unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number) })
	})
	return fmt.Sprintf("/dev/loop%d", number)
}

// AttachTo attaches a file to a loop device, as soon as no other process uses the device, and
// returns the identity of the file.
func AttachTo(t *testing.T, device, file string) tree.Backing {
	t.Helper()
	untilIdle(t, func() error {
		out, err := exec.Command("losetup", device, file).CombinedOutput()
		if strings.Contains(string(out), "Device or resource busy") {
			return unix.EBUSY
		}
		return err
	})
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	return tree.Backing{Dev: st.Dev, Ino: st.Ino}
}

// UntilDetached waits until a loop device has no file: another process may have it open for a
// moment.
func UntilDetached(t *testing.T, device string) {
	t.Helper()
	n, _ := loop.Number(device)
	await.True(t, device+" is detached", func() bool {
		_, err := loop.FileOfDevice(n)
		return errors.Is(err, unix.ENXIO)
	})
}

// untilIdle repeats do while it returns EBUSY: other drivers of this machine look at all loop
// devices.
func untilIdle(t *testing.T, do func() error) {
	t.Helper()
	await.NoError(t, "a loop device is idle", func() error {
		err := do()
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		return err
	})
}

// RunTool runs a program, which must succeed, and returns its output.
func RunTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// Write writes the file at path.
func Write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Read returns the content of the file at path.
func Read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// ReadAt returns a part of a file.
func ReadAt(t *testing.T, path string, offset int64, length int) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, length)
	if _, err := f.ReadAt(data, offset); err != nil {
		t.Fatal(err)
	}
	return string(data)
}
