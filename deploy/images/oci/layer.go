package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is an entry of a layer. It is root's.
type File struct {
	Path    string      // absolute, with slashes; on Windows too, and without a drive
	Mode    fs.FileMode // permissions; fs.ModeDir or fs.ModeSymlink for directories and links; fs.ModeSticky for a /tmp
	Content []byte      // of a regular file
	Target  string      // of a symbolic link
}

// epoch is the time of everything in an image.
var epoch = time.Unix(0, 0).UTC()

// complete returns files in order, and adds missing directories above them. Errors: two files of
// the same path, a path that is not clean, a mode that File does not support, such as setuid.
func complete(files []File) ([]File, error) {
	all := map[string]File{}
	for _, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" {
			return nil, fmt.Errorf("%q is no clean absolute path", f.Path)
		}
		if f.Mode&^(fs.ModePerm|fs.ModeDir|fs.ModeSymlink|fs.ModeSticky) != 0 {
			return nil, fmt.Errorf("%s: its mode is %v", f.Path, f.Mode)
		}
		if _, ok := all[f.Path]; ok {
			return nil, fmt.Errorf("%s is there twice", f.Path)
		}
		all[f.Path] = f
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "/"; dir = path.Dir(dir) {
			if above, ok := all[dir]; ok && !above.Mode.IsDir() {
				return nil, fmt.Errorf("%s is below %s, which is no directory", f.Path, dir)
			} else if !ok {
				all[dir] = File{Path: dir, Mode: fs.ModeDir | 0o755}
			}
		}
	}
	sorted := make([]File, 0, len(all))
	for _, f := range all {
		sorted = append(sorted, f)
	}
	slices.SortFunc(sorted, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return sorted, nil
}

// pack returns a layer of files. That of Windows has them below Files, and a directory for the
// registry.
func pack(files []File, windows bool, media types.MediaType) (v1.Layer, error) {
	if windows {
		below := []File{{Path: "/Files", Mode: fs.ModeDir | 0o755}, {Path: "/Hives", Mode: fs.ModeDir | 0o755}}
		for _, f := range files {
			f.Path = path.Join("/Files", f.Path)
			below = append(below, f)
		}
		files = below
	}
	files, err := complete(files)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := header(f)
		if windows {
			h.PAXRecords = map[string]string{"MSWINDOWS.rawsd": base64.StdEncoding.EncodeToString(ofUsers)}
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(media),
		tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

func header(f File) *tar.Header {
	h := &tar.Header{
		Name: strings.TrimPrefix(f.Path,
			"/"), Typeflag: tar.TypeReg, Mode: int64(f.Mode.Perm()), Size: int64(len(f.Content)), ModTime: epoch,
	}
	if f.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch {
	case f.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case f.Mode&fs.ModeSymlink != 0:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
	}
	return h
}

// ofUsers is a Windows security descriptor, self-relative, with the owner of a file and without
// access rules: those are inherited. Without a descriptor, a file belongs to the user who unpacks
// it. MS-DTYP 2.4.6.
var ofUsers = slices.Concat(
	[]byte{1, 0, 0x00, 0x80},         // revision, reserved, control: SE_SELF_RELATIVE
	[]byte{20, 0, 0, 0, 36, 0, 0, 0}, // where the owner and the group are
	[]byte{0, 0, 0, 0, 0, 0, 0, 0},   // no lists of access
	users[:],                         // owner
	users[:],                         // group
)

// users is S-1-5-32-545, BUILTIN\Users. MS-DTYP 2.4.2.2.
var users = [16]byte{1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x21, 2, 0, 0}
