package linux_test

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
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

func legacy(on bool) func(*linux.Host) { return func(l *linux.Host) { l.Tree.Legacy.Store(on) } }

func TestLinuxKeepsTheContract(t *testing.T) {
	linuxtest.Contract(t, func(t *testing.T) *linuxtest.Bench { return linuxtest.NewRealBench(t) })
}

func TestLinuxKeepsTheContractWithoutTheNewSystemCalls(t *testing.T) {
	linuxtest.Contract(t, func(t *testing.T) *linuxtest.Bench { return linuxtest.NewRealBench(t, legacy(true)) })
}

func TestReadOnlyIsEnforcedByTheKernel(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("legacy=%v", old), func(t *testing.T) {
			b := linuxtest.NewRealBench(t, legacy(old))
			v, target := b.Volume("v"), b.Path("target")
			v.ReadOnly = true
			b.MustMount(v, target)
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
				b := linuxtest.NewRealBench(t, legacy(old))
				b.MustMount(b.Volume("v", tc.options...), b.Path("target"))
				var st unix.Statfs_t
				if err := unix.Statfs(b.Path("target"), &st); err != nil {
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
	b := linuxtest.NewRealBench(t)
	v, target := b.Volume("v"), b.Path("target")
	b.MustMount(v, target)
	f, err := os.Create(filepath.Join(target, "open"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Unmount(context.Background(), target); !errors.Is(err, mounter.ErrBusy) {
		t.Errorf("Unmount = %v, want ErrBusy", err)
	}
	if err := b.Remove(context.Background(), target); !errors.Is(err, mounter.ErrBusy) {
		t.Errorf("Remove = %v, want ErrBusy", err)
	}
	if !b.IsMounted(v, target) {
		t.Error("the busy mount is gone")
	}
	f.Close()
	if err := b.Unmount(context.Background(), target); err != nil {
		t.Errorf("Unmount after the file was closed: %v", err)
	}
}

func TestUnmountRemovesStackedMounts(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	v, target := b.Volume("v"), b.Path("target")
	b.MustMount(v, target)
	for range 3 { // as an older driver left them, which did not check for a mount
		if err := unix.Mount(v.Source, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Unmount(context.Background(), target); err != nil {
		t.Fatal(err)
	}
	if b.IsMounted(v, target) {
		t.Error("a layer is left")
	}
	for range 3 {
		if err := unix.Mount(v.Source, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Remove(context.Background(), target); err != nil || linuxtest.Exists(target) {
		t.Errorf("Remove = %v, target exists: %v", err, linuxtest.Exists(target))
	}
}

func TestMountReplacesADeletedSource(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	v, target := b.Volume("v"), b.Path("target")
	b.MustMount(v, target)
	if err := os.Remove(v.Source); err != nil {
		t.Fatal(err)
	}
	v = b.Volume("v") // the same path, another directory
	if b.IsMounted(v, target) {
		t.Error("Mounted does not distinguish the deleted directory from the new directory")
	}
	b.MustMount(v, target)
	if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); err != nil ||
		!linuxtest.Exists(filepath.Join(v.Source, "f")) {
		t.Errorf("the target does not show the new directory: %v", err)
	}
}

func TestDeadMountIsReplacedAndUnmounted(t *testing.T) {
	dead := func(t *testing.T, path string) {
		t.Helper()
		linuxtest.Mkdir(t, path)
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
		b := linuxtest.NewRealBench(t)
		dead(t, b.Path("target"))
		v := b.Volume("v")
		if b.IsMounted(v, b.Path("target")) {
			t.Error("Mounted = true for a dead mount")
		}
		b.MustMount(v, b.Path("target"))
		if err := os.WriteFile(b.Path("target", "f"), nil, 0o600); err != nil {
			t.Error(err)
		}
	})
	t.Run("unmounted", func(t *testing.T) {
		b := linuxtest.NewRealBench(t)
		dead(t, b.Path("target"))
		if err := b.Unmount(context.Background(), b.Path("target")); err != nil {
			t.Fatal(err)
		}
		if err := b.Remove(context.Background(), b.Path("target")); err != nil || linuxtest.Exists(b.Path("target")) {
			t.Errorf("Remove: %v", err)
		}
	})
}

func TestNewFindsMountsOfAnEarlierProcess(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	b.MustMount(b.Volume("v"), b.Path("staging"))
	b.MustMount(mounter.Mount{Kind: mounter.Directory, Source: b.Path("staging")}, b.Path("one"))
	b.Host = linuxtest.RealMounter(t)(b.Kubelet) // as after a restart
	got, err := b.OtherTargets(context.Background(), b.Path("staging"))
	if want := []string{b.Path("one")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("OtherTargets = %v, %v, want %v", got, err, want)
	}
	b.MustMount(mounter.Mount{Kind: mounter.Directory, Source: b.Path("staging")}, b.Path("two"))
	got, err = b.OtherTargets(context.Background(), b.Path("two"))
	if want := []string{b.Path("one"), b.Path("staging")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("OtherTargets = %v, %v, want %v", got, err, want)
	}
	if err := unix.Unmount(b.Path("one"), 0); err != nil { // by another process
		t.Fatal(err)
	}
	if got, _ := b.OtherTargets(context.Background(), b.Path("staging")); !slices.Equal(got, []string{b.Path("two")}) {
		t.Errorf("OtherTargets = %v, still with the unmounted path", got)
	}
}

func TestOtherTargetsFindsMountsOfAnEarlierProcess(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	v := b.Volume("v")
	b.MustMount(v, b.Path("old"))
	b.Host = linuxtest.RealMounter(t)(b.Kubelet)
	b.MustMount(v, b.Path("new")) // from the source itself, not from a known mount
	for path, want := range map[string]string{b.Path("old"): b.Path("new"), b.Path("new"): b.Path("old")} {
		if got, err := b.OtherTargets(context.Background(), path); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("OtherTargets(%s) = %v, %v, want %s", path, got, err, want)
		}
	}
}

func TestOtherTargetsFailsOnAnUnreadablePath(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	v := b.Volume("v")
	linuxtest.Mkdir(t, b.Path("pod"))
	b.MustMount(v, b.Path("staging"))
	b.MustMount(v, b.Path("pod", "target"))
	if err := errors.Join(os.Rename(b.Path("pod"), b.Path("moved")), os.Symlink("moved", b.Path("pod"))); err != nil {
		t.Fatal(err)
	}
	if got, err := b.OtherTargets(context.Background(), b.Path("staging")); err == nil {
		t.Errorf("OtherTargets = %v and no error, though a path leads through a link", got)
	}
	if err := errors.Join(os.Remove(b.Path("pod")), os.Rename(b.Path("moved"), b.Path("pod"))); err != nil {
		t.Fatal(err)
	}
	if got, err := b.OtherTargets(context.Background(), b.Path("staging")); err != nil || len(got) != 1 {
		t.Errorf("OtherTargets = %v, %v: the path was forgotten after the error", got, err)
	}
}

func TestFailedMountLeavesNoTarget(t *testing.T) {
	for _, old := range []bool{false, true} {
		b := linuxtest.NewRealBench(t, legacy(old))
		v := b.Volume("v")
		if err := unix.Mount("", b.Storage, "", unix.MS_UNBINDABLE, ""); err != nil {
			t.Fatal(err)
		}
		if err := b.Mount(context.Background(), v, b.Path("new")); !errors.Is(err, unix.EINVAL) {
			t.Fatalf("Mount = %v, want EINVAL, as the source cannot be bind mounted", err)
		}
		linuxtest.Mkdir(t, b.Path("there"))
		b.Refused(v, b.Path("there"), unix.EINVAL)
		if linuxtest.Exists(b.Path("new")) || !linuxtest.Exists(b.Path("there")) {
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
		b := linuxtest.NewRealBench(t)
		if err := unix.Mount("", b.Storage, "", unix.MS_REMOUNT|unix.MS_NOATIME, ""); err != nil {
			t.Fatal(err)
		}
		b.Volume("v")
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), outside+"="+b.Storage)
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
	b := linuxtest.NewBench(t, linuxtest.RealMounter(t))
	b.Storage = dir
	b.Refused(b.Volume("v", "strictatime"), b.Path("target"), unix.EPERM)
	if linuxtest.Exists(b.Path("target")) {
		t.Error("the target is left")
	}
	b.MustMount(b.Volume("v"), b.Path("target"))
}

// TestUnmountWaitsForABrieflyBusyMount: in the bubble only the pauses of Unmount let time pass.
func TestUnmountWaitsForABrieflyBusyMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := linuxtest.NewRealBench(t)
		v := b.Volume("v")
		var err error
		for range 20 { // another process may look at the mount, and its time passes outside of the bubble
			b.MustMount(v, b.Path("target"))
			f, failed := os.Create(b.Path("target", "open"))
			if failed != nil {
				t.Fatal(failed)
			}
			const busy = 5 * time.Millisecond
			start := time.Now()
			time.AfterFunc(busy, func() { f.Close() })
			if err = b.Unmount(context.Background(), b.Path("target")); err != nil {
				continue
			}
			if waited := time.Since(start); waited < busy {
				t.Errorf("Unmount returned after %s, and the mount was busy for %s", waited, busy)
			}
			return
		}
		t.Errorf("Unmount of a mount that is busy for a moment = %v", err)
	})
}

func TestNewFailsWithoutTheCapability(t *testing.T) {
	linuxtest.RealMounter(t)
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
		_, err := linuxtest.New(dir, dir)
		failed <- err
	}()
	if err := <-failed; !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "CAP_SYS_ADMIN") {
		t.Errorf("New = %v, want an error that names CAP_SYS_ADMIN", err)
	}
}

