package verify_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/release/internal/archive"
	"github.com/causeway-csi/causeway/release/internal/build"
	"github.com/causeway-csi/causeway/release/internal/releasetest"
)

// edit replaces text in a file of a release, which may be in an archive: archive.tgz/path.
func (m made) edit(t *testing.T, file, before, after string) {
	t.Helper()
	name, inner, archived := strings.Cut(file, "/")
	content := m.files(t)[name]
	if !archived {
		m.write(t, name, replace(t, content, before, after))
		return
	}
	files, err := archive.Read(name, content)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for i, f := range files {
		if f.Name == inner {
			files[i].Content, found = replace(t, f.Content, before, after), true
		}
	}
	if !found {
		t.Fatalf("%s has no %s", name, inner)
	}
	m.pack(t, name, files)
}

// pack writes an archive of the kind that its name tells.
func (m made) pack(t *testing.T, name string, files []archive.File) {
	t.Helper()
	var out bytes.Buffer
	write := func() error { return archive.TarGz(&out, time.Unix(0, 0), files) }
	switch filepath.Ext(name) {
	case ".zip":
		write = func() error { return archive.Zip(&out, time.Unix(0, 0), files) }
	case ".tar":
		write = func() error { return plain(&out, files) }
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	m.write(t, name, out.Bytes())
}

// plain writes a tar archive.
func plain(out *bytes.Buffer, files []archive.File) error {
	w := tar.NewWriter(out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.Name, Size: int64(len(f.Content)), Mode: 0o644}); err != nil {
			return err
		}
		if _, err := w.Write(f.Content); err != nil {
			return err
		}
	}
	return w.Close()
}

func replace(t *testing.T, content []byte, before, after string) []byte {
	t.Helper()
	if !bytes.Contains(content, []byte(before)) {
		t.Fatalf("no %q", before)
	}
	return bytes.ReplaceAll(content, []byte(before), []byte(after))
}

