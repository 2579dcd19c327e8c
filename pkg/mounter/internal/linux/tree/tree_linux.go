package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
)

// Tree is the kubelet directory.
type Tree struct {
	Dir  string // as callers spell it
	Real string // without links
	// inFilesystem is the path of Dir within its filesystem, or empty.
	inFilesystem string
	// Known has the mounts below Dir.
	Known Known
	// Legacy: the kernel lacks open_tree, move_mount (5.2) or mount_setattr (5.12). Attach sets it.
	Legacy     atomic.Bool
	mayBeShare func(State) bool
}

// New returns the Tree of a directory, which must exist. mayBeShare reports whether a mount may be
// one of a share, which no call may wait for.
func New(dir string, mayBeShare func(State) bool) (*Tree, error) {
	if err := paths.CheckDir(dir); err != nil {
		return nil, err
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("kubelet directory: %w", err)
	}
	tr := &Tree{Dir: dir, Real: resolved, mayBeShare: mayBeShare}
	if name, _, err := Find(resolved); err == nil {
		tr.inFilesystem = name
	}
	return tr, tr.checkKernel()
}

// CleanPath returns the path below Dir that a path of a kubelet leads to: on the node, Dir can be a
// link to the --root-dir of the kubelet (canonical/microk8s#5125). In a container the link is
// followed before Dir is mounted, and only the path of Dir within its filesystem is known. That is
// the end of the --root-dir if the filesystem is mounted at one of its parents, and ends with it if
// the filesystem has it in a subvolume. The path of another kubelet directory with the same end is
// accepted, too: the pods of that kubelet have no directory below Dir, so Mount returns ErrPath.
func (tr *Tree) CleanPath(path string) (string, error) {
	_, err := paths.Below(tr.Dir, path)
	if err == nil {
		return path, nil
	}
	if rel, err := paths.Below(tr.Real, path); err == nil {
		return filepath.Join(tr.Dir, rel), nil
	}
	for _, name := range []string{"/pods/", "/plugins/"} { // of the kubelet, below its --root-dir
		rootDir, rel, found := strings.Cut(path, name)
		if found && sameEnd(rootDir, tr.inFilesystem) {
			if _, err := paths.Below(rootDir, path); err == nil {
				return filepath.Join(tr.Dir, name, rel), nil
			}
		}
	}
	return "", err
}

// sameEnd reports whether one path ends with the other, which has at least two elements.
func sameEnd(a, b string) bool {
	if len(a) < len(b) {
		a, b = b, a
	}
	return strings.Count(b, "/") > 1 && strings.HasSuffix(a, b)
}

// checkKernel returns an error for a kernel without openat2 (Linux 5.6) or STATX_ATTR_MOUNT_ROOT
// (Linux 5.8).
func (tr *Tree) checkKernel() error {
	p, err := tr.Open(filepath.Join(tr.Dir, "any"))
	if err == nil {
		defer p.Close()
		var st unix.Statx_t
		err = unix.Statx(p.Parent, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
		if err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			err = unix.ENOSYS
		}
	}
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: Linux 5.8 or newer is needed", errors.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("kubelet directory: %w", err)
	}
	return nil
}

// SourceOf returns the ID of the source that a mount shows: the file or directory name within the
// filesystem of i.
func SourceOf(i *mountinfo.Info, name string) SourceID {
	return idOf(fmt.Sprintf("%d:%d:%s", i.Major, i.Minor, name))
}

// Remember records that path shows the same source as from. If from is itself a known mount, that
// source is the source of from.
func (tr *Tree) Remember(path string, from Source) error {
	if tr.Known.addFrom(path, from.path) {
		return nil
	}
	return tr.RememberAs(path, from.FD)
}

// RememberAs records that path shows the directory, file or filesystem that fd refers to.
func (tr *Tree) RememberAs(path string, fd int) error {
	name, own, err := FindFD(fd)
	if err != nil {
		return fmt.Errorf("find the filesystem of %s: %w", path, err)
	}
	tr.Known.Add(path, SourceOf(own, name))
	return nil
}

// Occupied is that of mounter.Mounter.
func (tr *Tree) Occupied(_ context.Context, path string) (bool, error) {
	return tr.Shows(path, func(State) (bool, error) { return true, nil })
}

