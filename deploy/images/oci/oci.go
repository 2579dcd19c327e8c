// Package oci makes container images of files, without a container engine, and writes them to
// archives that containerd, kind and Docker load. The same files make the same digests, wherever
// and whenever: nothing has a time, an owner or an order of its own. How layers are compressed
// depends on the release of Go.
package oci

import (
	"fmt"
	"maps"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image describes an image for a platform.
type Image struct {
	Platform   string   // as linux/arm64
	Base       v1.Image // the image below the layers; nil for none
	Layers     [][]File // directories that a layer's files need are added
	Entrypoint []string
	Cmd        []string
	Env        []string // as PATH=/bin
	User       string   // as 65532:65532; empty for root
	WorkingDir string
	Labels     map[string]string // of the config, and annotations of an index
	// Annotations are of the manifest, beside those of a base.
	Annotations map[string]string
}

// build makes the image.
func (i Image) build() (v1.Image, error) {
	os, arch, ok := strings.Cut(i.Platform, "/")
	if !ok || os == "" || arch == "" {
		return nil, fmt.Errorf("%q is no platform: say linux/amd64", i.Platform)
	}
	base, media := i.Base, types.OCILayer
	if base == nil {
		base = mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	} else if m, err := base.MediaType(); err != nil {
		return nil, fmt.Errorf("the base: %w", err)
	} else if m == types.DockerManifestSchema2 { // all layers of an image have the same media type
		media = types.DockerLayer
	}
	config, err := i.config(base, os, arch)
	if err != nil {
		return nil, err
	}
	image, err := mutate.ConfigFile(base, config)
	if err != nil {
		return nil, err
	}
	for _, files := range i.Layers {
		layer, err := pack(files, os == "windows", media)
		if err != nil {
			return nil, err
		}
		if image, err = mutate.Append(image,
			mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: epoch}}}); err != nil {
			return nil, err
		}
	}
	if len(i.Annotations) > 0 {
		image = mutate.Annotations(image, i.Annotations).(v1.Image)
	}
	return image, nil
}

// config returns the configuration of the base, with the labels of the image.
func (i Image) config(base v1.Image, os, arch string) (*v1.ConfigFile, error) {
	found, err := base.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("the base: %w", err)
	}
	c := found.DeepCopy()
	if i.Base != nil && (c.OS != os || c.Architecture != arch) {
		return nil, fmt.Errorf("the base is for %s/%s, not %s", c.OS, c.Architecture, i.Platform)
	}
	c.OS, c.Architecture, c.Created = os, arch, v1.Time{Time: epoch}
	c.Config.Entrypoint, c.Config.Cmd, c.Config.User = i.Entrypoint, i.Cmd, i.User
	c.Config.Env = append(c.Config.Env, i.Env...)
	if i.WorkingDir != "" {
		c.Config.WorkingDir = i.WorkingDir
	}
	if c.Config.Labels == nil {
		c.Config.Labels = map[string]string{}
	}
	maps.Copy(c.Config.Labels, i.Labels)
	return c, nil
}
