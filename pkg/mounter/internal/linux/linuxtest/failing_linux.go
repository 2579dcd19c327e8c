package linuxtest

import (
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// goingDown is XFS_IOC_GOINGDOWN of fs/xfs/libxfs/xfs_fs.h of Linux, without a write of the log.
const goingDown, withoutLog = 0x8004587d, 2

// ShutDown makes a filesystem answer with errors only.
func ShutDown(t *testing.T, path string) {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	defer runtime.KeepAlive(dir)
	flags := uint32(withoutLog)
	if err := tree.Ioctl(int(dir.Fd()), goingDown, unsafe.Pointer(&flags)); err != nil {
		t.Fatal(err)
	}
}
