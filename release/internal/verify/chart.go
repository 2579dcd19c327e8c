package verify

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/release/internal/archive"
)

// crds are the files of the custom resource definitions, in the chart and beside the manifests.
var crds = []string{
	"groupsnapshot.storage.k8s.io_volumegroupsnapshotclasses.yaml",
	"groupsnapshot.storage.k8s.io_volumegroupsnapshotcontents.yaml",
	"groupsnapshot.storage.k8s.io_volumegroupsnapshots.yaml",
	"snapshot.storage.k8s.io_volumesnapshotclasses.yaml",
	"snapshot.storage.k8s.io_volumesnapshotcontents.yaml",
	"snapshot.storage.k8s.io_volumesnapshots.yaml",
}

// imagesInValues are the images in the values of each chart. The templates of container copy name
// its images: its values have only the registry and the tag.
var imagesInValues = map[string][]string{
	"causeway":      {"csi-sidecars", "csi-sidecars-node", "driver"},
	"causeway-copy": nil,
}

// chart checks the versions of a package of a chart, its images and its CRDs.
func (c *content) chart(name string, data []byte) error {
	dir := strings.TrimSuffix(name, "-"+strings.TrimPrefix(c.version, "v")+".tgz")
	files, err := contents(name, data, dir)
	if err != nil {
		return err
	}
	var chart struct{ Name, Version, AppVersion string }
	var values struct{ Images map[string]any }
	for file, into := range map[string]any{"Chart.yaml": &chart, "values.yaml": &values} {
		if _, ok := files[file]; !ok {
			return fmt.Errorf("no %s", file)
		}
		if err := yaml.Unmarshal(files[file], into); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if chart.Name != dir || "v"+chart.Version != c.version || chart.AppVersion != c.version {
		return fmt.Errorf("the chart is %s %s for %s", chart.Name, chart.Version, chart.AppVersion)
	}
	failures := []error{c.values(chart.Name, values.Images)}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if strings.HasPrefix(file, "templates/") && path.Ext(file) == ".yaml" {
			_, err := c.imagesOf(file, files[file])
			failures = append(failures, err)
		}
	}
	if chart.Name == "causeway" {
		failures = append(failures, definitions(files, "crds"))
	}
	return errors.Join(failures...)
}

// contents returns the files of an archive by their names below its only directory.
func contents(name string, data []byte, dir string) (map[string][]byte, error) {
	files, err := archive.Read(name, data)
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for _, f := range files {
		below, ok := strings.CutPrefix(f.Name, dir+"/")
		if !ok {
			return nil, fmt.Errorf("%s is not in the directory %s", f.Name, dir)
		}
		all[below] = f.Content
	}
	return all, nil
}

// values checks the values images of a chart, so that its templates name the images of the release.
// An unknown key is an error: it would have no check.
func (c *content) values(chart string, values map[string]any) error {
	images, known := imagesInValues[chart]
	if !known {
		return fmt.Errorf("unknown chart %s", chart)
	}
	if got := values["registry"]; got != strings.TrimSuffix(registry, "/") {
		return fmt.Errorf("the values have the registry %v", got)
	}
	for _, image := range images {
		if err := c.value(image, values[image]); err != nil {
			return fmt.Errorf("%s: %w", image, err)
		}
	}
	for key, value := range values {
		switch {
		case key == "tag" && !c.isTag(value):
			return fmt.Errorf("the values have the tag %v", value)
		case !slices.Contains(append([]string{"registry", "tag", "pullPolicy", "pullSecrets"}, images...), key):
			return fmt.Errorf("unexpected value images.%s", key)
		}
	}
	return nil
}

// value checks the value of an image in a chart. A digest would override the tag.
func (c *content) value(image string, value any) error {
	values, _ := value.(map[string]any)
	if got := values["repository"]; got != image {
		return fmt.Errorf("the values have the repository %v", got)
	}
	for key, value := range values {
		switch {
		case key == "tag" && !c.isTag(value):
			return fmt.Errorf("the values have the tag %v", value)
		case key == "digest" && value != "":
			return fmt.Errorf("the values have the digest %v", value)
		case !slices.Contains([]string{"repository", "tag", "digest"}, key):
			return fmt.Errorf("unexpected value %s", key)
		}
	}
	return nil
}

// isTag reports whether a value tag is that of the release. The default of an empty tag is the
// version of the application.
func (c *content) isTag(value any) bool { return value == "" || value == c.version }

