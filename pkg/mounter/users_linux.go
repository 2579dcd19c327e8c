package mounter

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
)

func (l *linux) MountPointsOf(source string) ([]string, error) {
	src, err := l.openSource(source)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer src.close()
	if src.kind() == unix.S_IFREG {
		return l.loops.users(src.backing())
	}
	name, own, err := findFD(src.fd)
	if err != nil {
		return nil, err
	}
	// One pass over mountinfo is enough: since Linux 5.8 a reader keeps its place by a cursor, so a
	// mount that is there the whole time is listed, however many come and go meanwhile.
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
	s := overlaySearch{name: name, own: own, mounts: mounts, asks: &l.layers, source: []string{source, src.real}, checked: map[string]bool{}}
	paths = append(paths, s.users(overlays)...)
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// within reports whether a path is dir or below it. Both are clean.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// An overlay holds its layers without a mount that could be seen: the mount table has only the text
// by which they were named. A text is resolved as it would be now, and compared as it is. Neither
// finds a layer that was named relative to a working directory or in another mount namespace, or
// whose path leads elsewhere by now. Users, in mounter.go, and limitations.md say so.

// overlaySearch looks for overlays of a directory.
type overlaySearch struct {
	name    string                     // of the directory, within its filesystem
	own     *mountinfo.Info            // the mount through which it is seen
	mounts  map[uint64]*mountinfo.Info // by ID
	source  []string                   // the directory's paths, as text
	asks    *asks[string, layer]
	checked map[string]bool // whether a path leads below the directory: overlays share layers
}

// layer is what a path leads to.
type layer struct {
	mount uint64
	path  string // without links
}

// layerTime is how long the search waits for a path that does not answer.
const layerTime = 200 * time.Millisecond

// users returns the paths of those overlays of which a layer is the directory or below it.
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
		is = slices.ContainsFunc(s.source, func(source string) bool { return within(filepath.Clean(path), source) }) || s.resolvesBelow(path)
		s.checked[path] = is
	}
	return is
}

// resolvesBelow follows links, as the kernel did when the overlay was made. The path may lead through
// a filesystem that does not answer, such as a network's: then it is not on this node's disk.
func (s *overlaySearch) resolvesBelow(path string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), layerTime)
	defer cancel()
	r, err := s.asks.ask(path, func() (layer, error) { return resolveLayer(path) })
	if err != nil {
		return false
	}
	to, err := r.wait(ctx)
	i := s.mounts[to.mount]
	if err != nil || i == nil || i.Major != s.own.Major || i.Minor != s.own.Minor {
		return false
	}
	rel, err := filepath.Rel(i.Mountpoint, to.path)
	return err == nil && within(filepath.Join(i.Root, rel), s.name)
}

// resolveLayer returns where a path leads now.
func resolveLayer(path string) (layer, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return layer{}, err
	}
	defer unix.Close(fd)
	at, err := statFD(fd)
	if err != nil {
		return layer{}, err
	}
	real, err := os.Readlink(procPath(fd))
	return layer{at.mount, real}, err
}

// overlayLayers returns the paths of an overlay's layers from its options in the mount table. A
// backslash can be an escape or, in lowerdir+ and datadir+ (Linux 6.8), a part of the name: see
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

// splitLayers removes escapes, a backslash before any character, and splits at colons that have none.
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

// unescapeOctal undoes how the kernel writes a comma, a space or a backslash in the mount table:
// \054, \040, \134.
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
