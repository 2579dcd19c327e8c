//go:build !windows

package mounter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// FakeWindows is the Host of NewFakeWindows.
type FakeWindows struct {
	linksHost
	disks  *fakeDisks
	shares *fakeShares
}

// NewFakeWindows returns a Host with the logic of the Host of Windows over the symbolic links of
// this machine, for tests. Data flows through its mounts. Disks are files, and shares directories:
// see AttachDisk and AddShare. The path /a/b has the form C:\a\b, as a path without a drive has on
// Windows, and is accepted in both. Names differ by case, as on this machine. dir is the directory
// of the kubelet, which must exist. state is a directory for this Host alone, which is made if it is
// missing: with it, a later Host finds the mounts of this one, as after a restart of the driver.
func NewFakeWindows(dir, state string) (*FakeWindows, error) {
	err := os.MkdirAll(state, 0o700)
	if err == nil {
		state, err = filepath.EvalSymlinks(state)
	}
	if err != nil {
		return nil, err
	}
	form := windowsPaths
	form.key = func(path string) string { return path }
	folders := filepath.Join(state, "volumes")
	clean, err := form.clean(folders)
	if err == nil {
		err = os.MkdirAll(folders, 0o700)
	}
	if err != nil {
		return nil, err
	}
	stores, err := openStores(state)
	if err != nil {
		return nil, err
	}
	links := symlinks{form, filepath.Join(state, "shares")}
	disks := &fakeDisks{symlinks: links, folders: folders, data: filepath.Join(state, "disks"),
		attached: map[uint32]fakeDisk{}, online: map[uint32]bool{}}
	shares := &fakeShares{symlinks: links, shares: map[string]fakeShare{}, mappings: map[string]shareMapping{}}
	l, err := newLinks(disks, dir, stores.links, withDisks(newLinkDisks(disks, callDirectly, clean, stores.formats)))
	if err == nil {
		err = l.addShares(shares, stores.mappings, newWorker())
	}
	if err != nil {
		return nil, errors.Join(err, stores.close())
	}
	return &FakeWindows{linksHost{l}, disks, shares}, nil
}

// symlinks are the symbolic links of this machine, as a linkHost with paths of a form. A link to a
// share leads to the directory with mapped roots.
type symlinks struct {
	paths  pathForm
	shares string // that directory; "": links lead to no shares
}

func (h symlinks) form() pathForm { return h.paths }

// local returns the path of this machine for a clean path.
func (h symlinks) local(path string) string {
	if rest, isShare := strings.CutPrefix(path, `\\`); isShare && h.shares != "" {
		return filepath.Join(h.shares, strings.ReplaceAll(rest, `\`, "/"))
	}
	return strings.ReplaceAll(strings.TrimPrefix(path, "C:"), h.paths.separator, "/")
}

func (h symlinks) look(path string) (linkEntry, error) {
	info, err := os.Lstat(h.local(path))
	if errors.Is(err, syscall.ENOTDIR) {
		return linkEntry{}, notExist("look", path)
	}
	if err != nil {
		return linkEntry{}, err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		text, err := os.Readlink(h.local(path))
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) { // replaced since
			return h.look(path)
		}
		if share, ok := h.shareText(text); ok {
			text = share
		} else if clean, cleanErr := h.paths.clean(text); cleanErr == nil {
			text = clean
		}
		return linkEntry{dirLink, text}, err
	case info.IsDir():
		return linkEntry{kind: plainDir}, nil
	}
	return linkEntry{kind: plainFile}, nil
}

func (h symlinks) link(source, path string) error { return os.Symlink(h.local(source), h.local(path)) }

func (h symlinks) unlink(path string) error {
	e, err := h.look(path)
	if err == nil && e.kind != dirLink {
		err = fmt.Errorf("unlink %s: not a link", path)
	}
	if err != nil {
		return err
	}
	return os.Remove(h.local(path))
}

func (h symlinks) mkdir(path string) error { return os.Mkdir(h.local(path), 0o750) }

func (h symlinks) rmdir(path string) error {
	err := syscall.Rmdir(h.local(path))
	if errors.Is(err, syscall.ENOTEMPTY) {
		err = ErrNotEmpty
	}
	if err != nil {
		return fmt.Errorf("rmdir %s: %w", path, err)
	}
	return nil
}

func (h symlinks) names(path string) ([]string, error) {
	dir, err := os.Open(h.local(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

func (h symlinks) usage(path string) (Usage, error) {
	info, err := os.Stat(h.local(path))
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	return Usage{TotalBytes: 100, UsedBytes: 40, AvailableBytes: 60}, err
}
