package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/causeway-csi/causeway/internal/prereq"
	"github.com/causeway-csi/causeway/internal/qemu"
)

// kernels are the kernels of guests by their versions.
var kernels = map[string]string{"6.1": qemu.Metapackage, "6.12": qemu.Newer}

// guestPrograms are the programs of this machine that are in a guest, beside busybox.
var guestPrograms = []string{"bash", "blkid", "conntrack", "findmnt", "ip", "kmod", "losetup", "mount", "mountpoint",
	"nft", "runc", "umount"}

// guestComponents are the components that run in a guest.
var guestComponents = []string{"containerd", "containerd-shim-runc-v2", "ctr", "host-local", "kube-proxy", "kubelet",
	"loopback", "ptp"}

// diskModules are the kernel modules that a guest needs before it has its disks.
var diskModules = []string{"virtio_pci", "virtio_blk", "ext4", "overlay"}

func (f files) system(kernel string) string  { return filepath.Join(f.dir, kernel+".img") }
func (f files) initrd(kernel string) string  { return filepath.Join(f.dir, kernel+".initrd") }
func (f files) vmlinuz(kernel string) string { return filepath.Join(f.dir, kernel+".vmlinuz") }

// guestKernels returns the packages of the kernels of guests.
func guestKernels(versions []string) ([]string, error) {
	if len(versions) > 0 && runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("guests on %s: %w; they have Debian's kernel for amd64", runtime.GOARCH,
			errors.ErrUnsupported)
	}
	var all []string
	for _, v := range versions {
		if kernels[v] == "" {
			return nil, fmt.Errorf("invalid kernel %q of a guest: must be 6.1 or 6.12", v)
		}
		all = append(all, kernels[v])
	}
	return all, nil
}

// prepareGuests makes the disks of all guests.
func (c *Cluster) prepareGuests(ctx context.Context, log io.Writer, s spec) error {
	if len(s.Guests) == 0 {
		return nil
	}
	if err := prereq.Install(ctx, log, "guests"); err != nil {
		return err
	}
	for _, n := range s.nodes() {
		if !n.guest() {
			continue
		}
		if !exists(c.system(n.kernel)) {
			if err := c.makeSystem(ctx, log, s, n.kernel); err != nil {
				return fmt.Errorf("system disk: %w", err)
			}
		}
		own := c.node(n.Name)
		if err := makeSSHKeys(own); err != nil {
			return err
		}
		if err := makeExt4(ctx, own.of("state.img"), guestState, ""); err != nil {
			return err
		}
	}
	return nil
}

// makeSystem makes the disk that guests with a kernel start from, and the archive that mounts it.
func (c *Cluster) makeSystem(ctx context.Context, log io.Writer, s spec, name string) error {
	kernel, err := qemu.FindKernel(ctx, log, name)
	if err != nil {
		return err
	}
	if err := copyFile(kernel.Image, c.vmlinuz(name), 0o644); err != nil {
		return err
	}
	if err := c.makeInitrd(ctx, kernel, name); err != nil {
		return err
	}
	t := &tree{root: filepath.Join(c.dir, name+".tree")}
	defer os.RemoveAll(t.root)
	t.links()
	t.link(c.program(), "/cluster")
	for _, component := range guestComponents {
		t.link(filepath.Join(s.Bin, component), filepath.Join(s.Bin, component))
	}
	images, err := filepath.Glob(filepath.Join(c.images(), "*.tar"))
	if err != nil {
		return err
	}
	for _, image := range images {
		t.link(image, image)
	}
	t.programs(c.program())
	t.modules(ctx, kernel.Dir)
	for path, content := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "/etc/group": "root:x:0:\n",
		"/etc/hosts": "127.0.0.1 localhost\n", "/etc/resolv.conf": "",
		"/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
	} {
		t.File(path, []byte(content))
	}
	if t.err != nil {
		return t.err
	}
	return makeExt4(ctx, c.system(name), t.size*5/4+128<<20, t.root)
}

