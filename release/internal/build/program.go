package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/deploy/images/sbom"

	"github.com/causeway-csi/causeway/release/internal/archive"
	"github.com/causeway-csi/causeway/release/internal/attest"
)

// Program is a program that is released as an archive for each platform.
type Program struct {
	Name string
	// Module is the directory of the module with the main package cmd/<Name>.
	Module string
	// Optional: the program is left out if the commit does not have it.
	Optional bool
	// Plugin is the description of a plugin of kubectl in one line, or "".
	Plugin string
	// Built: the image of this name has the program, and its SBOM.
	Built bool
}

// executable is the name of the program on a platform.
func (p Program) executable(platform string) string {
	if strings.HasPrefix(platform, "windows/") {
		return p.Name + ".exe"
	}
	return p.Name
}

// nodes are the programs of clusters, in one archive for each platform of the images.
var nodes = []Program{
	{Name: "driver", Module: ".", Built: true},
	{Name: "csi-sidecars", Module: "sidecars", Built: true},
	{Name: "csi-sidecars-node", Module: "sidecars", Built: true},
}

// users are the programs for machines of users, in an archive each.
var users = []Program{
	{Name: "kubectl-copy", Module: "containercopy", Optional: true,
		Plugin: "Copy to and from containers with quotas and checksums"},
	{Name: "kubectl-causeway", Module: "plugin", Plugin: "Show and check volumes and nodes of Causeway"},
	{Name: "causeway-release-verify", Module: "release"},
}

// Platforms of the images, and of the programs for users.
var (
	imagePlatforms = []string{"linux/amd64", "linux/arm64", "windows/amd64"}
	userPlatforms  = []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64", "windows/amd64",
		"windows/arm64"}
)

// programs makes the archives of programs, their SBOMs, and the manifests of plugins.
func (r *Release) programs(ctx context.Context) error {
	for _, platform := range imagePlatforms {
		if _, err := r.program(ctx, "causeway", platform, nodes...); err != nil {
			return err
		}
	}
	for _, p := range users {
		if p.Optional && !r.has(ctx, p.Module+"/cmd/"+p.Name) {
			continue
		}
		archives := map[string]string{}
		for _, platform := range userPlatforms {
			name, err := r.program(ctx, p.Name, platform, p)
			if err != nil {
				return err
			}
			archives[platform] = name
		}
		if p.Plugin == "" {
			continue
		}
		if err := r.krew(p, archives); err != nil {
			return err
		}
	}
	return nil
}

// program makes an archive of programs for a platform, and returns its name.
func (r *Release) program(ctx context.Context, name, platform string, programs ...Program) (string, error) {
	var files []archive.File
	for _, p := range programs {
		content, err := r.build(ctx, p, platform)
		if err != nil {
			return "", fmt.Errorf("%s for %s: %w", p.Name, platform, err)
		}
		if content == nil {
			continue
		}
		licenses, err := r.Maker.Licenses(ctx, r, p, platform)
		if err != nil {
			return "", fmt.Errorf("%s for %s: %w", p.Name, platform, err)
		}
		files = append(files, archive.File{Name: p.executable(platform), Executable: true, Content: content},
			archive.File{Name: p.Name + ".licenses", Content: licenses})
	}
	license, err := r.git(ctx, "show", r.made.Commit+":LICENSE")
	if err != nil {
		return "", err
	}
	files = append(files, archive.File{Name: "LICENSE", Content: license})
	end := ".tar.gz"
	if strings.HasPrefix(platform, "windows/") {
		end = ".zip"
	}
	name = fmt.Sprintf("%s_%s_%s%s", name, r.Version, strings.ReplaceAll(platform, "/", "_"), end)
	return name, r.pack(name, files)
}

// build returns a program, or nil if there is none for the platform. A program that an image does
// not have gets an SBOM.
func (r *Release) build(ctx context.Context, p Program, platform string) ([]byte, error) {
	parts := strings.ReplaceAll(platform, "/", "-")
	if p.Built {
		content, err := os.ReadFile(filepath.Join(r.work, "images", "programs", parts, p.executable(platform)))
		if os.IsNotExist(err) && p.Name == "csi-sidecars" && strings.HasPrefix(platform, "windows/") {
			return nil, nil // controllers run on Linux
		}
		return content, err
	}
	to := filepath.Join(r.work, "programs", parts, p.executable(platform))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return nil, err
	}
	if err := r.Maker.Program(ctx, r, p, platform, to); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(to)
	if err != nil {
		return nil, err
	}
	list, err := sbom.Document(sbom.Image{Name: p.Name, Purpose: sbom.Application, Version: r.Version,
		Revision: r.made.Commit, Platform: platform, Module: module, Program: content})
	if err != nil {
		return nil, err
	}
	return content, r.write(fmt.Sprintf("%s.%s.spdx.json", p.Name, parts), list)
}

// krew writes the manifest of a plugin for krew: https://krew.sigs.k8s.io/docs/developer-guide.
func (r *Release) krew(p Program, archives map[string]string) error {
	var platforms []map[string]any
	for _, platform := range userPlatforms {
		name := archives[platform]
		sum, err := attest.Sum(filepath.Join(r.Out, name))
		if err != nil {
			return err
		}
		goos, arch, _ := strings.Cut(platform, "/")
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": goos, "arch": arch}},
			"uri":      attest.Source + "/releases/download/" + r.Version + "/" + name,
			"sha256":   sum,
			"bin":      p.executable(platform),
		})
	}
	short := strings.TrimPrefix(p.Name, "kubectl-")
	content, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": map[string]string{"name": short},
		"spec": map[string]any{"version": r.Version, "homepage": attest.Source, "shortDescription": p.Plugin,
			"platforms": platforms},
	})
	if err != nil {
		return err
	}
	return r.write("krew-"+short+".yaml", content)
}
