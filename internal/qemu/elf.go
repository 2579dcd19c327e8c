package qemu

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// libraries are the directories that Debian's dynamic linker looks into.
var libraries = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib",
	"/usr/lib"}

// Files is a filesystem that is being made.
type Files interface {
	// File adds a file that all may run, and the directories above it.
	File(name string, content []byte)
}

// AddLibraries adds the dependencies of a program or a library, each at its path on this machine.
// added has the paths of those that are there.
func AddLibraries(a Files, content []byte, added map[string]bool) error {
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return err // a script, say
	}
	needed, err := file.ImportedLibraries()
	if err != nil {
		return err
	}
	if interp := file.Section(".interp"); interp != nil {
		name, err := interp.Data()
		if err != nil {
			return err
		}
		needed = append(needed, strings.TrimRight(string(name), "\x00"))
	}
	for _, name := range needed {
		path, content, err := library(name)
		if err != nil {
			return err
		}
		if added[path] {
			continue
		}
		added[path] = true
		a.File(path, content)
		if err := AddLibraries(a, content, added); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// library finds a library by its name or path.
func library(name string) (path string, content []byte, err error) {
	if filepath.IsAbs(name) {
		content, err = os.ReadFile(name)
		return name, content, err
	}
	for _, dir := range libraries {
		path := filepath.Join(dir, name)
		if content, err := os.ReadFile(path); err == nil {
			return path, content, nil
		}
	}
	return "", nil, fmt.Errorf("its library %s is not in %s", name, strings.Join(libraries, ", "))
}

// modinfo returns a field of the information in a kernel module, such as its dependencies.
func modinfo(content []byte, key string) (values []string, err error) {
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("it has no section .modinfo")
	}
	data, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range strings.SplitSeq(string(data), "\x00") {
		if k, value, ok := strings.Cut(entry, "="); ok && k == key {
			values = append(values, value)
		}
	}
	return values, nil
}
