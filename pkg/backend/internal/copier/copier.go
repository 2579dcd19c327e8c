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

import (
	"errors"
	"sync/atomic"
	"time"
)

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

// Errors that errors.Is finds in those of Tree and File.
var (
	// ErrLease: a process holds a lease on a file of the source and does not give it up.
	ErrLease = errors.New("leased by another process")
	// ErrDepth: the tree has too many levels.
	ErrDepth = errors.New("directories nested too deeply")
)

// Options are how a copy is made. The zero value is fine.
type Options struct {
	// Progress, if it is not nil, is told how far the copy is.
	Progress *Progress
	// Workers is the number of files of a tree that are copied at a time. 0 is one for each
	// processor, up to 8.
	Workers int
}

// Progress is how far a copy is. Its zero value is the start.
type Progress struct{ bytes, held atomic.Int64 }

// Bytes returns the bytes that are done: holes count, and a clone counts when it is made.
func (p *Progress) Bytes() int64 { return p.bytes.Load() }

// Held returns the bytes of the disk that the files of the copy take: shared blocks count in each,
// holes do not.
func (p *Progress) Held() int64 { return p.held.Load() }

// Slowest returns the entry that has been in work for the longest time, and since when.
func (p *Progress) Slowest() (entry string, since time.Time, ok bool) { return "", time.Time{}, false }
