package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	smb2 "github.com/cloudsoda/go-smb2"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Share is a share of a server, with a session. Its paths are relative to the root of the share and
// have slashes. A path that leads out of the share, or has an empty element, is
// backend.ErrInvalid. "" is the root.
//
// Errors have a class of package backend, or are fs.ErrNotExist, fs.ErrExist, ErrShared or
// ErrNotEmpty. After the error of a context, and after backend.ErrUnavailable, the operation may
// have happened.
//
// Only Mkdir and Create are exclusive among clients. Several callers of Rename or Remove for one
// name may all succeed.
type Share struct {
	Source mounter.ShareSource // without a path

	pool  *Pool
	login Login
	use   Use
	leave func() // ends the use of the server

	mu      sync.Mutex
	session *session
}

// Release ends the use of the share.
func (s *Share) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.giveBack(s.session)
	s.leave()
}

// live returns the session, or another one if it was dropped.
func (s *Share) live(ctx context.Context) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pool.usable(s.session) {
		return s.session, nil
	}
	next, err := s.pool.session(ctx, s.Source, s.login, s.use)
	if err != nil {
		return nil, err
	}
	s.pool.giveBack(s.session)
	s.session = next
	return next, nil
}

// Entry describes a file or a directory.
type Entry struct {
	Name     string
	Size     int64
	Modified time.Time
	Created  time.Time // by the clock of the server
	Dir      bool
	Link     bool   // a reparse point, such as a link of Windows: never followed
	id       uint64 // of the file at the server, in a list; 0: unknown
}

// isLike reports whether an entry of a later list is that of the same, unchanged file. The time of
// the creation does not count: Samba 4.17 has reported another one for a file that was not changed.
func (e Entry) isLike(before Entry) bool {
	return e.id == before.id && e.Size == before.Size && e.Modified.Equal(before.Modified)
}

// leaseKey is the key of the value of WithLease.
type leaseKey struct{}

// WithLease returns a context for operations that are permitted as long as valid returns true. An
// operation is several messages, and each message asks just before it is sent: a process that was
// stopped for a while does not continue with a right that it has lost. A message that is not
// permitted resets the connection. The caller ends the context when the lease ends: that resets the
// connection of a request without an answer.
//
// So the server changes a file by a late message only if that message follows an open of the file,
// and the file has stayed open since. While a file is open for its removal, no other client can
// read it. [MS-SMB2] 3.3.5.9, [MS-FSA] 2.1.4.12.
// Leases add up: an operation needs all leases of its context.
func WithLease(ctx context.Context, valid func() bool) context.Context {
	if outer, ok := ctx.Value(leaseKey{}).(func() bool); ok {
		inner := valid
		valid = func() bool { return outer() && inner() }
	}
	return context.WithValue(ctx, leaseKey{}, valid)
}

// LeaseOf returns the lease of a context, if any.
func LeaseOf(ctx context.Context) (valid func() bool, ok bool) {
	valid, ok = ctx.Value(leaseKey{}).(func() bool)
	return valid, ok
}

// hook asks a hook of tests, whose error ends the connection of the session.
func (p *Pool) hook(hook func(op, path string) error, session *session, op, path string) error {
	if hook == nil {
		return nil
	}
	err := hook(op, path)
	if err != nil {
		p.sever(session)
	}
	return err
}

// do runs an operation with a limit. op is for errors.
func (s *Share) do(ctx context.Context, op, path string, operation func(share *smb2.Share) error) error {
	return s.run(ctx, op, path, func(session *session, requests context.Context) error {
		return operation(session.share.WithContext(requests))
	})
}

// run is do for an operation that needs the session.
func (s *Share) run(ctx context.Context, op, path string,
	operation func(session *session, requests context.Context) error) error {
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if err := s.begin(ctx, session, op, path); err != nil {
		return err
	}
	session, err := s.live(ctx)
	if err != nil {
		return err
	}
	return s.request(ctx, session, op, path, requestLimit, func(requests context.Context) error {
		return operation(session, requests)
	})
}

