// Package atomicfile writes small files. A reader, or the next process after a crash, finds the
// whole old content or the whole new content, and nothing follows a symbolic link: all names are
// beneath an open directory.
package atomicfile

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/causeway-csi/causeway/internal/beneath"
)

// mode is the mode of all files: they are for the driver only.
const mode = 0o600

// Writer writes files in a directory.
type Writer struct {
	Dir *beneath.Dir

	// Temp is the name of a new file until it is renamed. No other writer may use it at the same
	// time. A file that a crash has left there is replaced. "" is the name of the file with ".new"
	// after it.
	Temp string

	// Volatile files need not survive a power cut: they and their directory are not synced.
	Volatile bool

	// Opened is called with the new file before anything is written to it, for a lock for example.
	Opened func(file *os.File) error
}

// Write writes the file called name, in place of a file that may be there. If Write fails, the old
// file is still there, unless the error is that of the sync of the directory.
func (w Writer) Write(name string, data []byte) error {
	file, err := w.fill(name, data)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil { // before the rename: Windows renames no file that is open
		return errors.Join(err, w.Dir.Remove(w.temp(name)))
	}
	return w.commit(name)
}

// Keep is Write, and returns the new file, which the caller closes. Windows cannot do that.
func (w Writer) Keep(name string, data []byte) (*os.File, error) {
	file, err := w.fill(name, data)
	if err != nil {
		return nil, err
	}
	if err := w.commit(name); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (w Writer) temp(name string) string { return cmp.Or(w.Temp, name+".new") }

// commit gives the new file its name.
func (w Writer) commit(name string) error {
	if err := w.Dir.Rename(w.temp(name), name); err != nil {
		return errors.Join(err, w.Dir.Remove(w.temp(name)))
	}
	if w.Volatile {
		return nil
	}
	return w.Dir.Sync(".")
}

// fill makes the new file, and replaces the remains of a crash. After an error there is no file.
func (w Writer) fill(name string, data []byte) (*os.File, error) {
	temp := w.temp(name)
	file, err := open(w.Dir, temp)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, beneath.ErrType) {
		if err := w.Dir.Remove(temp); err != nil {
			return nil, err
		}
		file, err = open(w.Dir, temp)
	}
	if err != nil {
		return nil, err
	}
	if w.Opened != nil {
		err = w.Opened(file)
	}
	if err == nil {
		_, err = file.Write(data)
	}
	if err == nil && !w.Volatile {
		err = file.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), w.Dir.Remove(temp))
	}
	return file, nil
}

// Create makes the file name, which must not exist, in a directory that has no readers yet. The
// content is durable, the entry is not: the caller syncs the directory. After an error a part of
// the file may be there.
func Create(dir *beneath.Dir, name string, data []byte) error {
	file, err := open(dir, name)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func open(dir *beneath.Dir, name string) (*os.File, error) {
	return dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
}

// Random returns a part of a name that no other writer has.
func Random() string { return strings.ToLower(rand.Text()[:10]) }
