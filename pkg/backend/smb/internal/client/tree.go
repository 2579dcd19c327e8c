package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
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
	if !validPath(to) {
		return fmt.Errorf("%w: path %.128q on a share", backend.ErrInvalid, to)
	}
	files := s.files()
	defer files.end()
	src, err := files.open(ctx, "open", from, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer files.close(from, src)
	info, err := s.stat(ctx, from, src)
	if err != nil {
		return err
	}
	dst, err := files.open(ctx, "create", to, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	err = s.content(ctx, named{src, from}, named{dst, to}, info.Size, p)
	if err == nil {
		err = s.do(ctx, "flush", to, func(*smb2.Share) error { return dst.Sync() })
	}
	e := files.close(to, dst)
	if err = errors.Join(err, e); err != nil {
		return err
	}
	p.Files.Add(1)
	return s.do(ctx, "set the time of", to, func(limited *smb2.Share) error {
		return limited.Chtimes(to, info.Modified, info.Modified)
	})
}

// named is a file with its path, which errors show.
type named struct {
	*smb2.File
	path string
}

func (s *Share) stat(ctx context.Context, name string, f *smb2.File) (e Entry, err error) {
	err = s.do(ctx, "look up", name, func(*smb2.Share) error {
		info, err := f.Stat()
		if err == nil {
			e = entry(info)
		}
		return err
	})
	return e, err
}

// content copies size bytes from the start of src to dst. A smaller file is copied on the server.
// content verifies the size of dst.
func (s *Share) content(ctx context.Context, src, dst named, size int64, p *Progress) error {
	copiedByServer := false
	if size > 0 && size <= serverCopy {
		err := s.do(ctx, "copy", src.path, func(*smb2.Share) error {
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
	} else if err := s.stream(ctx, src, dst, size, p); err != nil {
		return err
	}
	copied, err := s.stat(ctx, dst.path, dst.File)
	if err == nil && copied.Size < size {
		err = fmt.Errorf("%w: %q has %d bytes after the copy, want %d", backend.ErrUnavailable, dst.path, copied.Size,
			size)
	}
	return err
}

// stream copies the data through this process.
func (s *Share) stream(ctx context.Context, src, dst named, size int64, p *Progress) error {
	buffer := make([]byte, min(chunk, size))
	for offset := int64(0); offset < size; {
		part := buffer[:min(int64(len(buffer)), size-offset)]
		err := s.do(ctx, "copy", src.path, func(*smb2.Share) error {
			n, err := src.ReadAt(part, offset)
			if n < len(part) {
				if err == nil || errors.Is(err, io.EOF) {
					return fmt.Errorf("%w: %q became shorter during the copy", backend.ErrPrecondition, src.path)
				}
				return err
			}
			_, err = dst.WriteAt(part, offset)
			return err
		})
		if err != nil {
			return err
		}
		offset += int64(len(part))
		p.Bytes.Add(int64(len(part)))
	}
	return nil
}

// CopyTree copies the content of a directory into an existing, empty directory. An entry that
// disappears during the copy is left out. Links of Windows are not followed: a tree with such a
// link is backend.ErrPrecondition. Permissions, attributes and further streams are not copied: the
// new entries inherit those of their directory.
func (s *Share) CopyTree(ctx context.Context, from, to string, p *Progress) error {
	return s.copyTree(ctx, from, to, 0, p)
}

func (s *Share) copyTree(ctx context.Context, from, to string, depth int, p *Progress) error {
	entries, err := s.entries(ctx, from, depth)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, e := range entries {
		from, to := path.Join(from, e.Name), path.Join(to, e.Name)
		if e.Link {
			group.Go(func() error {
				return fmt.Errorf("%w: %q is a link of the server, which cannot be copied",
					backend.ErrPrecondition, from)
			})
			break
		}
		if e.Dir { // not in a goroutine of its own: a deep tree would need one for each level
			if err := s.copyDirectory(ctx, from, to, e, depth, p); err != nil {
				group.Go(func() error { return err })
				break
			}
			continue
		}
		group.Go(func() error { return ignoreMissing(s.CopyFile(ctx, from, to, p)) })
	}
	return group.Wait()
}

func (s *Share) copyDirectory(ctx context.Context, from, to string, e Entry, depth int, p *Progress) error {
	if err := s.Mkdir(ctx, to); err != nil {
		return err
	}
	if err := ignoreMissing(s.copyTree(ctx, from, to, depth+1, p)); err != nil {
		return err
	}
	return s.do(ctx, "set the time of", to, func(share *smb2.Share) error {
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
// links. A file that another client has open does not stop the rest: RemoveTree then returns
// ErrShared. A missing entry is no error.
func (s *Share) RemoveTree(ctx context.Context, dir string) error {
	e, err := s.Stat(ctx, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return s.removeTree(ctx, dir, e, 0)
}

func (s *Share) removeTree(ctx context.Context, dir string, e Entry, depth int) error {
	if !e.Dir || e.Link {
		return s.Remove(ctx, dir)
	}
	entries, err := s.entries(ctx, dir, depth)
	if err != nil {
		return ignoreMissing(err)
	}
	var shared atomic.Pointer[error]
	keepOn := func(err error) error {
		if errors.Is(err, ErrShared) || errors.Is(err, ErrNotEmpty) {
			shared.Store(&err)
			return nil
		}
		return err
	}
	group, files := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, e := range entries {
		path := path.Join(dir, e.Name)
		if e.Dir && !e.Link {
			if err := keepOn(s.removeTree(files, path, e, depth+1)); err != nil {
				group.Go(func() error { return err })
				break
			}
			continue
		}
		group.Go(func() error { return keepOn(s.Remove(files, path)) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := shared.Load(); err != nil {
		return *err
	}
	return s.Remove(ctx, dir)
}