func TestIsShared(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	for flag, want := range map[uintptr]bool{unix.MS_SHARED: true, unix.MS_PRIVATE: false, unix.MS_SLAVE: false} {
		if err := unix.Mount("", b.Storage, "", flag, ""); err != nil {
			t.Fatal(err)
		}
		linuxtest.Mkdir(t, filepath.Join(b.Storage, "kubelet"))
		if got, err := linux.IsShared(filepath.Join(b.Storage, "kubelet")); err != nil || got != want {
			t.Errorf("IsShared = %v, %v after mount flag %#x, want %v", got, err, flag, want)
		}
	}
	if _, err := linux.IsShared(b.Path("none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("IsShared(none) = %v", err)
	}
}

func TestKubeletDirectoryBehindALink(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	link := filepath.Join(filepath.Dir(b.Kubelet), "link")
	if err := os.Symlink(b.Kubelet, link); err != nil {
		t.Fatal(err)
	}
	b.MustMount(b.Volume("v"), b.Path("old"))
	b.Host, b.Kubelet = linuxtest.RealMounter(t)(link), link
	b.MustMount(mounter.Mount{Kind: mounter.Directory, Source: b.Path("old")}, b.Path("new"))
	got, err := b.OtherTargets(context.Background(), b.Path("new"))
	if want := []string{b.Path("old")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("OtherTargets = %v, %v, want %v", got, err, want)
	}
}

func TestMountPointsOfIncludesSubdirectories(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	v := b.Volume("v")
	linuxtest.Mkdir(t, filepath.Join(v.Source, "sub dir"))
	elsewhere := filepath.Join(filepath.Dir(b.Kubelet), "else where") // mountinfo escapes the space
	linuxtest.Mkdir(t, elsewhere)
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
	b := linuxtest.NewRealBench(t)
	dir := filepath.Join(b.Storage, "fs")
	linuxtest.Mkdir(t, dir)
	if yes, err := b.IsFilesystem(dir); yes || err != nil {
		t.Errorf("IsFilesystem(a directory) = %v, %v", yes, err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, 0)
	if yes, err := b.IsFilesystem(dir); !yes || err != nil {
		t.Errorf("IsFilesystem(the root of a tmpfs) = %v, %v", yes, err)
	}
	sub := filepath.Join(dir, "sub")
	linuxtest.Mkdir(t, sub)
	if err := unix.Mount(sub, sub, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(sub, 0)
	if yes, err := b.IsFilesystem(sub); yes || err != nil {
		t.Errorf("IsFilesystem(a bind mount of a directory) = %v, %v", yes, err)
	}
	if _, err := b.IsFilesystem(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("IsFilesystem(none) = %v", err)
	}
}

func TestUsageReportsTheFilesystem(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	v := b.Volume("v")
	if err := unix.Mount("none", v.Source, "tmpfs", 0, "size=1m,nr_inodes=100"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(v.Source, unix.MNT_DETACH)
	b.MustMount(v, b.Path("target"))
	if err := os.WriteFile(b.Path("target", "f"), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := b.Usage(context.Background(), b.Path("target"))
	want := mounter.Usage{
		TotalBytes: 1 << 20, UsedBytes: 64 << 10, AvailableBytes: 960 << 10, TotalInodes: 100, UsedInodes: 2,
		AvailableInodes: 98,
	}
	if err != nil || got != want {
		t.Errorf("Usage = %+v, %v, want %+v", got, err, want)
	}
}

func TestConcurrentCalls(t *testing.T) {
	b := linuxtest.NewRealBench(t)
	b.MustMount(b.Volume("v"), b.Path("staging"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			path := b.Path(fmt.Sprint("target", i))
			for range 25 {
				m := mounter.Mount{Kind: mounter.Directory, Source: b.Path("staging")}
				if err := b.Mount(context.Background(), m, path); err != nil {
					t.Error(err)
				}
				if _, err := b.OtherTargets(context.Background(), b.Path("staging")); err != nil {
					t.Error(err)
				}
				if users, err := b.MountPointsOf(filepath.Join(b.Storage, "v")); err != nil ||
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
	if n := strings.Count(string(info), b.Kubelet); err != nil || n != 1 {
		t.Errorf("%d mounts are left, want only the staging mount, %v", n, err)
	}
}

// TestPathsOfAKubeletBehindALink: the kubelet directory of the driver is a link to the --root-dir of
// the kubelet, which sends paths of its own (canonical/microk8s#5125).
func TestPathsOfAKubeletBehindALink(t *testing.T) {
	ctx := t.Context()
	b := linuxtest.NewRealBench(t)
	rootDir, link := filepath.Join(t.TempDir(), "kubelet"), filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Mkdir(rootDir, 0o755), os.Symlink(rootDir, link)); err != nil {
		t.Fatal(err)
	}
	h := linuxtest.RealMounter(t)(link)
	c, ok := any(h).(mounter.PathCleaner)
	if !ok {
		t.Fatal("the host cleans no paths")
	}
	target, err := c.CleanPath(filepath.Join(rootDir, "target"))
	if err != nil || target != filepath.Join(link, "target") {
		t.Fatalf("CleanPath = %q, %v", target, err)
	}
	m := mounter.Mount{Kind: mounter.Directory, Source: b.Storage}
	if err := h.Mount(ctx, m, target); err != nil {
		t.Fatal(err)
	}
	if is, err := h.Mounted(ctx, m, target); err != nil || !is {
		t.Errorf("mounted: %t, %v", is, err)
	}
	if err := h.Unmount(ctx, target); err != nil {
		t.Error(err)
	}
}

// TestPathsOfAKubeletBehindALinkOfTheNode: in a container the kubelet directory is a mount of the
// target of the link. Its path within its filesystem is all that is known: with the filesystem of
// the node's root, with a filesystem of its own for /var, and with a subvolume of btrfs.
func TestPathsOfAKubeletBehindALinkOfTheNode(t *testing.T) {
	filesystem, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", filesystem, "tmpfs", 0, ""); err != nil {
		namespace.Skip(t, err)
	}
	t.Cleanup(func() { unix.Unmount(filesystem, unix.MNT_DETACH) })
	const rootDir = "/var/snap/microk8s/common/var/lib/kubelet"
	for inFilesystem, sent := range map[string][]string{
		rootDir:                             {rootDir},
		strings.TrimPrefix(rootDir, "/var"): {rootDir},
		"/@" + rootDir:                      {rootDir},
		"/":                                 nil, // a filesystem of its own
		"/kubelet":                          nil, // one element proves nothing
	} {
		dir := filepath.Join(t.TempDir(), "kubelet")
		if err := errors.Join(os.MkdirAll(filepath.Join(filesystem, inFilesystem), 0o755), os.Mkdir(dir, 0o755),
			unix.Mount(filepath.Join(filesystem, inFilesystem), dir, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		c := any(linuxtest.RealMounter(t)(dir)).(mounter.PathCleaner)
		for path, want := range map[string]string{
			dir + "/pods/u/volumes":       dir + "/pods/u/volumes",
			rootDir + "/pods/u/volumes":   dir + "/pods/u/volumes",
			rootDir + "/plugins/csi/pods": dir + "/plugins/csi/pods",
			rootDir + "/other/pods2/x":    "",
			rootDir + "/pods/../../x":     "",
			"/elsewhere/kubelet/pods/u":   "",
			rootDir + "x/pods/u":          "",
			rootDir:                       "",
		} {
			if strings.HasPrefix(path, rootDir) && sent == nil {
				want = ""
			}
			if got, err := c.CleanPath(path); got != want || (err == nil) != (want != "") ||
				err != nil && !errors.Is(err, mounter.ErrPath) {
				t.Errorf("CleanPath(%q) of %q in the filesystem = %q, %v, want %q", path, inFilesystem, got, err, want)
			}
		}
	}
}
