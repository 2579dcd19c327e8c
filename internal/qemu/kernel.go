package qemu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/internal/prereq"
)

// Metapackage depends on the newest kernel of this release of Debian. This flavor has drivers for
// virtual machines only, and xfs, ext4 and btrfs with quotas among its filesystems. FindKernel also
// takes other metapackages.
const Metapackage = "linux-image-cloud-amd64"

// Newer depends on a kernel of the next release.
const Newer = "linux-image-6.12-cloud-amd64"

// Kernel is an unpacked kernel.
type Kernel struct {
	Image string // path of the image
	Dir   string // has lib/modules

	modules map[string]string // paths by name
	builtin map[string]bool   // modules that are part of the image
}

// FindKernel returns the kernel of a metapackage in the user's cache. Apt fetches a missing kernel,
// and log receives a message about that. Errors: a missing kernel on a machine without apt.
func FindKernel(ctx context.Context, log io.Writer, metapackage string) (Kernel, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return Kernel{}, err
	}
	cache = filepath.Join(cache, "causeway", "vm")
	dir := filepath.Join(cache, metapackage)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := fetchKernel(ctx, log, metapackage, cache, dir); err != nil {
			return Kernel{}, fmt.Errorf("get a kernel: %w", err)
		}
	}
	k, err := readKernel(dir)
	if err != nil {
		return k, fmt.Errorf("%w: remove %s, and it is fetched again", err, dir)
	}
	return k, nil
}

var dependency = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-\S+)$`)

// fetchKernel makes dir with the content of the kernel's package, all at once. Apt checks that it
// is Debian's.
func fetchKernel(ctx context.Context, log io.Writer, metapackage, cache, dir string) error {
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("this needs Debian: %w", err)
		}
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	deb, err := download(ctx, log, metapackage, tmp)
	// A fresh container has no lists of packages. Old lists name packages that are no longer on the
	// servers.
	if err != nil && os.Geteuid() == 0 {
		// hack/packages may update the lists at the same time.
		if updated := Command(ctx, "flock", prereq.Lock, "apt-get", "update", "-qq"); updated != nil {
			return errors.Join(err, updated)
		}
		deb, err = download(ctx, log, metapackage, tmp)
	}
	if err != nil {
		return err
	}
	if err := Command(ctx, "dpkg-deb", "-x", deb, filepath.Join(tmp, "kernel")); err != nil {
		return err
	}
	// another may have been first
	if err := os.Rename(filepath.Join(tmp, "kernel"), dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// download downloads the newest kernel of a metapackage into a directory and returns the path of
// its package.
func download(ctx context.Context, log io.Writer, metapackage, dir string) (string, error) {
	pkg, err := newestKernel(ctx, metapackage)
	if err != nil {
		return "", err
	}
	fmt.Fprintln(log, "qemu: downloading", pkg, "(27 MB)")
	if err := commandIn(ctx, dir, "apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", pkg); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return "", err
	}
	if len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s left the packages %q, not one", pkg, debs)
	}
	return debs[0], nil
}

func newestKernel(ctx context.Context, metapackage string) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", metapackage).Output()
	if err != nil {
		return "", errors.Join(ctx.Err(), fmt.Errorf("apt-cache depends %s: %w", metapackage, err))
	}
	found := dependency.FindSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("apt knows no package %s: it is Debian's, and needs apt-get update", metapackage)
	}
	return string(found[1]), nil
}

// readKernel finds the files of an unpacked kernel.
func readKernel(dir string) (Kernel, error) {
	k := Kernel{Dir: dir, modules: map[string]string{}, builtin: map[string]bool{}}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		switch name, rest, _ := strings.Cut(d.Name(), "."); {
		case strings.HasPrefix(d.Name(), "vmlinuz-"):
			k.Image = path
		case rest == "ko" || rest == "ko.xz":
			k.modules[moduleName(name)] = path
		case d.Name() == "modules.builtin":
			return k.readBuiltin(path)
		}
		return nil
	})
	if err == nil && (k.Image == "" || len(k.modules) == 0) {
		err = fmt.Errorf("there is no kernel in %s", dir)
	}
	return k, err
}

func (k *Kernel) readBuiltin(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for s := bufio.NewScanner(bytes.NewReader(content)); s.Scan(); {
		name, _, _ := strings.Cut(filepath.Base(s.Text()), ".")
		k.builtin[moduleName(name)] = true
	}
	return nil
}

// moduleName returns the name that a module has in lists: in some - is _.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// Module is a kernel module.
type Module struct {
	Name    string
	Content []byte // uncompressed
}

// Order returns modules and their dependencies, each after its own dependencies. Modules that are
// part of the kernel's image are left out.
func (k Kernel) Order(ctx context.Context, names []string) (all []Module, err error) {
	for _, name := range names {
		if all, err = k.add(ctx, all, moduleName(name)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (k Kernel) add(ctx context.Context, all []Module, name string) ([]Module, error) {
	if k.builtin[name] || slices.ContainsFunc(all, func(l Module) bool { return l.Name == name }) {
		return all, nil
	}
	path, ok := k.modules[name]
	if !ok {
		return nil, fmt.Errorf("the kernel has no module %s", name)
	}
	content, err := readModule(ctx, path)
	if err != nil {
		return nil, err
	}
	needed, err := modinfo(content, "depends")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, n := range strings.FieldsFunc(strings.Join(needed, ","), func(r rune) bool { return r == ',' }) {
		if all, err = k.add(ctx, all, moduleName(n)); err != nil {
			return nil, err
		}
	}
	return append(all, Module{name, content}), nil
}

// readModule reads a module, which newer releases of Debian compress.
func readModule(ctx context.Context, path string) ([]byte, error) {
	if !strings.HasSuffix(path, ".xz") {
		return os.ReadFile(path)
	}
	content, err := exec.CommandContext(ctx, "xz", "-dc", path).Output()
	if err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("xz -dc %s: %w", path, err))
	}
	return content, nil
}
