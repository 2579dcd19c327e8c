// Package archive reads and writes archives of a few files. The same files make the same bytes: the
// order is that of the names, and nothing depends on the user, the machine or the time of a build.
package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// File is a regular file of an archive.
type File struct {
	Name       string // with slashes, relative to the root of the archive
	Executable bool
	Content    []byte
}

// mode is the mode of a file: not that of the working tree, which depends on the user's umask.
func (f File) mode() fs.FileMode {
	if f.Executable {
		return 0o755
	}
	return 0o644
}

// sorted returns files in the order of their names. A name is at one place only.
func sorted(files []File) ([]File, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	for i, f := range files {
		if !fs.ValidPath(f.Name) || f.Name == "." {
			return nil, fmt.Errorf("invalid file name %q: must be relative, and not lead outside", f.Name)
		}
		if i > 0 && files[i-1].Name == f.Name {
			return nil, fmt.Errorf("two files %q", f.Name)
		}
	}
	return files, nil
}

// TarGz writes a compressed tar archive. All files belong to root and have the same time.
func TarGz(w io.Writer, at time.Time, files []File) error {
	files, err := sorted(files)
	if err != nil {
		return err
	}
	packed := gzip.NewWriter(w) // its header has no name and no time
	out := tar.NewWriter(packed)
	for _, f := range files {
		err := out.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: f.Name, Size: int64(len(f.Content)), Mode: int64(f.mode()),
			ModTime: at.UTC(), Format: tar.FormatPAX,
		})
		if err != nil {
			return err
		}
		if _, err := out.Write(f.Content); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), packed.Close())
}

// Zip writes a zip archive, in which all files have the same time.
func Zip(w io.Writer, at time.Time, files []File) error {
	files, err := sorted(files)
	if err != nil {
		return err
	}
	out := zip.NewWriter(w)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.Name, Method: zip.Deflate, Modified: at.UTC()}
		h.SetMode(f.mode())
		part, err := out.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := part.Write(f.Content); err != nil {
			return err
		}
	}
	return out.Close()
}

// Read reads the regular files of an archive whose kind its name tells: .zip, .tar, .tar.gz, .tgz.
func Read(name string, content []byte) ([]File, error) {
	switch {
	case path.Ext(name) == ".zip":
		return readZip(content)
	case path.Ext(name) == ".tar":
		return ReadTar(bytes.NewReader(content))
	default:
		return ReadTarGz(bytes.NewReader(content))
	}
}

// ReadTarGz reads the regular files of a compressed tar archive.
func ReadTarGz(r io.Reader) ([]File, error) {
	unpacked, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	return ReadTar(unpacked)
}

// ReadTar reads the regular files of a tar archive.
func ReadTar(r io.Reader) (files []File, err error) {
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", h.Name, err)
		}
		files = append(files, File{path.Clean(h.Name), h.Mode&0o111 != 0, content})
	}
}

func readZip(content []byte) (files []File, err error) {
	in, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, err
	}
	for _, f := range in.File {
		if !f.Mode().IsRegular() {
			continue
		}
		part, err := f.Open()
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(part)
		if err = errors.Join(err, part.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		files = append(files, File{f.Name, f.Mode()&0o111 != 0, content})
	}
	return files, nil
}
