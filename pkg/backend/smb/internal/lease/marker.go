// Package lease gives one process at a time the right to change an object on a share, by markers.
//
// A marker is a file on the share. Of several processes that create a file, exactly one succeeds.
// The process that has created the marker of an object rewrites it again and again. Other processes
// watch a marker by their own clock: clocks are never compared. When a marker has not changed for
// the life of markers, its process has ended, and the marker is succeeded: the successor is a file
// whose name contains the random number of the marker, so that of several processes exactly one
// succeeds. The last marker of such a chain counts, and the first one is the head of the chain.
//
// These rules keep two processes from holding the right at the same time, also when requests are
// late, lost or repeated, and processes are stopped between any two steps:
//
//   - A process gives its marker up long before other processes take the marker for ended. No
//     message leaves after that time: the storage asks the lease before each message, and the end
//     of the lease resets the connection. See client.WithLease.
//   - A process that succeeds a chain creates its marker first and compares the whole chain then. A
//     process that renews its marker writes it first and looks for a successor then. One of the two
//     finds the other.
//   - The time for which a marker must not change begins again when anything in its chain changes.
//   - A process has lost its right when any marker of its chain is missing or is another: the head,
//     too. Each renewal verifies that, and Confirm does.
//
// The clocks of a machine can stop together with the machine. Its processes then hold a right that
// other processes have succeeded, until they ask the server: Confirm does.
package lease

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// marker is the content of a marker file.
type marker struct {
	Owner  string `json:"owner"`
	Random string `json:"random"`
	Dir    string `json:"dir,omitempty"` // path in the store of the directory that the process makes before its record
	Beat   int    `json:"beat"`
}

func (m marker) encode() []byte {
	content, err := json.Marshal(m)
	if err != nil { // strings and a number have a JSON form
		panic(err)
	}
	return content
}

// parse returns the marker with this content. It is empty if its process has ended between the
// creation and the write.
func parse(content string) (m marker) {
	if json.Unmarshal([]byte(content), &m) != nil || strings.Trim(m.Random, "0123456789abcdef") != "" {
		return marker{}
	}
	return m
}

// maxMarker is the maximum size of a marker in bytes.
const maxMarker = 1 << 20

// link is a marker file of a chain.
type link struct {
	path    string
	content string
	random  string // of the marker; empty if its process has ended between the creation and the write
	// written is the time of the last write by the clock of the server. It is zero for a marker
	// with a content, which its random number and its beat identify.
	written time.Time
}

// successor returns the path of the marker that succeeds this one. A marker without content has no
// random number: its path names it.
func (l link) successor(head string) string {
	if l.random != "" {
		return head + "~" + l.random
	}
	return l.path + "~"
}

// Chain has the markers of an object. The last one counts.
type Chain []link

// Random returns the random number of the last marker. It is empty while the marker is being
// written.
func (c Chain) Random() string { return c[len(c)-1].random }

// Dirs returns the directories that the processes of the chain make before their records.
func (c Chain) Dirs() (dirs []string) {
	for _, l := range c {
		if dir := parse(l.content).Dir; dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// equal reports whether nothing in the chain has changed.
func (c Chain) equal(other Chain) bool {
	return slices.EqualFunc(c, other, func(a, b link) bool {
		return a.path == b.path && a.content == b.content && a.written.Equal(b.written)
	})
}
