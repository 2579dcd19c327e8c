package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/release/internal/archive"
)

// chartDirs are the charts; that of container copy is absent without the folder.
var chartDirs = []string{"charts/causeway", "containercopy/chart"}

// charts packages the charts: the files that helm package would pack, but for .helmignore, with the
// time of the commit.
func (r *Release) charts(ctx context.Context) error {
	for _, dir := range chartDirs {
		if !r.has(ctx, dir) {
			continue
		}
		files, err := r.tree(ctx, dir)
		if err != nil {
			return err
		}
		name, files, err := chart(files, r.number(), r.Version)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if err := r.pack(name+"-"+r.number()+".tgz", files); err != nil {
			return err
		}
	}
	return nil
}

var versions = map[string]*regexp.Regexp{
	"version":    regexp.MustCompile(`(?m)^version: .*$`),
	"appVersion": regexp.MustCompile(`(?m)^appVersion: .*$`),
}

// chart returns the files of a package of a chart, and the name of the chart. The version of the
// application is the tag of its images.
func chart(files []archive.File, number, version string) (name string, packed []archive.File, err error) {
	var ignore []string
	for _, f := range files {
		if f.Name == ".helmignore" {
			ignore = strings.Fields(comments.ReplaceAllString(string(f.Content), ""))
		}
	}
	for _, f := range files {
		if f.Name == ".helmignore" || ignored(f.Name, ignore) {
			continue
		}
		if f.Name == "Chart.yaml" {
			if name, f.Content, err = metadata(f.Content, number, version); err != nil {
				return "", nil, err
			}
		}
		packed = append(packed, f)
	}
	if name == "" {
		return "", nil, errors.New("no Chart.yaml")
	}
	for i := range packed { // Helm wants a directory with the name of the chart
		packed[i].Name = path.Join(name, packed[i].Name)
	}
	return name, packed, nil
}

var comments = regexp.MustCompile(`(?m)^#.*$`)

// ignored reports whether a line of .helmignore names a file or its directory. The charts use no
// other patterns.
func ignored(name string, lines []string) bool {
	for _, l := range lines {
		if name == l || strings.HasSuffix(l, "/") && strings.HasPrefix(name, l) || path.Base(name) == l {
			return true
		}
	}
	return false
}

// metadata sets the versions in Chart.yaml.
func metadata(content []byte, number, version string) (name string, set []byte, err error) {
	text := string(content)
	for key, value := range map[string]string{"version": number, "appVersion": version} {
		if n := len(versions[key].FindAllString(text, -1)); n != 1 {
			return "", nil, fmt.Errorf("%d lines %s in Chart.yaml: must be one", n, key)
		}
		text = versions[key].ReplaceAllString(text, key+": "+value)
	}
	var parsed struct{ Name, Version, AppVersion string }
	if err := yaml.Unmarshal([]byte(text), &parsed); err != nil {
		return "", nil, err
	}
	if parsed.Version != number || parsed.AppVersion != version {
		return "", nil, fmt.Errorf("the versions %q and %q in Chart.yaml", parsed.Version, parsed.AppVersion)
	}
	return parsed.Name, []byte(text), nil
}

// manifestDirs are the manifests for kubectl apply -k.
var manifestDirs = []string{"deploy/linux", "deploy/windows", "charts/causeway/crds"}

// imageTag matches the tag of Causeway's images in a manifest or a kustomization.
var imageTag = regexp.MustCompile(`(?m)(ghcr\.io/causeway-csi/[a-z-]+:|^ *newTag: )dev$`)

// manifests packs the manifests, with the tag of the release. The directories are those of the
// repository, as a kustomization may name another.
func (r *Release) manifests(ctx context.Context) error {
	var packed []archive.File
	for _, dir := range manifestDirs {
		files, err := r.tree(ctx, dir)
		if err != nil {
			return err
		}
		for _, f := range files {
			if path.Base(f.Name) == "Dockerfile" {
				continue
			}
			f.Content = imageTag.ReplaceAll(f.Content, []byte("${1}"+r.Version))
			f.Name = path.Join("causeway-"+r.Version, dir, f.Name)
			packed = append(packed, f)
		}
	}
	return r.pack("causeway-manifests_"+r.Version+".tar.gz", packed)
}

// docs packs the documentation site.
func (r *Release) docs(ctx context.Context) error {
	dir := filepath.Join(r.work, "docs")
	if err := r.Maker.Docs(ctx, r, dir); err != nil {
		return err
	}
	var files []archive.File
	err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, at)
		files = append(files, archive.File{
			Name: path.Join("causeway-docs-"+r.Version, filepath.ToSlash(name)), Content: content,
		})
		return err
	})
	if err != nil {
		return err
	}
	return r.pack("causeway-docs_"+r.Version+".tar.gz", files)
}
