package verify

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/release/internal/archive"
)

// registry is the prefix of the names of images.
const registry = "ghcr.io/causeway-csi/"

// indexType is the media type of an index in the OCI image specification v1.1.
const indexType = "application/vnd.oci.image.index.v1+json"

// descriptor is an entry of an index or a manifest.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// file returns the name of the blob of a descriptor in an archive.
func (d descriptor) file() string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }

// layout is the content of an archive of images.
type layout struct {
	product string // in the name of the archive
	files   map[string][]byte
	used    map[string]bool
	blobs   [][]string // of each image: the files of its configuration and its layers
}

// blob returns the blob of a descriptor, whose digest and size are correct.
func (l *layout) blob(d descriptor) ([]byte, error) {
	hexadecimal, ok := strings.CutPrefix(d.Digest, "sha256:")
	name := d.file()
	data, exists := l.files[name]
	sum := sha256.Sum256(data)
	if !ok || !exists || hex.EncodeToString(sum[:]) != hexadecimal || int64(len(data)) != d.Size {
		return nil, fmt.Errorf("the blob %s is missing or wrong", d.Digest)
	}
	l.used[name] = true
	return data, nil
}

// image checks an archive of images: all blobs, the names, and the SBOM of each image.
func (c *content) image(name string, data []byte) error {
	files, err := archive.Read(name, data)
	if err != nil {
		return err
	}
	product := strings.TrimSuffix(strings.TrimSuffix(name, ".tar"), "-windows")
	l := layout{product: product, files: map[string][]byte{}, used: map[string]bool{}}
	for _, f := range files {
		l.files[f.Name] = f.Content
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(l.files["index.json"], &index); err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	if len(index.Manifests) != 1 {
		return fmt.Errorf("index.json has %d entries, must have 1", len(index.Manifests))
	}
	top := index.Manifests[0]
	ref := c.reference(name)
	if err := named(top, ref); err != nil {
		return err
	}
	found, err := c.images(&l, ref, top)
	if err != nil {
		return err
	}
	if err := l.docker(ref); err != nil {
		return fmt.Errorf("%s: %w", dockerManifest, err)
	}
	want := []string{"linux/amd64", "linux/arm64"}
	if strings.HasSuffix(name, "-windows.tar") {
		want = []string{"windows/amd64"}
	}
	if !slices.Equal(found, want) {
		return fmt.Errorf("the images are for %v, want %v", found, want)
	}
	for file := range l.files {
		if !l.used[file] && !slices.Contains([]string{"index.json", "oci-layout", dockerManifest}, file) {
			return fmt.Errorf("%s belongs to no image", file)
		}
	}
	return nil
}

// named checks the names of the images in index.json: that of the OCI image specification, and that
// of containerd, which containerd prefers and which an archive need not have.
func named(top descriptor, want string) error {
	const oci, containerd = "org.opencontainers.image.ref.name", "io.containerd.image.name"
	for _, key := range []string{oci, containerd} {
		if got, ok := top.Annotations[key]; got != want && (ok || key == oci) {
			return fmt.Errorf("the image is %s in %s, want %s", got, key, want)
		}
	}
	return nil
}

// dockerManifest is the file with the name, the configuration and the layers that docker load reads
// instead of index.json, if the archive has it.
const dockerManifest = "manifest.json"

// docker checks the file for docker load: it must describe one of the images, by the same name.
func (l *layout) docker(ref string) error {
	data, ok := l.files[dockerManifest]
	if !ok {
		return nil
	}
	var images []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(data, &images); err != nil {
		return err
	}
	if len(images) != 1 {
		return fmt.Errorf("%d images, must be 1", len(images))
	}
	image := images[0]
	if !slices.Equal(image.RepoTags, []string{ref}) {
		return fmt.Errorf("the image is %s, want %s", strings.Join(image.RepoTags, ", "), ref)
	}
	blobs := append([]string{image.Config}, image.Layers...)
	if !slices.ContainsFunc(l.blobs, func(b []string) bool { return slices.Equal(b, blobs) }) {
		return errors.New("the configuration and the layers are those of no image")
	}
	return nil
}

// reference returns the name of the images in an archive. A Windows image without its base has a
// name of its own.
func (c *content) reference(name string) string {
	product := strings.TrimSuffix(name, ".tar")
	if product, windows := strings.CutSuffix(product, "-windows"); windows {
		ref := registry + product + ":" + c.version + "-windows"
		if c.build.WindowsBase == "" {
			ref += "-incomplete"
		}
		return ref
	}
	return registry + product + ":" + c.version
}

// images checks the index or the only image of an archive, notes the lines of image-digests.txt,
// and returns the platforms, sorted.
func (c *content) images(l *layout, ref string, top descriptor) (platforms []string, err error) {
	c.digests = append(c.digests, ref+"@"+top.Digest)
	manifests := []descriptor{top}
	if top.MediaType == indexType {
		data, err := l.blob(top)
		if err != nil {
			return nil, err
		}
		var index struct{ Manifests []descriptor }
		if err := json.Unmarshal(data, &index); err != nil {
			return nil, err
		}
		manifests = index.Manifests
	}
	for _, d := range manifests {
		if d.Platform == nil {
			return nil, fmt.Errorf("%s: no platform", d.Digest)
		}
		platform := d.Platform.OS + "/" + d.Platform.Architecture
		c.digests = append(c.digests, ref+"@"+d.Digest+" "+platform)
		if err := c.one(l, d, platform); err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		platforms = append(platforms, platform)
	}
	slices.Sort(platforms)
	return platforms, nil
}

// one checks the image for a platform: its configuration, its layers, its label and its SBOMs.
func (c *content) one(l *layout, d descriptor, platform string) error {
	data, err := l.blob(d)
	if err != nil {
		return err
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		return err
	}
	data, err = l.blob(manifest.Config)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	var config struct {
		OS, Architecture string
		Config           struct{ Labels map[string]string }
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if config.OS+"/"+config.Architecture != platform {
		return fmt.Errorf("the configuration is for %s/%s", config.OS, config.Architecture)
	}
	if got := config.Config.Labels["org.opencontainers.image.version"]; got != c.version {
		return fmt.Errorf("the image has the version %q", got)
	}
	var files []archive.File
	blobs := []string{manifest.Config.file()}
	for _, layer := range manifest.Layers {
		blobs = append(blobs, layer.file())
		data, err := l.blob(layer)
		if err != nil {
			return err
		}
		more, err := archive.ReadTarGz(bytes.NewReader(data))
		if err != nil {
			return fmt.Errorf("layer %s: %w", layer.Digest, err)
		}
		files = append(files, more...)
	}
	l.blobs = append(l.blobs, blobs)
	return c.own(files, l.product, strings.ReplaceAll(platform, "/", "-"))
}

// own compares the SBOMs in the layers of an image with those beside the archive, and the program
// of each with its SBOM. An image has the SBOM of its product, and may have those of other
// programs.
func (c *content) own(files []archive.File, product, platform string) error {
	found := false
	for _, f := range files {
		dir, base := path.Split(f.Name)
		program, ok := strings.CutSuffix(base, ".spdx.json")
		if !ok || !strings.HasSuffix(dir, "usr/share/sbom/") {
			continue
		}
		name := program + "." + platform + ".spdx.json"
		beside, err := os.ReadFile(filepath.Join(c.dir, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(beside, f.Content) {
			return fmt.Errorf("%s is another SBOM than %s in the image", name, f.Name)
		}
		if !slices.ContainsFunc(files, func(file archive.File) bool {
			return file.Executable && c.described(program, platform, file.Content) == nil
		}) {
			return fmt.Errorf("the image has no program that %s describes", name)
		}
		found = found || program == product
	}
	if !found {
		return fmt.Errorf("the image has no SBOM of %s", product)
	}
	return nil
}

// listed compares image-digests.txt with the images.
func (c *content) listed() error {
	slices.Sort(c.digests)
	want := strings.Join(c.digests, "\n") + "\n"
	got, err := os.ReadFile(filepath.Join(c.dir, digests))
	if err == nil && string(got) != want {
		err = fmt.Errorf("%s differs from the images:\n%s", digests, want)
	}
	return err
}
