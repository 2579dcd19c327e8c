// Package debian takes files out of Debian's packages: those of a lock file, whose sums are known
// before anything is fetched.
package debian

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Package is a package in the lock.
type Package struct {
	Archive string // debian or debian-security
	Arch    string // amd64, arm64 or all
	Name    string
	Version string
	Size    int64 // bytes
	SHA256  string
	Path    string // below the archive
}

// Lock lists the packages of images.
type Lock struct {
	Snapshot string // when it was made, as snapshot.debian.org has it in its addresses: 20260102T030405Z
	Packages []Package
}

const lockHead = `# The packages of Debian that images are made of. make images-lock writes this file.
# archive, architecture, name, version, size, SHA-256, path
`

// For returns the packages of an architecture.
func (l Lock) For(arch string) []Package {
	return slices.DeleteFunc(slices.Clone(l.Packages),
		func(p Package) bool { return p.Arch != arch && p.Arch != "all" })
}

// Format returns the lock as a file.
func (l Lock) Format() []byte {
	out := bytes.NewBufferString(lockHead)
	fmt.Fprintln(out, "snapshot", l.Snapshot)
	for _, p := range l.Packages {
		fmt.Fprintln(out, p.Archive, p.Arch, p.Name, p.Version, p.Size, p.SHA256, p.Path)
	}
	return out.Bytes()
}

// ParseLock reads the output of Format.
func ParseLock(content []byte) (Lock, error) {
	var l Lock
	for n, line := range strings.Split(string(content), "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#":
		case len(f) == 2 && f[0] == "snapshot":
			l.Snapshot = f[1]
		case len(f) == 7:
			size, err := strconv.ParseInt(f[4], 10, 64)
			if err != nil || len(f[5]) != 64 {
				return l, fmt.Errorf("line %d of the lock: %q", n+1, line)
			}
			l.Packages = append(l.Packages, Package{f[0], f[1], f[2], f[3], size, f[5], f[6]})
		default:
			return l, fmt.Errorf("line %d of the lock: %q", n+1, line)
		}
	}
	if l.Snapshot == "" || len(l.Packages) == 0 {
		return l, fmt.Errorf("the lock has no packages: make images-lock")
	}
	return l, nil
}
