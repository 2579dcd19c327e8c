package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	smb2 "github.com/cloudsoda/go-smb2"
)

const (
	// serverCopy is the largest file that the library copies on the server, in bytes. It cuts off a
	// larger file, returns its full size and no error.
	serverCopy = 16 << 20
	chunk      = 1 << 20 // bytes of a read or write
	atOnce     = 8       // files of a tree that are copied or removed at the same time
	maxDepth   = 512     // of directories in a tree that is copied
	rounds     = 3       // of attempts to copy an entry that the server lists, and does not find

	// maxBelow is the length in bytes of a path below a directory that is removed. A deeper
	// directory is moved first: a server rejects long paths, and its filesystem can have them.
	// Samba: PATH_MAX of the server, 4096 bytes.
	maxBelow = 1024

	// flushEvery is the number of bytes after which the copy of a large file is flushed. The page
	// cache of a server can hold more bytes than its disk writes within flushLimit. A multiple of
	// chunk.
	flushEvery = 256 << 20
)

// Progress counts the work of CopyTree.
type Progress struct{ Files, Bytes atomic.Int64 }

// CopyFile copies a file to a new file, sets its time of modification, and makes it durable.
// Errors: fs.ErrNotExist if the file does not exist; fs.ErrExist if the new file exists;
// backend.ErrPrecondition if the file became shorter during the copy; backend.ErrUnavailable if
// the new file, or its directory, was removed.
func (s *Share) CopyFile(ctx context.Context, from, to string, p *Progress) error {
	if err := s.copyFile(ctx, from, to, p); err != nil {
		return fmt.Errorf("copy to %q: %w", to, err)
	}
	return nil
}

func (s *Share) copyFile(ctx context.Context, from, to string, p *Progress) (err error) {
	if err := checkPath(to); err != nil {
		return err
	}
	files := s.files()
	defer files.end()
	src, err := files.open(ctx, "open", from, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer files.close(ctx, src)
	size, err := files.size(ctx, src)
	if err != nil {
		return err
	}
	e, err := s.Stat(ctx, from) // before the content is read: a later change has a later time
	if err != nil {
		return err
	}
	dst, err := files.open(ctx, "create", to, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return ofCopy(err)
	}
	err = files.content(ctx, src, dst, size, p)
	if err == nil {
		err = files.flush(ctx, dst)
	}
	closing := files.close(ctx, dst)
	if err = errors.Join(err, closing); err != nil {
		return err
	}
	p.Files.Add(1)
	return s.setTime(ctx, to, e.Modified)
}

// setTime sets the time of modification of a new file or directory.
func (s *Share) setTime(ctx context.Context, to string, modified time.Time) error {
	return ofCopy(s.do(ctx, "set the time of", to, func(share *smb2.Share) error {
		return share.Chtimes(to, modified, modified)
	}))
}

// ofCopy returns the error of an operation on a copy. A missing copy is not a missing source.
func ofCopy(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: another process has removed the copy: %s", backend.ErrUnavailable, err.Error())
	}
	return err
}

// size returns the size of a file in bytes. Stat of the library asks for an answer of 1 MiB, which
// takes 16 credits of the session, also if the session has fewer: the server then answers
// INVALID_PARAMETER. Source: [MS-SMB2] 3.3.5.2.5, go-smb2 0c5d69b69701.
func (f *files) size(ctx context.Context, opened named) (size int64, err error) {
	err = f.do(ctx, "look up", opened.path, requestLimit, func() (err error) {
		if size, err = opened.Seek(0, io.SeekEnd); err == nil {
			_, err = opened.Seek(0, io.SeekStart) // the copy on the server begins there; no request
		}
		return err
	})
	return size, err
}

func (f *files) flush(ctx context.Context, opened named) error {
	return f.do(ctx, "flush", opened.path, flushLimit, opened.Sync)
}

