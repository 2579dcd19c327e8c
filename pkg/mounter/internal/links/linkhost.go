package links

import (
	"io/fs"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// LinkHost has the system calls of a links Mounter. linkhost_windows.go passes them to Windows, and
// decides nothing. The tests have a model of a Windows node, and the links of this machine. All of
// them pass LinkHost. Paths are clean, as form has them. No method follows a link at the last
// element of path.
type LinkHost interface {
	Form() PathForm
	// Entry describes the entry at path. Errors: fs.ErrNotExist, also for a missing parent.
	Entry(path string) (LinkEntry, error)
	// Link makes a link to a directory at path, whose text is source. Errors: fs.ErrExist for any
	// entry at path. A nil error is no proof: see verify.
	Link(source, path string) error
	// Unlink removes the link, or other reparse point, at path, and not the directory to which it
	// leads. Errors: fs.ErrNotExist; ErrBusy; any error for a directory or a file.
	Unlink(path string) error
	// Mkdir makes a directory. Errors: fs.ErrExist.
	Mkdir(path string) error
	// Rmdir removes an empty directory. Errors: ErrNotEmpty, ErrBusy, fs.ErrNotExist; any error for
	// a link, or a file.
	Rmdir(path string) error
	// Names returns the names in a directory, in no order. Errors: fs.ErrNotExist.
	Names(path string) ([]string, error)
	// Usage returns the usage of the filesystem with the directory to which path leads.
	Usage(path string) (mounter.Usage, error)
}

// LinkEntry is an entry of a directory.
type LinkEntry struct {
	Kind EntryKind
	Text string // of a link: the path to which it leads, with backslashes on Windows
}

// EntryKind is the kind of an entry of a directory.
type EntryKind int

// The kinds of entries.
const (
	PlainDir  EntryKind = iota + 1 // also one in which another volume is mounted
	PlainFile                      // not a directory, and not a link
	DirLink                        // a symbolic link for directories
	OtherLink                      // another reparse point, such as a junction or a link for files
)

func (k EntryKind) String() string {
	return map[EntryKind]string{PlainDir: "a directory", PlainFile: "a file", DirLink: "a link",
		OtherLink: "a reparse point that is no directory link"}[k]
}

// NotExist is fs.ErrNotExist for a path.
func NotExist(op, path string) error { return &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist} }
