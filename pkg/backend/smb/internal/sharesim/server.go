// Package sharesim is an SMB server in memory, with its clients, for tests in a synctest bubble.
//
// The unit is the message, as on the wire: an operation of package client is an open by a path,
// messages to the open file, and a close. Sharing modes, files that are removed when they are
// closed, and sessions whose end closes their files work as on a server. The network delivers the
// messages of a session in order, at any time, or not at all; it may also deliver them after the
// client has ended the session. The server executes the messages of a session in any order, and
// ignores a message that it has received before. [MS-SMB2] 3.3.5.2.3.
//
// A process stops and dies between any two messages, and its clock may stop with it.
package sharesim

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
)

// Server has one share.
type Server struct {
	// Trace gets a line for each message that the server executes. nil: none.
	Trace func(line string)

	// Changed is called after each change of a file or directory, with its path. nil: not called.
	Changed func(path string)

	mu   sync.Mutex
	root *node
}

// node is a file or a directory.
type node struct {
	name              string
	entries           map[string]*node // by name in lower case; nil: a file
	content           []byte
	created, modified time.Time
	opens             []*handle
	removed           bool // when the last handle is closed, or already
	denied            bool // cannot be read
}

// access is the use of a file by a handle, or the use that the handle leaves to others.
type access struct{ read, write, remove bool }

func (a access) exceeds(allowed access) bool {
	return (a.read && !allowed.read) || (a.write && !allowed.write) || (a.remove && !allowed.remove)
}

// handle is an open file.
type handle struct {
	path     string
	node     *node
	does     access
	shares   access
	isClosed bool
}

// NewServer returns a server with these directories.
func NewServer(dirs ...string) *Server {
	s := &Server{root: newNode("", true)}
	for _, dir := range dirs {
		if err := s.MkdirAll(dir); err != nil {
			panic(err)
		}
	}
	return s
}

func newNode(name string, dir bool) *node {
	n := &node{name: name, created: time.Now(), modified: time.Now()}
	if dir {
		n.entries = map[string]*node{}
	}
	return n
}

func fold(name string) string { return strings.ToLower(name) }

// find returns the node at a path, or nil.
func (s *Server) find(p string) *node {
	n := s.root
	for name := range strings.SplitSeq(p, "/") {
		if name == "" || name == "." {
			continue
		}
		if n = n.entries[fold(name)]; n == nil {
			return nil
		}
	}
	return n
}

// add adds a new node at a path.
func (s *Server) add(p string, dir bool) (*node, error) {
	parent := s.find(path.Dir(p))
	switch {
	case parent == nil || parent.entries == nil:
		return nil, fs.ErrNotExist
	case parent.entries[fold(path.Base(p))] != nil:
		return nil, fs.ErrExist
	}
	n := newNode(path.Base(p), dir)
	parent.entries[fold(n.name)], parent.modified = n, n.modified
	s.changed(p)
	return n, nil
}

func (s *Server) changed(p string) {
	if s.Changed != nil {
		s.Changed(p)
	}
}

// open opens the node at a path, or creates a file there.
func (s *Server) open(p string, create bool, does, shares access) (*handle, error) {
	n := s.find(p)
	switch {
	case n != nil && n.removed:
		return nil, client.ErrShared
	case n != nil && create:
		return nil, fs.ErrExist
	case n == nil && !create:
		return nil, fs.ErrNotExist
	case n == nil:
		var err error
		if n, err = s.add(p, false); err != nil {
			return nil, err
		}
	}
	if n.denied && does.read {
		return nil, backend.ErrDenied
	}
	for _, other := range n.opens {
		if does.exceeds(other.shares) || other.does.exceeds(shares) {
			return nil, client.ErrShared
		}
	}
	h := &handle{path: p, node: n, does: does, shares: shares}
	n.opens = append(n.opens, h)
	return h, nil
}

// close closes a handle. The last handle of a file to be removed removes it.
func (s *Server) close(h *handle) {
	if h.isClosed {
		return
	}
	h.isClosed = true
	n := h.node
	n.opens = slices.DeleteFunc(n.opens, func(o *handle) bool { return o == h })
	if !n.removed || len(n.opens) > 0 {
		return
	}
	parent := s.find(path.Dir(h.path))
	if parent != nil && parent.entries[fold(path.Base(h.path))] == n {
		delete(parent.entries, fold(path.Base(h.path)))
		parent.modified = time.Now()
		s.changed(h.path)
	}
}

func (s *Server) write(h *handle, content []byte) {
	n := h.node
	n.content = append(slices.Clone(content), n.content[min(len(content), len(n.content)):]...)
	n.modified = time.Now()
	s.changed(h.path)
}

// rename moves the node of a handle. A file replaces a file, and a directory an empty directory.
func (s *Server) rename(h *handle, to string) error {
	parent, from := s.find(path.Dir(to)), s.find(path.Dir(h.path))
	if parent == nil || parent.entries == nil {
		return fs.ErrNotExist
	}
	if old := parent.entries[fold(path.Base(to))]; old != nil {
		switch {
		case (old.entries == nil) != (h.node.entries == nil):
			return fs.ErrExist
		case len(old.entries) > 0:
			return client.ErrNotEmpty
		case len(old.opens) > 0:
			return fmt.Errorf("%w: the target is open", backend.ErrDenied)
		}
	}
	delete(from.entries, fold(path.Base(h.path)))
	h.node.name = path.Base(to)
	parent.entries[fold(path.Base(to))] = h.node
	s.changed(h.path)
	h.path = to
	s.changed(to)
	return nil
}

func (n *node) entry() client.Entry {
	return client.Entry{Name: n.name, Size: int64(len(n.content)), Modified: n.modified, Created: n.created,
		Dir: n.entries != nil}
}

// The functions below are those of a person at the server. They may not be called by Changed, but
// for Peek.

// Peek is ReadFile for Changed.
func (s *Server) Peek(p string) (content string, ok bool) {
	n := s.find(p)
	if n == nil || n.entries != nil {
		return "", false
	}
	return string(n.content), true
}

// ReadFile returns the content of a file.
func (s *Server) ReadFile(p string) (content string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Peek(p)
}

// Exists reports whether there is a file or directory at a path.
func (s *Server) Exists(p string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(p) != nil
}

// MkdirAll makes a directory and its parents.
func (s *Server) MkdirAll(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var p string
	for name := range strings.SplitSeq(dir, "/") {
		p = path.Join(p, name)
		if n := s.find(p); n == nil {
			if _, err := s.add(p, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// WriteFile makes or replaces a file.
func (s *Server) WriteFile(p, content string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.find(p)
	if n == nil {
		var err error
		if n, err = s.add(p, false); err != nil {
			return err
		}
	}
	n.content, n.modified = []byte(content), time.Now()
	return nil
}

// Deny makes a file one that no client can read.
func (s *Server) Deny(p string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.find(p).denied = true
}

// RemoveAll removes a file or a directory with its content.
func (s *Server) RemoveAll(p string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if parent := s.find(path.Dir(p)); parent != nil {
		delete(parent.entries, fold(path.Base(p)))
	}
}

// Paths returns the paths of all files and directories below a directory, sorted.
func (s *Server) Paths(dir string) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var walk func(n *node, at string)
	walk = func(n *node, at string) {
		for _, e := range n.entries {
			p := path.Join(at, e.name)
			all = append(all, p)
			walk(e, p)
		}
	}
	if n := s.find(dir); n != nil {
		walk(n, "")
	}
	slices.Sort(all)
	return all
}
