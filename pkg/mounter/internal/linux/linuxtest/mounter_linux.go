package linuxtest

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
)

// NewRealBench returns a bench whose volumes are on a filesystem that the test has mounted. In a
// user namespace, the access time options of other filesystems cannot be changed.
func NewRealBench(t *testing.T, change ...func(*linux.Host)) *Bench {
	b := NewBench(t, RealMounter(t, change...))
	if err := unix.Mount("none", b.Storage, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(b.Storage, unix.MNT_DETACH) })
	return b
}
