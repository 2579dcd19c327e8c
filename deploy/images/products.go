package main

import (
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/causeway-csi/causeway/deploy/images/debian"
	"github.com/causeway-csi/causeway/deploy/images/oci"
)

const (
	module   = "github.com/causeway-csi/causeway"
	registry = "ghcr.io/causeway-csi"
	source   = "https://" + module

	// windowsBase is the base of Windows images. It contains no files of Windows: HostProcess
	// containers see those of the node.
	windowsBase = "mcr.microsoft.com/oss/kubernetes/windows-host-process-containers-base-image:v1.0.0"
)

// nonroot is the user of programs without rights: 65532, as in Google's distroless images.
const nonroot = "65532:65532"

// product is a program of cmd/ that becomes images.
type product struct {
	name        string
	description string
	user        string // on Linux
	tools       bool   // whether its Linux image has tools
	windows     bool

	// module is the directory of the module whose cmd/<name> is the main package, relative to the
	// sources.
	module string

	// source is the directory of another main package, absolute.
	source string
}

// pkg returns the main package, and the directory in which the go command finds it.
func (p product) pkg(root string) (dir, pkg string) {
	if p.source != "" {
		return p.source, "."
	}
	return filepath.Join(root, p.module), "./cmd/" + p.name
}

var products = []product{
	// it mounts
	{name: "driver", description: "CSI driver for clusters that mix Linux and Windows nodes", user: "0:0", tools: true,
		windows: true},
	{name: "csi-sidecars", description: "All CSI sidecars for controllers in one program (KEP-4958)", user: nonroot,
		module: "sidecars"},
	{name: "csi-sidecars-node", description: "The CSI sidecars for nodes in one program (KEP-4958)", user: nonroot,
		windows: true, module: "sidecars"},
}

// tools are the programs that the driver runs, at their paths in Debian. A test finds all calls in
// its source.
var tools = []string{
	"/sbin/blkid",
	"/sbin/mkfs.ext4", "/sbin/e2fsck", "/sbin/resize2fs", "/sbin/tune2fs",
	"/sbin/mkfs.xfs", "/usr/sbin/xfs_db", "/usr/sbin/xfs_growfs",
	"/sbin/mkfs.btrfs", "/bin/btrfstune", "/bin/btrfs",
}

// configs are configuration files of tools.
var configs = []string{"/etc/mke2fs.conf"}

// searchPath finds the programs and the tools. All Linux images set it, so that a manifest can say
// command: [csi-sidecars].
const searchPath = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// release tells scanners whose packages these are.
var release = []string{"/etc/os-release", "/etc/debian_version"}

// authorities is the package of the authorities' certificates. bundle is the file that its
// installation makes from them.
const (
	authorities = "ca-certificates"
	bundle      = "/etc/ssl/certs/ca-certificates.crt"
)

// packages are the packages of the lock: those of the tools, of their dependencies, and of the
// base.
var packages = []string{
	"base-files", authorities,
	"util-linux", "e2fsprogs", "libext2fs2", "libcom-err2", "libblkid1", "libuuid1",
	"xfsprogs", "libinih1", "liburcu8", "libedit2", "libtinfo6", "libbsd0", "libmd0",
	// the last has the copyright of the package before it
	"btrfs-progs", "libudev1", "liblzo2-2", "libzstd1", "zlib1g", "libgcc-s1", "gcc-12-base",
	"libc6",
}

// users are /etc/passwd and /etc/group, so that IDs have names.
var users = []oci.File{
	text("/etc/passwd", "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"),
	text("/etc/group", "root:x:0:\nnonroot:x:65532:\n"),
	text("/etc/nsswitch.conf", "hosts: files dns\n"),
}

func text(path, content string) oci.File {
	return oci.File{Path: path, Mode: 0o644, Content: []byte(content)}
}

// base returns the layer that all Linux images begin with.
func base(t *debian.Tree) (debian.Picked, error) {
	picked, err := t.Pick(release, authorities)
	if err != nil {
		return picked, err
	}
	var all []byte
	for _, cert := range t.Glob("/usr/share/ca-certificates/mozilla/*.crt") {
		all = append(append(all, cert...), '\n')
	}
	picked.Files = append(picked.Files, users...)
	picked.Files = append(picked.Files, oci.File{Path: bundle, Mode: 0o644, Content: all})
	return picked, nil
}

// toolbox returns the layer of the tools, without the files of the base.
func toolbox(t *debian.Tree, base debian.Picked) (debian.Picked, error) {
	picked, err := t.Pick(slices.Concat(tools, configs))
	if err != nil {
		return picked, err
	}
	picked.Files = slices.DeleteFunc(picked.Files, func(f oci.File) bool {
		return slices.ContainsFunc(base.Files, func(b oci.File) bool { return b.Path == f.Path })
	})
	return picked, nil
}

// labels are the labels of an image.
func (p product) labels(v version) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "causeway-" + p.name,
		"org.opencontainers.image.description": p.description,
		"org.opencontainers.image.source":      source,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     v.tag,
		"org.opencontainers.image.revision":    v.revision,
	}
}

// sbomPath is where an image has its SBOM.
func (p product) sbomPath() string { return "/usr/share/sbom/" + p.name + ".spdx.json" }

// copyrightPath is where an image has the licenses of the program.
func (p product) copyrightPath() string { return "/usr/share/doc/causeway-" + p.name + "/copyright" }

// own returns the layer of the program. On Linux a link is at the program's path of earlier
// releases.
func (p product) own(goos string, program, sbom, copyright []byte) []oci.File {
	files := []oci.File{
		{Path: p.path(goos), Mode: 0o755, Content: program},
		text(p.sbomPath(), string(sbom)), text(p.copyrightPath(), string(copyright)),
	}
	if goos == "linux" {
		files = append(files, oci.File{Path: "/" + p.name, Mode: fs.ModeSymlink | 0o777, Target: "usr/bin/" + p.name})
	}
	return files
}

// path is where an image has the program.
func (p product) path(goos string) string {
	if goos == "windows" {
		return "/" + p.executable(goos)
	}
	return "/usr/bin/" + p.executable(goos)
}

// executable is the name of the program on an operating system.
func (p product) executable(goos string) string {
	if goos == "windows" {
		return p.name + ".exe"
	}
	return p.name
}

// entrypoint is how the program is started. On Windows the files of a HostProcess container are
// somewhere on the node, which is its working directory.
func (p product) entrypoint(goos string) string {
	if goos == "windows" {
		return p.executable(goos)
	}
	return p.path(goos)
}
