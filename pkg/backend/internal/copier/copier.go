// Package copier copies disk images and directory trees on one node. The package shares blocks with
// the source where the filesystem can, keeps owners, modes, times, links and attributes, and
// returns when the copy is durable.
//
// A tree belongs to a tenant, who may change it during the copy and may want to harm the node. The
// copier follows no link, enters no mount, and opens no device, FIFO or socket. No data from
// outside the tree gets into the copy, even if the tenant swaps entries meanwhile. A copy of a tree
// is not of a point in time:
//   - An entry that is made, removed or replaced meanwhile may be missing. The same holds for an
//     entry whose type changes from or to a directory between the listing of its directory and its
//     copy.
//   - An entry that is moved within the tree may be missing, or in the copy twice.
//
// All other entries are in the copy, or Tree returns an error.
//
// After an error, which includes the end of the context, the target is incomplete and the caller
// discards it. No goroutine and no descriptor stays behind.
package copier

import "errors"

// MaxDepth is the number of directory levels below the top of a tree that Tree copies.
const MaxDepth = 16384

// The errors of Tree that a tenant can cause. The error names the entry.
var (
	// ErrLease: a process holds a lease on a file (fcntl F_SETLEASE) and does not give it up.
	ErrLease = errors.New("a process holds a lease on the file and does not release it")
	// ErrDepth: the tree has more than MaxDepth levels.
	ErrDepth = errors.New("directory tree is too deep")
	// ErrShared: a process has a file open and shares it with no reader (Windows).
	ErrShared = errors.New("a process has the file open and does not share it")
	// ErrMoved: directories were moved too often while the copy was in them.
	ErrMoved = errors.New("directories are being moved while they are copied")
)

// How is the way in which a copy was made.
type How int

// Ways of a copy.
const (
	Cloned How = iota // the copy shares all blocks with the source
	Copied            // some blocks were written
)

func (h How) String() string {
	if h == Cloned {
		return "cloned"
	}
	return "copied"
}

// Options control a copy. The zero value is valid.
type Options struct {
	// Progress receives the progress of the copy. May be nil.
	Progress *Progress
	// Workers is the number of entries of a tree that are copied at a time. 0 means one for each
	// processor, up to 8.
	Workers int
	// Yield is called between two entries, and between parts of a large file, by each worker. Yield
	// may wait. May be nil.
	Yield func()
}
