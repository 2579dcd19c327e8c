package crash

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/testdisk"
)

// An attached disk is a loop device over a file of a storage. The state directory of the driver is
// on the disk of the node. Both are filesystems in files, as in power_linux_test.go: after a power
// cut each keeps the data that was written to it, and the disk may keep a part of the data that was
// not synced.

// Sizes of an attached disk before and after it grows, in bytes.
const attachedSize, attachedGrown = 320 << 20, 640 << 20

// attachment is a disk that is attached to a node.
type attachment struct {
	*testing.T
	bin, fsType   string
	storage, node *disk
	device        string // of the disk, as it is attached now
	staging       string
	group         int               // of the processes of the last step, which are stopped; 0: none
	acknowledged  map[string][]byte // files, by name
}

// newAttachment attaches a blank disk.
func newAttachment(t *testing.T, bin, fsType string) *attachment {
	t.Helper()
	a := &attachment{T: t, bin: bin, fsType: fsType, acknowledged: map[string][]byte{}}
	a.storage = newDisk(t, "", filesystem{"ext4", 1 << 30, "loop,commit=300"})
	a.node = newDisk(t, "", filesystems[0])
	a.staging = filepath.Join(a.node.kubelet, "staging")
	a.resize(attachedSize)
	t.Cleanup(func() { // of a test that failed
		a.kill()
		a.unmount()
	})
	a.attach()
	return a
}

// file is the path of the file that is the disk.
func (a *attachment) file() string { return filepath.Join(a.storage.root, "attached") }

// resize gives the disk a size, durably.
func (a *attachment) resize(size int64) {
	a.Helper()
	f, err := os.OpenFile(a.file(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		a.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		a.Fatal(err)
	}
	a.storage.flush()
	if a.device != "" {
		a.node.run("losetup", "--set-capacity", a.device)
	}
}

func (a *attachment) attach() {
	a.Helper()
	out, err := exec.Command("losetup", "--show", "--find", a.file()).Output()
	if err != nil {
		a.Fatalf("losetup: %v", err)
	}
	a.device = strings.TrimSpace(string(out))
}

// step runs a step of the driver: mount or grow. The driver dies at a crash point, or in a program
// that is stopped after a delay. It reports whether the driver died.
func (a *attachment) step(name, point string, in stop) bool {
	a.Helper()
	cmd := exec.Command(a.bin, name, a.node.kubelet, a.state(), a.staging, a.device, a.fsType, "serial")
	cmd.Env = append(os.Environ(), crashpoint.Env+"="+point)
	if in.program != "" {
		cmd.Env = append(cmd.Env, "PATH="+in.script(a)+":"+os.Getenv("PATH"))
	}
	log, err := os.CreateTemp(a.node.dir, "log")
	if err != nil {
		a.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log // a file, so that Wait does not wait for the program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		a.Fatal(err)
	}
	a.group = cmd.Process.Pid
	err = cmd.Wait()
	ended, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	killed := ok && ended.Signal() == syscall.SIGKILL
	if !killed {
		a.kill()
	}
	if err != nil && !killed {
		said, _ := os.ReadFile(log.Name())
		if in == (stop{}) && point == "" && bytes.Contains(said, []byte("non-unique UUID")) {
			// mkfs.btrfs finds the device of before the power cut, which the kernel still detaches; the
			// kubelet repeats the call.
			return a.step(name, point, in)
		}
		a.Fatalf("%s: %v: %s", name, err, said)
	}
	return killed
}

func (a *attachment) state() string { return filepath.Join(a.node.root, "state") }

// kill ends the processes of the last step, as the end of the driver's container does.
func (a *attachment) kill() {
	a.Helper()
	if a.group == 0 {
		return
	}
	await.True(a, "the programs of the step have ended", func() bool {
		return errors.Is(syscall.Kill(-a.group, syscall.SIGKILL), syscall.ESRCH) || a.onlyZombies()
	})
	a.group = 0
}

// onlyZombies reports whether all processes of the group have ended. Another process waits for
// them.
func (a *attachment) onlyZombies() bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(text), ") ") // proc_pid_stat(5)
		if f := strings.Fields(rest); len(f) > 2 && f[2] == fmt.Sprint(a.group) && f[0] != "Z" && f[0] != "X" {
			return false
		}
	}
	return true
}

