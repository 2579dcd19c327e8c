package linuxtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// NewLoopBench returns a bench on which images can be mounted.
func NewLoopBench(t *testing.T) *Bench {
	t.Helper()
	b := NewBench(t, RealMounter(t))
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(strings.Fields(string(users)), []string{"0", "0", "4294967295"}) {
		t.Skip("loop devices need root of the machine, and this is a user namespace")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		namespace.Skip(t, err)
	}
	b.Storage = filepath.Join(testdisk.Dir(t), "storage")
	Mkdir(t, b.Storage)
	t.Cleanup(func() { b.WaitForLoops(0) })
	return b
}

// Loops returns the loop devices whose backing file is in this bench.
func (b *Bench) Loops() []string {
	b.T.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		b.T.Fatal(err)
	}
	return slices.DeleteFunc(files, func(file string) bool {
		name, _ := os.ReadFile(file) // fails if the device was just detached
		return !strings.HasPrefix(string(name), b.Storage)
	})
}

// WaitForLoops waits until n devices are attached, and returns them. A device that another process of
// the machine has open stays attached for a moment after it is unmounted.
func (b *Bench) WaitForLoops(n int) (loops []string) {
	b.T.Helper()
	await.NoError(b.T, fmt.Sprintf("%d devices are attached", n), func() error {
		if loops = b.Loops(); len(loops) != n {
			return fmt.Errorf("attached: %q", loops)
		}
		return nil
	})
	return loops
}

// Image creates the file of an image, with a filesystem unless fsType is "".
func (b *Bench) Image(name, fsType string) mounter.Mount {
	b.T.Helper()
	m := mounter.Mount{Kind: mounter.Image, Source: filepath.Join(b.Storage, name), FSType: fsType, Sector: 512}
	if fsType == "" {
		m.Kind = mounter.Disk
	} else if _, err := exec.LookPath("mkfs." + fsType); err != nil {
		b.T.Skip(err)
	}
	if err := os.Remove(m.Source); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier part of the test
		b.T.Fatal(err)
	}
	if err := b.MakeImage(context.Background(), m.Source, 320<<20, fsType); err != nil {
		b.T.Fatal(err)
	}
	return m
}

// MayGrowExt4 reports whether this process has CAP_SYS_RESOURCE, which root of a container may
// lack.
func MayGrowExt4(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
