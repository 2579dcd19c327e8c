package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// blobs returns the files of an archive.
func blobs(t *testing.T, path string) map[string][]byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if all[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// programs makes the programs of all images in a directory: this test, each with an end of its own.
func programs(t *testing.T, dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	test, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"agent", "worker", "apiserver"} {
		if err := os.WriteFile(filepath.Join(dir, program), slices.Concat(test, []byte("the program "+program)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestProcessors: an archive for several processors has an index of their images.
func TestProcessors(t *testing.T) {
	dir := t.TempDir()
	programs(t, filepath.Join(dir, "amd64"))
	programs(t, filepath.Join(dir, "arm64"))
	path := filepath.Join(dir, "image.tar")
	digests, err := images[0].write(dir, path, version{"v1", "abc"}, "amd64", "arm64")
	if err != nil {
		t.Fatal(err)
	}
	var index struct {
		Manifests []struct {
			Platform struct{ OS, Architecture string }
		}
	}
	name := "blobs/" + strings.Replace(digests.Image, ":", "/", 1)
	if err := json.Unmarshal(blobs(t, path)[name], &index); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var got []string
	for _, m := range index.Manifests {
		got = append(got, m.Platform.OS+"/"+m.Platform.Architecture)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err := images[0].write(dir, path, version{"v1", "abc"}, "amd64", "riscv64"); err == nil {
		t.Error("an image without programs is written")
	}
}

// TestImages: an image has its programs, its user and its entry, and no other program.
func TestImages(t *testing.T) {
	dir := t.TempDir()
	programs(t, filepath.Join(dir, "arm64"))
	for _, i := range images {
		path := filepath.Join(dir, i.name+".tar")
		if _, err := i.write(dir, path, version{"v1", "abc"}, "arm64"); err != nil {
			t.Fatal(err)
		}
		all := blobs(t, path)
		var manifest []struct {
			Config   string
			RepoTags []string
			Layers   []string
		}
		if err := json.Unmarshal(all["manifest.json"], &manifest); err != nil || len(manifest) != 1 || len(manifest[0].Layers) != 1 {
			t.Fatalf("%s: %s, %v", i.name, all["manifest.json"], err)
		}
		if tags := manifest[0].RepoTags; len(tags) != 1 || tags[0] != "ghcr.io/causeway-csi/"+i.name+":v1" {
			t.Errorf("%s: tags %q", i.name, tags)
		}
		var config struct {
			Architecture string
			Config       struct {
				User       string
				Entrypoint []string
			}
		}
		if err := json.Unmarshal(all[manifest[0].Config], &config); err != nil {
			t.Fatal(err)
		}
		if config.Architecture != "arm64" || config.Config.User != i.user || len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != i.entry {
			t.Errorf("%s: %+v", i.name, config)
		}
		z, err := gzip.NewReader(bytes.NewReader(all[manifest[0].Layers[0]]))
		if err != nil {
			t.Fatal(err)
		}
		found, sboms := map[string]string{}, 0
		for r := tar.NewReader(z); ; {
			h, err := r.Next()
			if err != nil {
				break
			}
			content, err := io.ReadAll(r)
			switch {
			case err != nil:
				t.Fatal(err)
			case strings.HasSuffix(h.Name, ".spdx.json"):
				beside := strings.TrimSuffix(filepath.Base(h.Name), ".spdx.json") + ".linux-arm64.spdx.json"
				if got, err := os.ReadFile(filepath.Join(dir, beside)); err != nil || !bytes.Equal(got, content) {
					t.Errorf("%s: %v, or another SBOM than %s", beside, err, h.Name)
				}
				sboms++
			case h.Mode&0o111 != 0 && h.Typeflag == tar.TypeReg:
				found["/"+strings.Trim(h.Name, "./")] = string(content)
			}
		}
		for program, at := range i.programs {
			if !strings.HasSuffix(found[at], "the program "+program) {
				t.Errorf("%s has no %s", i.name, at)
			}
		}
		if len(found) != len(i.programs) || sboms != len(i.programs) {
			t.Errorf("%s has %d programs and %d SBOMs", i.name, len(found), sboms)
		}
	}
}

// TestStatic: a program of Debian is linked dynamically, and one of this module is not.
func TestStatic(t *testing.T) {
	if err := static("/bin/sh"); err == nil || !strings.Contains(err.Error(), "not linked statically") {
		t.Errorf("static(/bin/sh) = %v", err)
	}
	worker := filepath.Join(t.TempDir(), "worker")
	t.Chdir("..")
	if err := build(t.Context(), worker, "worker", runtime.GOARCH); err != nil {
		t.Error(err)
	}
}