// definitions checks that a directory has all custom resource definitions.
func definitions(files map[string][]byte, dir string) error {
	var failures []error
	for _, name := range crds {
		file := path.Join(dir, name)
		if !strings.Contains(string(files[file]), "\nkind: CustomResourceDefinition\n") {
			failures = append(failures, fmt.Errorf("no CustomResourceDefinition in %s", file))
		}
	}
	return errors.Join(failures...)
}

// imagesInManifests are the images of each manifest that has some. The archive must have these
// manifests.
var imagesInManifests = map[string][]string{
	"deploy/linux/controller.yaml":    {"csi-sidecars", "driver"},
	"deploy/linux/kustomization.yaml": {"csi-sidecars", "csi-sidecars-node", "driver"},
	"deploy/linux/node.yaml":          {"csi-sidecars-node", "driver"},
	"deploy/windows/node.yaml":        {"csi-sidecars-node", "driver"},
}

// kustomizations are the other directories for kubectl apply -k, and the components of
// deploy/linux.
var kustomizations = []string{
	"charts/causeway/crds", "deploy/linux/attributes", "deploy/linux/cert-manager", "deploy/linux/network-policy",
	"deploy/linux/snapshot-controller",
}

// manifests checks that the archive has all manifests and CRDs, and their images.
func (c *content) manifests(name string, data []byte) error {
	files, err := contents(name, data, "causeway-"+c.version)
	if err != nil {
		return err
	}
	failures := []error{definitions(files, "charts/causeway/crds")}
	for _, dir := range kustomizations {
		if file := path.Join(dir, "kustomization.yaml"); len(files[file]) == 0 {
			failures = append(failures, fmt.Errorf("no %s", file))
		}
	}
	found := map[string][]string{}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		found[file], err = c.imagesOf(file, files[file])
		if path.Base(file) == "kustomization.yaml" && err == nil {
			found[file], err = c.kustomization(files, file)
		}
		failures = append(failures, err)
	}
	for _, file := range slices.Sorted(maps.Keys(imagesInManifests)) {
		if want := imagesInManifests[file]; !slices.Equal(found[file], want) {
			failures = append(failures, fmt.Errorf("%s: the images are %v, want %v", file, found[file], want))
		}
	}
	return errors.Join(failures...)
}

// kustomization checks that the files of a kustomization exist, and returns the images whose tags
// it sets.
func (c *content) kustomization(files map[string][]byte, file string) (images []string, err error) {
	var k struct {
		Resources, Components []string
		Images                []struct{ Name, NewName, NewTag, Digest string }
	}
	if err := yaml.Unmarshal(files[file], &k); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, r := range slices.Concat(k.Resources, k.Components) {
		at := path.Join(path.Dir(file), r)
		if len(files[at]) == 0 && len(files[path.Join(at, "kustomization.yaml")]) == 0 {
			return nil, fmt.Errorf("%s: no %s", file, at)
		}
	}
	for _, i := range k.Images {
		if i.NewName != "" || i.Digest != "" {
			return nil, fmt.Errorf("%s: %s has the new name %q and the digest %q", file, i.Name, i.NewName, i.Digest)
		}
		product, err := c.product(i.Name + ":" + i.NewTag)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		images = append(images, product)
	}
	slices.Sort(images)
	return images, nil
}

// imageField matches a field image of YAML, in a comment and in a patch in a string, too.
var imageField = regexp.MustCompile(`(?m)(?:^|[\s{,"'])image["']?\s*:\s*["']?([^\s"',}\]]+)`)

// imagesOf returns the images in a manifest or a template, sorted. All are of the release, but for
// the expressions of a template.
func (c *content) imagesOf(file string, content []byte) (images []string, err error) {
	for _, m := range imageField.FindAllSubmatch(content, -1) {
		if strings.HasPrefix(string(m[1]), "{{") {
			continue
		}
		product, err := c.product(string(m[1]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		images = append(images, product)
	}
	slices.Sort(images)
	return slices.Compact(images), nil
}

// product returns the product of an image, which must be of the release.
func (c *content) product(reference string) (string, error) {
	name, ok := strings.CutPrefix(reference, registry)
	product, tag, _ := strings.Cut(name, ":")
	switch {
	case !ok:
		return "", fmt.Errorf("the image %s is not in the registry %s", reference, strings.TrimSuffix(registry, "/"))
	case tag != c.version:
		return "", fmt.Errorf("an image has the tag %s: %s", tag, reference)
	case c.sums[product+".tar"] == "":
		return "", fmt.Errorf("the release has no image %s", product)
	}
	return product, nil
}