// makeInitrd makes the first filesystem of guests with a kernel.
func (c *Cluster) makeInitrd(ctx context.Context, kernel qemu.Kernel, name string) error {
	out, err := os.Create(c.initrd(name))
	if err != nil {
		return err
	}
	defer out.Close()
	a := qemu.NewArchive(out)
	script, err := embedded.ReadFile("files/guest-init.sh")
	if err != nil {
		return err
	}
	a.File("/init", script)
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	a.File("/bin/busybox", busybox)
	modules, err := kernel.Order(ctx, diskModules)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, m := range modules {
		at := "/modules/" + m.Name
		a.File(at, m.Content)
		fmt.Fprintln(&list, at)
	}
	a.File("/modules/list", []byte(list.String()))
	return errors.Join(a.End(), out.Close())
}

// makeExt4 makes a file with a filesystem that has the content of a directory, or is empty.
func makeExt4(ctx context.Context, path string, size int64, content string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	args := []string{"-q", "-F", "-E", "root_owner=0:0"}
	if content != "" {
		args = append(args, "-d", content)
	}
	return qemu.Command(ctx, "mkfs.ext4", append(args, path)...)
}

// tree is a directory that becomes a disk, up to the first error.
type tree struct {
	root string
	size int64 // of its files, in bytes
	err  error
}

func (t *tree) try(err error) {
	if t.err == nil {
		t.err = err
	}
}

// links makes the directories of programs and libraries, which are one for each.
func (t *tree) links() {
	for _, dir := range []string{"usr/bin", "usr/lib", "usr/lib64", "usr/local/sbin", "proc", "sys", "dev", "run",
		"tmp", "root", "var/lib"} {
		t.try(os.MkdirAll(filepath.Join(t.root, dir), 0o755))
	}
	for link, to := range map[string]string{"bin": "usr/bin", "sbin": "usr/bin", "usr/sbin": "bin", "lib": "usr/lib",
		"lib64": "usr/lib64", "var/run": "../run"} {
		t.try(os.Symlink(to, filepath.Join(t.root, link)))
	}
}

// File writes a file that all may run, and the directories above it.
func (t *tree) File(name string, content []byte) {
	at := filepath.Join(t.root, name)
	if t.try(os.MkdirAll(filepath.Dir(at), 0o755)); t.err == nil {
		t.try(os.WriteFile(at, content, 0o755))
		t.size += int64(len(content))
	}
}

// link makes a file of this machine visible in the tree: a link, or a copy if the file is on
// another filesystem.
func (t *tree) link(from, name string) {
	at := filepath.Join(t.root, name)
	info, err := os.Stat(from)
	if t.try(err); t.err != nil {
		return
	}
	t.try(os.MkdirAll(filepath.Dir(at), 0o755))
	if os.Link(from, at) != nil {
		t.try(copyFile(from, at, info.Mode()))
	}
	t.size += info.Size()
}

// programs adds programs of this machine with their libraries, and the libraries of another
// program.
func (t *tree) programs(other string) {
	added := map[string]bool{}
	libraries := func(path string) []byte {
		content, err := os.ReadFile(path)
		if t.try(err); t.err == nil {
			t.try(qemu.AddLibraries(t, content, added))
		}
		return content
	}
	libraries(other)
	for _, name := range guestPrograms {
		path, err := exec.LookPath(name)
		if t.try(err); t.err != nil {
			return
		}
		t.File("/usr/bin/"+name, libraries(path))
	}
	busybox, err := exec.LookPath("busybox")
	if t.try(err); t.err != nil {
		return
	}
	t.link(busybox, "/usr/bin/busybox")
	applets, err := exec.Command(busybox, "--list").Output()
	t.try(err)
	t.try(os.Symlink("kmod", filepath.Join(t.root, "usr/bin/modprobe"))) // before busybox' own
	for _, applet := range strings.Fields(string(applets)) {
		if err := os.Symlink("busybox", filepath.Join(t.root, "usr/bin", applet)); !errors.Is(err, fs.ErrExist) {
			t.try(err)
		}
	}
}

// modules adds the modules of a kernel, and the list of them that modprobe reads.
func (t *tree) modules(ctx context.Context, dir string) {
	from := filepath.Join(dir, "lib/modules")
	t.try(filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, err := filepath.Rel(from, file)
			if err != nil {
				return err
			}
			t.link(file, path.Join("/usr/lib/modules", rel))
		}
		return err
	}))
	versions, err := os.ReadDir(from)
	t.try(err)
	for _, v := range versions {
		if t.err == nil {
			t.try(qemu.Command(ctx, "depmod", "-b", t.root, v.Name()))
		}
	}
}
