package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	serve "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"

	"github.com/causeway-csi/causeway/deploy/images/debian"
	"github.com/causeway-csi/causeway/deploy/images/oci"
)

// allowed are all files that images may have, by image: those of the base are in all.
var allowed = map[string]string{
	"": `^/etc/(passwd|group|nsswitch\.conf|debian_version|os-release|ssl/certs/ca-certificates\.crt)$
		^/usr/lib/os-release$
		^/usr/share/common-licenses/[A-Za-z0-9.-]+$
		^/usr/share/doc/(base-files|ca-certificates)/copyright$
		^/var/lib/dpkg/status\.d/(base-files|ca-certificates)$`,
	"csi-sidecars":      `^/csi-sidecars$ ^/usr/bin/csi-sidecars$ ^/usr/share/sbom/csi-sidecars\.spdx\.json$ ^/usr/share/doc/causeway-csi-sidecars/copyright$`,
	"csi-sidecars-node": `^/csi-sidecars-node$ ^/usr/bin/csi-sidecars-node$ ^/usr/share/sbom/csi-sidecars-node\.spdx\.json$ ^/usr/share/doc/causeway-csi-sidecars-node/copyright$`,
	"driver": `^/driver$ ^/usr/bin/driver$ ^/usr/share/sbom/driver\.spdx\.json$ ^/usr/share/doc/causeway-driver/copyright$
		^/sbin/(blkid|mkfs\.ext4|mke2fs|e2fsck|resize2fs|tune2fs|mkfs\.xfs|mkfs\.btrfs)$ ^/usr/sbin/xfs_(db|growfs)$ ^/bin/btrfs(tune)?$
		^/etc/mke2fs\.conf$
		^/(lib64/ld-linux-x86-64|lib/ld-linux-aarch64)\.so\.[12]$
		^(/usr)?/lib/(x86_64|aarch64)-linux-gnu/(ld-linux-x86-64|ld-linux-aarch64|lib(blkid|bsd|c|com_err|e2p|edit|ext2fs|gcc_s|inih|lzo2|md|tinfo|udev|urcu|uuid|z|zstd))\.so\.[0-9.]+$
		^/usr/share/doc/[a-z0-9-]+(/copyright)?$
		^/var/lib/dpkg/status\.d/[a-z0-9-]+$`,
}

func TestImagesHaveNothingElse(t *testing.T) {
	for _, p := range products {
		patterns := append(strings.Fields(allowed[""]), strings.Fields(allowed[p.name])...)
		used := map[string]bool{}
		each(t, image(t, p.name), func(h *tar.Header, content []byte) {
			file := "/" + strings.TrimSuffix(h.Name, "/")
			if h.Mode&^0o755 != 0 && h.Typeflag != tar.TypeSymlink || h.Uid != 0 || h.Gid != 0 {
				t.Errorf("%s: %s has the mode %o and is of %d:%d", p.name, file, h.Mode, h.Uid, h.Gid)
			}
			if bytes.HasPrefix(content, []byte("#!")) {
				t.Errorf("%s: %s is a script", p.name, file)
			}
			if h.Mode&0o111 != 0 && h.Typeflag == tar.TypeReg && !bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
				t.Errorf("%s: %s can be run and is no program", p.name, file)
			}
			if h.Typeflag == tar.TypeDir {
				return
			}
			i := slices.IndexFunc(patterns, func(p string) bool { return regexp.MustCompile(p).MatchString(file) })
			if i < 0 {
				t.Errorf("%s: %s is not on the list of what may be there", p.name, file)
				return
			}
			used[patterns[i]] = true
		})
		for _, pattern := range patterns {
			if !used[pattern] {
				t.Errorf("%s: nothing is called %s", p.name, pattern)
			}
		}
	}
}

// each calls f for each entry of an image.
func each(t *testing.T, i v1.Image, f func(*tar.Header, []byte)) {
	t.Helper()
	flat := mutate.Extract(i)
	defer flat.Close()
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		f(h, content)
	}
}

