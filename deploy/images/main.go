// Command images makes the images of the driver and the sidecars, without a container engine:
// docs/how-to/images.md.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/causeway-csi/causeway/deploy/images/debian"
	"github.com/causeway-csi/causeway/deploy/images/oci"
	"github.com/causeway-csi/causeway/deploy/images/sbom"
)

//go:embed debian.lock
var lockFile []byte

const lockName = "deploy/images/debian.lock"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// run makes the images, or the lock.
func run(ctx context.Context, args []string) error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	m := maker{root: root}
	flags := flag.NewFlagSet("images [flags] [image…]", flag.ContinueOnError)
	tag := flags.String("version", "dev", "tag of the images, which the programs say too")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64,windows/amd64", "platforms of the images")
	flags.StringVar(&m.out, "out", filepath.Join(root, "bin", "images"), "directory for the images")
	flags.StringVar(&m.windowsBase, "windows-base", "",
		"image of a registry that Windows images are put on, with its digest: "+windowsBase+"@sha256:…")
	m.signer.flags(flags)
	source := flags.String("driver-source", "",
		"directory of a main package that uses pkg/csidriver: the image driver gets that program; relative to the "+
			"working directory")
	lock := flags.Bool("lock", false, "do not make images, but find the newest packages of Debian for "+lockName)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *lock {
		return renew(ctx, filepath.Join(root, lockName))
	}
	if m.products, err = choose(flags.Args(), *source); err != nil {
		return err
	}
	m.platforms = strings.Split(*platforms, ",")
	slices.Sort(m.platforms) // an index has its images in this order
	if err := m.signer.check(m.platforms); err != nil {
		return err
	}
	if m.version, err = findVersion(ctx, root, *tag); err != nil {
		return err
	}
	if m.lock, err = debian.ParseLock(lockFile); err != nil {
		return err
	}
	return m.make(ctx)
}

// findRoot returns the directory of the product's sources: the nearest directory above with its
// go.mod.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(content), "module "+module+"\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("run this in the sources of %s", module)
		}
	}
}

// choose returns the products that have names, or all. The driver is built of source, unless that
// is "".
func choose(names []string, source string) (chosen []product, err error) {
	products := slices.Clone(products)
	if source != "" {
		if _, err := os.Stat(source); err != nil {
			return nil, fmt.Errorf("--driver-source: %w", err)
		}
		if products[0].source, err = filepath.Abs(source); err != nil {
			return nil, err
		}
	}
	for _, n := range names {
		i := slices.IndexFunc(products, func(p product) bool { return p.name == n })
		if i < 0 {
			return nil, fmt.Errorf("there is no image %q", n)
		}
		chosen = append(chosen, products[i])
	}
	if chosen == nil {
		chosen = products
	}
	return chosen, nil
}

// renew writes the lock.
func renew(ctx context.Context, path string) error {
	lock, err := debian.Renew(ctx, debian.Mirror, debian.Keyring, time.Now(), packages, []string{"amd64", "arm64"})
	if err != nil {
		return err
	}
	return os.WriteFile(path, lock.Format(), 0o644)
}

// maker makes images.
type maker struct {
	root, out   string
	windowsBase string
	signer      signer
	products    []product
	platforms   []string
	version     version
	lock        debian.Lock
	made        map[string][]oci.Image // by the name of their archive, without its end
}

// make writes an archive for each product, another archive for Windows, the SBOMs, and a file with
// all digests.
func (m *maker) make(ctx context.Context) error {
	m.made = map[string][]oci.Image{}
	for _, platform := range m.platforms {
		add := m.linux
		switch {
		case strings.HasPrefix(platform, "windows/"):
			add = m.windows
		case !strings.HasPrefix(platform, "linux/"):
			return fmt.Errorf("there are no images for %q", platform)
		}
		if err := add(ctx, platform); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
	}
	return m.write()
}

// programs builds the programs of products, and returns a function that reads a program.
func (m *maker) programs(ctx context.Context, platform string,
	products []product) (func(product) ([]byte, error), error) {
	goos, arch, _ := strings.Cut(platform, "/")
	dir := filepath.Join(m.out, "programs", goos+"-"+arch)
	if err := build(ctx, m.root, dir, platform, m.version, products); err != nil {
		return nil, err
	}
	return func(p product) ([]byte, error) { return os.ReadFile(filepath.Join(dir, p.executable(goos))) }, nil
}

// linux adds the images for a platform of Linux.
func (m *maker) linux(ctx context.Context, platform string) error {
	_, arch, _ := strings.Cut(platform, "/")
	read, err := m.programs(ctx, platform, m.products)
	if err != nil {
		return err
	}
	tree, err := debian.Open(ctx, store(m.lock), arch, m.lock.For(arch))
	if err != nil {
		return err
	}
	base, err := base(tree)
	if err != nil {
		return err
	}
	toolbox, err := toolbox(tree, base)
	if err != nil {
		return err
	}
	for _, p := range m.products {
		image := oci.Image{Platform: platform, User: p.user, Env: []string{searchPath},
			Layers: [][]oci.File{base.Files}}
		from := slices.Clone(base.Packages)
		if p.tools {
			image.Layers = append(image.Layers, toolbox.Files)
			from = append(from, toolbox.Packages...)
		}
		if err := m.add(ctx, p, image, from, read); err != nil {
			return err
		}
	}
	return nil
}