// TestMistakesOfABuildAreFound: all signatures and sums of these releases are correct.
func TestMistakesOfABuildAreFound(t *testing.T) {
	const (
		archives      = "kubectl-copy_v0.1.0_linux_amd64.tar.gz"
		index         = "driver.tar/index.json"
		docker        = "driver.tar/manifest.json"
		values        = "causeway-0.1.0.tgz/causeway/values.yaml"
		copyValues    = "causeway-copy-0.1.0.tgz/causeway-copy/values.yaml"
		manifests     = "causeway-manifests_v0.1.0.tar.gz/causeway-v0.1.0"
		kustomization = manifests + "/deploy/linux/kustomization.yaml"
	)
	m := makeRelease(t, nil)
	all := m.files(t)
	for name, tc := range map[string]struct {
		file, before, after string
		want                string
	}{
		"a chart of another version":       {"causeway-0.1.0.tgz/causeway/Chart.yaml", "version: 0.1.0", "version: 0.2.0", "the chart is causeway 0.2.0"},
		"a chart for other images":         {"causeway-0.1.0.tgz/causeway/Chart.yaml", "appVersion: v0.1.0", "appVersion: dev", "for dev"},
		"values with a tag":                {values, `tag: ""`, "tag: dev", "the values have the tag dev"},
		"values with a tag of an image":    {values, "driver\n    # -- Tag of this image; images.tag if empty.\n    tag: \"\"", "driver\n    tag: dev", "driver: the values have the tag dev"},
		"values with a digest":             {values, "\n    digest: \"\"\n  csi-sidecars:\n", "\n    digest: sha256:0\n  csi-sidecars:\n", "driver: the values have the digest sha256:0"},
		"values with another registry":     {values, "registry: ghcr.io/causeway-csi", "registry: registry.test", "the values have the registry registry.test"},
		"values with another repository":   {values, "repository: csi-sidecars-node", "repository: csi-sidecars", "csi-sidecars-node: the values have the repository csi-sidecars"},
		"values without an image":          {values, "\n  csi-sidecars-node:\n", "\n  sidecars-node:\n", "csi-sidecars-node: the values have the repository <nil>"},
		"values with an unknown image":     {values, "\n  pullPolicy: IfNotPresent\n", "\n  other: {repository: other}\n", "unexpected value images.other"},
		"an image with an unknown value":   {values, "    repository: driver\n", "    repository: driver\n    registry: registry.test\n", "driver: unexpected value registry"},
		"copy's values with a registry":    {copyValues, "ghcr.io/causeway-csi", "registry.test", "the values have the registry registry.test"},
		"copy's values with a tag":         {copyValues, `tag: ""`, "tag: dev", "the values have the tag dev"},
		"copy's values with a digest":      {copyValues, `tag: ""`, `digest: "sha256:0"`, "unexpected value images.digest"},
		"a template with an image":         {"causeway-0.1.0.tgz/causeway/templates/smb/node.yaml", `{{ include "causeway.image" (dict "root" . "image" "driver") }}`, "registry.test/driver:v0.1.0", "the image registry.test/driver:v0.1.0 is not in the registry"},
		"a chart without a CRD":            {"causeway-0.1.0.tgz/causeway/crds/snapshot.storage.k8s.io_volumesnapshots.yaml", "", "", "no CustomResourceDefinition in crds/snapshot.storage.k8s.io_volumesnapshots.yaml"},
		"a manifest with another tag":      {manifests + "/deploy/linux/node.yaml", "driver:v0.1.0", "driver:dev", "an image has the tag dev"},
		"a kustomization with another tag": {kustomization, "newTag: v0.1.0", "newTag: dev", "an image has the tag dev"},
		"a manifest with a digest":         {manifests + "/deploy/linux/node.yaml", "driver:v0.1.0", "driver:v0.1.0@sha256:0", "an image has the tag v0.1.0@sha256:0"},
		"a manifest of another registry":   {manifests + "/deploy/windows/node.yaml", "ghcr.io/causeway-csi/driver", "registry.test/driver", "deploy/windows/node.yaml: the image registry.test/driver:v0.1.0 is not in the registry ghcr.io/causeway-csi"},
		"a manifest with an image more":    {manifests + "/deploy/linux/admission.yaml", "\nkind:", "\nspec: {containers: [{name: a, \"image\": 'busybox'}]}\nkind:", "deploy/linux/admission.yaml: the image busybox is not in the registry"},
		"a manifest of another product":    {manifests + "/deploy/linux/controller.yaml", "/csi-sidecars:", "/csi-sidecars-node:", "controller.yaml: the images are [csi-sidecars-node driver], want [csi-sidecars driver]"},
		"a manifest of an unknown product": {manifests + "/deploy/linux/controller.yaml", "/csi-sidecars:", "/sidecars:", "the release has no image sidecars"},
		"a manifest without its images":    {manifests + "/deploy/windows/node.yaml", "image:", "picture:", "deploy/windows/node.yaml: the images are [], want [csi-sidecars-node driver]"},
		"manifests without those of nodes": {manifests + "/deploy/windows/node.yaml", "", "", "deploy/windows/node.yaml: the images are []"},
		"manifests without a component":    {manifests + "/deploy/linux/cert-manager/kustomization.yaml", "", "", "no deploy/linux/cert-manager/kustomization.yaml"},
		"manifests without a resource":     {manifests + "/deploy/linux/rbac.yaml", "", "", "deploy/linux/kustomization.yaml: no deploy/linux/rbac.yaml"},
		"manifests without a CRD":          {manifests + "/charts/causeway/crds/snapshot.storage.k8s.io_volumesnapshots.yaml", "", "", "no CustomResourceDefinition in charts/causeway/crds/snapshot.storage.k8s.io_volumesnapshots.yaml"},
		"a kustomization with a name":      {kustomization, "newTag: v0.1.0", "newName: registry.test/driver\n  newTag: v0.1.0", `has the new name "registry.test/driver"`},
		"a kustomization with a digest":    {kustomization, "newTag: v0.1.0", "digest: sha256:0\n  newTag: v0.1.0", `the digest "sha256:0"`},
		"a kustomization without an image": {kustomization, "- name: ghcr.io/causeway-csi/driver\n  newTag: v0.1.0\n", "", "the images are [csi-sidecars csi-sidecars-node], want"},
		"a program of another version":     {archives + "/kubectl-copy", "\x00v0.1.0\x00", "\x00v0.0.9\x00", "another version than v0.1.0"},
		"a program for another platform":   {archives + "/kubectl-copy", "GOARCH=amd64", "GOARCH=arm64", "built for linux/arm64"},
		"a program of another Go":          {archives + "/kubectl-copy", "go1.26.8", "go1.26.7", "by go1.26.7"},
		"a program without its SBOM":       {archives + "/kubectl-copy", "\x00kubectl-copy\x00", "\x00kubectl-kopy\x00", "describes another program"},
		"an SBOM of another version":       {"kubectl-copy.linux-amd64.spdx.json", `"versionInfo": "v0.1.0"`, `"versionInfo": "v0.0.9"`, "not an SBOM of v0.1.0"},
		"an SBOM that the image lacks":     {"driver.linux-arm64.spdx.json", "Tool: ", "Tool:  ", "another SBOM than usr/share/sbom/driver.spdx.json"},
		"a plugin's sum":                   {"krew-copy.yaml", "sha256: ", "sha256: 0", "the sum of kubectl-copy_v0.1.0"},
		"a plugin's address":               {"krew-copy.yaml", "download/v0.1.0/", "download/v0.0.9/", "is not of this release"},
		"a plugin's platform":              {"krew-copy.yaml", "_linux_arm64", "_linux_amd64", "the sum of"},
		"a plugin's program":               {"krew-copy.yaml", "bin: kubectl-copy\n", "bin: kubectl-kopy\n", "is kubectl-kopy, want kubectl-copy"},
		"a plugin's system":                {"krew-copy.yaml", "os: darwin", "os: linux", "_darwin_amd64.tar.gz is for linux/amd64"},
		"a plugin's version":               {"krew-copy.yaml", "version: v0.1.0", "version: v0.0.9", "the plugin is copy v0.0.9"},
		"an SBOM of another product":       {"kubectl-copy.linux-amd64.spdx.json", `"name": "kubectl-copy"`, `"name": "driver"`, "the SBOM is of driver"},
		"a wrong digest":                   {"image-digests.txt", "driver:v0.1.0@sha256:", "driver:v0.1.0@sha256:0", "differs from the images"},
		"notes of another version":         {"RELEASE_NOTES.md", "# Causeway v0.1.0", "# Causeway v0.0.9", "not the notes of v0.1.0"},
		"a site without its first page":    {"causeway-docs_v0.1.0.tar.gz/causeway-docs-v0.1.0/index.html", "", "", "no causeway-docs-v0.1.0/index.html"},
		"the name of an image":             {index, `"org.opencontainers.image.ref.name":"ghcr.io/causeway-csi/driver:v0.1.0"`, `"org.opencontainers.image.ref.name":"driver:dev"`, "the image is driver:dev in org.opencontainers.image.ref.name"},
		"an image without a name":          {index, "org.opencontainers.image.ref.name", "title", "the image is  in org.opencontainers.image.ref.name"},
		"the name for containerd":          {index, `"io.containerd.image.name":"ghcr.io/causeway-csi/driver:v0.1.0"`, `"io.containerd.image.name":"driver:dev"`, "the image is driver:dev in io.containerd.image.name"},
		"the name for docker load":         {docker, "driver:v0.1.0", "driver:dev", "manifest.json: the image is ghcr.io/causeway-csi/driver:dev"},
		"a name more for docker load":      {docker, `"RepoTags":[`, `"RepoTags":["driver:dev",`, "manifest.json: the image is driver:dev, ghcr.io/causeway-csi/driver:v0.1.0"},
		"a layer less for docker load":     {docker, `"Layers":[`, `"Layers":[],"Other":[`, "manifest.json: the configuration and the layers are those of no image"},
		"an image more for docker load":    {docker, `[{"Config"`, `[{},{"Config"`, "manifest.json: 2 images, must be 1"},
		"a file of no image":               {"driver.tar/oci-layout", "", "", "oci-layout.old belongs to no image"},
		"the size of an image":             {index, `"size":`, `"size":1`, "is missing or wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				for name, content := range all {
					m.write(t, name, content)
				}
			}()
			if tc.before == "" {
				m.rename(t, tc.file)
			} else {
				m.edit(t, tc.file, tc.before, tc.after)
			}
			if err := m.verify(); err == nil {
				t.Error("the release is correct before it is signed again")
			}
			m.again(t)
			if err := m.verify(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}

// rename gives a file in an archive another name.
func (m made) rename(t *testing.T, file string) {
	t.Helper()
	name, inner, _ := strings.Cut(file, "/")
	m.change(t, name, func(f archive.File) archive.File {
		if f.Name == inner {
			f.Name += ".old"
		}
		return f
	})
}

// change changes the files of an archive.
func (m made) change(t *testing.T, name string, change func(archive.File) archive.File) {
	t.Helper()
	files, err := archive.Read(name, m.files(t)[name])
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		files[i] = change(f)
	}
	m.pack(t, name, files)
}

