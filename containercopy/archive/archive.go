// Package archive packs a file or a directory tree into a tar stream, and unpacks such a stream. It
// is for copies to and from containers (KEP-4582), where neither side trusts the other: Pack
// follows no link, and Unpack rejects every entry that could lead out of its directory.
//
// A stream is canonical: siblings are sorted by their bytes, times are in seconds, and names have
// no "..", no leading slash and no empty element. The first entry is the source itself.
package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"
	"time"
)

// Errors of Pack and Unpack. All others are those of the system, or of the reader or writer.
var (
	// ErrRefused: an entry or a name that a copy may not have.
	ErrRefused = errors.New("refused")
	// ErrLimit: more than the Limits.
	ErrLimit = errors.New("limit exceeded")
	// ErrFormat: the stream was cut, or is not a tar stream. A compressed stream is not.
	ErrFormat = errors.New("invalid tar stream")
	// ErrDamaged: the stream has another size or checksum than expected.
	ErrDamaged = errors.New("damaged stream")
	// ErrChanged: a file changed during the copy.
	ErrChanged = errors.New("changed during the copy")
	// ErrLease: a process holds a lease on a file (fcntl(2), F_SETLEASE).
	ErrLease = errors.New("a process holds a lease on the file and does not release it")
	// ErrKernelFilesystem: a filesystem of the kernel, such as proc. Its files are no data.
	ErrKernelFilesystem = errors.New("a filesystem of the kernel")
)

// Limits bound a copy. DefaultLimits returns those for everything but Bytes.
type Limits struct {
	Bytes   int64 // of the stream, and of the content of all files together; 0: no limit
	Entries int
	Depth   int // elements of a path
	Path    int // bytes of a path
	Pending int // bytes of the paths of links and directories, which Unpack holds until its end
}

// DefaultLimits returns the limits of the KEP's open questions: on inodes, on recursion and on
// memory.
func DefaultLimits() Limits {
	return Limits{Entries: 100_000, Depth: 64, Path: 4096, Pending: 8 << 20}
}

// Counts are the entries and the bytes of the files of a copy.
type Counts struct {
	Entries int64
	Bytes   int64
}

// Skip is called for an entry that is not copied, or not as it was, with the reason. Nil: ignored.
type Skip func(path, reason string)

func (s Skip) skip(path, format string, args ...any) {
	if s != nil {
		s(path, fmt.Sprintf(format, args...))
	}
}

// Info describes an entry of a source.
type Info struct {
	Mode     fs.FileMode // type and permissions
	Size     int64       // bytes of a regular file
	Modified time.Time
	UID, GID int
}

// An Entry is an open file, directory or link of a source. Its methods follow no link.
type Entry interface {
	Info() Info
	// Link returns the text of a symbolic link.
	Link() (string, error)
	// Open opens a regular file. Errors: ErrChanged if the entry is another file now; ErrLease.
	Open() (io.ReadCloser, error)
	// Names returns up to limit names of a directory, in any order, and a name more if there is
	// one.
	Names(limit int) ([]string, error)
	// Child opens an entry of a directory. Errors: fs.ErrNotExist, ErrKernelFilesystem.
	Child(name string) (Entry, error)
	Close() error
}

// castagnoli is the polynomial of the checksum of KEP-4582.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum identifies a stream.
type Sum struct {
	Size   int64  // bytes
	CRC32C uint32 // Castagnoli
	SHA256 []byte // nil: not computed
}

// Digest computes the Sum of the bytes that are written to it.
type Digest struct {
	size int64
	crc  uint32
	sha  hash.Hash // nil: not wanted
}

// NewDigest returns the Digest of no bytes.
func NewDigest(withSHA256 bool) *Digest {
	d := new(Digest)
	if withSHA256 {
		d.sha = sha256.New()
	}
	return d
}

// Write adds p. It returns no error.
func (d *Digest) Write(p []byte) (int, error) {
	d.size += int64(len(p))
	d.crc = crc32.Update(d.crc, castagnoli, p)
	if d.sha != nil {
		d.sha.Write(p)
	}
	return len(p), nil
}

// Size returns the number of bytes so far.
func (d *Digest) Size() int64 { return d.size }

// Sum returns the Sum of all bytes so far.
func (d *Digest) Sum() Sum {
	s := Sum{Size: d.size, CRC32C: d.crc}
	if d.sha != nil {
		s.SHA256 = d.sha.Sum(nil)
	}
	return s
}

// Check compares the sum of a stream that has arrived with the sum that the sender declares. A
// SHA256 is compared if both have it. Errors: ErrDamaged.
func (s Sum) Check(declared Sum) error {
	switch {
	case s.Size != declared.Size:
		return fmt.Errorf("%w: %d bytes arrived, %d were declared", ErrDamaged, s.Size, declared.Size)
	case s.CRC32C != declared.CRC32C:
		return fmt.Errorf("%w: CRC-32C %08x, declared %08x", ErrDamaged, s.CRC32C, declared.CRC32C)
	case s.SHA256 != nil && declared.SHA256 != nil && string(s.SHA256) != string(declared.SHA256):
		return fmt.Errorf("%w: SHA-256 %x, declared %x", ErrDamaged, s.SHA256, declared.SHA256)
	}
	return nil
}

// budget counts a copy against its limits.
type budget struct {
	limits Limits
	counts Counts
}

// entries adds n entries.
func (b *budget) entries(n int) error {
	if int64(n) > int64(b.limits.Entries)-b.counts.Entries {
		return fmt.Errorf("%w: more than %d entries", ErrLimit, b.limits.Entries)
	}
	b.counts.Entries += int64(n)
	return nil
}

// content adds the content of a file.
func (b *budget) content(size int64) error {
	if size < 0 || b.limits.Bytes > 0 && size > b.limits.Bytes-b.counts.Bytes {
		return fmt.Errorf("%w: the files have more than %d bytes", ErrLimit, b.limits.Bytes)
	}
	b.counts.Bytes += size
	return nil
}

// path returns ErrLimit for a path that is too long or too deep.
func (b *budget) path(path string) error {
	switch {
	case len(path) > b.limits.Path:
		return fmt.Errorf("%w: the path %.64q… has more than %d bytes", ErrLimit, path, b.limits.Path)
	case strings.Count(path, "/") >= b.limits.Depth:
		return fmt.Errorf("%w: %.64q… has more than %d elements", ErrLimit, path, b.limits.Depth)
	}
	return nil
}

// chunk is the size of the buffer of a copy, in bytes.
const chunk = 64 << 10

// copyContent copies size bytes. It ends with ctx.
func copyContent(ctx context.Context, w io.Writer, r io.Reader, size int64, buffer []byte) (int64, error) {
	done := int64(0)
	for done < size {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		part := buffer[:min(int64(len(buffer)), size-done)]
		n, err := io.ReadFull(r, part)
		if _, failed := w.Write(part[:n]); failed != nil {
			return done, failed
		}
		done += int64(n)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
