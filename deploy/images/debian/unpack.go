package debian

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"

	"github.com/causeway-csi/causeway/deploy/images/oci"
)

// unpacked is the content of a package.
type unpacked struct {
	control string     // its description: deb-control(5)
	files   []oci.File // no directories
}

// unpack reads a package: deb(5).
func unpack(deb []byte) (u unpacked, err error) {
	members, err := arMembers(deb)
	if err != nil {
		return u, err
	}
	for name, content := range members {
		base, _, _ := strings.Cut(name, ".")
		if base != "control" && base != "data" {
			continue
		}
		plain, err := decompress(name, content)
		if err != nil {
			return u, err
		}
		files, err := untar(plain)
		if err != nil {
			return u, fmt.Errorf("%s: %w", name, err)
		}
		if base == "data" {
			u.files = files
			continue
		}
		for _, f := range files {
			if f.Path == "/control" {
				u.control = string(f.Content)
			}
		}
	}
	if u.control == "" || len(u.files) == 0 {
		return u, errors.New("it has no control file or no files")
	}
	return u, nil
}

// arMembers reads an archive of ar(5), as far as Debian uses it.
func arMembers(content []byte) (map[string][]byte, error) {
	rest, ok := bytes.CutPrefix(content, []byte("!<arch>\n"))
	if !ok {
		return nil, errors.New("it is no package of Debian")
	}
	members := map[string][]byte{}
	for len(rest) > 0 {
		if len(rest) < 60 {
			return nil, io.ErrUnexpectedEOF
		}
		name := strings.TrimRight(string(rest[:16]), " /")
		size, err := strconv.ParseInt(strings.TrimSpace(string(rest[48:58])), 10, 64)
		if err != nil || size < 0 {
			return nil, fmt.Errorf("the size of %q is %q", name, rest[48:58])
		}
		rest = rest[60:]
		if int64(len(rest)) < size {
			return nil, io.ErrUnexpectedEOF
		}
		members[name] = rest[:size]
		rest = rest[min(size+size%2, int64(len(rest))):] // members begin at even places
	}
	return members, nil
}

func decompress(name string, content []byte) (io.Reader, error) {
	switch path.Ext(name) {
	case ".xz":
		return xz.NewReader(bytes.NewReader(content))
	case ".gz":
		return gzip.NewReader(bytes.NewReader(content))
	case ".tar":
		return bytes.NewReader(content), nil
	}
	return nil, fmt.Errorf("%s is compressed in a way that is not known here", name)
}

// untar returns the regular files and links of an archive. A hard link becomes a copy.
func untar(r io.Reader) (files []oci.File, err error) {
	contents := map[string][]byte{}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		} else if err != nil {
			return nil, err
		}
		f := oci.File{Path: path.Join("/", h.Name), Mode: fs.FileMode(h.Mode).Perm()}
		switch h.Typeflag {
		case tar.TypeReg:
			if f.Content, err = io.ReadAll(t); err != nil {
				return nil, err
			}
			contents[f.Path] = f.Content
			f.Mode |= h.FileInfo().Mode() & (fs.ModeSetuid | fs.ModeSetgid) // which oci refuses
		case tar.TypeLink:
			to, ok := contents[path.Join("/", h.Linkname)]
			if !ok {
				return nil, fmt.Errorf("%s is a hard link to %s, which has not come before it", f.Path, h.Linkname)
			}
			f.Content = to
			f.Mode |= h.FileInfo().Mode() & (fs.ModeSetuid | fs.ModeSetgid)
		case tar.TypeSymlink:
			f.Mode, f.Target = fs.ModeSymlink|0o777, h.Linkname
		default:
			continue
		}
		files = append(files, f)
	}
}