// stop is a moment in which a program that the driver runs is stopped, and the driver killed.
type stop struct {
	program string
	at      string // "write 2": as it enters its 2nd system call that writes; "sync 2"; "5 ms"
}

// script writes a program that replaces the program of the stop, and returns its directory.
func (s stop) script(a *attachment) string {
	a.Helper()
	program, err := exec.LookPath(s.program)
	if err != nil {
		a.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s trace %s %s \"$@\"\n", a.bin, s.at, program)
	if delay, ok := strings.CutSuffix(s.at, " ms"); ok {
		script = fmt.Sprintf("#!/bin/sh\n%s \"$@\" &\nsleep %se-3\nkill -STOP $!\nkill -KILL $PPID\nexec sleep 600\n",
			program, delay)
	}
	dir := a.TempDir()
	defer noFork()() // a program that is open for writing cannot be started
	if err := os.WriteFile(filepath.Join(dir, s.program), []byte(script), 0o755); err != nil {
		a.Fatal(err)
	}
	return dir
}

// unmount removes all mounts of the disk.
func (a *attachment) unmount() {
	a.Helper()
	var err error
	for err == nil {
		err = testdisk.Unmount(a, a.staging)
	}
	if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) { // it is not mounted
		a.Fatalf("unmount %s: %v", a.staging, err)
	}
}

// cut takes the power away from the node and the storage, and gives it back. If torn, the disk
// keeps some blocks of those that were written and not synced.
func (a *attachment) cut(torn bool) {
	a.Helper()
	node, storage := a.node.survivors(), a.storage.survivors()
	cached := filepath.Join(a.storage.dir, "cached")
	if torn {
		a.node.run("cp", "--sparse=always", a.device, cached)
	}
	a.kill()
	a.unmount()
	a.node.run("losetup", "--detach", a.device)
	a.device = ""
	testdisk.Detached(a.T, a.storage.root+"/")
	a.node.replace(node)
	a.node.lost() // the filesystem on the attached disk may sync the storage at any moment
	a.storage.replace(storage)
	if torn {
		a.tear(cached)
	}
	a.attach()
}

// tear gives the disk some of the blocks in which a file differs from it.
func (a *attachment) tear(cached string) {
	a.Helper()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	from, err := os.Open(cached)
	if err != nil {
		a.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(a.file(), os.O_RDWR, 0)
	if err != nil {
		a.Fatal(err)
	}
	defer to.Close()
	const block = 4096
	kept, lost := 0, 0
	old, written := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); ; at += int64(len(written)) {
		n, err := from.ReadAt(written, at)
		if n == 0 && err == io.EOF {
			break
		}
		if _, err := to.ReadAt(old[:n], at); err != nil {
			a.Fatal(err)
		}
		for i := 0; i < n; i += block {
			part := written[i:min(i+block, n)]
			switch {
			case bytes.Equal(part, old[i:i+len(part)]):
			case random.IntN(2) == 0:
				lost++
			default:
				kept++
				if _, err := to.WriteAt(part, at+int64(i)); err != nil {
					a.Fatal(err)
				}
			}
		}
	}
	if err := errors.Join(to.Sync(), os.Remove(cached)); err != nil {
		a.Fatal(err)
	}
	a.Logf("of the blocks that were not synced, %d are on the disk and %d are lost, by the seed %d", kept, lost, seed)
}

// mount mounts the disk, and finds all that was acknowledged.
func (a *attachment) mount() {
	a.Helper()
	if a.step("mount", "", stop{}) {
		a.Fatal("the driver was killed")
	}
	if left := a.records(); len(left) > 0 {
		a.Errorf("the disk is mounted, and a record would let it be formatted: %q", left)
	}
	for name, data := range a.acknowledged {
		if got, err := os.ReadFile(filepath.Join(a.staging, name)); err != nil || !bytes.Equal(got, data) {
			a.Errorf("an acknowledged file: %d bytes, %v", len(got), err)
		}
	}
}

