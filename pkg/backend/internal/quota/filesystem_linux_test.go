package quota

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/testdisk"
)

// noNamespace is the reason why tests that mount cannot run, or nil.
var noNamespace error

func TestMain(m *testing.M) {
	noNamespace = namespace.Enter()
	os.Exit(m.Run())
}

// filesystem is a filesystem with quotas for directories. Few kernels are built with those of xfs
// and ext4: make test-vm has such a kernel.
type filesystem struct {
	name    string
	kind    string
	size    int64    // of an image, in bytes
	mkfs    []string // arguments
	options string   // for mount
	quotas  uint64   // command that enables quotas on btrfs after the mount
	want    Mechanism
}

// Commands of BTRFS_IOC_QUOTA_CTL: linux/btrfs.h.
const (
	enableGroups  = 1
	disableQuotas = 2
	enableSimple  = 4
)

var (
	xfs  = filesystem{"xfs", "xfs", 300 << 20, nil, "prjquota", 0, Mechanism{Kind: Project}}
	ext4 = filesystem{"ext4", "ext4", 256 << 20, []string{"-O", "quota,project"}, "prjquota", 0,
		Mechanism{Kind: Project}}
	btrfs  = filesystem{"btrfs", "btrfs", 512 << 20, nil, "noatime,commit=1", enableGroups, Mechanism{Kind: Subvolume}}
	simple = filesystem{"btrfs with simple quotas", "btrfs", 512 << 20, nil, "noatime,commit=1", enableSimple,
		Mechanism{Kind: Subvolume, Simple: true}}
)

// onEach runs a test in an open directory of each filesystem.
func onEach(t *testing.T, all []filesystem, test func(t *testing.T, f filesystem, root *os.File)) {
	for _, f := range all {
		t.Run(f.name, func(t *testing.T) { test(t, f, f.mount(t)) })
	}
}

// The names of tests select the kernel on which they run: see the list in test/vm.
var (
	projectFilesystems = []filesystem{xfs, ext4}
	groupFilesystems   = []filesystem{btrfs}
	simpleFilesystems  = []filesystem{simple}
)

// mount makes a filesystem, mounts it, and enables its quotas. mount skips the test if that is
// impossible.
func (f filesystem) mount(t testing.TB) *os.File {
	t.Helper()
	image := f.image(t)
	dir := f.attach(t, image)
	root := open(t, dir)
	if f.quotas != 0 {
		err := control(root, f.quotas)
		if f.quotas == enableSimple && errors.Is(err, unix.EINVAL) {
			t.Skip("simple quotas need Linux 6.7")
		}
		must(t, err)
	}
	return root
}

// image makes a filesystem in a file.
func (f filesystem) image(t testing.TB) string {
	t.Helper()
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	return f.onDisk().Image(t)
}

// attach mounts an image until the end of the test.
func (f filesystem) attach(t testing.TB, image string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	f.onDisk().Attach(t, image, dir)
	return dir
}

// onDisk returns f as a filesystem in a file. Few kernels have project quotas.
func (f filesystem) onDisk() testdisk.Filesystem {
	return testdisk.Filesystem{Type: f.kind, Size: f.size, Make: f.mkfs, Options: f.options,
		Rare: f.want.Kind == Project}
}

// control enables and disables quotas of btrfs.
func control(root *os.File, command uint64) error {
	quotaControl := request{0xC0109428, "BTRFS_IOC_QUOTA_CTL"}
	args := [2]uint64{command}
	return quotaControl.call(root, unsafe.Pointer(&args))
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a file or directory until the end of the test.
func open(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// found returns the result of Find, and checks it.
func (f filesystem) found(t testing.TB, root *os.File) Mechanism {
	t.Helper()
	m, err := Find(context.Background(), root)
	if err != nil || m != f.want {
		t.Fatalf("Find = %+v, %v, want %+v", m, err, f.want)
	}
	return m
}

// volume makes a directory with a limit of size bytes, and opens it.
func (f filesystem) volume(t testing.TB, root *os.File, name string, size int64) (*os.File, Mark) {
	t.Helper()
	path := filepath.Join(root.Name(), name)
	mark, err := Make(f.found(t, root), root, name, Options{Mode: 0o757, Size: size, Volume: path})
	must(t, err)
	return open(t, path), mark
}

// look returns the result of Look, which must succeed.
func look(t testing.TB, dir *os.File, mark Mark) Usage {
	t.Helper()
	must(t, with(dir, unix.Syncfs)) // btrfs counts only committed data
	u, err := Look(dir, mark)
	must(t, err)
	return u
}

// fill writes to a new file until a write fails or most bytes are written, and returns their
// number. fill writes as an unprivileged pod does: on ext4 no limit holds for a process with
// CAP_SYS_RESOURCE.
func fill(t testing.TB, path string, most int64) (written int64) {
	t.Helper()
	must(t, asPod(func() error {
		f, err := os.Create(path)
		if errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		for _, size := range []int64{1 << 20, 64 << 10, 4 << 10, 512, 1} { // to the last byte
			buf := make([]byte, size)
			for i := range buf {
				buf[i] = byte(i*7 + i>>8)
			}
			for written+size <= most {
				n, err := f.WriteAt(buf, written)
				written += int64(n)
				if errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC) {
					break
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	}))
	return written
}

// asPod calls do without CAP_SYS_RESOURCE.
func asPod(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		done <- func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&header, &data[0]); err != nil {
				return err
			}
			data[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
			if err := unix.Capset(&header, &data[0]); err != nil {
				return err
			}
			return do()
		}()
	}()
	return <-done
}
