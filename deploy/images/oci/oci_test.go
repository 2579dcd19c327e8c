package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const ref = "example.com/some/thing:v1"

var some = []File{
	{Path: "/usr/bin/thing", Mode: 0o755, Content: []byte("thing")},
	{Path: "/usr/bin/link", Mode: fs.ModeSymlink | 0o777, Target: "thing"},
	{Path: "/etc/passwd", Mode: 0o600, Content: []byte("root")},
	{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
}

func thing(platform string, files ...File) Image {
	return Image{
		Platform: platform, Layers: [][]File{files, {{Path: "/" + platform, Mode: 0o644}}}, User: "65532:65532",
		Entrypoint: []string{"/usr/bin/thing"}, Env: []string{"PATH=/usr/bin"}, Labels: map[string]string{"a": "b"},
	}
}

// write writes an archive to a new directory. It returns the path and the result of Write.
func write(t *testing.T, images ...Image) (string, Digests) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "thing.tar")
	d, err := Write(path, ref, images...)
	if err != nil {
		t.Fatal(err)
	}
	return path, d
}

// entries reads an archive.
func entries(t *testing.T, r io.Reader) (headers []*tar.Header, contents map[string][]byte) {
	t.Helper()
	contents = map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		} else if err != nil {
			t.Fatal(err)
		}
		if contents[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
		headers = append(headers, h)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestTheSameFilesMakeTheSameArchive(t *testing.T) {
	reversed := slices.Clone(some)
	slices.Reverse(reversed)
	a, first := write(t, thing("linux/amd64", some...), thing("linux/arm64", some...))
	b, second := write(t, thing("linux/amd64", reversed...), thing("linux/arm64", reversed...))
	if !bytes.Equal(read(t, a), read(t, b)) || first.Image != second.Image {
		t.Error("two archives of the same files differ")
	}
	if _, other := write(t, thing("linux/amd64", some[:3]...),
		thing("linux/arm64", some...)); other.Image == first.Image {
		t.Error("two archives of different files have the same digest")
	}
}

// unpacked returns the content of an archive. Another library has checked each digest, size and
// reference.
func unpacked(t *testing.T, path string) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	headers, contents := entries(t, bytes.NewReader(read(t, path)))
	for _, h := range headers {
		if !h.ModTime.Equal(epoch) || h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s is of %v, %d, %d, %q", h.Name, h.ModTime, h.Uid, h.Gid, h.Uname)
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(h.Name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, h.Name), contents[h.Name], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(l); err != nil {
		t.Error(err)
	}
	return l
}

func TestAnArchiveIsAnOCILayout(t *testing.T) {
	path, digests := write(t, thing("linux/amd64", some...), thing("linux/arm64", some...))
	l := unpacked(t, path)
	m, err := l.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	top := m.Manifests[0]
	for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		if got := top.Annotations[key]; got != ref {
			t.Errorf("%s is %q", key, got)
		}
	}
	index, err := l.ImageIndex(top.Digest)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := index.IndexManifest()
	if err != nil || len(inner.Manifests) != 2 || inner.Annotations["a"] != "b" ||
		top.Digest.String() != digests.Image {
		t.Fatalf("%+v, %v, %v", inner, err, digests)
	}
	for n, platform := range []string{"linux/amd64", "linux/arm64"} {
		d := inner.Manifests[n]
		if d.Platform.String() != platform || d.MediaType != types.OCIManifestSchema1 ||
			d.Digest.String() != digests.Manifests[platform] {
			t.Errorf("image %d is %+v", n, d)
		}
	}
}

// TestDockerLoadsAnArchive has another library read the first image in the form of docker save.
func TestDockerLoadsAnArchive(t *testing.T) {
	path, digests := write(t, thing("linux/amd64", some...), thing("linux/arm64"))
	i, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(i); err != nil {
		t.Error(err)
	}
	var m []struct{ RepoTags []string }
	_, contents := entries(t, bytes.NewReader(read(t, path)))
	if err := json.Unmarshal(contents["manifest.json"], &m); err != nil || len(m) != 1 ||
		!slices.Equal(m[0].RepoTags, []string{ref}) {
		t.Errorf("%+v, %v", m, err)
	}
	c, err := i.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.Architecture != "amd64" || c.OS != "linux" || !c.Created.Equal(epoch) || c.Config.User != "65532:65532" ||
		c.Config.Labels["a"] != "b" ||
		!slices.Equal(c.Config.Entrypoint, []string{"/usr/bin/thing"}) || !slices.Equal(c.Config.Env,
		[]string{"PATH=/usr/bin"}) {
		t.Errorf("%+v", c)
	}
	if digests.Manifests["linux/arm64"] == "" {
		t.Errorf("%v", digests)
	}
}

// layerOf returns the content of a layer.
func layerOf(t *testing.T, files []File, windows bool) (names []string, headers map[string]*tar.Header) {
	t.Helper()
	l, err := pack(files, windows, types.OCILayer)
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	list, _ := entries(t, r)
	headers = map[string]*tar.Header{}
	for _, h := range list {
		names = append(names, h.Name)
		headers[h.Name] = h
	}
	return names, headers
}

