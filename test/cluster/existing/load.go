package existing

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// The annotations of an OCI layout by which containerd knows an image's full name. The first that
// is there counts.
var nameAnnotations = []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"}

// Image returns the name by which the cluster pulls an image that a tar has as ref, which is a full
// name: the same name if it is in the registry already, otherwise the name with the registry in
// place of its host. Errors: there is no registry; ref is not a full name.
func (c *Cluster) Image(ref string) (string, error) {
	if c.options.Registry == "" {
		return "", errors.New("images get to a cluster that is there by way of a registry that it can pull from: " +
			"name one with --registry=registry.example.com/team")
	}
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		return "", fmt.Errorf("%q is no full name, such as example.com/driver:v1: %w", ref, err)
	}
	if strings.HasPrefix(ref, c.options.Registry+"/") {
		return ref, nil
	}
	return c.options.Registry + "/" + tag.RepositoryStr() + ":" + tag.TagStr(), nil
}

// Load is provider.Provider's, except for the images' names: they are pushed to the registry under
// the name of Image. An image for several platforms stays a single image, with its digest. The tars
// are OCI layouts, as this project makes them.
func (c *Cluster) Load(ctx context.Context, tars ...string) error {
	for _, t := range tars {
		if err := c.load(ctx, t); err != nil {
			return fmt.Errorf("load %s: %w", t, err)
		}
	}
	return nil
}

// load pushes the images of an archive.
func (c *Cluster) load(ctx context.Context, archive string) error {
	if _, err := c.Image("example.com/any:tag"); err != nil { // before anything is unpacked
		return err
	}
	dir, err := os.MkdirTemp("", "images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := unpack(archive, dir); err != nil {
		return err
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return fmt.Errorf("it is not an OCI layout: %w", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) == 0 {
		return errors.New("there is no image in it")
	}
	for _, d := range manifest.Manifests {
		if err := c.push(ctx, index, d); err != nil {
			return err
		}
	}
	return nil
}

// push pushes the content to which the index refers as d.
func (c *Cluster) push(ctx context.Context, index v1.ImageIndex, d v1.Descriptor) error {
	from := ""
	for _, a := range nameAnnotations {
		if from == "" {
			from = d.Annotations[a]
		}
	}
	to, err := c.Image(from)
	if err != nil {
		return fmt.Errorf("image %s: %w", d.Digest, err)
	}
	tag, err := name.NewTag(to, name.StrictValidation)
	if err != nil {
		return err
	}
	image, err := find(index, d)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.options.Log, "pushing %s as %s\n", from, to)
	return remote.Push(tag, image, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
}

// find returns an image or, if it is for several platforms, their index.
func find(index v1.ImageIndex, d v1.Descriptor) (remote.Taggable, error) {
	if d.MediaType.IsIndex() {
		return index.ImageIndex(d.Digest)
	}
	return index.Image(d.Digest)
}

// unpack unpacks an archive into a directory, which nothing gets out of.
func unpack(archive, dir string) error {
	in, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg { // directories are made for files, and a layout has no links
			continue
		}
		if err := write(root, path.Clean(h.Name), r); err != nil {
			return err
		}
	}
}

func write(root *os.Root, name string, content io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