func TestImagesHaveLabels(t *testing.T) {
	v, err := findVersion(t.Context(), filepath.Join("..", ".."), testVersion)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range products {
		i := image(t, p.name)
		if err := validate.Image(i); err != nil {
			t.Error(err)
		}
		c, err := i.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Config; !maps.Equal(got.Labels, p.labels(v)) || got.User != p.user ||
			!slices.Equal(got.Entrypoint, []string{"/usr/bin/" + p.name}) || !slices.Equal(got.Env,
			[]string{searchPath}) || c.Created.Unix() != 0 {
			t.Errorf("%+v", c)
		}
		for key, value := range c.Config.Labels {
			if value == "" {
				t.Errorf("%s: %s is empty", p.name, key)
			}
		}
		beside, err := os.ReadFile(filepath.Join(archives(t), p.name+".linux-"+c.Architecture+".spdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		each(t, i, func(h *tar.Header, content []byte) { found["/"+h.Name] = string(content) })
		if doc, err := json.Read(bytes.NewReader(beside)); err != nil {
			t.Error(err)
		} else if err := spdxlib.ValidateDocument(doc); err != nil {
			t.Error(err)
		}
		if found[p.sbomPath()] != string(beside) ||
			!strings.Contains(string(beside), "pkg:deb/debian/ca-certificates@") || strings.Contains(string(beside),
			"e2fsprogs") != p.tools {
			t.Errorf("%s: the SBOM in the image is not the one beside it, or is not of the image", p.name)
		}
		if text := found[p.copyrightPath()]; !strings.Contains(text, "Apache License") ||
			!strings.Contains(text, "\nGo\n") || !strings.Contains(text, "google.golang.org/grpc v1.") {
			t.Errorf("%s has not the licenses of its modules: %.400s", p.name, text)
		}
		if n := strings.Count(found[bundle], "BEGIN CERTIFICATE"); n < 100 ||
			strings.Count(found[bundle], "\n-----BEGIN") != n-1 {
			t.Errorf("%s has %d certificates", p.name, n)
		}
	}
}

// TestAProgramIsTheSameFromAnotherDirectory builds the smallest program here and from a copy.
func TestAProgramIsTheSameFromAnotherDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("this builds a program")
	}
	here, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	for _, dir := range []string{"cmd", "pkg", "internal", "sidecars"} {
		if err := os.CopyFS(filepath.Join(copied, dir), os.DirFS(filepath.Join(here, dir))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(here, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(copied, file), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := products[slices.IndexFunc(products, func(p product) bool { return p.name == "csi-sidecars-node" })]
	var programs [][]byte
	for _, root := range []string{here, copied} {
		out := t.TempDir()
		if err := build(t.Context(), root, out, "linux/amd64", version{"v1", "abc"}, []product{p}); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(out, p.name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte(root)) {
			t.Errorf("the program knows %s", root)
		}
		programs = append(programs, content)
	}
	if !bytes.Equal(programs[0], programs[1]) {
		t.Error("the two programs differ")
	}
}

func TestTheLockHasAllPackages(t *testing.T) {
	lock, err := debian.ParseLock(lockFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		var got []string
		for _, p := range lock.For(arch) {
			got = append(got, p.Name)
		}
		want := slices.Sorted(slices.Values(packages))
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q: make images-lock", arch, got, want)
		}
	}
}

func TestVersions(t *testing.T) {
	for v, want := range map[version]string{
		{"v1.2.3", "0123456789abcdef"}:    "v1.2.3",
		{"dev", "0123456789abcdef"}:       "dev-0123456789ab",
		{"dev", "0123456789abcdef-dirty"}: "dev-0123456789ab-dirty",
		{"dev", "unknown"}:                "dev-unknown",
	} {
		if got := v.program(); got != want {
			t.Errorf("%+v says %q, want %q", v, got, want)
		}
	}
	for _, tag := range []string{"", "v1+a", "a b", "-X", ".a", "a/b", "a:b", strings.Repeat("a", 101)} {
		if v, err := findVersion(t.Context(), t.TempDir(), tag); err == nil {
			t.Errorf("%q is the version %+v", tag, v)
		}
	}
	if v, err := findVersion(t.Context(), t.TempDir(), "v1"); err != nil || v.revision != "unknown" {
		t.Errorf("outside of git: %+v, %v", v, err)
	}
}

// windowsImages makes the Windows images with this test as their program.
func windowsImages(t *testing.T, base string) map[string]v1.Image {
	t.Helper()
	m := maker{root: filepath.Join("..", ".."), out: t.TempDir(), windowsBase: base, version: version{"v1", "abc"},
		made: map[string][]oci.Image{}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	on, err := m.pull(t.Context(), "windows/amd64")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range products {
		if !p.windows {
			continue
		}
		if err := m.addWindows(t.Context(), p, "windows/amd64", on,
			func(product) ([]byte, error) { return os.ReadFile(self) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.write(); err != nil {
		t.Fatal(err)
	}
	images := map[string]v1.Image{}
	archives, err := filepath.Glob(filepath.Join(m.out, "*.tar"))
	if err != nil || len(archives) != 2 {
		t.Fatalf("%v, %v", archives, err)
	}
	for _, a := range archives {
		if images[path.Base(a)], err = tarball.ImageFromPath(a, nil); err != nil {
			t.Fatal(err)
		}
	}
	return images
}

func TestAWindowsImageIsIncompleteWithoutItsBase(t *testing.T) {
	for archive, i := range windowsImages(t, "") {
		c, err := i.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c.OS != "windows" || c.Architecture != "amd64" || len(c.RootFS.DiffIDs) != 1 ||
			!strings.Contains(c.Config.Labels[incomplete], windowsBase) {
			t.Errorf("%s: %+v", archive, c)
		}
		program := strings.TrimSuffix(archive, "-windows.tar")
		if !slices.Equal(c.Config.Entrypoint, []string{program + ".exe"}) {
			t.Errorf("%s starts %q", archive, c.Config.Entrypoint)
		}
		names := map[string]bool{}
		each(t, i, func(h *tar.Header, _ []byte) { names[h.Name] = true })
		for _, want := range []string{"Files/" + program + ".exe", "Files/usr/share/sbom/" + program + ".spdx.json",
			"Hives"} {
			if !names[want] {
				t.Errorf("%s has no %s: %v", archive, want, names)
			}
		}
	}
}

func TestAWindowsImageIsPutOnItsBase(t *testing.T) {
	server := httptest.NewServer(serve.New())
	defer server.Close()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser,
		error) {
		return io.NopCloser(strings.NewReader("base")), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	base, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	file, err := base.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file.OS, file.Architecture, file.OSVersion = "windows", "amd64", "10.0.17763.1"
	if base, err = mutate.ConfigFile(base, file); err != nil {
		t.Fatal(err)
	}
	digest, err := base.Digest()
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.NewDigest(strings.TrimPrefix(server.URL, "http://") + "/base@" + digest.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, base); err != nil {
		t.Fatal(err)
	}
	for archive, i := range windowsImages(t, ref.String()) {
		c, err := i.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		layers, err := i.Layers()
		if err != nil {
			t.Fatal(err)
		}
		if _, marked := c.Config.Labels[incomplete]; marked || len(layers) != 2 || c.OSVersion != "10.0.17763.1" {
			t.Errorf("%s: %+v with %d layers", archive, c, len(layers))
		}
	}
	tag := ref.Context().Tag("v1")
	if err := remote.Write(tag, base); err != nil {
		t.Fatal(err)
	}
	m := maker{windowsBase: tag.String()}
	if _, err := m.pull(t.Context(), "windows/amd64"); err == nil {
		t.Error("a base without a digest was taken, and a tag can change")
	}
}