// write writes a file and syncs it, so that it is acknowledged.
func (a *attachment) write(name string) {
	a.Helper()
	data := bytes.Repeat([]byte(name), 100_000)
	f, err := os.Create(filepath.Join(a.staging, name))
	if err != nil {
		a.Fatal(err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		a.Fatal(err)
	}
	dir, err := os.Open(a.staging)
	if err != nil {
		a.Fatal(err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		a.Fatal(err)
	}
	a.acknowledged[name] = data
}

// records returns the records of formats.
func (a *attachment) records() []string {
	a.Helper()
	all, err := filepath.Glob(filepath.Join(a.state(), "formats", "*.json"))
	if err != nil {
		a.Fatal(err)
	}
	return all
}

// id returns the UUID of the filesystem on the disk.
func (a *attachment) id() string {
	a.Helper()
	out, err := exec.Command("blkid", "-p", "-o", "value", "-s", "UUID", a.device).Output()
	if err != nil {
		a.Fatalf("blkid: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// whole unmounts the disk, and has its filesystem checked.
func (a *attachment) whole() {
	a.Helper()
	a.unmount()
	check := map[string][]string{"ext4": {"e2fsck", "-f", "-n"}, "xfs": {"xfs_repair", "-n"},
		"btrfs": {"btrfs", "check", "--readonly"}}[a.fsType]
	a.node.run(check[0], append(check[1:], a.device)...)
}

// size returns the size of the mounted filesystem in bytes.
func (a *attachment) size() int64 {
	a.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(a.staging, &st); err != nil {
		a.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize
}

// end is the end of the driver in the middle of a step.
type end string

const (
	dies      end = "the driver dies"
	powerGoes end = "the power goes"
	torn      end = "the power goes and a part is written"
)

// happen lets the end come, after the driver has died.
func (e end) happen(a *attachment) {
	a.Helper()
	if e == dies {
		a.kill()
		return
	}
	a.cut(e == torn)
}

// accident is an end in the middle of a step.
type accident struct {
	step  string // mount or grow
	point string // where the driver dies, or ""
	in    stop   // the program in which it dies
	end   end
}

func (c accident) String() string {
	if c.point != "" {
		return fmt.Sprintf("%s at %s", c.end, c.point)
	}
	return fmt.Sprintf("%s in %s at %s", c.end, c.in.program, c.in.at)
}

// attachedPoints are all crash points on the way of an attached disk, and the steps that get there.
// Before "device:mounted" the disk has no filesystem that could write meanwhile.
var attachedPoints = map[string]string{
	"device:target-made": "mount", "device:recorded": "mount", "device:formatted": "mount", "device:synced": "mount",
	"device:unrecorded": "mount", "device:mounted": "mount", "device:growing": "grow", "device:grown": "grow",
	"device:read-only": "mount read-only", // which writes nothing: see pkg/mounter
}

// accidents returns those of a step, which runs a program.
func accidents(step, program string) (all []accident) {
	ends, moments := []end{dies, powerGoes, torn}, []string{"write 1", "write 20", "write 60", "sync 1", "sync 2",
		"sync 3", "sync 4", "sync 8", "sync 13", "sync 1000"}
	if step == "grow" { // the kernel grows it
		ends, moments = ends[:2], []string{"0 ms", "5 ms", "20 ms", "sync 1000"}
	}
	for _, e := range ends {
		for _, at := range moments {
			all = append(all, accident{step: step, in: stop{program, at}, end: e})
		}
		for point, of := range attachedPoints {
			if of == step && !(point == "device:mounted" && e == torn) {
				all = append(all, accident{step: step, point: point, end: e})
			}
		}
	}
	slices.SortFunc(all, func(a, b accident) int { return strings.Compare(a.String(), b.String()) })
	return all
}

func TestTheCrashPointsOfAttachedDisksAreKnown(t *testing.T) {
	found := slices.DeleteFunc(points(t), func(p string) bool { return !strings.HasPrefix(p, "device:") })
	if want := slices.Sorted(maps.Keys(attachedPoints)); !slices.Equal(found, want) {
		t.Errorf("the source has %q, and the test %q", found, want)
	}
}

func TestAFormatOutlivesDeathsAndPowerCuts(t *testing.T) {
	t.Parallel()
	testdisk.NeedLoops(t)
	bin := attached(t)
	for _, f := range filesystems {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.need(t)
			for _, c := range part(t, accidents("mount", "mkfs."+f.name), 10) {
				t.Run(c.String(), func(t *testing.T) {
					t.Parallel()
					c.inFormat(newAttachment(t, bin, f.name))
				})
			}
		})
	}
}

// inFormat has the accident in the first mount of a disk.
func (c accident) inFormat(a *attachment) {
	if !a.step(c.step, c.point, c.in) {
		a.Fatal("the driver did not die")
	}
	kept := ""
	if c.point == "device:unrecorded" || c.point == "device:mounted" {
		kept = a.id()
	}
	c.end.happen(a)
	wantRecord := c.point != "device:target-made" && kept == ""
	if got := a.records(); len(got) > 1 || (len(got) > 0) != wantRecord {
		a.Errorf("the records are %q; must there be one: %v", got, wantRecord)
	}
	a.mount()
	id := a.id()
	if kept != "" && id != kept {
		a.Error("a filesystem that may have been used was made anew")
	}
	a.write("first")
	a.cut(false)
	for _, name := range []string{"second", "third"} {
		a.mount()
		if a.id() != id {
			a.Error("a filesystem that was used was made anew")
		}
		a.write(name)
		a.unmount()
	}
	a.mount()
	a.whole()
}

// growths say which program grows a filesystem while it is mounted.
var growths = map[string]string{"ext4": "resize2fs", "xfs": "xfs_growfs", "btrfs": "btrfs"}

func TestAGrowthOutlivesDeathsAndPowerCuts(t *testing.T) {
	t.Parallel()
	testdisk.NeedLoops(t)
	bin := attached(t)
	for _, f := range filesystems {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.need(t)
			all := accidents("grow", growths[f.name])
			if f.name == "ext4" {
				// resize2fs on an ext4 that is not mounted is not safe:
				// docs/how-to/attached-disks.md.
				all = slices.DeleteFunc(all, func(c accident) bool {
					return !mayGrowExt4(t) &&
						c.point == "device:grown"
				})
			}
			for _, c := range part(t, all, 10) {
				t.Run(c.String(), func(t *testing.T) {
					t.Parallel()
					c.inGrowth(newAttachment(t, bin, f.name))
				})
			}
		})
	}
}

// inGrowth has the accident while a disk grows that is mounted.
func (c accident) inGrowth(a *attachment) {
	a.mount()
	id := a.id()
	a.write("before")
	before := a.size()
	a.resize(attachedGrown)
	if !a.step(c.step, c.point, c.in) {
		a.Fatal("the driver did not die")
	}
	c.end.happen(a)
	a.mount()
	if a.fsType != "ext4" || mayGrowExt4(a.T) {
		if a.step("grow", "", stop{}) {
			a.Fatal("the driver was killed")
		}
	} else { // it grows when it is mounted
		a.unmount()
		a.mount()
	}
	if after := a.size(); after < before+(attachedGrown-attachedSize)*9/10 {
		a.Errorf("it had %d bytes and has %d", before, after)
	}
	if a.id() != id {
		a.Error("a filesystem that was used was made anew")
	}
	a.write("after")
	a.cut(false)
	a.mount()
	if a.fsType != "xfs" || c.point != "" { // else its copies of the superblock are old, which is the kernel's fault
		a.whole()
	}
}

// mayGrowExt4 reports whether this process has CAP_SYS_RESOURCE, which not every root has.
func mayGrowExt4(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
