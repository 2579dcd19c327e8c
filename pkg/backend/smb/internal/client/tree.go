package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"sync/atomic"

	smb2 "github.com/cloudsoda/go-smb2"
	"golang.org/x/sync/errgroup"

	"github.com/causeway-csi/causeway/pkg/backend"
)

const (
	// serverCopy is the largest file that the library copies on the server, in bytes. It cuts off a
	// larger file, returns its full size and no error.
	serverCopy = 16 << 20
	chunk      = 1 << 20 // bytes of a read or write
	atOnce     = 8       // files of a directory that are copied or removed at the same time
	maxDepth   = 512     // of directories in a tree

	// flushEvery is the number of bytes after which the copy of a large file is flushed. The page
	// cache of a server can hold more bytes than its disk writes within flushLimit. A multiple of
	// chunk.
	flushEvery = 256 << 20
)

// Progress counts the work of CopyTree.
type Progress struct{ Files, Bytes atomic.Int64 }

// CopyFile copies a file to a new file, with its time of modification, and makes it durable.
// Errors: fs.ErrExist if the new file exists; backend.ErrPrecondition if the file became shorter
// during the copy.
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
	info, err := files.stat(ctx, src)
	if err != nil {
		return err
	}
	dst, err := files.open(ctx, "create", to, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	err = files.content(ctx, src, dst, info.Size, p)
	if err == nil {
		err = files.flush(ctx, dst)
	}
	e := files.close(ctx, dst)
	if err = errors.Join(err, e); err != nil {
		return err
	}
	p.Files.Add(1)
	return s.do(ctx, "set the time of", to, func(limited *smb2.Share) error {
		return limited.Chtimes(to, info.Modified, info.Modified)
	})
}

func (f *files) stat(ctx context.Context, opened named) (e Entry, err error) {
	err = f.do(ctx, "look up", opened.path, requestLimit, func() error {
		info, err := opened.Stat()
		if err == nil {
			e = entry(info)
		}
		return err
	})
	return e, err
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
	copied, err := f.stat(ctx, dst)
	if err == nil && copied.Size < size {
		err = fmt.Errorf("%w: %q has %d bytes after the copy, want %d", backend.ErrUnavailable, dst.path, copied.Size,
			size)
	}
	return err
}

// stream copies the data through this process. It flushes dst again and again, so that no flush has
// to write more than flushEvery bytes.
func (f *files) stream(ctx context.Context, src, dst named, size int64, p *Progress) error {
	buffer := make([]byte, min(chunk, size))
	for offset := int64(0); offset < size; {
		part := buffer[:min(int64(len(buffer)), size-offset)]
		shorter := false
		err := f.do(ctx, "copy", src.path, requestLimit, func() error {
			n, err := src.ReadAt(part, offset)
			if shorter = n < len(part) && (err == nil || errors.Is(err, io.EOF)); shorter {
				return nil
			} else if err != nil && n < len(part) {
				return err
			}
			_, err = dst.WriteAt(part, offset)
			return err
		})
		if err == nil && shorter { // not an error of the session
			err = fmt.Errorf("%w: %q became shorter during the copy", backend.ErrPrecondition, src.path)
		}
		if err != nil {
			return err
		}
		offset += int64(len(part))
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
	failure  atomic.Pointer[error]
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
	t := &tree{Share: s, progress: p}
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
// disappears during the copy is left out. Links of Windows are not followed: a tree with such a
// link is backend.ErrPrecondition. Permissions, attributes and further streams are not copied: the
// new entries inherit those of their directory. After an error CopyTree sends no new requests, but
// waits for those that it has sent.
func (s *Share) CopyTree(ctx context.Context, from, to string, p *Progress) error {
	ctx, t := s.tree(ctx, p)
	t.fail(t.copy(ctx, from, to, 0))
	return t.failed()
}

func (t *tree) copy(ctx context.Context, from, to string, depth int) error {
	entries, err := t.entries(ctx, from, depth)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, e := range entries {
		from, to := path.Join(from, e.Name), path.Join(to, e.Name)
		switch {
		case t.failed() != nil:
		case e.Link:
			t.fail(fmt.Errorf("%w: %q is a link of the server, which cannot be copied", backend.ErrPrecondition, from))
		case e.Dir: // not in a goroutine of its own: a deep tree would need one for each level
			t.fail(t.copyDirectory(ctx, from, to, e, depth))
		default:
			group.Go(func() error {
				t.fail(ignoreMissing(t.CopyFile(ctx, from, to, t.progress)))
				return nil
			})
		}
	}
	group.Wait()
	return t.failed()
}

func (t *tree) copyDirectory(ctx context.Context, from, to string, e Entry, depth int) error {
	if err := t.Mkdir(ctx, to); err != nil {
		return err
	}
	if err := ignoreMissing(t.copy(ctx, from, to, depth+1)); err != nil {
		return err
	}
	return t.do(ctx, "set the time of", to, func(share *smb2.Share) error {
		return share.Chtimes(to, e.Modified, e.Modified)
	})
}

// ignoreMissing returns nil for an entry that is gone.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// entries returns the entries of a directory of a tree.
func (s *Share) entries(ctx context.Context, dir string, depth int) (entries []Entry, err error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: %.256q has more than %d levels of directories", backend.ErrPrecondition, dir,
			maxDepth)
	}
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
// missing entry is no error.
func (s *Share) RemoveTree(ctx context.Context, dir string) error {
	e, err := s.Stat(ctx, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	ctx, t := s.tree(ctx, nil)
	return t.remove(ctx, dir, e, 0)
}

func (t *tree) remove(ctx context.Context, dir string, e Entry, depth int) error {
	if !e.Dir || e.Link {
		return t.Remove(ctx, dir)
	}
	entries, err := t.entries(ctx, dir, depth)
	if err != nil {
		return ignoreMissing(err)
	}
	var left remains
	keepOn := func(err error) {
		if !left.add(err) {
			t.fail(err)
		}
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, e := range entries {
		path := path.Join(dir, e.Name)
		switch {
		case t.failed() != nil:
		case e.Dir && !e.Link:
			keepOn(t.remove(ctx, path, e, depth+1))
		default:
			group.Go(func() error {
				keepOn(t.Remove(ctx, path))
				return nil
			})
		}
	}
	group.Wait()
	if err := t.failed(); err != nil {
		return err
	}
	if left.err != nil {
		return left.err
	}
	return t.Remove(ctx, dir)
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
