package sbom

import (
	"bytes"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdxlib"

	"github.com/causeway-csi/causeway/deploy/images/debian"
)

// self is an SBOM of an image with this test's own binary.
func self(t *testing.T) []byte {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Skip(err)
	}
	d, err := Document(Image{
		Name: "driver", Version: "v1", Revision: "abc", Platform: "linux/amd64", Module: "example.com/product", Program: program,
		Debian: []debian.Package{{Archive: "debian", Arch: "amd64", Name: "e2fsprogs", Version: "1.47.0-2+b2", Size: 1,
			SHA256: strings.Repeat("0f", 32), Path: "pool/e.deb"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAnSBOMIsSPDX(t *testing.T) {
	doc, err := json.Read(bytes.NewReader(self(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	ids, purls := map[string]bool{}, map[string]*spdx.Package{}
	for _, p := range doc.Packages {
		if id := string(p.PackageSPDXIdentifier); ids[id] || notID.MatchString(id) {
			t.Errorf("the ID %s is not of one package", id)
		} else {
			ids[id] = true
		}
		for _, r := range p.PackageExternalReferences {
			purls[r.Locator] = p
		}
	}
	if doc.SPDXVersion != "SPDX-2.3" ||
		!strings.HasPrefix(doc.DocumentNamespace, "https://example.com/product/spdx/driver/v1/abc/linux/amd64/") {
		t.Errorf("%s, %s", doc.SPDXVersion, doc.DocumentNamespace)
	}
	tools := purls["pkg:deb/debian/e2fsprogs@1.47.0-2%2Bb2?arch=amd64&distro=debian-12"]
	if tools == nil || tools.PackageChecksums[0].Value != strings.Repeat("0f", 32) ||
		tools.PackageDownloadLocation != "https://deb.debian.org/debian/pool/e.deb" {
		t.Errorf("%+v", tools)
	}
	if purls["pkg:golang/example.com/product@v1"] == nil {
		t.Errorf("the product is missing: %v", purls)
	}
	if contained, want := len(doc.Relationships)-1, len(doc.Packages)-1; contained != want {
		t.Errorf("the image contains %d packages, want %d", contained, want)
	}
}

// TestAnSBOMHasTheModules takes them from a list, as the go command notes none in the binary of a
// test.
func TestAnSBOMHasTheModules(t *testing.T) {
	var got []string
	for _, p := range goPackages(&debug.BuildInfo{GoVersion: "go1.26.1", Deps: []*debug.Module{
		{Path: "example.com/a", Version: "v1.0.0+incompatible"},
		{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/c", Version: "v2.0.0"}},
		{Path: "example.com/product/part", Version: "v0.0.0", Replace: &debug.Module{Path: "../part"}},
		{Path: "example.com/product", Version: "v0.0.0", Replace: &debug.Module{Path: ".."}},
	}}, "example.com/product", "dev") {
		got = append(got, p.PackageExternalReferences[0].Locator)
	}
	want := []string{"pkg:golang/stdlib@1.26.1", "pkg:golang/example.com/product@dev",
		"pkg:golang/example.com/a@v1.0.0%2Bincompatible", "pkg:golang/example.com/c@v2.0.0",
		"pkg:golang/example.com/product/part@dev"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAnSBOMIsTheSameEachTime(t *testing.T) {
	if !bytes.Equal(self(t), self(t)) {
		t.Error("it changes")
	}
}
