package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// UnpackOptions are the options of Unpack.
type UnpackOptions struct {
	Limits Limits
	Umask  fs.FileMode // of the owner's permissions, beside the umask of the process
	Mode   bool        // permissions of the stream, not limited by a umask
	Times  bool        // of modification
	Owner  bool        // needs CAP_CHOWN
	Links  bool        // also links that are absolute or lead out of the directory
	Skip   Skip
}

// unpacker reads one stream.
type unpacker struct {
	ctx     context.Context
	tar     *tar.Reader
	read    *countingReader // below tar
	next    int64           // offset of the block behind the last entry
	root    *os.Root
	budget  budget
	options UnpackOptions
	buffer  []byte

	pending int // bytes
	links   map[string]*tar.Header
	dirs    map[string]*tar.Header // nil: a directory without an entry of its own

	current   *os.Root // the directory of the last entry; nil: none
	currentAt string
}

// Unpack reads a tar stream to its end and makes its entries in an empty directory. The caller
// moves them to their place when the Sum of the stream is right, or removes them after an error.
//
// Nothing is made outside of root, and no existing file is changed: names are canonical, files are
// new, and links are made last, so that no path leads through a link of the stream. Hard links,
// devices and all other kinds are ErrRefused, as are two entries with one name and a stream with data
// behind its end. Sparse files count with their holes, and keep them. Set-ID and sticky bits, extended
// attributes and access times are dropped. A directory that has no entry gets the permissions of the
// umask.
func Unpack(ctx context.Context, r io.Reader, root *os.Root, o UnpackOptions) (Counts, error) {
	if o.Limits.Bytes > 0 {
		r = &limitedReader{r, o.Limits.Bytes, o.Limits.Bytes}
	}
	buffered := bufio.NewReaderSize(r, chunk)
	read := &countingReader{Reader: buffered}
	u := &unpacker{ctx: ctx, tar: tar.NewReader(read), read: read, root: root, budget: budget{limits: o.Limits},
		options: o, buffer: make([]byte, chunk), links: map[string]*tar.Header{}, dirs: map[string]*tar.Header{"": nil}}
	defer u.leave()
	err := u.all()
	if err == nil {
		err = u.rest(buffered)
	}
	if err == nil {
		err = u.finish()
	}
	return u.budget.counts, err
}

// countingReader counts the bytes that were read.
type countingReader struct {
	io.Reader
	n     int64
	zeros int // at the end of them, up to 2 blocks
}

func (r *countingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.n += int64(n)
	last := b[max(0, n-2*block):n]
	rest := bytes.TrimRight(last, "\x00")
	if len(rest) > 0 {
		r.zeros = 0
	}
	r.zeros = min(r.zeros+len(last)-len(rest), 2*block)
	return n, err
}

// limitedReader returns ErrLimit instead of reading more than left bytes.
type limitedReader struct {
	io.Reader
	left, limit int64
}

func (r *limitedReader) Read(b []byte) (int, error) {
	if r.left == 0 {
		var more [1]byte
		n, err := r.Reader.Read(more[:])
		if n > 0 {
			err = fmt.Errorf("%w: the stream has more than %d bytes", ErrLimit, r.limit)
		}
		return 0, err
	}
	n, err := r.Reader.Read(b[:min(int64(len(b)), r.left)])
	r.left -= int64(n)
	return n, err
}

// all reads all entries.
func (u *unpacker) all() error {
	for {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		h, err := u.tar.Next()
		if errors.Is(err, io.EOF) {
			return u.ended()
		}
		if err != nil {
			return invalid(err)
		}
		if err := u.budget.entries(1); err != nil {
			return err
		}
		if err := u.entry(h); err != nil {
			return err
		}
		u.next = (u.read.n + block - 1) / block * block // all of the content was read
	}
}

// block is the size of a block of tar.
const block = 512

// ended returns ErrFormat unless the end of the archive, two blocks of zeros, is behind the last
// entry: package tar also accepts a stream that was cut between two entries. pax(1), ustar.
func (u *unpacker) ended() error {
	if u.read.n < u.next+2*block || u.read.zeros < 2*block {
		return fmt.Errorf("%w: it was cut: it lacks the end of the archive", ErrFormat)
	}
	return nil
}