// content copies size bytes from the start of src to dst. A smaller file is copied on the server.
// content verifies the size of dst.
func (f *files) content(ctx context.Context, src, dst named, size int64, p *Progress) error {
	copiedByServer := false
	if size > 0 && size <= serverCopy {
		err := f.do(ctx, "copy", src.path, requestLimit, func() error {
			n, err := dst.ReadFrom(src.File)
			var invalid *smb2.InvalidResponseError
			if errors.As(err, &invalid) { // the library cannot read the answer of a server whose disk is full
				return nil
			}
			copiedByServer = n >= size
			return err
		})
		if err != nil {
			return err
		}
	}
	if copiedByServer {
		p.Bytes.Add(size)
	} else if err := f.stream(ctx, src, dst, size, p); err != nil {
		return err
	}
	copied, err := f.size(ctx, dst)
	if err == nil && copied < size {
		err = fmt.Errorf("%w: %q has %d bytes after the copy, want %d", backend.ErrUnavailable, dst.path, copied, size)
	}
	return err
}

// zeros is a part of a file with holes.
var zeros [chunk]byte

// stream copies the data through this process. It flushes dst again and again, so that no flush has
// to write more than flushEvery bytes. Of a file that the server has not begun to copy, it leaves out
// parts that have only zeros: a file with holes would take the space of its size. The last part before a
// flush is written: a filesystem without holes, such as NTFS by default, writes the zeros then.
func (f *files) stream(ctx context.Context, src, dst named, size int64, p *Progress) error {
	buffer := make([]byte, min(chunk, size))
	for offset := int64(0); offset < size; {
		part := buffer[:min(int64(len(buffer)), size-offset)]
		end := offset + int64(len(part))
		mayLeaveOut := size > serverCopy && end%f.pool.flushEvery != 0
		shorter := false
		err := f.do(ctx, "copy", src.path, requestLimit, func() error {
			n, err := src.ReadAt(part, offset)
			if shorter = n < len(part) && (err == nil || errors.Is(err, io.EOF)); shorter {
				return nil
			} else if err != nil && n < len(part) {
				return err
			}
			if !mayLeaveOut || !bytes.Equal(part, zeros[:len(part)]) {
				_, err = dst.WriteAt(part, offset)
				return err
			}
			if end == size {
				return dst.Truncate(size)
			}
			return nil
		})
		if err == nil && shorter { // not an error of the session
			err = fmt.Errorf("%w: %q became shorter during the copy", backend.ErrPrecondition, src.path)
		}
		if err != nil {
			return err
		}
		offset = end
		p.Bytes.Add(int64(len(part)))
		if offset%f.pool.flushEvery == 0 && offset < size {
			if err := f.flush(ctx, dst); err != nil {
				return err
			}
		}
	}
	return nil
}

// tree is an operation on a directory with its content. Its first error stops it: each request
// reads the error first. A canceled context would sever the session, and so end the requests of all
// other operations that use it.
type tree struct {
	*Share
	progress *Progress
	slots    chan struct{} // for files that are copied or removed
	failure  atomic.Pointer[error]

	// Of a copy:
	target    string // an empty directory
	separator string // of the server's aliases; "": unknown
}

// start runs an operation on a file in a goroutine of a group, when the tree has a free slot.
func (t *tree) start(group *sync.WaitGroup, operation func()) {
	t.slots <- struct{}{}
	group.Go(func() {
		defer func() { <-t.slots }()
		operation()
	})
}

// treeKey is the key of the tree in the context of its operations.
type treeKey struct{}

// treeFailure returns the error that has stopped the tree of an operation.
func treeFailure(ctx context.Context) error {
	if t, ok := ctx.Value(treeKey{}).(*tree); ok {
		return t.failed()
	}
	return nil
}

// tree returns a tree, and the context of its operations.
func (s *Share) tree(ctx context.Context, p *Progress) (context.Context, *tree) {
	t := &tree{Share: s, progress: p, slots: make(chan struct{}, atOnce)}
	return context.WithValue(ctx, treeKey{}, t), t
}

// fail stops the tree if err is not nil.
func (t *tree) fail(err error) {
	if err != nil {
		t.failure.CompareAndSwap(nil, &err)
	}
}

