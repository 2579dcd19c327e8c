package verify

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/release/internal/archive"
	"github.com/causeway-csi/causeway/release/internal/attest"
)

// Names of artifacts that do not depend on the version.
const (
	notes   = "RELEASE_NOTES.md"
	digests = "image-digests.txt"
)

// content checks the contents of files whose sums are correct.
type content struct {
	dir     string
	version string
	build   attest.Build
	sums    attest.Sums
	digests []string        // of images, as lines of image-digests.txt
	sboms   map[string]bool // SBOMs that describe an image or a program
}

// check checks each file by its kind. A file of no kind is an error: it would have no check.
func (c *content) check() error {
	failures := []error{c.complete()}
	for _, name := range c.sums.Names() {
		check := c.kind(name)
		if check == nil {
			failures = append(failures, fmt.Errorf("unexpected file %s: no kind of artifact has this name", name))
			continue
		}
		data, err := os.ReadFile(filepath.Join(c.dir, name))
		if err == nil {
			err = check(name, data)
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", name, err))
		}
	}
	for _, name := range c.sums.Names() {
		if strings.HasSuffix(name, ".spdx.json") && !c.sboms[name] {
			failures = append(failures, fmt.Errorf("%s: no image and no program has this SBOM", name))
		}
	}
	failures = append(failures, c.listed())
	return errors.Join(failures...)
}

// required are the files of each release; {V} is the version, {N} the version without v.
var required = []string{
	"causeway-{N}.tgz", "causeway-manifests_{V}.tar.gz", "causeway-docs_{V}.tar.gz", notes, digests,
	"driver.tar", "driver-windows.tar", "csi-sidecars.tar", "csi-sidecars-node.tar", "csi-sidecars-node-windows.tar",
	"causeway_{V}_linux_amd64.tar.gz", "causeway_{V}_linux_arm64.tar.gz", "causeway_{V}_windows_amd64.zip",
	"krew-causeway.yaml",
}

// requiredWithCopy are the files of container copy, of which a release has all or none.
var requiredWithCopy = []string{"copy-agent.tar", "copy-apiserver.tar", "causeway-copy-{N}.tgz", "krew-copy.yaml"}

// forUsers are the ends of the archives of a program for machines of users: all platforms.
var forUsers = []string{"darwin_amd64.tar.gz", "darwin_arm64.tar.gz", "linux_amd64.tar.gz", "linux_arm64.tar.gz",
	"windows_amd64.zip", "windows_arm64.zip"}

// complete reports missing files.
func (c *content) complete() error {
	var failures []error
	want, programs := slices.Clone(required), []string{"kubectl-causeway", "causeway-release-verify"}
	if slices.ContainsFunc(c.sums.Names(), ofCopy.MatchString) {
		want, programs = append(want, requiredWithCopy...), append(programs, "kubectl-copy")
	}
	for _, program := range programs {
		for _, end := range forUsers {
			want = append(want, program+"_{V}_"+end)
		}
	}
	names := strings.NewReplacer("{V}", c.version, "{N}", strings.TrimPrefix(c.version, "v"))
	for _, name := range want {
		if name = names.Replace(name); c.sums[name] == "" {
			failures = append(failures, fmt.Errorf("missing artifact %s", name))
		}
	}
	return errors.Join(failures...)
}

// ofCopy matches the files of container copy.
var ofCopy = regexp.MustCompile(`^(copy-|kubectl-copy|causeway-copy-|krew-copy\.)`)

// kind returns the check of a file.
func (c *content) kind(name string) func(name string, data []byte) error {
	version := regexp.QuoteMeta(c.version)
	for _, k := range []struct {
		pattern string
		check   func(name string, data []byte) error
	}{
		{`[a-z-]+\.tar`, c.image},
		{`[a-z-]+\.[a-z]+-[a-z0-9]+\.spdx\.json`, c.sbom},
		{`[a-z-]+-` + version[1:] + `\.tgz`, c.chart},
		{`krew-[a-z]+\.yaml`, c.krew},
		{`causeway-manifests_` + version + `\.tar\.gz`, c.manifests},
		{`causeway-docs_` + version + `\.tar\.gz`, c.docs},
		{`[a-z-]+_` + version + `_(linux|darwin)_[a-z0-9]+\.tar\.gz`, c.programs},
		{`[a-z-]+_` + version + `_windows_[a-z0-9]+\.zip`, c.programs},
		{regexp.QuoteMeta(notes), c.notes},
		{regexp.QuoteMeta(digests), func(string, []byte) error { return nil }}, // listed checks it
	} {
		if regexp.MustCompile(`^` + k.pattern + `$`).MatchString(name) {
			return k.check
		}
	}
	return nil
}

// notes checks the release notes.
func (c *content) notes(_ string, data []byte) error {
	if !strings.HasPrefix(string(data), "# Causeway "+c.version+"\n") {
		return fmt.Errorf("not the notes of %s", c.version)
	}
	return nil
}

// docs checks that the site has its first page.
func (c *content) docs(name string, data []byte) error {
	files, err := archive.Read(name, data)
	if err != nil {
		return err
	}
	first := "causeway-docs-" + c.version + "/index.html"
	if !slices.ContainsFunc(files, func(f archive.File) bool { return f.Name == first }) {
		return fmt.Errorf("no %s", first)
	}
	return nil
}

