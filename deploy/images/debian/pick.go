package debian

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/deploy/images/oci"
)

// Tree is the content of the packages of an architecture, as if they were installed side by side.
// Their scripts do not run.
type Tree struct {
	arch     architecture
	files    map[string]owned
	controls map[string]string // by package
	packages []Package
}

// owned is a file with its package.
type owned struct {
	oci.File
	pkg string
}

// architecture describes Debian's dynamic linker: its search path and its machine.
type architecture struct {
	libraries []string
	machine   elf.Machine
}

var architectures = map[string]architecture{
	"amd64": {[]string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"}, elf.EM_X86_64},
	"arm64": {[]string{"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib", "/usr/lib"}, elf.EM_AARCH64},
}

// Open reads the packages of an architecture, which are fetched if the store does not have them.
func Open(ctx context.Context, s Store, arch string, packages []Package) (*Tree, error) {
	a, ok := architectures[arch]
	if !ok {
		return nil, fmt.Errorf("nothing is known of Debian on %q", arch)
	}
	t := &Tree{arch: a, files: map[string]owned{}, controls: map[string]string{}, packages: packages}
	for _, p := range packages {
		deb, err := s.Get(ctx, p)
		if err != nil {
			return nil, err
		}
		u, err := unpack(deb)
		if err != nil {
			return nil, fmt.Errorf("%s %s for %s: %w", p.Name, p.Version, p.Arch, err)
		}
		t.controls[p.Name] = u.control
		for _, f := range u.files {
			if other, ok := t.files[f.Path]; ok {
				return nil, fmt.Errorf("%s and %s both have %s", other.pkg, p.Name, f.Path)
			}
			t.files[f.Path] = owned{f, p.Name}
		}
	}
	return t, nil
}

// Picked are the files of some packages that an image gets.
type Picked struct {
	Files    []oci.File
	Packages []Package // those that any of the files is of
}

// Pick returns the files at paths with everything they need: the targets of links, and libraries.
// For each package with such a file it adds the copyright, with the licenses to which that refers,
// and the package's description at the path where scanners of images without dpkg look. Files made
// from those of a package are attributed to it by made. Errors: a file or library that no package
// has.
func (t *Tree) Pick(paths []string, made ...string) (Picked, error) {
	p := picker{tree: t, files: map[string]owned{}}
	for _, path := range paths {
		if err := p.add(path); err != nil {
			return Picked{}, err
		}
	}
	owners := map[string]bool{}
	for _, name := range made {
		owners[name] = true
	}
	for more := true; more; { // a copyright can be another package's, whose own is then added
		more = false
		for _, f := range p.files {
			owners[f.pkg] = true
		}
		for name := range owners {
			if _, ok := p.files[statusPath(name)]; ok {
				continue
			}
			more = true
			if err := p.describe(name); err != nil {
				return Picked{}, err
			}
		}
	}
	var picked Picked
	for _, f := range p.files {
		picked.Files = append(picked.Files, f.File)
	}
	slices.SortFunc(picked.Files, func(a, b oci.File) int { return cmp.Compare(a.Path, b.Path) })
	picked.Packages = slices.DeleteFunc(slices.Clone(t.packages), func(p Package) bool { return !owners[p.Name] })
	return picked, nil
}

// Glob returns the content of the files that match a pattern of path.Match, in the order of their
// paths.
func (t *Tree) Glob(pattern string) (contents [][]byte) {
	for _, name := range slices.Sorted(maps.Keys(t.files)) {
		if ok, _ := path.Match(pattern, name); ok {
			contents = append(contents, t.files[name].Content)
		}
	}
	return contents
}

// picker is a Pick under way.
type picker struct {
	tree  *Tree
	files map[string]owned
}

// add adds a file, the links on the way to it, and its dependencies.
func (p *picker) add(name string) error {
	f, err := p.follow(name)
	if err != nil {
		return err
	}
	if _, ok := p.files[f.Path]; ok {
		return nil
	}
	p.files[f.Path] = f
	needed, err := p.tree.needs(f.Content)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	for _, n := range needed {
		if err := p.addLibrary(n); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return nil
}

// follow returns the file at the end of links, and adds those.
func (p *picker) follow(name string) (owned, error) {
	const most = 40 // as Linux has it
	for range most {
		next, ok := p.tree.link(name)
		if !ok {
			f, ok := p.tree.files[name]
			if !ok {
				return f, fmt.Errorf("none of the packages has %s", name)
			}
			return f, nil
		}
		p.files[next.Path] = next
		target := next.Target
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(next.Path), target)
		}
		name = path.Join(target, strings.TrimPrefix(name, next.Path))
	}
	return owned{}, fmt.Errorf("the links at %s do not end", name)
}

// link returns the first symbolic link on the way to name.
func (t *Tree) link(name string) (owned, bool) {
	for i := 1; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		if f, ok := t.files[name[:i]]; ok && f.Mode&fs.ModeSymlink != 0 {
			return f, true
		}
	}
	return owned{}, false
}

// addLibrary adds a library by its name, or an interpreter by its path.
func (p *picker) addLibrary(name string) error {
	if path.IsAbs(name) {
		return p.add(name)
	}
	for _, dir := range p.tree.arch.libraries {
		if _, ok := p.tree.files[path.Join(dir, name)]; ok {
			return p.add(path.Join(dir, name))
		}
	}
	return fmt.Errorf("no package has %s, which it needs: add the package that has it, and run make images-lock",
		name)
}

// opened are libraries that glibc opens itself for the callers of some functions. Without them it
// ends the process.
var opened = map[string]string{"pthread_cancel": "libgcc_s.so.1", "pthread_exit": "libgcc_s.so.1"}

// needs returns the libraries and the interpreter of a program or library, or nothing for any other
// file.
func (t *Tree) needs(content []byte) ([]string, error) {
	if !bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
		return nil, nil
	}
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	if f.Machine != t.arch.machine {
		return nil, fmt.Errorf("it is for %v", f.Machine)
	}
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		if paths, err := f.DynString(tag); err != nil || len(paths) > 0 {
			return nil, errors.Join(fmt.Errorf("it looks for libraries in %q, which the image does not search",
				paths), err)
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	if interpreter := f.Section(".interp"); interpreter != nil {
		name, err := interpreter.Data()
		if err != nil {
			return nil, err
		}
		needed = append(needed, strings.TrimRight(string(name), "\x00"))
	}
	imported, err := f.ImportedSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, err
	}
	for _, s := range imported {
		if library, ok := opened[s.Name]; ok {
			needed = append(needed, library)
		}
	}
	return needed, nil
}

func statusPath(pkg string) string { return "/var/lib/dpkg/status.d/" + pkg }

var license = regexp.MustCompile(`/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]`)

// describe adds the description of a package.
func (p *picker) describe(name string) error {
	control, ok := p.tree.controls[name]
	if !ok {
		return fmt.Errorf("there is no package %s", name)
	}
	status := oci.File{Path: statusPath(name), Mode: 0o644, Content: []byte(control)}
	p.files[status.Path] = owned{status, name}
	text := "/usr/share/doc/" + name + "/copyright"
	if err := p.add(text); err != nil {
		return err
	}
	f, err := p.follow(text)
	if err != nil {
		return err
	}
	for _, l := range license.FindAllString(string(f.Content), -1) {
		if err := p.add(l); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return nil
}
