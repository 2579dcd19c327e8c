package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/causeway-csi/causeway/deploy/images/debian"
)

// enterRoot has the container that the test's own binary is to become, as JSON.
const enterRoot = "CAUSEWAY_IMAGES_ENTER"

func TestMain(m *testing.M) {
	if in := os.Getenv(enterRoot); in != "" {
		fmt.Fprintln(os.Stderr, "enter:", enter(in))
		os.Exit(125)
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// inside is a process in a container, as enter makes it.
type inside struct {
	Root, User string
	Mounts     [][2]string // a directory of the machine, and its writable place in the container
	Env        []string
}

// enter makes this process that of a container, as a container runtime does: it has the image as
// its root, read-only, with /proc and the mounts, and the container's user and environment. It then
// runs its arguments.
func enter(encoded string) error {
	var in inside
	if err := json.Unmarshal([]byte(encoded), &in); err != nil {
		return err
	}
	var errs []error
	mount := func(source, target string, flags uintptr) {
		if err := syscall.Mount(source, target, "", flags, ""); err != nil {
			errs = append(errs, fmt.Errorf("mount %s: %w", target, err))
		}
	}
	mount("", "/", syscall.MS_REC|syscall.MS_PRIVATE)
	mount(in.Root, in.Root, syscall.MS_BIND)
	mount("/proc", in.Root+"/proc", syscall.MS_BIND|syscall.MS_REC)
	for _, m := range in.Mounts {
		mount(m[0], in.Root+m[1], syscall.MS_BIND)
	}
	mount("", in.Root, syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY)
	id, err := strconv.Atoi(in.User)
	if err := errors.Join(append(errs, err, syscall.Chroot(in.Root), os.Chdir("/"))...); err != nil {
		return err
	}
	if id != 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(id), syscall.Setuid(id)); err != nil {
			return err
		}
	}
	os.Clearenv()
	for _, e := range in.Env {
		name, value, _ := strings.Cut(e, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	program, err := exec.LookPath(os.Args[1])
	if err != nil {
		return err
	}
	return syscall.Exec(program, os.Args[1:], os.Environ())
}

// built are the Linux images for this machine, made once by the real thing.
var built struct {
	sync.Once
	dir string
	err error
}

const testVersion = "v1.2.3-test"

// archives returns the directory with the images.
func archives(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("this builds the programs")
	}
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "causeway-images-"); built.err == nil {
			built.err = run(t.Context(), []string{"--version", testVersion, "--platforms", "linux/" + runtime.GOARCH,
				"--out", built.dir})
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

// image returns a built image.
func image(t *testing.T, name string) v1.Image {
	t.Helper()
	i, err := tarball.ImageFromPath(filepath.Join(archives(t), name+".tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// container is an unpacked image that programs can be run in.
type container struct {
	root, run string
	config    v1.Config
	mounts    [][2]string // beside that of run
	env       []string    // beside that of the image
}

func unpackImage(t *testing.T, name string) container {
	t.Helper()
	i := image(t, name)
	config, err := i.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := container{root: t.TempDir(), run: t.TempDir(), config: config.Config}
	flat := mutate.Extract(i)
	defer flat.Close()
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if err := unpackEntry(filepath.Join(c.root, h.Name), h, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"proc", "run"} { // which a container runtime makes
		if err := os.Mkdir(filepath.Join(c.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{c.root, c.run, filepath.Dir(c.root)} { // for users who are not root
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func unpackEntry(path string, h *tar.Header, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(path, h.FileInfo().Mode())
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, r)
	return errors.Join(err, out.Close())
}

// mountless is why this machine permits no mount namespaces, or nil.
var mountless = sync.OnceValue(func() error {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.SysProcAttr = namespaces()
	return cmd.Run()
})

// namespaces are a mount namespace, and for users who are not root a user namespace in which they
// are.
func namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// mount makes a writable directory of the machine and mounts it in the container.
func (c *container) mount(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755),
		os.MkdirAll(filepath.Join(c.root, path), 0o755)); err != nil {
		t.Fatal(err)
	}
	c.mounts = append(c.mounts, [2]string{dir, path})
	return dir
}

// command returns a command of the container, as a user. A test is skipped where that cannot be,
// unless CAUSEWAY_MUST_MOUNT is set.
func (c container) command(t *testing.T, user string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	in, err := json.Marshal(inside{c.root, user, append(c.mounts, [2]string{c.run, "/run"}),
		append(c.config.Env, c.env...)})
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = []string{enterRoot + "=" + string(in)}
	cmd.SysProcAttr = namespaces()
	why := mountless()
	if why == nil && user != "0" && os.Geteuid() != 0 {
		why = errors.New("only root can become another user")
	}
	if why != nil && os.Getenv("CAUSEWAY_MUST_MOUNT") == "" {
		t.Skip(why)
	} else if why != nil {
		t.Fatal(why)
	}
	return cmd
}

// on runs a tool in the container on a file, as the driver does.
func (c container) on(t *testing.T, disk *os.File, args ...string) {
	t.Helper()
	cmd := c.command(t, "0", append(args, "/proc/self/fd/3")...)
	cmd.ExtraFiles = []*os.File{disk}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); args[0] == "e2fsck" && errors.As(err, &exit) && exit.ExitCode() == 1 {
		return // it has repaired the filesystem
	}
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// blkid makes sure that the container's blkid finds a filesystem in a file, called as mount-utils
// calls it.
func (c container) blkid(t *testing.T, disk *os.File, want string) {
	t.Helper()
	cmd := c.command(t, "0", "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{disk}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "\nTYPE="+want+"\n") {
		t.Errorf("blkid: %v: %q, want the type %s", err, out, want)
	}
}

// emptyDisk returns a file with holes.
func emptyDisk(t *testing.T, size int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

func at(t *testing.T, f *os.File, offset int64, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, offset); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAnExt4IsMadeCheckedGrownAndRenamed(t *testing.T) {
	c, disk := unpackImage(t, "driver"), emptyDisk(t, 64<<20)
	c.on(t, disk, "mkfs.ext4", "-q", "-F", "-m", "0")
	const superblock = 1024
	// EXT4_FEATURE_COMPAT_ORPHAN_FILE, which Linux has since 5.15, and of which upstream's mke2fs
	// makes use by itself.
	if features := binary.LittleEndian.Uint32(at(t, disk, superblock+0x5c, 4)); features&0x1000 != 0 {
		t.Errorf("the features %x are too new for old nodes", features)
	}
	c.blkid(t, disk, "ext4")
	c.on(t, disk, "e2fsck", "-p")
	if err := disk.Truncate(128 << 20); err != nil {
		t.Fatal(err)
	}
	c.on(t, disk, "e2fsck", "-f", "-p")
	c.on(t, disk, "resize2fs")
	block := int64(1024) << binary.LittleEndian.Uint32(at(t, disk, superblock+0x18, 4))
	if got := int64(binary.LittleEndian.Uint32(at(t, disk, superblock+4, 4))) * block; got != 128<<20 {
		t.Errorf("it has %d bytes after it grew", got)
	}
	before := at(t, disk, superblock+0x68, 16)
	c.on(t, disk, "tune2fs", "-U", "random", "-O", "metadata_csum_seed")
	if bytes.Equal(before, at(t, disk, superblock+0x68, 16)) {
		t.Error("tune2fs has left the UUID")
	}
	c.on(t, disk, "e2fsck", "-f", "-p")
}

func TestAnXFSIsMadeAndRenamed(t *testing.T) {
	c, disk := unpackImage(t, "driver"), emptyDisk(t, 300<<20)
	c.on(t, disk, "mkfs.xfs", "-q", "-f")
	// XFS_SB_FEAT_INCOMPAT_NREXT64 of fs/xfs/libxfs/xfs_format.h, without which Linux before 5.19
	// can mount it.
	if features := binary.BigEndian.Uint32(at(t, disk, 216, 4)); string(at(t, disk, 0, 4)) != "XFSB" ||
		features&0x20 != 0 {
		t.Errorf("%q with features %x", at(t, disk, 0, 4), features)
	}
	c.blkid(t, disk, "xfs")
	before := at(t, disk, 32, 16)
	c.on(t, disk, "xfs_db", "-f", "-x", "-c", "uuid generate")
	if bytes.Equal(before, at(t, disk, 32, 16)) {
		t.Error("xfs_db has left the UUID")
	}
}

func TestABtrfsIsMadeAndRenamed(t *testing.T) {
	c, disk := unpackImage(t, "driver"), emptyDisk(t, 256<<20)
	c.on(t, disk, "mkfs.btrfs", "-q", "-f")
	c.blkid(t, disk, "btrfs")
	c.on(t, disk, "btrfs", "inspect-internal", "dump-super")
	const superblock = 64 << 10
	before := at(t, disk, superblock+32, 16)
	c.on(t, disk, "btrfstune", "-f", "-m")
	if string(at(t, disk, superblock+64, 8)) != "_BHRfS_M" || bytes.Equal(before, at(t, disk, superblock+32, 16)) {
		t.Error("btrfstune has left the UUID")
	}
}

func TestEachToolIsFoundAndRuns(t *testing.T) {
	c := unpackImage(t, "driver")
	for _, tool := range tools {
		out, err := c.command(t, "0", path.Base(tool), "-V").CombinedOutput()
		if strings.Contains(string(out), "enter:") || strings.Contains(string(out), "error while loading") ||
			len(out) == 0 {
			t.Errorf("%s: %v: %s", tool, err, out) // not all know -V, but they say that
		}
	}
}

func TestProgramsPrintTheirVersion(t *testing.T) {
	for _, p := range products {
		c := unpackImage(t, p.name)
		user, _, _ := strings.Cut(c.config.User, ":")
		ask := "version"
		if p.name == "driver" {
			ask = "--version"
		}
		// By PATH, as a manifest's command may be, and at the path of earlier releases, too.
		for _, program := range append(c.config.Entrypoint, p.name, "/"+p.name) {
			out, err := c.command(t, user, program, ask).CombinedOutput()
			if err != nil || !strings.Contains(string(out), " "+testVersion) {
				t.Errorf("%s: %v: %s", program, err, out)
			}
		}
	}
}

func TestTheDriverIsAControllerWithoutRights(t *testing.T) {
	c := unpackImage(t, "driver")
	if out, err := c.command(t, "65532", "/driver", "certs", "--dir=/run/certs",
		"--shared=nodes").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := c.command(t, "65532", "/driver", "--mode=controller", "--endpoint=unix:///run/csi.sock",
		"--peers=127.0.0.1:1", "--peer-certs=/run/certs/router", "--http-endpoint=")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer kill.Stop()
	var all strings.Builder
	for s := bufio.NewScanner(log); s.Scan(); {
		fmt.Fprintln(&all, s.Text())
		if strings.Contains(s.Text(), "serving CSI") {
			if err := errors.Join(speaksHTTP2(filepath.Join(c.run, "csi.sock")),
				cmd.Process.Signal(syscall.SIGTERM)); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(all.String(), "drained and done") {
		t.Errorf("%v: %s", err, all.String())
	}
}

// speaksHTTP2 returns when a server at a socket answers: gRPC's first frame are settings.
func speaksHTTP2(socket string) error {
	conn, err := net.DialTimeout("unix", socket, 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	const preface, settings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	frame := make([]byte, 9)
	late := conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, wrote := io.WriteString(conn, preface+settings)
	_, read := io.ReadFull(conn, frame)
	if err := errors.Join(late, wrote, read); err != nil {
		return err
	}
	if frame[3] != 4 {
		return fmt.Errorf("%s answers %q", socket, frame)
	}
	return nil
}

// TestArm64IsComplete checks all programs and libraries for arm64, which cannot be run here: Pick
// fails for a missing file.
func TestArm64IsComplete(t *testing.T) {
	lock, err := debian.ParseLock(lockFile)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := debian.Open(t.Context(), store(lock), "arm64", lock.For("arm64"))
	if err != nil {
		t.Fatal(err)
	}
	base, err := base(tree)
	if err != nil {
		t.Fatal(err)
	}
	toolbox, err := toolbox(tree, base)
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{}
	for _, f := range toolbox.Files {
		paths[f.Path] = true
	}
	if other, err := debian.Open(t.Context(), store(lock), "arm64", lock.For("amd64")); err != nil {
		t.Error(err)
	} else if _, err := other.Pick(tools); err == nil || !strings.Contains(err.Error(), "EM_X86_64") {
		t.Errorf("programs for amd64 are taken for arm64: %v", err)
	}
	for _, want := range append([]string{"/lib/ld-linux-aarch64.so.1", "/lib/aarch64-linux-gnu/libc.so.6",
		"/lib/aarch64-linux-gnu/libgcc_s.so.1"}, tools...) {
		if !paths[want] {
			t.Errorf("%s is not there", want)
		}
	}
	used := map[string]bool{}
	for _, p := range slices.Concat(base.Packages, toolbox.Packages) {
		used[p.Name] = true
	}
	for _, name := range packages {
		if !used[name] {
			t.Errorf("nothing of %s is in the image: take it out of packages", name)
		}
	}
}
