// Command images makes the images of container copy, without a container engine or a registry: an
// archive of each image that containerd and Docker load. It runs in the folder of container copy.
package main

import (
	"context"
	"debug/elf"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/deploy/images/oci"
	"github.com/causeway-csi/causeway/deploy/images/sbom"
)

// registry is the prefix of the names of images.
const registry = "ghcr.io/causeway-csi"

// image is an image: its programs are those of cmd.
type image struct {
	name     string
	user     string
	programs map[string]string // paths by the name of the program; the first argument is entry
	entry    string
}

// images are all images. The agent is root with few capabilities: its worker is in a directory of
// its own, which becomes the root of the worker.
var images = []image{
	{"copy-agent", "0:0", map[string]string{"agent": "/agent", "worker": "/worker/worker"}, "/agent"},
	{"copy-apiserver", "65532:65532", map[string]string{"apiserver": "/apiserver"}, "/apiserver"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	out := flag.String("out", "images-out", "`directory` of the archives")
	tag := flag.String("version", "dev", "`tag` of the images")
	revision := flag.String("revision", "unknown", "`commit` of the sources, for the SBOMs")
	arch := flag.String("arch", runtime.GOARCH, "`processors`, separated by commas: amd64, arm64")
	flag.Parse()
	if err := run(ctx, *out, version{*tag, *revision}, strings.Split(*arch, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// version is the tag of the images and the commit of the sources.
type version struct{ tag, revision string }

// run builds the programs, and writes the archives, the SBOMs and a file with all digests.
func run(ctx context.Context, out string, v version, arches []string) error {
	dir, err := os.MkdirTemp("", "causeway-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var list []string
	for _, i := range images {
		for program := range i.programs {
			for _, arch := range arches {
				if err := build(ctx, filepath.Join(dir, arch, program), program, arch); err != nil {
					return fmt.Errorf("build %s for %s: %w", program, arch, err)
				}
			}
		}
		path := filepath.Join(out, i.name+".tar")
		digests, err := i.write(dir, path, v, arches...)
		if err != nil {
			return fmt.Errorf("%s: %w", i.name, err)
		}
		fmt.Println(path, i.reference(v.tag), digests.Image)
		list = append(list, i.reference(v.tag)+"@"+digests.Image)
		for platform, digest := range digests.Manifests {
			list = append(list, i.reference(v.tag)+"@"+digest+" "+platform)
		}
	}
	slices.Sort(list)
	return os.WriteFile(filepath.Join(out, "digests.txt"), []byte(strings.Join(list, "\n")+"\n"), 0o644)
}

// build builds a program of cmd.
func build(ctx context.Context, to, program, arch string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", to, "./cmd/"+program)
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	return static(to)
}

// static returns an error for a program that has an interpreter: it would load libraries.
func static(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("%s is not linked statically", program)
	}
	return nil
}

// reference returns the name of an image.
func (i image) reference(tag string) string { return registry + "/" + i.name + ":" + tag }

// write writes the archive of an image, and its SBOMs beside it. Its programs are in a directory
// for each processor.
func (i image) write(dir, path string, v version, arches ...string) (oci.Digests, error) {
	var all []oci.Image
	for _, arch := range arches {
		made, err := i.build(filepath.Join(dir, arch), v, arch)
		if err != nil {
			return oci.Digests{}, err
		}
		for _, f := range made.Layers[0] {
			if name, ok := strings.CutSuffix(f.Path, ".spdx.json"); ok {
				to := filepath.Join(filepath.Dir(path), filepath.Base(name)+".linux-"+arch+".spdx.json")
				if err := os.WriteFile(to, f.Content, 0o644); err != nil {
					return oci.Digests{}, err
				}
			}
		}
		all = append(all, made)
	}
	return oci.Write(path, i.reference(v.tag), all...)
}

// sbomName is the name of a program in an SBOM: that of the image, and of its other programs.
func (i image) sbomName(program string) string {
	if i.programs[program] == i.entry {
		return i.name
	}
	return i.name + "-" + program
}

// build returns the image for a processor with the programs in a directory. It has an SBOM of each.
func (i image) build(dir string, v version, arch string) (oci.Image, error) {
	files := []oci.File{
		{Path: "/etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/:/sbin/nologin\n" +
			"nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		{Path: "/etc/group", Mode: 0o644, Content: []byte("root:x:0:\nnonroot:x:65532:\n")},
	}
	for program, at := range i.programs {
		content, err := os.ReadFile(filepath.Join(dir, program))
		if err != nil {
			return oci.Image{}, err
		}
		name := i.sbomName(program)
		list, err := sbom.Document(sbom.Image{Name: name, Version: v.tag, Revision: v.revision,
			Platform: "linux/" + arch, Module: "github.com/causeway-csi/causeway", Program: content})
		if err != nil {
			return oci.Image{}, err
		}
		files = append(files, oci.File{Path: at, Mode: 0o755, Content: content},
			oci.File{Path: "/usr/share/sbom/" + name + ".spdx.json", Mode: 0o644, Content: list})
	}
	return oci.Image{Platform: "linux/" + arch, Layers: [][]oci.File{files},
		Entrypoint: []string{i.entry}, User: i.user, Labels: map[string]string{
			"org.opencontainers.image.source":  "https://github.com/causeway-csi/causeway",
			"org.opencontainers.image.version": strings.TrimSpace(v.tag),
		}}, nil
}
