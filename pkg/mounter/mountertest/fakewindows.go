//go:build !windows

package mountertest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

// FakeWindows is the Host of NewFakeWindows.
type FakeWindows struct {
	links.Host
	disks  *fakeDisks
	shares *fakeShares
}

// NewFakeWindows returns a Host with the logic of the Host of Windows over the symbolic links of
// this machine, for tests. Data flows through its mounts. Disks are files, and shares directories:
// see AttachDisk and AddShare. The path /a/b has the form C:\a\b, as a path without a drive has on
// Windows, and is accepted in both. Names differ by case, as on this machine. dir is the directory
// of the kubelet, which must exist. state is a directory for this Host alone, which is made if it
// is missing: with it, a later Host finds the mounts of this one, as after a restart of the driver.
func NewFakeWindows(dir, state string) (*FakeWindows, error) {
	err := os.MkdirAll(state, 0o700)
	if err == nil {
		state, err = filepath.EvalSymlinks(state)
	}
	if err != nil {
		return nil, err
	}
	form := links.WindowsPaths
	form.Key = func(path string) string { return path }
	local := symlinks{form, filepath.Join(state, "shares")}
	disks := &fakeDisks{symlinks: local, folders: filepath.Join(state, links.FoldersDir),
		data: filepath.Join(state, "disks"), attached: map[uint32]fakeDisk{}, online: map[uint32]bool{}}
	shares := &fakeShares{symlinks: local, shares: map[string]fakeShare{}, mappings: map[string]links.ShareMapping{}}
	host, err := links.NewHost(links.Machine{Links: disks, Disks: disks, Shares: shares, Library: links.NewWorker()},
		dir, state)
	if err != nil {
		return nil, err
	}
	return &FakeWindows{host, disks, shares}, nil
}

// symlinks are the symbolic links of this machine, as a LinkHost with paths of a form. A link to a
// share leads to the directory with mapped roots.
type symlinks struct {
	paths  links.PathForm
	shares string // that directory; "": links lead to no shares
}

func (h symlinks) Form() links.PathForm { return h.paths }

// local returns the path of this machine for a clean path.
func (h symlinks) local(path string) string {
	if rest, isShare := strings.CutPrefix(path, `\\`); isShare && h.shares != "" {
		return filepath.Join(h.shares, strings.ReplaceAll(rest, `\`, "/"))
	}
	return strings.ReplaceAll(strings.TrimPrefix(path, "C:"), h.paths.Separator, "/")
}

func (h symlinks) Entry(path string) (links.LinkEntry, error) {
	info, err := os.Lstat(h.local(path))
	if errors.Is(err, syscall.ENOTDIR) {
		return links.LinkEntry{}, links.NotExist("look", path)
	}
	if err != nil {
		return links.LinkEntry{}, err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		text, err := os.Readlink(h.local(path))
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) { // replaced since
			return h.Entry(path)
		}
		if share, ok := h.shareText(text); ok {
			text = share
		} else if clean, cleanErr := h.paths.Clean(text); cleanErr == nil {
			text = clean
		}
		return links.LinkEntry{Kind: links.DirLink, Text: text}, err
	case info.IsDir():
		return links.LinkEntry{Kind: links.PlainDir}, nil
	}
	return links.LinkEntry{Kind: links.PlainFile}, nil
}

func (h symlinks) Link(source, path string) error { return os.Symlink(h.local(source), h.local(path)) }

func (h symlinks) Unlink(path string) error {
	e, err := h.Entry(path)
	if err == nil && e.Kind != links.DirLink {
		err = fmt.Errorf("unlink %s: not a link", path)
	}
	if err != nil {
		return err
	}
	return os.Remove(h.local(path))
}

func (h symlinks) Mkdir(path string) error { return os.Mkdir(h.local(path), 0o750) }

func (h symlinks) Rmdir(path string) error {
	err := syscall.Rmdir(h.local(path))
	if errors.Is(err, syscall.ENOTEMPTY) {
		err = mounter.ErrNotEmpty
	}
	if err != nil {
		return fmt.Errorf("rmdir %s: %w", path, err)
	}
	return nil
}

func (h symlinks) Names(path string) ([]string, error) {
	dir, err := os.Open(h.local(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

func (h symlinks) Usage(path string) (mounter.Usage, error) {
	info, err := os.Stat(h.local(path))
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	return mounter.Usage{TotalBytes: 100, UsedBytes: 40, AvailableBytes: 60}, err
}
