package linux

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// MountPointsOf is that of mounter.Images.
func (h *Host) MountPointsOf(source string) ([]string, error) {
	src, err := h.Tree.OpenSource(source)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer src.Close()
	if src.Kind() == unix.S_IFREG {
		return h.Loops.MountPointsOfFile(src.FD, src.Backing())
	}
	name, own, err := tree.FindFD(src.FD)
	if err != nil {
		return nil, err
	}
	// One pass over mountinfo is enough. Since Linux 5.8 a cursor keeps the position of a reader,
	// so the pass lists every mount that exists the whole time, also while others come and go.
	mounts := map[uint64]*mountinfo.Info{}
	var paths []string
	var overlays []*mountinfo.Info
	_, err = mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		if i.ID != own.ID && i.Major == own.Major && i.Minor == own.Minor && within(i.Root, name) {
			paths = append(paths, i.Mountpoint)
		}
		if i.FSType == "overlay" {
			overlays = append(overlays, i)
		}
		mounts[uint64(i.ID)] = i
		return true, false
	})
	if err != nil {
		return nil, err
	}
	s := overlaySearch{
		name: name, own: own, mounts: mounts, asks: &h.layers,
		source: []string{source, src.Real}, checked: map[string]bool{},
	}
	paths = append(paths, s.users(overlays)...)
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// within reports whether path is dir or is below dir. Both must be clean.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// An overlay holds its layers without a visible mount: the mount table has only the paths of the
// layers, as they were written in the mount options. The search compares such a path as text, and
// also resolves it as of now. Neither way finds a layer whose path was relative to a working
// directory, belongs to another mount namespace, or now leads elsewhere. MountPointsOf, in
// mounter.go, and limitations.md document this.

// overlaySearch looks for overlays of a directory.
type overlaySearch struct {
	name    string                     // of the directory, within its filesystem
	own     *mountinfo.Info            // the mount through which the directory is reached
	mounts  map[uint64]*mountinfo.Info // by ID
	source  []string                   // the directory's paths, as text
	asks    *inflight.Group[string, layer]
	checked map[string]bool // whether a path leads below the directory; a cache, as overlays share layers
}

// layer is the file or directory to which the path of a layer leads.
type layer struct {
	mount uint64
	path  string // without links
}

// layerTime is the time that the search waits for a path that does not answer.
const layerTime = 200 * time.Millisecond

// users returns the mount points of the overlays that have a layer at or below the directory.
func (s *overlaySearch) users(overlays []*mountinfo.Info) (paths []string) {
	for _, i := range overlays {
		if slices.ContainsFunc(overlayLayers(i.VFSOptions), s.leadsBelow) {
			paths = append(paths, i.Mountpoint)
		}
	}
	return paths
}

func (s *overlaySearch) leadsBelow(path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	is, ok := s.checked[path]
	if !ok {
		is = slices.ContainsFunc(s.source, func(source string) bool { return within(filepath.Clean(path), source) }) ||
			s.resolvesBelow(path)
		s.checked[path] = is
	}
	return is
}

// resolvesBelow reports whether path leads to the directory or below it. resolvesBelow follows
// links, as the kernel did when the overlay was mounted. The path may lead through a filesystem
// that does not answer, such as a network filesystem. Then the layer is not on a disk of this node,
// and the result is false.
func (s *overlaySearch) resolvesBelow(path string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), layerTime)
	defer cancel()
	r, err := s.asks.Start(path, func() (layer, error) { return resolveLayer(path) })
	if err != nil {
		return false
	}
	to, err := r.Wait(ctx)
	i := s.mounts[to.mount]
	if err != nil || i == nil || i.Major != s.own.Major || i.Minor != s.own.Minor {
		return false
	}
	rel, err := filepath.Rel(i.Mountpoint, to.path)
	return err == nil && within(filepath.Join(i.Root, rel), s.name)
}

// resolveLayer returns the layer to which a path leads now.
func resolveLayer(path string) (layer, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return layer{}, err
	}
	defer unix.Close(fd)
	at, err := tree.StatFD(fd)
	if err != nil {
		return layer{}, err
	}
	resolved, err := os.Readlink(tree.ProcPath(fd))
	return layer{at.Mount, resolved}, err
}

// overlayLayers returns the paths of the layers of an overlay from its options in the mount table.
// A backslash can be an escape or, in lowerdir+ and datadir+ (Linux 6.8), a part of the name. See
// fs/overlayfs/params.c of Linux.
func overlayLayers(options string) (paths []string) {
	for option := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(option, "=")
		value = unescapeOctal(value)
		switch key {
		case "lowerdir":
			paths = append(paths, splitLayers(value, true)...)
		case "upperdir", "workdir":
			paths = append(append(paths, splitLayers(value, false)...), value)
		case "lowerdir+", "datadir+":
			paths = append(paths, value)
		}
	}
	return paths
}

// splitLayers removes escapes (a backslash before any character). If colons is true, it splits
// value at each colon that is not escaped.
func splitLayers(value string, colons bool) (paths []string) {
	var path strings.Builder
	flush := func() {
		if path.Len() > 0 {
			paths = append(paths, path.String())
		}
		path.Reset()
	}
	for i := 0; i < len(value); i++ {
		switch {
		case value[i] == ':' && colons:
			flush()
		case value[i] == '\\' && i+1 < len(value):
			i++
			path.WriteByte(value[i])
		default:
			path.WriteByte(value[i])
		}
	}
	flush()
	return paths
}

// unescapeOctal decodes octal escapes. The kernel writes a comma, a space and a backslash in the
// mount table as \054, \040 and \134.
func unescapeOctal(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
