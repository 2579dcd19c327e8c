package existing

import (
	"archive/tar"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/causeway-csi/causeway/deploy/images/oci"
	"github.com/causeway-csi/causeway/test/cluster/pki"
)

// testCA is a certificate that a client takes.
var testCA = func() string {
	a, err := pki.NewAuthority("test")
	if err != nil {
		panic(err)
	}
	return string(a.Cert)
}()

// toRegistry returns a cluster with a registry that is empty.
func toRegistry(t *testing.T) *Cluster {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return &Cluster{options: Options{Registry: strings.TrimPrefix(server.URL, "http://") + "/team", Log: io.Discard}}
}

// archive writes an image for each of the platforms.
func archive(t *testing.T, ref string, platforms ...string) (string, oci.Digests) {
	t.Helper()
	var images []oci.Image
	for _, p := range platforms {
		images = append(images, oci.Image{Platform: p,
			Layers: [][]oci.File{{{Path: "/for", Mode: 0o644, Content: []byte(p)}}}})
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	d, err := oci.Write(path, ref, images...)
	if err != nil {
		t.Fatal(err)
	}
	return path, d
}

// pull returns the content of the registry.
func pull(t *testing.T, ref string) *remote.Descriptor {
	t.Helper()
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		t.Fatal(err)
	}
	got, err := remote.Get(tag)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestLoad(t *testing.T) {
	c := toRegistry(t)
	several, index := archive(t, "ghcr.io/causeway-csi/causeway:v1", "linux/amd64", "linux/arm64", "windows/amd64")
	single, image := archive(t, c.options.Registry+"/sub/single:v2", "linux/amd64")
	for range 2 { // repeating it is fine
		wants(t, c.Load(t.Context(), several, single))
	}
	got := pull(t, c.options.Registry+"/causeway-csi/causeway:v1")
	if got.Digest.String() != index.Image {
		t.Errorf("got %s, want %s", got.Digest, index.Image)
	}
	all, err := got.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	wants(t, validate.Index(all)) // all images and layers are there
	manifest, err := all.IndexManifest()
	if err != nil || len(manifest.Manifests) != 3 || manifest.Manifests[2].Platform.OS != "windows" {
		t.Errorf("got %+v, %v, want three platforms", manifest, err)
	}
	if got := pull(t, c.options.Registry+"/sub/single:v2"); got.Digest.String() != image.Image ||
		got.MediaType.IsIndex() {
		t.Errorf("got %s of %s, want the image %s", got.Digest, got.MediaType, image.Image)
	}
}

func TestLoadReplacesATag(t *testing.T) {
	c := toRegistry(t)
	for _, platform := range []string{"linux/amd64", "linux/arm64"} {
		path, want := archive(t, "example.com/thing:v1", platform)
		wants(t, c.Load(t.Context(), path))
		if got := pull(t, c.options.Registry+"/thing:v1"); got.Digest.String() != want.Image {
			t.Errorf("got %s, want %s", got.Digest, want.Image)
		}
	}
}

func TestLoadFails(t *testing.T) {
	good, _ := archive(t, "example.com/thing:v1", "linux/amd64")
	short, _ := archive(t, "thing:v1", "linux/amd64")
	for _, test := range []struct {
		name    string
		path    string
		without bool     // a registry
		want    []string // in the error
	}{
		{"there is no registry", good, true, []string{good, "--registry=registry.example.com/team"}},
		{"there is no file", good + "0", false, []string{good + "0"}},
		{"the name is not full", short, false, []string{short, "thing:v1"}},
		{"it is no layout", tarOf(t, "manifest.json", "[]"), false, []string{"OCI layout"}},
		{"there is no image", tarOf(t, "index.json", `{"schemaVersion":2}`), false, []string{"no image"}},
		{"a file is elsewhere", tarOf(t, "../index.json", "{}"), false, []string{"escapes"}},
		{"it is no archive", mustWrite(t, "no archive"), false, []string{"tar"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			c := toRegistry(t)
			if test.without {
				c.options.Registry = ""
			}
			wants(t, c.Load(t.Context(), test.path), test.want...)
			if left := files(t, os.TempDir()); len(left) != 0 {
				t.Errorf("got %v, want nothing left", left)
			}
		})
	}
}

func TestImage(t *testing.T) {
	c := &Cluster{options: Options{Registry: "registry.example.com/team"}}
	for _, test := range []struct{ ref, want string }{
		{"ghcr.io/causeway-csi/causeway:v1", "registry.example.com/team/causeway-csi/causeway:v1"},
		{"registry.example.com/team/thing:v1", "registry.example.com/team/thing:v1"},
		{"registry.example.com/teams/thing:v1", "registry.example.com/team/teams/thing:v1"},
	} {
		if got, err := c.Image(test.ref); err != nil || got != test.want {
			t.Errorf("%s: got %q, %v, want %q", test.ref, got, err, test.want)
		}
	}
	for _, bad := range []string{"", "thing", "thing:v1", "example.com/thing"} {
		if got, err := c.Image(bad); err == nil {
			t.Errorf("%q: got %q, want an error", bad, got)
		}
	}
}

// tarOf writes an archive of a single file.
func tarOf(t *testing.T, name, content string) string {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(content)),
		Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return mustWrite(t, b.String())
}

func mustWrite(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.tar")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