// failed returns the error that has stopped the tree.
func (t *tree) failed() error {
	if err := t.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// CopyTree copies the content of a directory into an existing, empty directory. An entry that
// disappears during the copy is left out. A tree that cannot be copied is backend.ErrPrecondition:
// with a link of Windows, with more than maxDepth levels, with two names that the server takes for
// one, or with a name that the server lists and does not find. Permissions, attributes and further
// streams are not copied: the new entries inherit those of their directory. After an error CopyTree
// sends no new requests, but waits for those that it has sent.
func (s *Share) CopyTree(ctx context.Context, from, to string, p *Progress) error {
	ctx, t := s.tree(ctx, p)
	t.target = to
	if err := t.survey(ctx, from, 0); err != nil {
		return err
	}
	entries, err := t.entriesAt(ctx, from, 0)
	if err == nil {
		err = t.copy(ctx, from, to, entries, 0)
	}
	t.fail(err)
	return t.failed()
}

// copy copies the entries of a directory. An entry that is missing is left out if the server no
// longer lists it, or lists another file of the name in each round. Otherwise it has another name
// than the one listed.
func (t *tree) copy(ctx context.Context, from, to string, entries []Entry, depth int) error {
	before := map[string]Entry{}
	for range rounds {
		missing := t.copyEntries(ctx, from, to, entries, depth)
		if err := t.failed(); err != nil || len(missing) == 0 {
			return err
		}
		for _, e := range entries {
			before[e.Name] = e
		}
		var err error
		if entries, err = t.listed(ctx, from, missing); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if e.isLike(before[e.Name]) {
			return notFound(path.Join(from, e.Name))
		}
	}
	return nil
}

// notFound is the error of an entry that the server lists, and does not find.
func notFound(entry string) error {
	return fmt.Errorf("%w: the server lists %q, and does not find it: if Windows forbids its name, set \"mangled "+
		"names = no\" on a Samba server; otherwise rename it on the server", backend.ErrPrecondition, entry)
}

// listed returns the entries of a directory with these names.
func (s *Share) listed(ctx context.Context, dir string, names map[string]bool) ([]Entry, error) {
	entries, err := s.entries(ctx, dir)
	return slices.DeleteFunc(entries, func(e Entry) bool { return !names[e.Name] }), err
}

// copyEntries returns the names of the entries that are missing.
func (t *tree) copyEntries(ctx context.Context, from, to string, entries []Entry, depth int) map[string]bool {
	missing := map[string]bool{}
	var mu sync.Mutex
	done := func(e Entry, err error) {
		if !errors.Is(err, fs.ErrNotExist) {
			t.fail(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		missing[e.Name] = true
	}
	var group sync.WaitGroup
	for _, e := range entries {
		from, to := path.Join(from, e.Name), path.Join(to, e.Name)
		if t.failed() == nil {
			t.fail(t.checkAlias(ctx, from)) // it may be new
		}
		switch {
		case t.failed() != nil:
		case e.Link:
			t.fail(linkError(from))
		case e.Dir: // not in a goroutine of its own: a deep tree would need one for each level
			done(e, t.copyDirectory(ctx, from, to, e, depth+1))
		default:
			t.start(&group, func() { done(e, t.CopyFile(ctx, from, to, t.progress)) })
		}
	}
	group.Wait()
	return missing
}

// linkError is the error of a tree with a link of Windows.
func linkError(entry string) error {
	return fmt.Errorf("%w: %q is a link of the server, which cannot be copied", backend.ErrPrecondition, entry)
}

// copyDirectory copies a directory to a new one. Errors: fs.ErrNotExist if it does not exist.
func (t *tree) copyDirectory(ctx context.Context, from, to string, e Entry, depth int) error {
	entries, err := t.entriesAt(ctx, from, depth)
	if err != nil {
		return err
	}
	if err := ofCopy(t.Mkdir(ctx, to)); err != nil {
		return err
	}
	if err := t.copy(ctx, from, to, entries, depth); err != nil {
		return err
	}
	return t.setTime(ctx, to, e.Modified)
}

// ignoreMissing returns nil for an entry that is gone.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// entriesAt returns the entries of a directory that many levels below the top of a copy.
func (s *Share) entriesAt(ctx context.Context, dir string, depth int) ([]Entry, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: %.256q has more than %d levels of directories", backend.ErrPrecondition, dir,
			maxDepth)
	}
	return s.entries(ctx, dir)
}

// entries returns the entries of a directory.
func (s *Share) entries(ctx context.Context, dir string) (entries []Entry, err error) {
	err = s.List(ctx, dir, func(e Entry) error {
		if !isName(e.Name) {
			return fmt.Errorf("%w: the server lists the name %.64q", backend.ErrPrecondition, e.Name)
		}
		entries = append(entries, e)
		return nil
	})
	return entries, err
}

// RemoveTree removes an entry and, if it is a directory, its content. RemoveTree does not follow
// links. An entry that the server does not remove does not stop the rest: RemoveTree then returns
// the error of such an entry, which is ErrShared only if other clients have all of them open. A
// missing entry is no error. RemoveTree moves a directory with a long path beside dir, and gives it
// a random name that begins with deep-. After an error such a directory can be left there.
func (s *Share) RemoveTree(ctx context.Context, dir string) error {
	e, err := s.Stat(ctx, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	ctx, t := s.tree(ctx, nil)
	r := &removal{tree: t, top: dir}
	err = r.remove(ctx, dir, e)
	for err == nil && len(r.deep) > 0 {
		last := len(r.deep) - 1
		r.top, r.deep = r.deep[last], r.deep[:last]
		err = r.remove(ctx, r.top, Entry{Dir: true})
	}
	return err
}

// removal is the removal of a tree.
type removal struct {
	*tree
	top  string   // the directory that is being removed
	deep []string // directories that were moved beside it
}

func (r *removal) remove(ctx context.Context, dir string, e Entry) error {
	if !e.Dir || e.Link {
		return r.Remove(ctx, dir)
	}
	if len(dir) > len(r.top)+maxBelow {
		beside := path.Join(path.Dir(r.top), "deep-"+rand.Text())
		if err := r.Rename(ctx, dir, beside); err != nil {
			return ignoreMissing(err)
		}
		if _, err := r.Stat(ctx, path.Dir(dir)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %.256q leads through a link to itself: set \"follow symlinks = no\" on a Samba "+
				"server", backend.ErrPrecondition, dir)
		} else if err != nil {
			return err
		}
		r.deep = append(r.deep, beside)
		return nil
	}
	entries, err := r.entries(ctx, dir)
	if err != nil {
		return ignoreMissing(err)
	}
	var left remains
	keepOn := func(err error) {
		if !left.add(err) {
			r.fail(err)
		}
	}
	var group sync.WaitGroup
	for _, e := range entries {
		path := path.Join(dir, e.Name)
		switch {
		case r.failed() != nil:
		case e.Dir && !e.Link:
			keepOn(r.remove(ctx, path, e))
		default:
			r.start(&group, func() { keepOn(r.Remove(ctx, path)) })
		}
	}
	group.Wait()
	if err := cmp.Or(r.failed(), left.err); err != nil {
		return err
	}
	err = r.Remove(ctx, dir)
	if errors.Is(err, ErrNotEmpty) {
		entries, listErr := r.entries(ctx, dir)
		err = cmp.Or(ignoreMissing(listErr), r.unresolved(ctx, dir, entries...), err)
	}
	return err
}

// unresolved returns an error if the server lists one of these entries, and does not find it.
func (s *Share) unresolved(ctx context.Context, dir string, entries ...Entry) error {
	missing := map[string]bool{}
	for _, e := range entries {
		if _, err := s.Stat(ctx, path.Join(dir, e.Name)); errors.Is(err, fs.ErrNotExist) {
			missing[e.Name] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	entries, err := s.listed(ctx, dir, missing)
	if err == nil && len(entries) > 0 {
		err = notFound(path.Join(dir, entries[0].Name))
	}
	return ignoreMissing(err)
}

// remains is the error of entries that could not be removed.
type remains struct {
	mu  sync.Mutex
	err error
}

// add adds the error of an entry, and returns false if it is not of this entry alone: other
// requests would fail, too.
func (r *remains) add(err error) bool {
	var answer *smb2.ResponseError
	var connect connectError
	switch open := errors.Is(err, ErrShared) || errors.Is(err, ErrNotEmpty); {
	case errors.As(err, &connect):
		return false
	case open, errors.Is(err, backend.ErrDenied), errors.Is(err, backend.ErrInvalid),
		errors.Is(err, backend.ErrPrecondition), errors.As(err, &answer) && !sessionEnded[answer.Code]:
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.err == nil || !open { // a later attempt may succeed if the file is only open
			r.err = err
		}
		return true
	}
	return err == nil
}
