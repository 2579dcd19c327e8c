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

// layout is the content of an archive of images.
type layout struct {
	files map[string][]byte
	used  map[string]bool
}

// blob returns the blob of a descriptor, whose digest and size are correct.
func (l *layout) blob(d descriptor) ([]byte, error) {
	hexadecimal, ok := strings.CutPrefix(d.Digest, "sha256:")
	name := "blobs/sha256/" + hexadecimal
	data, exists := l.files[name]
	sum := sha256.Sum256(data)
	if !ok || !exists || hex.EncodeToString(sum[:]) != hexadecimal || int64(len(data)) != d.Size {
		return nil, fmt.Errorf("the blob %s is missing or wrong", d.Digest)
	}
	l.used[name] = true
	return data, nil
}

// image checks an archive of images: all blobs, the name, and the SBOM of each image.
func (c *content) image(name string, data []byte) error {
	files, err := archive.Read(name, data)
	if err != nil {
		return err
	}
	l := layout{map[string][]byte{}, map[string]bool{}}
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
	ref := top.Annotations["org.opencontainers.image.ref.name"]
	if want := c.reference(name); !slices.Contains(want, ref) {
		return fmt.Errorf("the image is %s, want %s", ref, strings.Join(want, " or "))
	}
	found, err := c.images(&l, ref, top)
	if err != nil {
		return err
	}
	want := []string{"linux/amd64", "linux/arm64"}
	if strings.HasSuffix(name, "-windows.tar") {
		want = []string{"windows/amd64"}
	}
	if !slices.Equal(found, want) {
		return fmt.Errorf("the images are for %v, want %v", found, want)
	}
	for file := range l.files {
		if strings.HasPrefix(file, "blobs/") && !l.used[file] {
			return fmt.Errorf("%s belongs to no image", file)
		}
	}
	return nil
}

// reference returns the names that the images in an archive may have. A Windows image without its
// base has a name of its own.
func (c *content) reference(name string) []string {
	product := strings.TrimSuffix(name, ".tar")
	if product, windows := strings.CutSuffix(product, "-windows"); windows {
		ref := registry + product + ":" + c.version + "-windows"
		if c.build.WindowsBase == "" {
			ref += "-incomplete"
		}
		return []string{ref}
	}
	return []string{registry + product + ":" + c.version}
}

// images checks the index or the only image of an archive, notes the lines of image-digests.txt, and
// returns the platforms, sorted.
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
	for _, layer := range manifest.Layers {
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
	return c.own(files, strings.ReplaceAll(platform, "/", "-"))
}

// own compares the SBOMs in the layers of an image with those beside the archive, and the program of
// each with its SBOM.
func (c *content) own(files []archive.File, platform string) error {
	found := 0
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
		found++
	}
	if found == 0 {
		return errors.New("the image has no SBOM")
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