// invalid gives an error of the tar format its class. Package tar does not export all of them.
func invalid(err error) error {
	if err != nil && (errors.Is(err, io.ErrUnexpectedEOF) || strings.HasPrefix(err.Error(), "archive/tar: ")) {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

// rest reads the stream behind the last entry, which has zeros only: another archive may follow.
func (u *unpacker) rest(r io.Reader) error {
	for {
		n, err := r.Read(u.buffer)
		for _, b := range u.buffer[:n] {
			if b != 0 {
				return fmt.Errorf("%w: data behind the end of the archive", ErrRefused)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// entry makes an entry, or keeps it for the end.
func (u *unpacker) entry(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader { // such as the comment of git archive
		return nil
	}
	path, err := canonical(h.Name)
	if err == nil {
		err = u.budget.path(path)
	}
	if err == nil {
		err = permitted(h)
	}
	if err == nil && u.options.Owner {
		err = checkOwner(h)
	}
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.directory(path, h)
	}
	if path == "" {
		return fmt.Errorf("%w: an entry without a name that is no directory", ErrRefused)
	}
	if _, isDir := u.dirs[path]; isDir || u.links[path] != nil {
		return fmt.Errorf("%w: two entries have the name %.128q", ErrRefused, path)
	}
	parent, name := split(path)
	if err := u.enter(parent); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		return u.keep(u.links, path, h)
	}
	return u.file(path, name, h)
}

// permitted returns ErrRefused for a kind of entry that a copy cannot have.
func permitted(h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeDir, tar.TypeSymlink:
	case tar.TypeLink:
		return fmt.Errorf("%w: %.128q is a hard link: GNU tar writes a file in its place with --hard-dereference",
			ErrRefused, h.Name)
	default:
		return fmt.Errorf("%w: %.128q is of the kind %q: a copy has files, directories and symbolic links", ErrRefused,
			h.Name, h.Typeflag)
	}
	return nil
}

// maxSparse is the maximum size of a sparse file, in bytes: a stream of a few bytes can have holes of
// any size, which take time to read.
const maxSparse = 64 << 30

// isSparse reports whether a file has holes: bsdtar and "tar --sparse" write such entries.
func isSparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// checkOwner returns ErrRefused for an owner or a group that chown(2) would cut to 32 bits, which can
// be root, or not change: (uid_t) -1.
func checkOwner(h *tar.Header) error {
	for _, id := range []int{h.Uid, h.Gid} {
		if id < 0 || int64(id) >= math.MaxUint32 {
			return fmt.Errorf("%w: %.128q belongs to %d:%d: an ID is below %d", ErrRefused, h.Name, h.Uid, h.Gid,
				uint32(math.MaxUint32))
		}
	}
	return nil
}

// split returns the parent of a path, "" for the root, and its last element.
func split(path string) (parent, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// keep holds the header of a link or a directory until the end. It copies the texts: those of a pax
// header are a part of it, and would hold all of its 1 MiB.
func (u *unpacker) keep(where map[string]*tar.Header, path string, h *tar.Header) error {
	const overhead = 300 // bytes of a header and of an entry of a map
	if _, counted := where[path]; !counted {
		u.pending += len(path) + overhead
	}
	if h != nil {
		u.pending += len(h.Linkname)
	}
	if u.pending > u.budget.limits.Pending {
		return fmt.Errorf("%w: the paths of links and directories need more than %d bytes", ErrLimit,
			u.budget.limits.Pending)
	}
	path = strings.Clone(path) // also of a known one: the map takes the key of the last assignment
	if h == nil {
		where[path] = nil
		return nil
	}
	where[path] = &tar.Header{Linkname: strings.Clone(h.Linkname), Mode: h.Mode, ModTime: h.ModTime, Uid: h.Uid,
		Gid: h.Gid}
	return nil
}

// directory makes a directory, with its parents.
func (u *unpacker) directory(path string, h *tar.Header) error {
	if u.dirs[path] != nil || u.links[path] != nil {
		return fmt.Errorf("%w: two entries have the name %.128q", ErrRefused, path)
	}
	if _, exists := u.dirs[path]; !exists {
		if err := u.makeDirectory(path, fs.FileMode(h.Mode).Perm()|0o700); err != nil {
			return err
		}
	}
	return u.keep(u.dirs, path, h)
}

// enter opens a directory, and makes it and its parents if they are missing.
func (u *unpacker) enter(path string) error {
	if u.current != nil && u.currentAt == path {
		return nil
	}
	if _, exists := u.dirs[path]; !exists {
		if err := u.makeDirectory(path, 0o777); err != nil {
			return err
		}
	}
	u.leave()
	dir, err := u.root.OpenRoot(cmp.Or(path, "."))
	if err != nil {
		return fmt.Errorf("open directory %.128q: %w", path, err)
	}
	u.current, u.currentAt = dir, path
	return nil
}

// makeDirectory makes a directory, with its parents. Errors: ErrRefused if a link or a file of the
// stream is at the path or above it.
func (u *unpacker) makeDirectory(path string, perm fs.FileMode) error {
	if u.links[path] != nil {
		return fmt.Errorf("%w: a path leads through the link %.128q", ErrRefused, path)
	}
	parent, name := split(path)
	if err := u.enter(parent); err != nil {
		return err
	}
	err := u.current.Mkdir(name, perm)
	if errors.Is(err, fs.ErrExist) { // also another directory, on a system that ignores case
		return fmt.Errorf("%w: two entries have the name %.128q", ErrRefused, path)
	}
	if err != nil {
		return fmt.Errorf("make directory %.128q: %w", path, err)
	}
	return u.keep(u.dirs, path, nil)
}

// leave closes the open directory.
func (u *unpacker) leave() {
	if u.current != nil {
		u.current.Close()
		u.current = nil
	}
}

// file makes a file in the open directory.
func (u *unpacker) file(path, name string, h *tar.Header) error {
	if h.Size > maxSparse && isSparse(h) {
		return fmt.Errorf("%w: the sparse file %.128q has more than %d bytes", ErrLimit, path, int64(maxSparse))
	}
	if err := u.budget.content(h.Size); err != nil {
		return err
	}
	f, err := u.current.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL,
		fs.FileMode(h.Mode).Perm()&^u.options.Umask)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: two entries have the name %.128q", ErrRefused, path)
	}
	if err != nil {
		return fmt.Errorf("make %.128q: %w", path, err)
	}
	err = u.content(f, h)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	err = invalid(err)
	if err == nil {
		err = u.attributes(f, h)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("write %.128q: %w", path, err)
	}
	return u.times(u.current, name, h)
}

// content writes the content of a file.
func (u *unpacker) content(f *os.File, h *tar.Header) error {
	if !isSparse(h) {
		_, err := copyContent(u.ctx, f, u.tar, h.Size, u.buffer)
		return err
	}
	if _, err := copyContent(u.ctx, holes{f}, u.tar, h.Size, u.buffer); err != nil {
		return err
	}
	if n, err := u.tar.Read(u.buffer[:1]); n > 0 || !errors.Is(err, io.EOF) { // such as data of no part of the file
		return cmp.Or(err, tar.ErrHeader)
	}
	return f.Truncate(h.Size)
}

var zeros [chunk]byte

// holes is a new file in which writes of zeros leave holes.
type holes struct{ *os.File }

func (h holes) Write(p []byte) (int, error) {
	if !bytes.Equal(p, zeros[:len(p)]) {
		return h.File.Write(p)
	}
	_, err := h.Seek(int64(len(p)), io.SeekCurrent)
	return len(p), err
}

// attributes sets the owner of a file, and then its permissions: chown(2) clears bits of them.
func (u *unpacker) attributes(f *os.File, h *tar.Header) error {
	if u.options.Owner {
		if err := f.Chown(h.Uid, h.Gid); err != nil {
			return err
		}
	}
	if u.options.Mode {
		return f.Chmod(fs.FileMode(h.Mode).Perm())
	}
	return nil
}

// firstTime and lastTime are the times that [os.Root.Chtimes] can set, as it counts nanoseconds in 64
// bits.
var firstTime, lastTime = time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)

// times sets the time of modification, or the nearest that can be set.
func (u *unpacker) times(dir *os.Root, name string, h *tar.Header) error {
	if !u.options.Times {
		return nil
	}
	modified := h.ModTime
	switch seconds := modified.Unix(); { // Before and After wrap for the largest times
	case seconds <= firstTime.Unix():
		modified = firstTime
	case seconds >= lastTime.Unix():
		modified = lastTime
	}
	return dir.Chtimes(name, time.Time{}, modified)
}

// finish makes the links, and then sets the attributes of the directories, the deepest first.
func (u *unpacker) finish() error {
	for _, path := range slices.Sorted(maps.Keys(u.links)) {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if err := u.link(path, u.links[path]); err != nil {
			return err
		}
	}
	u.leave()
	dirs := slices.Sorted(maps.Keys(u.dirs))
	slices.Reverse(dirs)
	for _, path := range dirs {
		if err := u.finishDirectory(path, u.dirs[path]); err != nil {
			return fmt.Errorf("directory %.128q: %w", path, err)
		}
	}
	return nil
}

func (u *unpacker) link(path string, h *tar.Header) error {
	if !u.options.Links && leadsOut(path, h.Linkname, onWindows) {
		u.options.Skip.skip(path, "not copied: a link to %.128q, which may lead out of the copy", h.Linkname)
		return nil
	}
	parent, name := split(path)
	if err := u.enter(parent); err != nil {
		return err
	}
	err := u.current.Symlink(h.Linkname, name)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: two entries have the name %.128q", ErrRefused, path)
	}
	if err != nil {
		return fmt.Errorf("make link %.128q: %w", path, err)
	}
	if u.options.Owner {
		return u.current.Lchown(name, h.Uid, h.Gid)
	}
	return nil
}

// finishDirectory sets the attributes of a directory. h is nil if it has no entry.
func (u *unpacker) finishDirectory(path string, h *tar.Header) error {
	switch {
	case path == "":
		return nil
	case h == nil:
		return u.permissions(path, 0o777&^u.options.Umask)
	case u.options.Owner:
		if err := u.root.Lchown(path, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	perm := fs.FileMode(h.Mode).Perm()
	var err error
	if u.options.Mode {
		err = chmod(u.root, path, perm)
	} else {
		err = u.permissions(path, perm&^u.options.Umask)
	}
	if err != nil {
		return err
	}
	return u.times(u.root, path, h)
}

// permissions takes permissions away from the owner of a directory, who could use it during the copy.
func (u *unpacker) permissions(path string, perm fs.FileMode) error {
	if perm&0o700 == 0o700 {
		return nil
	}
	info, err := u.root.Lstat(path)
	if err != nil {
		return err
	}
	return chmod(u.root, path, info.Mode().Perm()&(perm|0o077))
}