// begin checks whether an operation may begin.
func (s *Share) begin(ctx context.Context, session *session, op, path string) error {
	if path != "" {
		if err := checkPath(path); err != nil {
			return err
		}
	}
	if err := s.pool.hook(s.pool.Before, session, op, path); err != nil {
		return err
	}
	if ctx.Err() != nil { // until would sever the session
		return ctx.Err()
	}
	return treeFailure(ctx)
}

// request runs an operation on a session. ctx and the limit sever only this session.
func (s *Share) request(ctx context.Context, session *session, op, path string, limit time.Duration,
	operation func(requests context.Context) error) error {
	valid, ok := LeaseOf(ctx)
	if ok && !valid() {
		return fmt.Errorf("%w: %s %q on %s: another process may have the right to it now", backend.ErrUnavailable, op,
			path, s.Source)
	}
	requests, stop := s.pool.until(ctx, session, limit)
	defer stop()
	if ok {
		defer session.conn.guard(valid)()
	}
	err := operation(requests)
	if err == nil {
		return s.pool.hook(s.pool.After, session, op, path)
	}
	s.pool.fail(session, err)
	if requests.Err() != nil { // else the error of the closed connection
		err = requests.Err()
	}
	return fmt.Errorf("%s %q on %s: %w", op, path, s.Source, convert(ctx, err))
}

// isName reports whether an element of a path names an entry of its directory. Characters that
// Windows forbids arrive in lists as private characters of Unicode, and are passed as such.
func isName(element string) bool {
	return element != "" && element != "." && element != ".." && utf8.ValidString(element) &&
		!strings.ContainsAny(element, "/\\\x00")
}

// checkPath returns an error for a path with an element that is not a name.
func checkPath(path string) error {
	for element := range strings.SplitSeq(path, "/") {
		if !isName(element) {
			return fmt.Errorf("%w: path %.128q on a share: %.64q is not a name", backend.ErrInvalid, path, element)
		}
	}
	return nil
}

// Mkdir makes a directory. Its parent must exist. Among several callers exactly one succeeds; the
// others get fs.ErrExist.
func (s *Share) Mkdir(ctx context.Context, path string) error {
	return s.do(ctx, "make directory", path, func(share *smb2.Share) error { return share.Mkdir(path, 0o777) })
}

// Stat describes an entry, and does not follow links.
func (s *Share) Stat(ctx context.Context, path string) (e Entry, err error) {
	err = s.do(ctx, "look up", path, func(share *smb2.Share) error {
		info, err := share.Lstat(path)
		if err == nil {
			e = entry(info)
		}
		return err
	})
	return e, err
}

func entry(info fs.FileInfo) Entry {
	e := Entry{Name: info.Name(), Size: info.Size(), Modified: info.ModTime(), Dir: info.IsDir(),
		Link: info.Mode()&fs.ModeSymlink != 0}
	if stat, ok := info.Sys().(*smb2.FileStat); ok {
		e.Created, e.id = stat.CreationTime, stat.FileId
	}
	return e
}

// batch is the number of entries that List reads at a time.
const batch = 1000