// store keeps packages where all builds on a machine find them.
func store(lock debian.Lock) debian.Store {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	return debian.Store{Dir: filepath.Join(cache, "causeway", "debian"), Mirror: debian.Mirror, Archive: debian.Archive,
		Snapshot: lock.Snapshot}
}

// incomplete is the annotation and label of a Windows image without its base.
const incomplete = "dev.causeway.image.incomplete"

// windows adds the images for a platform of Windows.
func (m *maker) windows(ctx context.Context, platform string) error {
	products := slices.DeleteFunc(slices.Clone(m.products), func(p product) bool { return !p.windows })
	if len(products) == 0 {
		return nil
	}
	base, err := m.pull(ctx, platform)
	if err != nil {
		return err
	}
	read, err := m.programs(ctx, platform, products)
	if err != nil {
		return err
	}
	for _, p := range products {
		if err := m.addWindows(ctx, p, platform, base, read); err != nil {
			return err
		}
	}
	return nil
}

// addWindows adds an image that is put on a base, or is marked as incomplete if that is nil.
func (m *maker) addWindows(ctx context.Context, p product, platform string, base v1.Image,
	read func(product) ([]byte, error)) error {
	image := oci.Image{Platform: platform, Base: base,
		Annotations: map[string]string{"org.opencontainers.image.base.name": windowsBase}}
	if base == nil {
		image.Annotations[incomplete] = "its base is missing: " + windowsBase
	}
	return m.add(ctx, p, image, nil, func(p product) ([]byte, error) {
		program, err := read(p)
		if err != nil {
			return nil, err
		}
		if program, err = m.signer.sign(ctx, program); err != nil {
			return nil, fmt.Errorf("sign %s: %w", p.executable("windows"), err)
		}
		return program, nil
	})
}

// pull returns the base of Windows images, or nil if there is to be none.
func (m *maker) pull(ctx context.Context, platform string) (v1.Image, error) {
	if m.windowsBase == "" {
		return nil, nil
	}
	ref, err := name.NewDigest(m.windowsBase) // a tag can move
	if err != nil {
		return nil, fmt.Errorf("--windows-base: %w", err)
	}
	goos, arch, _ := strings.Cut(platform, "/")
	image, err := remote.Image(ref, remote.WithContext(ctx),
		remote.WithPlatform(v1.Platform{OS: goos, Architecture: arch}))
	if err != nil {
		return nil, fmt.Errorf("--windows-base: %w", err)
	}
	return image, nil
}

// add completes an image by its program, and writes its SBOM.
func (m *maker) add(ctx context.Context, p product, image oci.Image, from []debian.Package,
	read func(product) ([]byte, error)) error {
	program, err := read(p)
	if err != nil {
		return err
	}
	slices.SortFunc(from, func(a, b debian.Package) int { return strings.Compare(a.Name, b.Name) })
	from = slices.CompactFunc(from, func(a, b debian.Package) bool { return a.Name == b.Name })
	list, err := sbom.Document(sbom.Image{
		Name: p.name, Version: m.version.tag, Revision: m.version.revision, Platform: image.Platform, Module: module,
		Program: program, Debian: from,
	})
	if err != nil {
		return err
	}
	copyright, err := licensesOf(ctx, m.root, image.Platform, p)
	if err != nil {
		return err
	}
	goos, arch, _ := strings.Cut(image.Platform, "/")
	image.Layers = append(image.Layers, p.own(goos, program, list, copyright))
	image.Entrypoint = []string{p.entrypoint(goos)}
	image.Labels = p.labels(m.version)
	archive := p.name
	if goos == "windows" {
		archive += "-windows"
		if why, ok := image.Annotations[incomplete]; ok {
			image.Labels[incomplete] = why
		}
	}
	m.made[archive] = append(m.made[archive], image)
	return os.WriteFile(filepath.Join(m.out, fmt.Sprintf("%s.%s-%s.spdx.json", p.name, goos, arch)), list, 0o644)
}

// write writes the archives and their digests.
func (m *maker) write() error {
	if len(m.made) == 0 {
		return errors.New("none of these images is for these platforms")
	}
	var digests []string
	for archive, images := range m.made {
		product, windows := strings.CutSuffix(archive, "-windows")
		ref := registry + "/" + product + ":" + m.version.tag
		if windows {
			ref += "-windows"
			if images[0].Base == nil {
				ref += "-incomplete" // prevents a push by mistake
			}
		}
		d, err := oci.Write(filepath.Join(m.out, archive+".tar"), ref, images...)
		if err != nil {
			return err
		}
		digests = append(digests, fmt.Sprintf("%s@%s", ref, d.Image))
		for platform, digest := range d.Manifests {
			digests = append(digests, fmt.Sprintf("%s@%s %s", ref, digest, platform))
		}
	}
	slices.Sort(digests)
	list := strings.Join(digests, "\n") + "\n"
	fmt.Print(list)
	return os.WriteFile(filepath.Join(m.out, "digests.txt"), []byte(list), 0o644)
}
