package mounter

import "io/fs"

// linkHost has the system calls of a links Mounter. linkhost_windows.go passes them to Windows, and
// decides nothing. The tests have a model of a Windows node, and the links of this machine. All of
// them pass testLinkHost. Paths are clean, as form has them. No method follows a link at the last
// element of path.
type linkHost interface {
	form() pathForm
	// look describes the entry at path. Errors: fs.ErrNotExist, also for a missing parent.
	look(path string) (linkEntry, error)
	// link makes a link to a directory at path, whose text is source. Errors: fs.ErrExist for any
	// entry at path. A nil error is no proof: see verify.
	link(source, path string) error
	// unlink removes the link, or other reparse point, at path, and not the directory to which it
	// leads. Errors: fs.ErrNotExist; ErrBusy; any error for a directory or a file.
	unlink(path string) error
	// mkdir makes a directory. Errors: fs.ErrExist.
	mkdir(path string) error
	// rmdir removes an empty directory. Errors: ErrNotEmpty, ErrBusy, fs.ErrNotExist; any error for
	// a link, or a file.
	rmdir(path string) error
	// names returns the names in a directory, in no order. Errors: fs.ErrNotExist.
	names(path string) ([]string, error)
	// usage returns the usage of the filesystem with the directory to which path leads.
	usage(path string) (Usage, error)
}

// linkEntry is an entry of a directory.
type linkEntry struct {
	kind entryKind
	text string // of a link: the path to which it leads, with backslashes on Windows
}

type entryKind int

const (
	plainDir  entryKind = iota + 1 // also one in which another volume is mounted
	plainFile                      // not a directory, and not a link
	dirLink                        // a symbolic link for directories
	otherLink                      // another reparse point, such as a junction or a link for files
)

func (k entryKind) String() string {
	return map[entryKind]string{plainDir: "a directory", plainFile: "a file", dirLink: "a link",
		otherLink: "a reparse point that is no directory link"}[k]
}

// notExist is fs.ErrNotExist for a path.
func notExist(op, path string) error { return &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist} }