// List calls each for all entries of a directory, in no order, until each returns an error.
func (s *Share) List(ctx context.Context, path string, each func(Entry) error) error {
	files := s.files()
	defer files.end()
	dir, err := files.open(ctx, "open", path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer files.close(ctx, dir)
	for {
		var entries []fs.FileInfo
		err := retry(ctx, lacksCredits, func() error {
			return files.do(ctx, "list", path, requestLimit, func() (err error) {
				entries, err = dir.Readdir(batch)
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return err
			})
		})
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, info := range entries {
			if err := each(entry(info)); err != nil {
				return err
			}
		}
	}
}

// lacksCredits reports the answer to a request for which the session had too few credits: see size.
func lacksCredits(err error) bool { return isStatus(err, statusInvalidParameter) }

// Create makes a file with this content. Among several callers exactly one succeeds; the others get
// fs.ErrExist. The content is durable. A file that could not be written is removed, if the server
// answers.
func (s *Share) Create(ctx context.Context, path string, content []byte) error {
	return s.create(ctx, path, content, true)
}

// CreateMarker is Create, but the content is not durable.
func (s *Share) CreateMarker(ctx context.Context, path string, content []byte) error {
	return s.create(ctx, path, content, false)
}

func (s *Share) create(ctx context.Context, path string, content []byte, durable bool) error {
	return s.do(ctx, "create", path, func(share *smb2.Share) error {
		f, err := share.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil {
			return err
		}
		if err = writeAll(f, content, durable); err != nil && !breaks(err) {
			err = errors.Join(err, share.Remove(path))
		}
		return err
	})
}

// writeAll writes a file and closes it.
func writeAll(f *smb2.File, content []byte, durable bool) error {
	_, err := f.Write(content)
	if err == nil && durable {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// Read returns the content of a file of at most limit bytes. Errors: ErrTooLarge.
func (s *Share) Read(ctx context.Context, path string, limit int64) (content []byte, err error) {
	err = s.do(ctx, "read", path, func(share *smb2.Share) error {
		f, err := share.Open(path)
		if err != nil {
			return err
		}
		content, err = readAll(f, limit+1)
		if e := f.Close(); err == nil {
			err = e
		}
		return err
	})
	if err == nil && int64(len(content)) > limit {
		return nil, fmt.Errorf("read %q on %s: %w of %d bytes", path, s.Source, ErrTooLarge, limit)
	}
	return content, err
}

// ErrTooLarge reports a file over a limit.
var ErrTooLarge = errors.New("larger than the limit")

// readAll reads up to limit bytes. A small file takes a single request.
func readAll(f *smb2.File, limit int64) (content []byte, err error) {
	const part = 16 << 10
	for int64(len(content)) < limit {
		buffer := make([]byte, min(part, limit-int64(len(content))))
		n, err := f.ReadAt(buffer, int64(len(content)))
		content = append(content, buffer[:n]...)
		if errors.Is(err, io.EOF) || (err == nil && n < len(buffer)) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	return content, nil
}

// Rewrite writes content at the start of an existing file, if check returns no error for its
// present content, of at most limit bytes. The file that check has seen is the file that changes,
// also if another file has its path meanwhile. It is not durable. Errors: those of check.
func (s *Share) Rewrite(ctx context.Context, path string, limit int64, check func(old []byte) error,
	content []byte) error {
	var refused error
	err := s.do(ctx, "write", path, func(share *smb2.Share) error {
		f, err := share.OpenFile(path, os.O_RDWR, 0o666)
		if err != nil {
			return err
		}
		old, err := readAll(f, limit)
		if err == nil {
			refused = check(old)
		}
		if err != nil || refused != nil {
			return errors.Join(err, f.Close())
		}
		return writeAll(f, content, false)
	})
	return cmp.Or(err, refused)
}

// Rename moves a file or a directory. A file replaces a file. A directory silently replaces an
// empty directory on some servers, so a caller moves directories to unique names only.
func (s *Share) Rename(ctx context.Context, from, to string) error {
	if from == "" || to == "" {
		return fmt.Errorf("%w: the root of a share cannot be moved", backend.ErrInvalid)
	}
	if err := checkPath(to); err != nil {
		return err
	}
	return s.do(ctx, "move to "+to, from, func(share *smb2.Share) error { return share.Rename(from, to) })
}

// Remove removes a file, an empty directory or a link. A missing entry is no error.
func (s *Share) Remove(ctx context.Context, path string) error {
	if path == "" {
		return fmt.Errorf("%w: the root of a share cannot be removed", backend.ErrInvalid)
	}
	err := s.do(ctx, "remove", path, func(share *smb2.Share) error { return share.Remove(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Space returns the size of the filesystem that has a directory, and its available bytes.
func (s *Share) Space(ctx context.Context, path string) (total, available int64, err error) {
	err = s.do(ctx, "ask for the free space of", path, func(share *smb2.Share) error {
		info, err := share.Statfs(path)
		if err != nil {
			return err
		}
		total = int64(info.TotalBlockCount() * info.BlockSize())
		available = int64(info.AvailableBlockCount() * info.BlockSize())
		return nil
	})
	return total, available, err
}
