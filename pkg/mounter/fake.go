package mounter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Fake is a Mounter that keeps its mounts in memory. It makes and removes the directories that are mounted on, as
// the real one does, and returns the same errors in the same cases; only the files of a source don't show up at a
// path. The zero value is not usable: see NewFake.
type Fake struct {
	Err      error // if set, Mount, Unmount and Remove fail with it and change nothing
	Capacity Usage // what Usage answers

	dir    string
	mu     sync.Mutex
	mounts map[string]Mount // by path; Source is where the data is, not another mount of it
}

// NewFake returns a Fake for paths below dir, which must exist.
func NewFake(dir string) *Fake {
	return &Fake{dir: dir, mounts: map[string]Mount{}}
}

// Mounts returns what is mounted, by path.
func (f *Fake) Mounts() map[string]Mount {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]Mount, len(f.mounts))
	for path, m := range f.mounts {
		all[path] = m
	}
	return all
}

func (f *Fake) Mount(ctx context.Context, m Mount, path string) error {
	if err := errors.Join(ctx.Err(), f.Err); err != nil {
		return err
	}
	if err := CheckOptions(m.Kind, m.Options); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.look(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrPath, err)
	}
	if err != nil {
		return err
	}
	if info, err := os.Stat(m.Source); err != nil {
		return err
	} else if !info.IsDir() {
		return &fs.PathError{Op: "mount", Path: m.Source, Err: errors.New("not a directory")}
	}
	if from, ok := f.mounts[m.Source]; ok {
		if from.ReadOnly && !m.ReadOnly {
			return fmt.Errorf("%w: %s", ErrReadOnly, m.Source)
		}
		m.Source, m.Options = from.Source, slices.Concat(from.Options, m.Options)
	}
	m = effective(m)
	switch old, mounted := f.mounts[path]; {
	case mounted && equal(old, m):
		return nil
	case mounted:
		return fmt.Errorf("%w: %s", ErrConflict, path)
	case there:
		if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
			return errors.Join(fmt.Errorf("%w: %s", ErrNotEmpty, path), err)
		}
	default:
		if err := os.Mkdir(path, 0o750); err != nil {
			return err
		}
	}
	f.mounts[path] = m
	return nil
}

func (f *Fake) Unmount(_ context.Context, path string) error {
	if f.Err != nil {
		return f.Err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.look(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for other := range f.mounts {
		if strings.HasPrefix(other, path+string(filepath.Separator)) {
			return fmt.Errorf("unmount %s: %w", path, ErrBusy)
		}
	}
	delete(f.mounts, path)
	return nil
}

func (f *Fake) Remove(ctx context.Context, path string) error {
	if err := f.Unmount(ctx, path); err != nil {
		return err
	}
	if entries, err := os.ReadDir(path); err == nil && len(entries) > 0 {
		return fmt.Errorf("remove %s: %w", path, ErrNotEmpty)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f *Fake) Mounted(_ context.Context, m Mount, path string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.look(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if _, err := os.Stat(m.Source); err != nil {
		return false, err
	}
	at, ok := f.mounts[path]
	if from, linked := f.mounts[m.Source]; linked {
		m.Source = from.Source
	}
	return ok && at.Source == m.Source, nil
}

func (f *Fake) Siblings(_ context.Context, path string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.look(path); err != nil {
		return nil, err
	}
	var paths []string
	if at, ok := f.mounts[path]; ok {
		for other, m := range f.mounts {
			if other != path && m.Source == at.Source {
				paths = append(paths, other)
			}
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// Users returns every path at which source or something below it is mounted, sorted.
func (f *Fake) Users(source string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var paths []string
	for path, m := range f.mounts {
		if m.Source == source || strings.HasPrefix(m.Source, source+string(filepath.Separator)) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

func (f *Fake) Usage(_ context.Context, path string) (Usage, error) {
	if there, err := f.look(path); err != nil {
		return Usage{}, err
	} else if !there {
		return Usage{}, &fs.PathError{Op: "statfs", Path: path, Err: fs.ErrNotExist}
	}
	return f.Capacity, nil
}

// look reports whether there is a directory at path. Errors: ErrPath, fs.ErrNotExist for the parent.
func (f *Fake) look(path string) (bool, error) {
	rel, err := below(f.dir, path)
	if err != nil {
		return false, err
	}
	at := f.dir
	for _, name := range strings.Split(rel, string(filepath.Separator)) {
		at = filepath.Join(at, name)
		info, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) && at == path {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if !info.IsDir() {
			return false, fmt.Errorf("%w: %s is not a directory", ErrPath, at)
		}
	}
	return true, nil
}

// effective returns m with the options that count in the end, so that two mounts can be compared.
func effective(m Mount) Mount {
	on := map[string]bool{"nosuid": true}
	for _, o := range m.Options {
		switch o {
		case "ro", "rw":
			on["ro"] = o == "ro"
		case "exec", "noexec":
			on["noexec"] = o == "noexec"
		case "suid", "nosuid":
			on["nosuid"] = o == "nosuid"
		case "relatime", "noatime", "strictatime":
			on["relatime"], on["noatime"], on["strictatime"] = false, false, false
			on[o] = true
		default:
			on[o] = true
		}
	}
	m.ReadOnly = m.ReadOnly || on["ro"]
	m.Options = nil
	for o, yes := range on {
		if yes && o != "ro" && o != "nodev" {
			m.Options = append(m.Options, o)
		}
	}
	slices.Sort(m.Options)
	return m
}

func equal(a, b Mount) bool {
	return a.Kind == b.Kind && a.Source == b.Source && a.ReadOnly == b.ReadOnly && slices.Equal(a.Options, b.Options)
}
