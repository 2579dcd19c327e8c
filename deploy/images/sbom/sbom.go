// Package sbom describes the content of an image, in SPDX 2.3.
package sbom

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"

	"github.com/causeway-csi/causeway/deploy/images/debian"
)

// Purposes of packages.
const (
	container = "CONTAINER"
	// Application is the purpose of a program outside of an image.
	Application = "APPLICATION"
)

// Image is the content of an image for a platform, or a program for it.
type Image struct {
	Purpose                           string // Application; "" for an image
	Name, Version, Revision, Platform string
	Module                            string           // of Go, that the program is of
	Program                           []byte           // which the Go command has built
	Debian                            []debian.Package // of which files are in the image
}

// notID matches characters that an SPDX ID cannot have.
var notID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// noAssertion is SPDX for: look elsewhere. Licenses are in the image.
const noAssertion = "NOASSERTION"

// Document returns the document, which is the same for the same image: it has no time of its own.
func Document(i Image) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(i.Program))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", i.Name, err)
	}
	kind := "Image-"
	if i.Purpose == Application {
		kind = "Program-"
	}
	image := newPackage(kind+i.Name, i.Name, i.Version, "")
	image.PrimaryPackagePurpose = cmp.Or(i.Purpose, container)
	image.PackageComment = "revision " + i.Revision + ", " + i.Platform
	// The name of a document is unique: two uncommitted trees, for example, have the same revision.
	space := fmt.Sprintf("https://%s/spdx/%s/%s/%s/%s/%.16x", i.Module, i.Name, url.PathEscape(i.Version), i.Revision,
		i.Platform, sha256.Sum256(i.Program))
	d := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      fmt.Sprintf("%s %s %s", i.Name, i.Version, i.Platform),
		DocumentNamespace: space,
		CreationInfo: &spdx.CreationInfo{
			Creators:       []common.Creator{{CreatorType: "Tool", Creator: "causeway-images"}},
			Created:        "1970-01-01T00:00:00Z",
			CreatorComment: "The time is left out, so that the same sources make the same image.",
		},
		Packages: []*spdx.Package{image},
		Relationships: []*spdx.Relationship{relation("DOCUMENT", common.TypeRelationshipDescribe,
			image.PackageSPDXIdentifier)},
	}
	for _, p := range append(goPackages(info, i.Module, i.Version), debianPackages(i.Debian)...) {
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships,
			relation(image.PackageSPDXIdentifier, common.TypeRelationshipContains, p.PackageSPDXIdentifier))
	}
	content, err := json.MarshalIndent(d, "", " ")
	return append(content, '\n'), err
}

func relation(a common.ElementID, kind string, b common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{RefA: common.MakeDocElementID("", string(a)),
		RefB: common.MakeDocElementID("", string(b)), Relationship: kind}
}

func newPackage(id, name, version, purl string) *spdx.Package {
	p := &spdx.Package{
		PackageSPDXIdentifier: common.ElementID(notID.ReplaceAllString(id, "-")),
		PackageName:           name, PackageVersion: version, PackageDownloadLocation: noAssertion,
		PackageLicenseConcluded: noAssertion, PackageLicenseDeclared: noAssertion, PackageCopyrightText: noAssertion,
	}
	if purl != "" {
		p.PackageExternalReferences = []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl,
		}}
	}
	return p
}

// goPackages are the modules that a program is made of, with the standard library.
func goPackages(info *buildinfo.BuildInfo, main, version string) (all []*spdx.Package) {
	add := func(path, version string) {
		all = append(all, newPackage("Go-"+path+"-"+version, path, version, "pkg:golang/"+path+"@"+escaped(version)))
	}
	add("stdlib", strings.TrimPrefix(info.GoVersion, "go"))
	add(main, version) // the Go command does not know its version
	for _, m := range info.Deps {
		switch r := m.Replace; {
		case m.Path == main: // a dependency of another module of the repository
		case r != nil && r.Version == "": // replaced by a directory of the repository
			add(m.Path, version)
		case r != nil:
			add(r.Path, r.Version)
		default:
			add(m.Path, m.Version)
		}
	}
	return all
}

func debianPackages(packages []debian.Package) (all []*spdx.Package) {
	for _, d := range packages {
		p := newPackage("Debian-"+d.Name, d.Name, d.Version,
			fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=debian-12", d.Name, escaped(d.Version), d.Arch))
		p.PackageDownloadLocation = d.URL()
		p.PackageSupplier = &common.Supplier{SupplierType: "Organization", Supplier: "Debian"}
		p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: d.SHA256}}
		p.PackageComment = "Some of its files are in the image. Its license is in /usr/share/doc/" +
			d.Name + "/copyright."
		all = append(all, p)
	}
	return all
}

// escaped writes a version as a package URL has it, where + is no letter.
func escaped(version string) string { return strings.ReplaceAll(url.PathEscape(version), "+", "%2B") }
