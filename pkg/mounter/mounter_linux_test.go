package mounter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// noNamespace is the reason why tests with real mounts cannot run.
var noNamespace error

func TestMain(m *testing.M) {
	Main()
	hang.Main()
	if os.Getenv(asFreezer) != "" {
		os.Exit(freezer())
	}
	if os.Getenv(asMounter) != "" {
		os.Exit(mountAndDie())
	}
	noNamespace = namespace.Enter()
	code := m.Run()
	if freezerDir != "" {
		os.RemoveAll(freezerDir)
	}
	os.Exit(code)
}

func realMounter(t *testing.T, change ...func(*linux)) func(string) Host {
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	return func(dir string) Host {
		m, err := New(dir, filepath.Join(filepath.Dir(dir), "frozen"))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range change {
			c(m.(*linux))
		}
		return m
	}
}

// newRealBench returns a bench whose volumes are on a filesystem that the test has mounted. In a
// user namespace, the access time options of other filesystems cannot be changed.
func newRealBench(t *testing.T, change ...func(*linux)) *bench {
	b := newBench(t, realMounter(t, change...))
	if err := unix.Mount("none", b.storage, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(b.storage, unix.MNT_DETACH) })
	return b
}

func legacy(on bool) func(*linux) { return func(l *linux) { l.legacy.Store(on) } }

func TestLinuxKeepsTheContract(t *testing.T) {
	testContract(t, func(t *testing.T) *bench { return newRealBench(t) })
}

func TestLinuxKeepsTheContractWithoutTheNewSystemCalls(t *testing.T) {
	testContract(t, func(t *testing.T) *bench { return newRealBench(t, legacy(true)) })
}

func TestLinuxOptionsCoverDirectoryOptions(t *testing.T) {
	for _, o := range options.Directory {
		if _, ok := linuxOptions[o]; !ok {
			t.Errorf("%s is allowed but does nothing", o)
		}
	}
	if len(linuxOptions) != len(options.Directory) {
		t.Errorf("%d options do something, %d are allowed", len(linuxOptions), len(options.Directory))
	}
}

func TestReadOnlyIsEnforcedByTheKernel(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("legacy=%v", old), func(t *testing.T) {
			b := newRealBench(t, legacy(old))
			v, target := b.volume("v"), b.path("target")
			v.ReadOnly = true
			b.mount(v, target)
			if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("write through a read-only mount: %v, want EROFS", err)
			}
			if err := os.WriteFile(filepath.Join(v.Source, "f"), nil, 0o600); err != nil {
				t.Errorf("write to the source: %v", err)
			}
		})
	}
}

func TestOptionsReachTheKernel(t *testing.T) {
	for name, tc := range map[string]struct {
		options []string
		has     int64
		hasNot  int64
	}{
		"by default":  {nil, unix.ST_NODEV | unix.ST_NOSUID, unix.ST_RDONLY | unix.ST_NOEXEC},
		"suid":        {[]string{"suid"}, unix.ST_NODEV, unix.ST_NOSUID},
		"noexec":      {[]string{"noexec"}, unix.ST_NOEXEC | unix.ST_NODEV | unix.ST_NOSUID, unix.ST_RDONLY},
		"ro":          {[]string{"ro"}, unix.ST_RDONLY, 0},
		"noatime":     {[]string{"noatime"}, unix.ST_NOATIME, unix.ST_RELATIME},
		"strictatime": {[]string{"strictatime"}, 0, unix.ST_RELATIME | unix.ST_NOATIME},
		"nodiratime":  {[]string{"nodiratime"}, unix.ST_NODIRATIME, 0},
		"the last counts": {
			[]string{"noatime", "relatime", "noexec", "exec"},
			unix.ST_RELATIME, unix.ST_NOATIME | unix.ST_NOEXEC,
		},
	} {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, legacy=%v", name, old), func(t *testing.T) {
				b := newRealBench(t, legacy(old))
				b.mount(b.volume("v", tc.options...), b.path("target"))
				var st unix.Statfs_t
				if err := unix.Statfs(b.path("target"), &st); err != nil {
					t.Fatal(err)
				}
				if st.Flags&tc.has != tc.has || st.Flags&tc.hasNot != 0 {
					t.Errorf("flags are %#x, want all of %#x and none of %#x", st.Flags, tc.has, tc.hasNot)
				}
			})
		}
	}
}

