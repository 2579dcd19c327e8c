package copier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// dirent is an entry of struct linux_dirent64, see getdents64(2).
type dirent struct {
	name []byte // of the buffer
	kind byte   // DT_REG and so on; DT_UNKNOWN if the filesystem does not report the type
	next int64  // position of the next entry in the directory
}

const (
	direntNext, direntSize, direntKind, direntName = 8, 16, 18, 19 // offsets of the fields

	direntMost = direntName + unix.NAME_MAX + 1 + 7 // the longest entry, with its padding
)

// nextDirent takes the first entry off a buffer that getdents has filled.
func nextDirent(buffer []byte) (e dirent, rest []byte) {
	size := binary.NativeEndian.Uint16(buffer[direntSize:])
	name, _, _ := bytes.Cut(buffer[direntName:size], []byte{0})
	e = dirent{name, buffer[direntKind], int64(binary.NativeEndian.Uint64(buffer[direntNext:]))}
	return e, buffer[size:]
}

// self reports whether the entry is "." or "..".
func (e dirent) self() bool { return string(e.name) == "." || string(e.name) == ".." }

// getdents reads entries of a directory. n is 0 at the end, or if the directory was removed.
func getdents(fd int, buffer []byte) (n int, err error) {
	err = retry(func() error { n, err = unix.Getdents(fd, buffer); return err })
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return n, err
}

// isDir reports whether an entry is a directory, and asks the filesystem if the listing has no
// type.
func (e dirent) isDir(dir int) (bool, error) {
	if e.kind != unix.DT_UNKNOWN {
		return e.kind == unix.DT_DIR, nil
	}
	var st unix.Statx_t
	err := unix.Statx(dir, string(e.name), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, err
}

// listing reads a directory of the target entry by entry, and can resume at the position at which
// another listing of the same directory was closed.
type listing struct {
	fd     int
	buffer *[listingBuffer]byte // of listingBuffers; nil before the first read
	size   int                  // of the next read
	rest   []byte               // of buffer: entries that are read and not yet returned
	at     int64                // position of the next entry to be returned
}

// A listing that resumes behind a subtree may soon be closed for the next subtree, so its first
// read is small.
const (
	listingBuffer = 8 << 10
	resumeBuffer  = 4 * direntMost
)

var listingBuffers = sync.Pool{New: func() any { return new([listingBuffer]byte) }}

// open begins a listing of an open directory, which close closes.
func (l *listing) open(fd int) { *l = listing{fd: fd, size: listingBuffer} }

func (l *listing) close() {
	unix.Close(l.fd)
	if l.buffer != nil {
		listingBuffers.Put(l.buffer)
	}
	*l = listing{fd: -1}
}

// next returns the next entry, which is valid until the next call, and its position. ok is false at
// the end.
func (l *listing) next() (e dirent, at int64, ok bool, err error) {
	if len(l.rest) == 0 {
		if l.buffer == nil {
			l.buffer = listingBuffers.Get().(*[listingBuffer]byte)
		}
		n, err := getdents(l.fd, l.buffer[:l.size])
		if err != nil || n == 0 {
			return e, l.at, false, err
		}
		l.rest = l.buffer[:n]
	}
	at = l.at
	e, l.rest = nextDirent(l.rest)
	l.at = e.next
	return e, at, true, nil
}

// resume sets a new listing behind the entry called name, whose position was at. On some
// filesystems a position is not valid after its descriptor was closed. So if resume does not find
// the name from this position on, it searches the whole directory. Several entries may also have
// the same position: on ext4, all entries with the same hash.
func (l *listing) resume(name string, at int64) error {
	for _, start := range []int64{at, 0} {
		if _, err := unix.Seek(l.fd, start, unix.SEEK_SET); err != nil {
			return err
		}
		l.rest, l.at, l.size = nil, start, resumeBuffer
		if found, err := l.skip(name); found || err != nil {
			l.size = listingBuffer
			return err
		}
	}
	return errListing
}

// skip reads up to the entry called name.
func (l *listing) skip(name string) (found bool, err error) {
	for {
		e, _, ok, err := l.next()
		if !ok || err != nil {
			return false, err
		}
		if string(e.name) == name {
			return true, nil
		}
	}
}

// errListing: the target does not have the directories that the copy has made in it. Only another
// process or an error of the filesystem can cause that.
var errListing = errors.New("the directory of the copy has changed during the copy")