// krew checks the archives that the manifest of a plugin names.
func (c *content) krew(name string, data []byte) error {
	var plugin struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []struct {
				URI, SHA256, Bin string
				Selector         struct {
					MatchLabels struct{ OS, Arch string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(data, &plugin); err != nil {
		return err
	}
	if name != "krew-"+plugin.Metadata.Name+".yaml" || plugin.Spec.Version != c.version {
		return fmt.Errorf("the plugin is %s %s", plugin.Metadata.Name, plugin.Spec.Version)
	}
	prefix := "kubectl-" + plugin.Metadata.Name + "_" + c.version + "_"
	named := map[string]bool{}
	for _, p := range plugin.Spec.Platforms {
		dir, file := path.Split(p.URI)
		if dir != attest.Source+"/releases/download/"+c.version+"/" || !strings.HasPrefix(file, prefix) {
			return fmt.Errorf("the address %s is not of this release", p.URI)
		}
		if p.SHA256 == "" || c.sums[file] != p.SHA256 {
			return fmt.Errorf("the sum of %s is %s", file, p.SHA256)
		}
		on := p.Selector.MatchLabels
		if goos, arch := platformOf(file); on.OS != goos || on.Arch != arch {
			return fmt.Errorf("%s is for %s/%s", file, on.OS, on.Arch)
		}
		if want := executable("kubectl-"+plugin.Metadata.Name, on.OS); p.Bin != want {
			return fmt.Errorf("the program in %s is %s, want %s", file, p.Bin, want)
		}
		named[file] = true
	}
	for _, file := range c.sums.Names() {
		if strings.HasPrefix(file, prefix) && !named[file] {
			return fmt.Errorf("no %s", file)
		}
	}
	return nil
}

// platformOf returns the platform in the name of an archive of programs.
func platformOf(name string) (goos, arch string) {
	base := strings.TrimSuffix(strings.TrimSuffix(name, ".zip"), ".tar.gz")
	parts := strings.Split(base, "_")
	return parts[len(parts)-2], parts[len(parts)-1]
}

// executable returns the name of the file of a program.
func executable(program, goos string) string {
	if goos == "windows" {
		return program + ".exe"
	}
	return program
}

// ofNodes are the programs of clusters, in an archive for each platform of the images.
var ofNodes = map[string][]string{
	"linux":   {"csi-sidecars", "csi-sidecars-node", "driver"},
	"windows": {"csi-sidecars-node", "driver"}, // controllers run on Linux
}

// programs checks the programs in an archive: their names, the platform and the version that the
// linker has set, and the SBOM.
func (c *content) programs(name string, data []byte) error {
	files, err := archive.Read(name, data)
	if err != nil {
		return err
	}
	goos, arch := platformOf(name)
	product, _, _ := strings.Cut(name, "_")
	want := []string{product}
	if product == "causeway" {
		want = ofNodes[goos]
	}
	var found []string
	for _, f := range files {
		if !f.Executable {
			continue
		}
		if err := c.program(f, goos, arch); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		found = append(found, f.Name)
	}
	names := slices.Clone(want)
	for i, p := range want {
		names[i] = executable(p, goos)
	}
	slices.Sort(found)
	if !slices.Equal(found, names) {
		return fmt.Errorf("the programs are %v, want %v", found, names)
	}
	return nil
}

// program checks a program of the Go command.
func (c *content) program(f archive.File, goos, arch string) error {
	info, err := buildinfo.Read(bytes.NewReader(f.Content))
	if err != nil {
		return err
	}
	setting := func(key string) string {
		i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == key })
		if i < 0 {
			return ""
		}
		return info.Settings[i].Value
	}
	if setting("GOOS") != goos || setting("GOARCH") != arch || info.GoVersion != c.build.Go {
		return fmt.Errorf("built for %s/%s by %s", setting("GOOS"), setting("GOARCH"), info.GoVersion)
	}
	// The build information has no -ldflags if paths are trimmed. The linker ends the values of -X
	// by a zero byte, which the versions of modules in the program do not have.
	if !bytes.Contains(f.Content, append([]byte(c.version), 0)) {
		return fmt.Errorf("the program has another version than %s", c.version)
	}
	return c.described(strings.TrimSuffix(f.Name, ".exe"), goos+"-"+arch, f.Content)
}

// sbom checks the program and the version in an SBOM.
func (c *content) sbom(name string, data []byte) error {
	var document struct {
		SPDXVersion string `json:"spdxVersion"`
		Packages    []struct {
			Name    string `json:"name"`
			Version string `json:"versionInfo"`
		}
	}
	if err := json.Unmarshal(data, &document); err != nil {
		return err
	}
	if document.SPDXVersion != "SPDX-2.3" || len(document.Packages) < 2 || document.Packages[0].Version != c.version {
		return fmt.Errorf("not an SBOM of %s", c.version)
	}
	if program, _, _ := strings.Cut(name, "."); document.Packages[0].Name != program {
		return fmt.Errorf("the SBOM is of %s", document.Packages[0].Name)
	}
	return nil
}

// described checks that the SBOM of a program is of exactly this program: the document's namespace
// ends with its sum.
func (c *content) described(program, platform string, data []byte) error {
	name := program + "." + platform + ".spdx.json"
	list, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		return fmt.Errorf("no SBOM: %w", err)
	}
	var document struct {
		Namespace string `json:"documentNamespace"`
	}
	if err := json.Unmarshal(list, &document); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !strings.HasSuffix(document.Namespace, fmt.Sprintf("/%.16x", sha256.Sum256(data))) {
		return fmt.Errorf("%s describes another program", name)
	}
	c.sboms[name] = true
	return nil
}