func TestUnmountDoesNotDetachABusyMount(t *testing.T) {
	b := newRealBench(t)
	v, target := b.volume("v"), b.path("target")
	b.mount(v, target)
	f, err := os.Create(filepath.Join(target, "open"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Unmount(context.Background(), target); !errors.Is(err, ErrBusy) {
		t.Errorf("Unmount = %v, want ErrBusy", err)
	}
	if err := b.Remove(context.Background(), target); !errors.Is(err, ErrBusy) {
		t.Errorf("Remove = %v, want ErrBusy", err)
	}
	if !b.mounted(v, target) {
		t.Error("the busy mount is gone")
	}
	f.Close()
	if err := b.Unmount(context.Background(), target); err != nil {
		t.Errorf("Unmount after the file was closed: %v", err)
	}
}

func TestUnmountRemovesStackedMounts(t *testing.T) {
	b := newRealBench(t)
	v, target := b.volume("v"), b.path("target")
	b.mount(v, target)
	for range 3 { // as an older driver left them, which did not check for a mount
		if err := unix.Mount(v.Source, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Unmount(context.Background(), target); err != nil {
		t.Fatal(err)
	}
	if b.mounted(v, target) {
		t.Error("a layer is left")
	}
	for range 3 {
		if err := unix.Mount(v.Source, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Remove(context.Background(), target); err != nil || exists(target) {
		t.Errorf("Remove = %v, target exists: %v", err, exists(target))
	}
}

func TestMountReplacesADeletedSource(t *testing.T) {
	b := newRealBench(t)
	v, target := b.volume("v"), b.path("target")
	b.mount(v, target)
	if err := os.Remove(v.Source); err != nil {
		t.Fatal(err)
	}
	v = b.volume("v") // the same path, another directory
	if b.mounted(v, target) {
		t.Error("Mounted does not distinguish the deleted directory from the new directory")
	}
	b.mount(v, target)
	if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); err != nil ||
		!exists(filepath.Join(v.Source, "f")) {
		t.Errorf("the target does not show the new directory: %v", err)
	}
}

func TestDeadMountIsReplacedAndUnmounted(t *testing.T) {
	dead := func(t *testing.T, path string) {
		t.Helper()
		mkdir(t, path)
		fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Skipf("no fuse: %v", err)
		}
		options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
		err = unix.Mount("dead", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options)
		unix.Close(fd) // the server is gone
		if err != nil {
			t.Skipf("no fuse mounts: %v", err)
		}
		t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	}
	t.Run("replaced", func(t *testing.T) {
		b := newRealBench(t)
		dead(t, b.path("target"))
		v := b.volume("v")
		if b.mounted(v, b.path("target")) {
			t.Error("Mounted = true for a dead mount")
		}
		b.mount(v, b.path("target"))
		if err := os.WriteFile(b.path("target", "f"), nil, 0o600); err != nil {
			t.Error(err)
		}
	})
	t.Run("unmounted", func(t *testing.T) {
		b := newRealBench(t)
		dead(t, b.path("target"))
		if err := b.Unmount(context.Background(), b.path("target")); err != nil {
			t.Fatal(err)
		}
		if err := b.Remove(context.Background(), b.path("target")); err != nil || exists(b.path("target")) {
			t.Errorf("Remove: %v", err)
		}
	})
}

func TestNewFindsMountsOfAnEarlierProcess(t *testing.T) {
	b := newRealBench(t)
	b.mount(b.volume("v"), b.path("staging"))
	b.mount(Mount{Kind: Directory, Source: b.path("staging")}, b.path("one"))
	b.Host = realMounter(t)(b.kubelet) // as after a restart
	got, err := b.OtherTargets(context.Background(), b.path("staging"))
	if want := []string{b.path("one")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("OtherTargets = %v, %v, want %v", got, err, want)
	}
	b.mount(Mount{Kind: Directory, Source: b.path("staging")}, b.path("two"))
	got, err = b.OtherTargets(context.Background(), b.path("two"))
	if want := []string{b.path("one"), b.path("staging")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("OtherTargets = %v, %v, want %v", got, err, want)
	}
	if err := unix.Unmount(b.path("one"), 0); err != nil { // by another process
		t.Fatal(err)
	}
	if got, _ := b.OtherTargets(context.Background(), b.path("staging")); !slices.Equal(got, []string{b.path("two")}) {
		t.Errorf("OtherTargets = %v, still with the unmounted path", got)
	}
}

func TestOtherTargetsFindsMountsOfAnEarlierProcess(t *testing.T) {
	b := newRealBench(t)
	v := b.volume("v")
	b.mount(v, b.path("old"))
	b.Host = realMounter(t)(b.kubelet)
	b.mount(v, b.path("new")) // from the source itself, not from a known mount
	for path, want := range map[string]string{b.path("old"): b.path("new"), b.path("new"): b.path("old")} {
		if got, err := b.OtherTargets(context.Background(), path); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("OtherTargets(%s) = %v, %v, want %s", path, got, err, want)
		}
	}
}

func TestOtherTargetsFailsOnAnUnreadablePath(t *testing.T) {
	b := newRealBench(t)
	v := b.volume("v")
	mkdir(t, b.path("pod"))
	b.mount(v, b.path("staging"))
	b.mount(v, b.path("pod", "target"))
	if err := errors.Join(os.Rename(b.path("pod"), b.path("moved")), os.Symlink("moved", b.path("pod"))); err != nil {
		t.Fatal(err)
	}
	if got, err := b.OtherTargets(context.Background(), b.path("staging")); err == nil {
		t.Errorf("OtherTargets = %v and no error, though a path leads through a link", got)
	}
	if err := errors.Join(os.Remove(b.path("pod")), os.Rename(b.path("moved"), b.path("pod"))); err != nil {
		t.Fatal(err)
	}
	if got, err := b.OtherTargets(context.Background(), b.path("staging")); err != nil || len(got) != 1 {
		t.Errorf("OtherTargets = %v, %v: the path was forgotten after the error", got, err)
	}
}

func TestFailedMountLeavesNoTarget(t *testing.T) {
	for _, old := range []bool{false, true} {
		b := newRealBench(t, legacy(old))
		v := b.volume("v")
		if err := unix.Mount("", b.storage, "", unix.MS_UNBINDABLE, ""); err != nil {
			t.Fatal(err)
		}
		if err := b.Mount(context.Background(), v, b.path("new")); !errors.Is(err, unix.EINVAL) {
			t.Fatalf("Mount = %v, want EINVAL, as the source cannot be bind mounted", err)
		}
		mkdir(t, b.path("there"))
		b.refused(v, b.path("there"), unix.EINVAL)
		if exists(b.path("new")) || !exists(b.path("there")) {
			t.Error("the failed calls changed the targets")
		}
	}
}

// TestMountWithoutItsOptionsIsUndone runs in a user namespace, where the options of a mount from
// outside are locked. There a bind mount succeeds, but the kernel rejects its options.
func TestMountWithoutItsOptionsIsUndone(t *testing.T) {
	const outside = "CAUSEWAY_TEST_OUTSIDE"
	dir := os.Getenv(outside)
	if dir == "" {
		b := newRealBench(t)
		if err := unix.Mount("", b.storage, "", unix.MS_REMOUNT|unix.MS_NOATIME, ""); err != nil {
			t.Fatal(err)
		}
		b.volume("v")
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), outside+"="+b.storage)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("in a user namespace: %v\n%s", err, out)
		}
		return
	}
	b := newBench(t, realMounter(t))
	b.storage = dir
	b.refused(b.volume("v", "strictatime"), b.path("target"), unix.EPERM)
	if exists(b.path("target")) {
		t.Error("the target is left")
	}
	b.mount(b.volume("v"), b.path("target"))
}

