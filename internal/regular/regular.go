// Package regular reads small files at paths that can have other types of files. A FIFO never
// blocks the reader, a device is never read, and a file above a size limit is not read into memory.
//
// Links are followed: the files of a Kubernetes Secret or ConfigMap are links. Package beneath
// follows none.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

var (
	// ErrType reports that a path does not have the type of file that it must have.
	ErrType = errors.New("unexpected file type")
	// ErrSize reports that a file is larger than the reader allows.
	ErrSize = errors.New("file too large")
)

// ReadFile returns the content of the regular file at path, which has at most limit bytes.
// Errors: ErrType, ErrSize, and those of os.Open.
func ReadFile(path string, limit int64) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return Read(file, limit)
}

// ReadFileIn is ReadFile for a path in dir.
func ReadFileIn(dir *os.Root, path string, limit int64) ([]byte, error) {
	file, err := dir.OpenFile(path, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return Read(file, limit)
}

// Read is ReadFile for a file that is open.
func Read(file *os.File, limit int64) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if err := Check(info.Mode(), 0); err != nil {
		return nil, &fs.PathError{Op: "read", Path: file.Name(), Err: err}
	}
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = &fs.PathError{Op: "read", Path: file.Name(), Err: fmt.Errorf("%w: the limit is %d bytes", ErrSize, limit)}
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// Check returns ErrType unless mode has the type want: fs.ModeDir, or 0 for a regular file.
func Check(mode, want fs.FileMode) error {
	if mode.Type() == want {
		return nil
	}
	return fmt.Errorf("%w: it is %s, must be %s", ErrType, Describe(mode), Describe(want))
}

// Describe returns the name of a type of file, with its article.
func Describe(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "a regular file"
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeNamedPipe:
		return "a FIFO"
	case fs.ModeSocket:
		return "a socket"
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return "a device"
	}
	return fmt.Sprintf("a file of the type %v", mode.Type())
}
