// Package copier copies disk images and trees of files on one node: it shares blocks where the filesystem can, keeps
// what makes a file what it is, and returns when the copy is durable.
//
// A tree is a stranger's, and may change while it is copied. No link is followed, no mount is entered, and whatever
// is swapped meanwhile, nothing from outside the tree gets into the copy. It is no point in time: a file that vanishes
// is skipped, and what is moved from one directory to another may be missing or there twice. But for that the copy is
// whole or there is an error.
//
// After an error, and that includes the end of the context, what is in the target is of no use: the caller discards
// it. No goroutine and no open file is left.
package copier

import "sync/atomic"

// How says how a copy was made.
type How int

const (
	Cloned How = iota // the blocks are shared with the source
	Copied            // at least some were written anew
)

func (h How) String() string {
	if h == Cloned {
		return "cloned"
	}
	return "copied"
}

// Options are how a copy is made. The zero value is fine.
type Options struct {
	// Done, if it isn't nil, is increased by the bytes that are done: holes count, and a clone counts when it is made.
	Done *atomic.Int64
	// Held, if it isn't nil, is increased by the bytes of the disk that the files of the copy take: shared blocks count
	// in each, holes don't.
	Held *atomic.Int64
	// Workers is how many files of a tree are copied at a time. 0 is one for each processor, up to 8.
	Workers int
}