func TestUnmountWaitsForABrieflyBusyMount(t *testing.T) {
	b := newRealBench(t)
	v := b.volume("v")
	for range 20 { // a single success is enough: this machine may be slower than the retries of Unmount
		b.mount(v, b.path("target"))
		f, err := os.Create(b.path("target", "open"))
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() {
			time.Sleep(3 * time.Millisecond)
			f.Close()
			close(closed)
		}()
		err = b.Unmount(context.Background(), b.path("target"))
		if <-closed; err == nil {
			return
		}
	}
	t.Error("Unmount never waited")
}

func TestNewFailsWithoutTheCapability(t *testing.T) {
	realMounter(t)
	dir := t.TempDir()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&head, &none[0]); err != nil {
			failed <- err
			return
		}
		_, err := New(dir, dir)
		failed <- err
	}()
	if err := <-failed; !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "CAP_SYS_ADMIN") {
		t.Errorf("New = %v, want an error that names CAP_SYS_ADMIN", err)
	}
}

func TestIsShared(t *testing.T) {
	b := newRealBench(t)
	for flag, want := range map[uintptr]bool{unix.MS_SHARED: true, unix.MS_PRIVATE: false, unix.MS_SLAVE: false} {
		if err := unix.Mount("", b.storage, "", flag, ""); err != nil {
			t.Fatal(err)
		}
		mkdir(t, filepath.Join(b.storage, "kubelet"))
		if got, err := IsShared(filepath.Join(b.storage, "kubelet")); err != nil || got != want {
			t.Errorf("IsShared = %v, %v after mount flag %#x, want %v", got, err, flag, want)
		}
	}
	if _, err := IsShared(b.path("none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("IsShared(none) = %v", err)
	}
}

func TestKubeletDirectoryBehindALink(t *testing.T) {
	b := newRealBench(t)
	link := filepath.Join(filepath.Dir(b.kubelet), "link")
	if err := os.Symlink(b.kubelet, link); err != nil {
		t.Fatal(err)
	}
	b.mount(b.volume("v"), b.path("old"))
	b.Host, b.kubelet = realMounter(t)(link), link
	b.mount(Mount{Kind: Directory, Source: b.path("old")}, b.path("new"))
	got, err := b.OtherTargets(context.Background(), b.path("new"))
	if want := []string{b.path("old")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("OtherTargets = %v, %v, want %v", got, err, want)
	}
}

func TestMountPointsOfIncludesSubdirectories(t *testing.T) {
	b := newRealBench(t)
	v := b.volume("v")
	mkdir(t, filepath.Join(v.Source, "sub dir"))
	elsewhere := filepath.Join(filepath.Dir(b.kubelet), "else where") // mountinfo escapes the space
	mkdir(t, elsewhere)
	if err := unix.Mount(filepath.Join(v.Source, "sub dir"), elsewhere, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(elsewhere, 0)
	got, err := b.MountPointsOf(v.Source)
	if want := []string{elsewhere}; err != nil || !slices.Equal(got, want) {
		t.Errorf("MountPointsOf = %v, %v, want %v", got, err, want)
	}
	renamed := v.Source + "-renamed"
	if err := os.Rename(v.Source, renamed); err != nil {
		t.Fatal(err)
	}
	if got, _ := b.MountPointsOf(renamed); !slices.Equal(got, []string{elsewhere}) {
		t.Errorf("MountPointsOf = %v after a rename, want %v", got, elsewhere)
	}
}

func TestIsFilesystem(t *testing.T) {
	b := newRealBench(t)
	dir := filepath.Join(b.storage, "fs")
	mkdir(t, dir)
	if yes, err := IsFilesystem(dir); yes || err != nil {
		t.Errorf("IsFilesystem(a directory) = %v, %v", yes, err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, 0)
	if yes, err := IsFilesystem(dir); !yes || err != nil {
		t.Errorf("IsFilesystem(the root of a tmpfs) = %v, %v", yes, err)
	}
	sub := filepath.Join(dir, "sub")
	mkdir(t, sub)
	if err := unix.Mount(sub, sub, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(sub, 0)
	if yes, err := IsFilesystem(sub); yes || err != nil {
		t.Errorf("IsFilesystem(a bind mount of a directory) = %v, %v", yes, err)
	}
	if _, err := IsFilesystem(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("IsFilesystem(none) = %v", err)
	}
}

func TestUsageReportsTheFilesystem(t *testing.T) {
	b := newRealBench(t)
	v := b.volume("v")
	if err := unix.Mount("none", v.Source, "tmpfs", 0, "size=1m,nr_inodes=100"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(v.Source, unix.MNT_DETACH)
	b.mount(v, b.path("target"))
	if err := os.WriteFile(b.path("target", "f"), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := b.Usage(context.Background(), b.path("target"))
	want := Usage{
		TotalBytes: 1 << 20, UsedBytes: 64 << 10, AvailableBytes: 960 << 10, TotalInodes: 100, UsedInodes: 2,
		AvailableInodes: 98,
	}
	if err != nil || got != want {
		t.Errorf("Usage = %+v, %v, want %+v", got, err, want)
	}
}

func TestConcurrentCalls(t *testing.T) {
	b := newRealBench(t)
	b.mount(b.volume("v"), b.path("staging"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			path := b.path(fmt.Sprint("target", i))
			for range 25 {
				m := Mount{Kind: Directory, Source: b.path("staging")}
				if err := b.Mount(context.Background(), m, path); err != nil {
					t.Error(err)
				}
				if _, err := b.OtherTargets(context.Background(), b.path("staging")); err != nil {
					t.Error(err)
				}
				if users, err := b.MountPointsOf(filepath.Join(b.storage, "v")); err != nil ||
					!slices.Contains(users, path) {
					t.Errorf("MountPointsOf = %v, %v, without %s", users, err, path)
				}
				if err := errors.Join(
					b.Unmount(context.Background(), path), b.Remove(context.Background(), path),
				); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if n := strings.Count(string(info), b.kubelet); err != nil || n != 1 {
		t.Errorf("%d mounts are left, want only the staging mount, %v", n, err)
	}
}
