// Package releasetest makes small releases for tests: all files of a release, but with programs of
// a few bytes, and a key of its own.
package releasetest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"debug/elf"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/deploy/images/oci"
	"github.com/causeway-csi/causeway/deploy/images/sbom"

	"github.com/causeway-csi/causeway/release/internal/attest"
	"github.com/causeway-csi/causeway/release/internal/build"
)

// Version is the version of the releases, and the tag of the repository.
const Version = "v0.1.0"

// goVersion is the version of the go command in the programs.
const goVersion = "go1.26.8"

// changelog has a section of the version, between others.
const changelog = `# Changelog

## [Unreleased]

Later.

## [0.1.0] - 2026-12-01

### Added

- A driver: [read](docs/README.md#it), [more](https://example.com).

## [0.0.9]

Earlier.

[0.1.0]: https://example.com/v0.1.0
`

// Repository makes a repository of git with the charts and manifests of this one, and the tag
// Version.
func Repository(t *testing.T) string {
	t.Helper()
	dir, root := t.TempDir(), filepath.Join("..", "..", "..")
	for _, part := range []string{"charts", "deploy/linux", "deploy/windows"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(root, part))); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		"CHANGELOG.md": changelog, "LICENSE": "a license\n", ".gitignore": "/bin/\n*.out\n",
		"containercopy/chart/Chart.yaml":              "name: causeway-copy\nversion: 0.1.0\nappVersion: dev\n",
		"containercopy/chart/values.yaml":             "images: {registry: ghcr.io/causeway-csi, tag: \"\"}\n",
		"containercopy/images/main.go":                "package main\n",
		"containercopy/cmd/kubectl-copy/main.go":      "package main\n",
		"release/cmd/causeway-release-verify/main.go": "package main\n",
		"plugin/cmd/kubectl-causeway/main.go":         "package main\n",
	}
	for name, content := range files {
		Write(t, filepath.Join(dir, name), content)
	}
	Git(t, dir, "init", "--quiet")
	Git(t, dir, "add", ".")
	Git(t, dir, "commit", "--quiet", "--message=first")
	Git(t, dir, "tag", Version)
	return dir
}