// TestAMissingProgramIsFound: an archive without one of its programs.
func TestAMissingProgramIsFound(t *testing.T) {
	m := makeRelease(t, nil)
	m.change(t, "causeway_v0.1.0_linux_amd64.tar.gz", func(f archive.File) archive.File {
		f.Executable = f.Executable && f.Name != "driver"
		return f
	})
	m.again(t)
	const want = "the programs are [csi-sidecars csi-sidecars-node], want [csi-sidecars csi-sidecars-node driver]"
	if err := m.verify(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestEmptyArchivesAreFound: archives with files, but none of the kind that the archive is for.
func TestEmptyArchivesAreFound(t *testing.T) {
	m := makeRelease(t, nil)
	m.change(t, "kubectl-copy_v0.1.0_linux_amd64.tar.gz", func(f archive.File) archive.File {
		f.Executable = false
		return f
	})
	m.change(t, "causeway-manifests_v0.1.0.tar.gz", func(f archive.File) archive.File {
		f.Content = nil
		return f
	})
	m.again(t)
	err := m.verify()
	for _, want := range []string{"linux_amd64.tar.gz: the programs are [], want [kubectl-copy]",
		"deploy/linux/node.yaml: the images are [], want [csi-sidecars-node driver]",
		"no CustomResourceDefinition in charts/causeway/crds/snapshot.storage.k8s.io_volumesnapshots.yaml"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestAPluginsPlatformsAreComplete: the manifest of a plugin does not name one of its archives.
func TestAPluginsPlatformsAreComplete(t *testing.T) {
	m := makeRelease(t, nil)
	var plugin map[string]any
	if err := yaml.Unmarshal(m.files(t)["krew-copy.yaml"], &plugin); err != nil {
		t.Fatal(err)
	}
	spec := plugin["spec"].(map[string]any)
	spec["platforms"] = spec["platforms"].([]any)[1:]
	content, err := yaml.Marshal(plugin)
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, "krew-copy.yaml", content)
	m.again(t)
	if err := m.verify(); err == nil || !strings.Contains(err.Error(), "no kubectl-copy_v0.1.0_darwin_amd64.tar.gz") {
		t.Errorf("%v", err)
	}
}

// TestImagesOfAnotherBuildAreFound: images with the label of another version, without their SBOMs,
// and with a blob that no manifest names.
func TestImagesOfAnotherBuildAreFound(t *testing.T) {
	for want, mistake := range map[string]releasetest.Maker{
		`driver.tar: linux/amd64: the image has the version "v0.0.9"`:                  {Labeled: "v0.0.9"},
		"driver.tar: linux/amd64: the image has no SBOM of driver":                     {NoSBOM: true},
		"driver.tar: the images are for [linux/amd64], want [linux/amd64 linux/arm64]": {Short: true},
		"the image has no program that driver.linux-amd64.spdx.json describes":         {Other: true},
	} {
		m := makeRelease(t, func(o *build.Options) { o.Maker = mistake })
		if err := m.verify(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	m := makeRelease(t, nil)
	files, err := archive.Read("driver.tar", m.files(t)["driver.tar"])
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := plain(&out, append(files, archive.File{Name: "blobs/sha256/00", Content: []byte("more")})); err != nil {
		t.Fatal(err)
	}
	m.write(t, "driver.tar", out.Bytes())
	m.again(t)
	if err := m.verify(); err == nil || !strings.Contains(err.Error(), "blobs/sha256/00 belongs to no image") {
		t.Errorf("%v", err)
	}
}

// TestAnImageOfAnotherProductIsFound: the archive of the driver has all that of csi-sidecars has,
// by the driver's name. The digests are those of its images.
func TestAnImageOfAnotherProductIsFound(t *testing.T) {
	const driver, other = "causeway-csi/driver:v0.1.0", "causeway-csi/csi-sidecars:v0.1.0"
	m := makeRelease(t, nil)
	all := m.files(t)
	m.write(t, "driver.tar", all["csi-sidecars.tar"])
	m.edit(t, "driver.tar/index.json", other, driver)
	m.edit(t, "driver.tar/manifest.json", other, driver)
	var digests []string
	for line := range strings.Lines(string(all["image-digests.txt"])) {
		if strings.Contains(line, other) {
			digests = append(digests, strings.Replace(line, other, driver, 1))
		}
		if !strings.Contains(line, driver+"@") {
			digests = append(digests, line)
		}
	}
	slices.Sort(digests)
	m.write(t, "image-digests.txt", []byte(strings.Join(digests, "")))
	m.again(t)
	if err := m.verify(); err == nil ||
		!strings.Contains(err.Error(), "driver.tar: linux/amd64: the image has no SBOM of driver") {
		t.Errorf("%v", err)
	}
}

// TestAnImageForAnotherPlatformIsFound: the index names a platform, the configuration of the image
// another. All digests are correct.
func TestAnImageForAnotherPlatformIsFound(t *testing.T) {
	m := makeRelease(t, nil)
	files, err := archive.Read("driver.tar", m.files(t)["driver.tar"])
	if err != nil {
		t.Fatal(err)
	}
	var before, after string
	for i, f := range files {
		if strings.HasPrefix(f.Name, "blobs/") && bytes.Contains(f.Content, []byte(`"manifests":[`)) {
			before = strings.TrimPrefix(f.Name, "blobs/sha256/")
			files[i].Content = replace(t, f.Content, `"arm64"`, `"s390x"`)
			after = fmt.Sprintf("%x", sha256.Sum256(files[i].Content))
			files[i].Name = "blobs/sha256/" + after
		}
	}
	for i, f := range files {
		if f.Name == "index.json" {
			files[i].Content = replace(t, f.Content, before, after)
		}
	}
	var out bytes.Buffer
	if err := plain(&out, files); err != nil {
		t.Fatal(err)
	}
	m.write(t, "driver.tar", out.Bytes())
	m.again(t)
	if err := m.verify(); err == nil || !strings.Contains(err.Error(), "linux/s390x: the configuration is for linux/arm64") {
		t.Errorf("%v", err)
	}
}

// TestABlobOfAnImageIsChecked changes each blob of an archive of images.
func TestABlobOfAnImageIsChecked(t *testing.T) {
	m := makeRelease(t, nil)
	whole := m.files(t)["driver.tar"]
	files, err := archive.Read("driver.tar", whole)
	if err != nil {
		t.Fatal(err)
	}
	blobs := 0
	for i, f := range files {
		if !strings.HasPrefix(f.Name, "blobs/") {
			continue
		}
		blobs++
		files[i].Content = append(bytes.Clone(f.Content[:len(f.Content)-1]), f.Content[len(f.Content)-1]^1)
		var out bytes.Buffer
		if err := plain(&out, files); err != nil {
			t.Fatal(err)
		}
		m.write(t, "driver.tar", out.Bytes())
		m.again(t)
		if err := m.verify(); err == nil || !strings.Contains(err.Error(), "is missing or wrong") {
			t.Errorf("%s: %v", f.Name, err)
		}
		files[i].Content = f.Content
	}
	if blobs != 7 { // an index, two manifests, two configurations, two layers
		t.Errorf("%d blobs", blobs)
	}
}

// TestAFileOfNoKindIsFound: a file that the maintainer has signed, but that has no check, and files
// that are absent.
func TestAFileOfNoKindIsFound(t *testing.T) {
	m := makeRelease(t, nil)
	m.write(t, "driver.linux-s390x.spdx.json", m.files(t)["driver.linux-amd64.spdx.json"])
	m.write(t, "install.sh", []byte("#!/bin/sh\n"))
	for _, name := range []string{"causeway-0.1.0.tgz", "csi-sidecars.linux-arm64.spdx.json"} {
		if err := os.Remove(filepath.Join(m.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	m.again(t)
	err := m.verify()
	for _, want := range []string{
		"unexpected file install.sh", "missing artifact causeway-0.1.0.tgz",
		"driver.linux-s390x.spdx.json: no image and no program has this SBOM", "csi-sidecars.linux-arm64.spdx.json: no such",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestAMissingPartIsFound: a release without a program for users, with its SBOMs, or without a
// manifest of krew, which the maintainer has signed.
func TestAMissingPartIsFound(t *testing.T) {
	m := makeRelease(t, nil)
	all := m.files(t)
	for want, patterns := range map[string][]string{
		"krew-causeway.yaml":                                {"krew-causeway.yaml"},
		"kubectl-causeway_v0.1.0_darwin_arm64.tar.gz":       {"kubectl-causeway*", "krew-causeway.yaml"},
		"kubectl-causeway_v0.1.0_windows_amd64.zip":         {"kubectl-causeway*windows*", "krew-causeway.yaml"},
		"causeway-release-verify_v0.1.0_linux_arm64.tar.gz": {"causeway-release-verify*linux*arm64*"},
		"causeway-release-verify_v0.1.0_windows_arm64.zip":  {"causeway-release-verify*"},
		"krew-copy.yaml":                                    {"krew-copy.yaml"},
		"kubectl-copy_v0.1.0_linux_amd64.tar.gz":            {"kubectl-copy*", "krew-copy.yaml"},
		"causeway-copy-0.1.0.tgz":                           {"causeway-copy-*"},
		"copy-apiserver.tar":                                {"copy-apiserver*"},
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				for name, content := range all {
					m.write(t, name, content)
				}
			}()
			for _, pattern := range patterns {
				paths, err := filepath.Glob(filepath.Join(m.dir, pattern))
				if err != nil || len(paths) == 0 {
					t.Fatalf("%v, no %s", err, pattern)
				}
				for _, path := range paths {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				}
			}
			m.again(t)
			if err := m.verify(); err == nil || !strings.Contains(err.Error(), "missing artifact "+want) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}

// TestWithoutContainerCopy: a release without any of its parts is complete.
func TestWithoutContainerCopy(t *testing.T) {
	m := makeRelease(t, func(o *build.Options) {
		releasetest.Git(t, o.Root, "rm", "--quiet", "-r", "containercopy")
		releasetest.Git(t, o.Root, "commit", "--quiet", "--message=without")
		releasetest.Git(t, o.Root, "tag", "--force", releasetest.Version)
	})
	if err := m.verify(); err != nil {
		t.Error(err)
	}
}

// TestAProgramWithoutAVersionIsFound: the linker has not set the version of the programs.
func TestAProgramWithoutAVersionIsFound(t *testing.T) {
	m := makeRelease(t, func(o *build.Options) { o.Maker = releasetest.Maker{Reported: "dev"} })
	if err := m.verify(); err == nil || strings.Count(err.Error(), "another version than v0.1.0") < 9 {
		t.Errorf("%v, want it for 9 archives at least", err)
	}
}