func TestALayerHasItsDirectoriesInOrder(t *testing.T) {
	names, headers := layerOf(t, some, false)
	want := []string{"etc/", "etc/passwd", "tmp/", "usr/", "usr/bin/", "usr/bin/link", "usr/bin/thing"}
	if !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	for name, mode := range map[string]int64{"etc/": 0o755, "etc/passwd": 0o600, "tmp/": 0o1777,
		"usr/bin/thing": 0o755} {
		if h := headers[name]; h.Mode != mode || !h.ModTime.Equal(epoch) || h.Uid != 0 {
			t.Errorf("%+v, want the mode %o", h, mode)
		}
	}
	if h := headers["usr/bin/link"]; h.Typeflag != tar.TypeSymlink || h.Linkname != "thing" {
		t.Errorf("%+v", h)
	}
}

func TestAWindowsLayerIsBelowFiles(t *testing.T) {
	names, headers := layerOf(t, []File{{Path: "/driver.exe", Mode: 0o755}}, true)
	if want := []string{"Files/", "Files/driver.exe", "Hives/"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	// O:BUG:BU as Windows writes it.
	const sd = "AQAAgBQAAAAkAAAAAAAAAAAAAAABAgAAAAAABSAAAAAhAgAAAQIAAAAAAAUgAAAAIQIAAA=="
	for name, h := range headers {
		if got := h.PAXRecords["MSWINDOWS.rawsd"]; got != sd {
			t.Errorf("%s has the security descriptor %q", name, got)
		}
	}
}

// windows is a base for Windows, of Docker's types or of OCI's.
func windows(t *testing.T, manifest types.MediaType, layer types.MediaType) v1.Image {
	t.Helper()
	l, err := random.Layer(10, layer)
	if err != nil {
		t.Fatal(err)
	}
	base, err := mutate.AppendLayers(mutate.MediaType(empty.Image, manifest), l)
	if err != nil {
		t.Fatal(err)
	}
	base, err = mutate.ConfigFile(base, &v1.ConfigFile{
		OS: "windows", Architecture: "amd64", OSVersion: "10.0.17763.1", RootFS: config(t,
			base).RootFS, Config: v1.Config{Env: []string{"A=B"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return base
}

func config(t *testing.T, i v1.Image) *v1.ConfigFile {
	t.Helper()
	c, err := i.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAnImageIsPutOnItsBase(t *testing.T) {
	for manifest, layer := range map[types.MediaType]types.MediaType{types.DockerManifestSchema2: types.DockerLayer,
		types.OCIManifestSchema1: types.OCILayer} {
		i := thing("windows/amd64", File{Path: "/thing.exe", Mode: 0o755})
		i.Base, i.Annotations = windows(t, manifest, layer), map[string]string{"c": "d"}
		path, digests := write(t, i)
		digest, err := v1.NewHash(digests.Image)
		if err != nil {
			t.Fatal(err)
		}
		got, err := unpacked(t, path).Image(digest)
		if err != nil {
			t.Fatal(err)
		}
		m, err := got.Manifest()
		if err != nil || m.MediaType != manifest || len(m.Layers) != 3 || m.Annotations["c"] != "d" {
			t.Fatalf("%+v, %v", m, err)
		}
		for _, l := range m.Layers {
			if l.MediaType != layer {
				t.Errorf("on a base of %s there is a layer of %s", manifest, l.MediaType)
			}
		}
		c := config(t, got)
		if c.OSVersion != "10.0.17763.1" || !slices.Equal(c.Config.Env, []string{"A=B", "PATH=/usr/bin"}) ||
			!slices.Equal(c.Config.Entrypoint, i.Entrypoint) {
			t.Errorf("%+v", c)
		}
	}
}

func TestAFileThatIsNoImageIsRejected(t *testing.T) {
	one := File{Path: "/a", Mode: 0o644}
	onLinux := thing("linux/amd64", one)
	onLinux.Base = windows(t, types.OCIManifestSchema1, types.OCILayer)
	for name, tc := range map[string]struct {
		images []Image
		want   string
	}{
		"nothing":               {nil, "no images"},
		"no platform":           {[]Image{thing("linux", one)}, "no platform"},
		"a platform twice":      {[]Image{thing("linux/amd64", one), thing("linux/amd64", one)}, "two images"},
		"a file twice":          {[]Image{thing("linux/amd64", one, one)}, "twice"},
		"a relative path":       {[]Image{thing("linux/amd64", File{Path: "a"})}, "clean absolute"},
		"a path that leads out": {[]Image{thing("linux/amd64", File{Path: "/../a"})}, "clean absolute"},
		"the root": {[]Image{thing("linux/amd64", File{Path: "/", Mode: fs.ModeDir | 0o755})},
			"clean absolute"},
		"setuid": {[]Image{thing("linux/amd64", File{Path: "/a", Mode: fs.ModeSetuid | 0o755})},
			"its mode"},
		"a device":                {[]Image{thing("linux/amd64", File{Path: "/a", Mode: fs.ModeDevice})}, "its mode"},
		"a file below a file":     {[]Image{thing("linux/amd64", one, File{Path: "/a/b"})}, "no directory"},
		"a base for another kind": {[]Image{onLinux}, "windows/amd64, not linux/amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := Write(filepath.Join(dir, "a.tar"), ref, tc.images...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
}