// OtherTargets is that of mounter.Mounter.
func (tr *Tree) OtherTargets(_ context.Context, path string) ([]string, error) {
	others, source := tr.Known.otherPaths(path)
	if len(others) == 0 {
		return nil, nil
	}
	p, err := tr.Open(path)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	self, err := p.Stat()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, other := range others {
		switch there, err := tr.Shows(other, func(at State) (bool, error) { return at.ID == self.ID, nil }); {
		case err != nil:
			return nil, fmt.Errorf("%w: cannot inspect %s, where the same source may be mounted: %v",
				mounter.ErrBusy, other, err) //nolint:errorlint // its class would concern path
		case there:
			paths = append(paths, other)
		default:
			tr.Known.forgetFrom(other, source) // another process unmounted it
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// Shows reports whether path has a mount that the function is accepts. If path is a directory
// without a mount, shows looks for the device of a Disk in the directory.
func (tr *Tree) Shows(path string, is func(State) (bool, error)) (bool, error) {
	p, err := tr.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.Close()
	at, err := p.Stat()
	if at.Broken || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && !at.Mounted && at.Mode&unix.S_IFMT == unix.S_IFDIR {
		at, err = p.NodeState()
	}
	if err != nil || !at.Mounted || at.deleted {
		return false, err
	}
	return is(at)
}

// Find returns the name of path within its filesystem, and the mount through which path is reached.
// The mount is nil if path does not exist. No element of path may be a link.
func Find(path string) (name string, own *mountinfo.Info, err error) {
	fd, err := Resolve(path, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	defer unix.Close(fd)
	return FindFD(fd)
}

// FindFD is [find] for an open file or directory.
func FindFD(fd int) (name string, own *mountinfo.Info, err error) {
	resolved, err := os.Readlink(ProcPath(fd))
	if err != nil {
		return "", nil, err
	}
	at, err := StatFD(fd)
	if err != nil {
		return "", nil, &fs.PathError{Op: "statx", Path: resolved, Err: err}
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == at.Mount
		return !found, found
	})
	if err != nil {
		return "", nil, err
	}
	if len(infos) == 0 {
		return "", nil, fmt.Errorf("%s is on mount %d, which mountinfo does not list", resolved, at.Mount)
	}
	rel, err := filepath.Rel(infos[0].Mountpoint, resolved)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join(infos[0].Root, rel), infos[0], nil
}

// Open resolves path below the kubelet directory without following any link. Errors: ErrPath,
// fs.ErrNotExist if the parent does not exist.
func (tr *Tree) Open(path string) (Handle, error) {
	rel, err := paths.Below(tr.Dir, path)
	if err != nil {
		return Handle{}, err
	}
	dir, name := filepath.Split(rel)
	parent, err := Resolve(tr.Real+"/"+dir, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("%w: %w", mounter.ErrPath, err)
	}
	if err != nil {
		return Handle{}, err
	}
	return Handle{Parent: parent, Name: name, Path: path, mayBeShare: tr.mayBeShare}, nil
}

// OpenSource opens the source of a mount. No element of its path may be a link. A source below the
// kubelet directory is another mount: it is resolved from the real path of that directory, which
// itself may be reached through a link. Errors: ErrPath for a link, fs.ErrNotExist.
func (tr *Tree) OpenSource(path string) (Source, error) {
	resolved := path
	if rel, err := paths.Below(tr.Dir, path); err == nil {
		resolved = filepath.Join(tr.Real, rel)
	}
	fd, err := Resolve(resolved, unix.O_PATH)
	if err != nil {
		return Source{}, fmt.Errorf("source: %w", err)
	}
	at, err := StatFD(fd)
	if err != nil {
		unix.Close(fd)
		return Source{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return Source{FD: fd, path: path, Real: resolved, State: at}, nil
}

// StatSource returns the state of the source of a mount, and leaves nothing open.
func (tr *Tree) StatSource(path string) (State, error) {
	s, err := tr.OpenSource(path)
	if err != nil {
		return State{}, err
	}
	s.Close()
	return s.State, nil
}
