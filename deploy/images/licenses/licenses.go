// Package licenses collects the licenses of the modules that a Go program is made of.
package licenses

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Program is a program of Go.
type Program struct {
	Name    string
	Root    string   // directory of the repository, absolute: its modules have its license
	Dir     string   // directory in which the go command finds Package, absolute
	Package string   // main package
	Tags    string   // of the build
	Env     []string // of the go command: the platform

	// Unlicensed is the directory of a module whose author may not have chosen a license yet, or
	// "".
	Unlicensed string
}

// Text returns the licenses of all modules that a program is made of, and that of Go, each text
// once.
func Text(ctx context.Context, p Program) ([]byte, error) {
	modules, err := p.modules(ctx)
	if err != nil {
		return nil, err
	}
	whose := map[string][]string{} // by text
	var texts []string
	for _, m := range modules {
		name, dir, ok := strings.Cut(m, "\t")
		if !ok {
			continue // the standard library's packages have no module
		}
		found, err := p.files(dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, t := range found {
			if whose[t] == nil {
				texts = append(texts, t)
			}
			whose[t] = append(whose[t], name)
		}
	}
	out := bytes.NewBufferString(p.Name + " is made of these modules, under the license that follows each list.\n")
	for _, t := range texts {
		fmt.Fprintf(out, "\n%s\n\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(whose[t], "\n"), t)
	}
	return out.Bytes(), nil
}

// modules returns the modules of the program, each with its directory after a tab.
func (p Program) modules(ctx context.Context) ([]string, error) {
	list, err := p.golang(ctx, "list", "-deps", "-tags", p.Tags,
		"-f", "{{with .Module}}{{.Path}}{{with .Version}} {{.}}{{end}}\t{{.Dir}}{{end}}", p.Package)
	if err != nil {
		return nil, err
	}
	goroot, err := p.golang(ctx, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	modules := append(strings.Split(strings.TrimSpace(list), "\n"), "Go\t"+strings.TrimSpace(goroot))
	slices.Sort(modules)
	return slices.Compact(modules), nil
}

// golang returns the output of the go command.
func (p Program) golang(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env, cmd.Stderr = p.Dir, append(os.Environ(), p.Env...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", errors.Join(ctx.Err(), fmt.Errorf("go %s: %w", strings.Join(args, " "), err))
	}
	return string(out), nil
}

// files returns the texts of the licenses of the module in dir.
func (p Program) files(dir string) ([]string, error) {
	found, err := read(dir)
	if err != nil || len(found) > 0 || dir == p.Unlicensed {
		return found, err
	}
	if strings.HasPrefix(dir, p.Root+string(filepath.Separator)) {
		if found, err = read(p.Root); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no license in %s", dir)
	}
	return found, nil
}

var name = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-.].*)?$`)

// read returns the texts of the licenses in the first directory of a module.
func read(dir string) (texts []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !name.MatchString(e.Name()) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, strings.TrimSpace(string(content)))
	}
	return texts, nil
}