// Git runs git in a directory.
func Git(t *testing.T, dir string, args ...string) {
	t.Helper()
	user := []string{"-c", "user.name=test", "-c", "user.email=test@example.com"}
	cmd := exec.Command("git", append(user, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v: %s", args, err, out)
	}
}

// Write writes a file and its directory.
func Write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Options are those of a small release of a repository.
func Options(t *testing.T, root string, signer build.Signer) build.Options {
	return build.Options{
		Root: root, Out: filepath.Join(t.TempDir(), "release"), Version: Version,
		Builder: "https://example.com/builder",
		Maker:   Maker{}, Signer: signer, Log: io.Discard,
	}
}

// Maker makes programs of a few bytes. Its fields are mistakes.
type Maker struct {
	Reported string // version in the programs, instead of the release's
	Labeled  string // version in the labels of images, instead of the release's
	NoSBOM   bool   // leave the SBOMs out of the images
	Short    bool   // leave linux/arm64 out of the images, but not out of the programs
	Other    bool   // have another program in the images than beside them
}

// GoVersion implements build.Maker.
func (Maker) GoVersion(context.Context, *build.Release) (string, error) { return goVersion, nil }

// Images implements build.Maker.
func (m Maker) Images(_ context.Context, r *build.Release, dir string) error {
	list, windows := map[string]string{}, "-windows"
	if r.WindowsBase == "" {
		windows += "-incomplete"
	}
	for _, i := range []struct {
		product, archive, suffix string
		platforms                []string
	}{
		{"driver", "driver", "", []string{"linux/amd64", "linux/arm64"}},
		{"driver", "driver-windows", windows, []string{"windows/amd64"}},
		{"csi-sidecars", "csi-sidecars", "", []string{"linux/amd64", "linux/arm64"}},
		{"csi-sidecars-node", "csi-sidecars-node", "", []string{"linux/amd64", "linux/arm64"}},
		{"csi-sidecars-node", "csi-sidecars-node-windows", windows, []string{"windows/amd64"}},
	} {
		if err := m.image(r, dir, i.product, i.archive, i.suffix, i.platforms, list); err != nil {
			return err
		}
	}
	return writeDigests(dir, list)
}

// CopyImages implements build.Maker.
func (m Maker) CopyImages(_ context.Context, r *build.Release, dir string) error {
	list := map[string]string{}
	platforms := []string{"linux/amd64", "linux/arm64"}
	for _, name := range []string{"copy-agent", "copy-apiserver"} {
		if err := m.image(r, dir, name, name, "", platforms, list); err != nil {
			return err
		}
	}
	return writeDigests(dir, list)
}

// image makes an archive of images, and notes its digests.
func (m Maker) image(r *build.Release, dir, product, archive, suffix string, platforms []string,
	list map[string]string) error {
	var images []oci.Image
	for _, platform := range platforms {
		goos, arch, _ := strings.Cut(platform, "/")
		program := m.program(r, product, platform)
		executable := product
		if goos == "windows" {
			executable += ".exe"
		}
		document, err := sbom.Document(sbom.Image{Name: product, Version: r.Version, Revision: "abc",
			Platform: platform, Module: "example.com/product", Program: program})
		if err != nil {
			return err
		}
		for path, content := range map[string][]byte{
			filepath.Join("programs", goos+"-"+arch, executable):   program,
			fmt.Sprintf("%s.%s-%s.spdx.json", product, goos, arch): document,
		} {
			path = filepath.Join(dir, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, content, 0o600); err != nil {
				return err
			}
		}
		files := []oci.File{{Path: "/" + executable, Mode: 0o755, Content: program}}
		if !m.NoSBOM {
			files = append(files, oci.File{Path: "/usr/share/sbom/" + product + ".spdx.json", Mode: 0o644,
				Content: document})
		}
		if m.Other {
			files[0].Content = m.program(r, product+"-other", platform)
		}
		if m.Short && platform == "linux/arm64" {
			continue
		}
		images = append(images, oci.Image{Platform: platform, Layers: [][]oci.File{files},
			Labels: map[string]string{"org.opencontainers.image.version": cmp.Or(m.Labeled, r.Version)}})
	}
	ref := "ghcr.io/causeway-csi/" + product + ":" + r.Version + suffix
	digests, err := oci.Write(filepath.Join(dir, archive+".tar"), ref, images...)
	list[ref+"@"+digests.Image] = ""
	for platform, digest := range digests.Manifests {
		list[ref+"@"+digest+" "+platform] = ""
	}
	return err
}

func writeDigests(dir string, list map[string]string) error {
	lines := strings.Join(slices.Sorted(maps.Keys(list)), "\n") + "\n"
	return os.WriteFile(filepath.Join(dir, "digests.txt"), []byte(lines), 0o600)
}

// Program implements build.Maker.
func (m Maker) Program(_ context.Context, r *build.Release, p build.Program, platform, to string) error {
	return os.WriteFile(to, m.program(r, p.Name, platform), 0o600)
}

// Licenses implements build.Maker.
func (Maker) Licenses(context.Context, *build.Release, build.Program, string) ([]byte, error) {
	return []byte("licenses\n"), nil
}

// Docs implements build.Maker.
func (Maker) Docs(_ context.Context, _ *build.Release, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "index.html"), []byte("<p>Causeway"), 0o600)
}

// program returns the bytes of a program.
func (m Maker) program(r *build.Release, name, platform string) []byte {
	return Program(name, cmp.Or(m.Reported, r.Version), platform)
}

// Program returns an ELF file that has the build information of the go command, and a version as
// the linker writes it. It cannot run.
func Program(name, version, platform string) []byte {
	goos, arch, _ := strings.Cut(platform, "/")
	sentinel := strings.Repeat("s", 16) // around the information, which debug/buildinfo removes
	mod := sentinel + "path\texample.com/" + name + "\nmod\texample.com\t(devel)\t\nbuild\tGOARCH=" + arch +
		"\nbuild\tGOOS=" + goos + "\n" + sentinel
	info := append([]byte("\xff Go buildinf:\x08\x02"), make([]byte, 16)...) // strings follow the header of 32 bytes
	for _, s := range []string{goVersion, mod} {
		info = append(binary.AppendUvarint(info, uint64(len(s))), s...)
	}
	info = append(info, "\x00"+name+"\x00"+version+"\x00"...)
	const start = 64 + 56 + 8 // the headers, aligned to 16
	var out bytes.Buffer
	header := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: 64, Ehsize: 64,
		Phentsize: 56, Phnum: 1, Shentsize: 64}
	copy(header.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	segment := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: start, Vaddr: start,
		Filesz: uint64(len(info)), Memsz: uint64(len(info)), Align: 16}
	for _, part := range []any{header, segment, make([]byte, 8), info} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	return out.Bytes()
}

// Signer signs with a new key.
type Signer struct {
	private *ecdsa.PrivateKey
	public  attest.Key
}

// NewSigner returns a signer with a key of ECDSA, as cosign's.
func NewSigner(t *testing.T) Signer {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	public, err := attest.ParseKey(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return Signer{private, public}
}

// Key implements build.Signer.
func (s Signer) Key() attest.Key { return s.public }

// Sign implements build.Signer.
func (s Signer) Sign(_ context.Context, content []byte) ([]byte, error) {
	digest := sha256.Sum256(content)
	return ecdsa.SignASN1(rand.Reader, s.private, digest[:])
}
