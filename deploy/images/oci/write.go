package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Digests are the digests of the objects that Write has written, as sha256:….
type Digests struct {
	Image     string            // digest of the image's index, or of its only manifest
	Manifests map[string]string // by platform
}

// Write writes images to an archive at path, all at once: several images form an index, with an
// image for each platform. ref is the full name, as example.com/driver:v1. The archive is an OCI
// layout for ctr images import, kind load image-archive and newer Dockers. For older Dockers it
// also has the first of images in the form of docker save.
func Write(path, ref string, images ...Image) (Digests, error) {
	digests := Digests{Manifests: map[string]string{}}
	a := archive{blobs: map[v1.Hash]func() (io.ReadCloser, error){}, sizes: map[v1.Hash]int64{}}
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var top *v1.Descriptor
	for n, i := range images {
		image, err := i.build()
		if err != nil {
			return digests, fmt.Errorf("%s for %s: %w", ref, i.Platform, err)
		}
		d, err := a.image(image)
		if err != nil {
			return digests, fmt.Errorf("%s for %s: %w", ref, i.Platform, err)
		}
		if digests.Manifests[i.Platform] != "" {
			return digests, fmt.Errorf("%s: two images for %s", ref, i.Platform)
		}
		digests.Manifests[i.Platform] = d.Digest.String()
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: d.Platform}})
		top = d
		if n == 0 {
			if err := a.docker(ref, image); err != nil {
				return digests, err
			}
		}
	}
	if len(images) == 0 {
		return digests, fmt.Errorf("%s: no images", ref)
	}
	if len(images) > 1 {
		var err error
		if top, err = a.index(mutate.Annotations(index, images[0].Labels).(v1.ImageIndex)); err != nil {
			return digests, err
		}
	}
	digests.Image = top.Digest.String()
	if err := a.layout(ref, *top); err != nil {
		return digests, err
	}
	return digests, a.write(path)
}

// archive is the content of the archive: a few files, then blobs.
type archive struct {
	files []File
	blobs map[v1.Hash]func() (io.ReadCloser, error)
	sizes map[v1.Hash]int64
}

func (a *archive) blob(h v1.Hash, size int64, open func() (io.ReadCloser, error)) {
	a.blobs[h], a.sizes[h] = open, size
}

func (a *archive) raw(h v1.Hash, content []byte) {
	a.blob(h, int64(len(content)), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
}

// image adds the blobs of an image, and returns its entry for an index.
func (a *archive) image(image v1.Image) (*v1.Descriptor, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return nil, err
		}
		size, err := l.Size()
		if err != nil {
			return nil, err
		}
		a.blob(digest, size, l.Compressed)
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return nil, err
	}
	name, err := image.ConfigName()
	if err != nil {
		return nil, err
	}
	a.raw(name, config)
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	return a.manifest(image, file.Platform())
}

// index adds an index, whose images are there.
func (a *archive) index(index v1.ImageIndex) (*v1.Descriptor, error) { return a.manifest(index, nil) }

// manifest adds the manifest of an image or of an index.
func (a *archive) manifest(of interface {
	RawManifest() ([]byte, error)
	Digest() (v1.Hash, error)
	MediaType() (types.MediaType, error)
}, platform *v1.Platform) (*v1.Descriptor, error) {
	raw, err := of.RawManifest()
	if err != nil {
		return nil, err
	}
	digest, err := of.Digest()
	if err != nil {
		return nil, err
	}
	media, err := of.MediaType()
	if err != nil {
		return nil, err
	}
	a.raw(digest, raw)
	return &v1.Descriptor{MediaType: media, Size: int64(len(raw)), Digest: digest, Platform: platform}, nil
}

// layout adds the files of an OCI layout. The first annotation is OCI's; containerd takes the
// second as the name.
func (a *archive) layout(ref string, top v1.Descriptor) error {
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": ref, "io.containerd.image.name": ref}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{top}}
	return errors.Join(a.json("/index.json", index),
		a.json("/oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}))
}

// docker adds the files that docker load reads. They describe a single platform.
func (a *archive) docker(ref string, image v1.Image) error {
	m, err := image.Manifest()
	if err != nil {
		return err
	}
	var layers []string
	for _, l := range m.Layers {
		layers = append(layers, blobPath(l.Digest)[1:])
	}
	return a.json("/manifest.json", []any{struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{blobPath(m.Config.Digest)[1:], []string{ref}, layers}})
}

func (a *archive) json(path string, v any) error {
	content, err := json.Marshal(v)
	a.files = append(a.files, File{Path: path, Mode: 0o644, Content: content})
	return err
}

func blobPath(h v1.Hash) string { return "/blobs/" + h.Algorithm + "/" + h.Hex }

// write writes the archive under another name until it is whole.
func (a *archive) write(path string) (err error) {
	out, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".part")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name()) // there only after a failure
	defer func() { err = errors.Join(err, ignoreClosed(out.Close())) }()
	if err := a.writeTo(out); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := errors.Join(out.Chmod(0o644), out.Close()); err != nil {
		return err
	}
	return os.Rename(out.Name(), path)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func (a *archive) writeTo(out io.Writer) error {
	files, err := complete(a.files)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	for _, f := range files {
		if err := w.WriteHeader(header(f)); err != nil {
			return err
		}
		if _, err := w.Write(f.Content); err != nil {
			return err
		}
	}
	for _, h := range slices.SortedFunc(maps.Keys(a.blobs),
		func(a, b v1.Hash) int { return strings.Compare(a.Hex, b.Hex) }) {
		if err := a.writeBlob(w, h); err != nil {
			return fmt.Errorf("%v: %w", h, err)
		}
	}
	return w.Close()
}

func (a *archive) writeBlob(w *tar.Writer, h v1.Hash) error {
	blob, err := a.blobs[h]()
	if err != nil {
		return err
	}
	defer blob.Close()
	head := header(File{Path: blobPath(h), Mode: 0o644})
	head.Size = a.sizes[h]
	if err := w.WriteHeader(head); err != nil {
		return err
	}
	_, err = io.Copy(w, blob)
	return err
}
