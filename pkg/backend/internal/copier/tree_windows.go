package copier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Tree copies the content of the directory src, and the attributes of src itself, to the empty
// directory dst: directories, files with all of their data streams, symbolic links and junctions;
// times, and the attributes read-only, hidden, system, archive and not indexed. It opens every
// entry by the handle of its directory and as itself: a link of a tenant to \\host\share would make
// this machine send its credentials there.
//
// The entries of the copy inherit their security descriptors from dst. Each name of a file with
// several names becomes a file. Tree copies nothing else: for another reparse point, and for a
// volume that is mounted in src, it returns an error that names it.
//
// The copy is durable when Tree returns, except for the entry of dst in its directory. No other
// process may change the content of dst. Errors: ErrShared, ErrDepth; errors.Is finds
// windows.ERROR_DISK_FULL. After an error the caller discards the content of dst.
func Tree(ctx context.Context, src, dst *os.File, o Options) (How, error) {
	defer runtime.KeepAlive(src)
	defer runtime.KeepAlive(dst)
	t := &tree{ctx: ctx, progress: o.Progress, yield: o.Yield, buffer: make([]byte, bufferSize)}
	defer o.Progress.enter(&t.site)()
	if _, err := dst.Readdirnames(1); !errors.Is(err, io.EOF) {
		return Copied, fmt.Errorf("prepare %q for a copy: %w", dst.Name(),
			errors.Join(err, windows.ERROR_DIR_NOT_EMPTY))
	}
	// The caller has dst open for reading.
	top, err := openAt(dst, "", windows.GENERIC_READ|windows.GENERIC_WRITE, windows.FILE_OPEN,
		windows.FILE_DIRECTORY_FILE)
	if err != nil {
		return Copied, fmt.Errorf("prepare %q for a copy: %w", dst.Name(), err)
	}
	defer top.Close()
	return Copied, t.directory(src, top, &place{name: "."}, 0)
}

const bufferSize = 1 << 20

// tree is a copy of a tree.
type tree struct {
	ctx      context.Context
	progress *Progress
	yield    func()
	site     worksite
	buffer   []byte
}

// place is a directory of the source.
type place struct {
	in   *place // nil: the top
	name string
}

func (p *place) path(name string) string {
	for ; p != nil; p = p.in {
		name = path.Join(p.name, name)
	}
	return name
}

// wrong gives an error the entry that it is about.
func (p *place) wrong(what, name string, err error) error {
	if errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		err = fmt.Errorf("%w: %w", ErrShared, err)
	}
	return fmt.Errorf("%s %q: %w", what, p.path(name), err)
}

// batch is the number of names that are read at a time.
const batch = 1024

// directory copies the entries and the attributes of a directory.
func (t *tree) directory(src, dst *os.File, at *place, depth int) error {
	if depth > MaxDepth {
		return at.wrong("copy", "", ErrDepth)
	}
	info, err := basicInfoOf(handle(src))
	if err != nil {
		return at.wrong("look at", "", err)
	}
	for {
		names, err := src.Readdirnames(batch)
		for _, name := range names {
			if err := t.entry(src, dst, at, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return at.wrong("list", "", err)
		}
	}
	if err := t.streams(src, dst); err != nil {
		return at.wrong("copy", "", err)
	}
	if err := info.set(handle(dst)); err != nil {
		return at.wrong("copy the attributes of", "", err)
	}
	return nil
}

// entry copies an entry of a directory. An entry that was removed meanwhile is not in the copy.
func (t *tree) entry(from, to *os.File, at *place, name string, depth int) error {
	if t.yield != nil {
		t.yield()
	}
	if err := t.ctx.Err(); err != nil {
		return err
	}
	t.site.beginEntry(at, name)
	defer t.site.beginEntry(nil, "")
	src, err := openAt(from, name, windows.GENERIC_READ, windows.FILE_OPEN, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return at.wrong("open", name, err)
	}
	defer src.Close()
	info, err := basicInfoOf(handle(src))
	if err != nil {
		return at.wrong("look at", name, err)
	}
	kind := uint32(windows.FILE_NON_DIRECTORY_FILE)
	if info.is(windows.FILE_ATTRIBUTE_DIRECTORY) {
		kind = windows.FILE_DIRECTORY_FILE
	}
	dst, err := openAt(to, name, windows.GENERIC_READ|windows.GENERIC_WRITE, windows.FILE_CREATE, kind)
	if err != nil {
		return at.wrong("make", name, err)
	}
	defer dst.Close()
	switch {
	case info.is(windows.FILE_ATTRIBUTE_REPARSE_POINT):
		err = copyLink(src, dst)
	case info.is(windows.FILE_ATTRIBUTE_DIRECTORY):
		t.progress.addEntry()
		return t.directory(src, dst, &place{at, name}, depth+1) // an error has its entry already
	default:
		err = t.file(src, dst, info)
	}
	if err == nil {
		err = info.set(handle(dst))
	}
	if err == nil && !info.is(windows.FILE_ATTRIBUTE_DIRECTORY) {
		err = windows.FlushFileBuffers(handle(dst))
	}
	if err != nil {
		return at.wrong("copy", name, err)
	}
	t.progress.addEntry()
	return nil
}

// file copies the streams of a file.
func (t *tree) file(src, dst *os.File, info basicInfo) error {
	if info.is(windows.FILE_ATTRIBUTE_SPARSE_FILE) {
		if err := t.sparse(src, dst); err != nil {
			return err
		}
	} else if err := t.data(src, dst, 0, -1); err != nil {
		return err
	}
	return t.streams(src, dst)
}

// data copies n bytes at an offset, or all up to the end if n is negative.
func (t *tree) data(src, dst *os.File, offset, n int64) error {
	for n != 0 {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		part := t.buffer
		if n > 0 && n < int64(len(part)) {
			part = part[:n]
		}
		read, err := src.ReadAt(part, offset)
		if _, err := dst.WriteAt(part[:read], offset); err != nil {
			return err
		}
		offset += int64(read)
		n -= int64(read)
		t.progress.addBytes(int64(read))
		t.progress.addHeld(int64(read))
		t.site.moved()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if t.yield != nil {
			t.yield()
		}
	}
	return nil
}

// allocatedRange is FILE_ALLOCATED_RANGE_BUFFER.
type allocatedRange struct{ offset, length int64 }

// sparse copies the allocated ranges of a sparse file.
func (t *tree) sparse(src, dst *os.File) error {
	var n uint32
	if err := windows.DeviceIoControl(handle(dst), windows.FSCTL_SET_SPARSE, nil, 0, nil, 0, &n, nil); err != nil {
		return fmt.Errorf("make the copy sparse: %w", err)
	}
	end, err := src.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if err := dst.Truncate(end); err != nil {
		return err
	}
	ranges := make([]allocatedRange, 256)
	for rest := (allocatedRange{0, end}); rest.length > 0; {
		err := windows.DeviceIoControl(handle(src), windows.FSCTL_QUERY_ALLOCATED_RANGES,
			(*byte)(unsafe.Pointer(&rest)), uint32(unsafe.Sizeof(rest)), (*byte)(unsafe.Pointer(&ranges[0])),
			uint32(len(ranges))*uint32(unsafe.Sizeof(rest)), &n, nil)
		if err != nil && !errors.Is(err, windows.ERROR_MORE_DATA) {
			return fmt.Errorf("find the data of a sparse file: %w", err)
		}
		found := ranges[:n/uint32(unsafe.Sizeof(rest))]
		for _, r := range found {
			if err := t.data(src, dst, r.offset, r.length); err != nil {
				return err
			}
		}
		if err == nil || len(found) == 0 {
			return nil
		}
		next := found[len(found)-1].offset + found[len(found)-1].length
		rest = allocatedRange{next, end - next}
	}
	return nil
}

// mainStream is the name of the content of a file among its streams.
const mainStream = "::$DATA"

// streams copies the alternate data streams of an entry.
func (t *tree) streams(src, dst *os.File) error {
	names, err := streamNames(handle(src))
	if err != nil {
		return fmt.Errorf("list the data streams: %w", err)
	}
	for _, name := range names {
		if name == mainStream {
			continue
		}
		if err := t.stream(src, dst, name); err != nil {
			return fmt.Errorf("data stream %q: %w", name, err)
		}
	}
	return nil
}

func (t *tree) stream(src, dst *os.File, name string) error {
	from, err := openAt(src, name, windows.GENERIC_READ, windows.FILE_OPEN, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := openAt(dst, name, windows.GENERIC_WRITE, windows.FILE_CREATE, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := t.data(from, to, 0, -1); err != nil {
		return err
	}
	return windows.FlushFileBuffers(handle(to))
}

// maxStreams is the size of the largest list of streams, in bytes: NTFS keeps it in an attribute.
const maxStreams = 1 << 20

// streamNames returns the names of all data streams of an entry: none on a filesystem without them.
// FILE_STREAM_INFO.
func streamNames(h windows.Handle) ([]string, error) {
	for size := 4 << 10; ; size *= 4 {
		data := make([]byte, size)
		err := windows.GetFileInformationByHandleEx(h, windows.FileStreamInfo, &data[0], uint32(size))
		switch {
		case errors.Is(err, windows.ERROR_MORE_DATA) && size < maxStreams:
			continue
		case errors.Is(err, windows.ERROR_HANDLE_EOF), errors.Is(err, windows.ERROR_NOT_SUPPORTED),
			errors.Is(err, windows.ERROR_INVALID_PARAMETER), errors.Is(err, windows.ERROR_CALL_NOT_IMPLEMENTED),
			errors.Is(err, windows.ERROR_INVALID_FUNCTION):
			return nil, nil
		case err != nil:
			return nil, err
		}
		return parseStreams(data)
	}
}

// copyLink copies a symbolic link or a junction.
func copyLink(src, dst *os.File) error {
	data := make([]byte, windows.MAXIMUM_REPARSE_DATA_BUFFER_SIZE)
	var n uint32
	if err := windows.DeviceIoControl(handle(src), windows.FSCTL_GET_REPARSE_POINT, nil, 0, &data[0], uint32(len(data)),
		&n, nil); err != nil {
		return fmt.Errorf("read the reparse point: %w", err)
	}
	data = data[:n]
	if err := checkLink(data); err != nil {
		return err
	}
	if err := windows.DeviceIoControl(handle(dst), windows.FSCTL_SET_REPARSE_POINT, &data[0], n, nil, 0, &n,
		nil); err != nil {
		return fmt.Errorf("write the reparse point: %w", err)
	}
	return nil
}

// basicInfo is FILE_BASIC_INFO.
type basicInfo struct {
	created, accessed, written, changed int64
	attributes                          uint32
	_                                   uint32
}

// Its size is that of Windows.
var _ [40]byte = [unsafe.Sizeof(basicInfo{})]byte{}

func basicInfoOf(h windows.Handle) (i basicInfo, err error) {
	err = windows.GetFileInformationByHandleEx(h, windows.FileBasicInfo, (*byte)(unsafe.Pointer(&i)),
		uint32(unsafe.Sizeof(i)))
	return i, err
}

func (i basicInfo) is(attribute uint32) bool { return i.attributes&attribute != 0 }

// kept are the attributes that a copy has.
const kept = windows.FILE_ATTRIBUTE_READONLY | windows.FILE_ATTRIBUTE_HIDDEN | windows.FILE_ATTRIBUTE_SYSTEM |
	windows.FILE_ATTRIBUTE_ARCHIVE | windows.FILE_ATTRIBUTE_NOT_CONTENT_INDEXED

// set gives an entry the times and the attributes of another.
func (i basicInfo) set(h windows.Handle) error {
	i.changed = 0 // as it is
	if i.attributes &= kept; i.attributes == 0 {
		i.attributes = windows.FILE_ATTRIBUTE_NORMAL
	}
	return windows.SetFileInformationByHandle(h, windows.FileBasicInfo, (*byte)(unsafe.Pointer(&i)),
		uint32(unsafe.Sizeof(i)))
}

func handle(f *os.File) windows.Handle { return windows.Handle(f.Fd()) }

// openAt opens or makes the entry name of an open directory, or a stream of an open entry, or opens
// the directory again if name is "". It opens no reparse point but as itself.
func openAt(dir *os.File, name string, access, disposition, kind uint32) (*os.File, error) {
	text, err := windows.NewNTUnicodeString(name)
	if err != nil {
		return nil, err
	}
	attributes := windows.OBJECT_ATTRIBUTES{RootDirectory: handle(dir), ObjectName: text,
		Attributes: windows.OBJ_CASE_INSENSITIVE}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	var h windows.Handle
	var status windows.IO_STATUS_BLOCK
	const options = windows.FILE_SYNCHRONOUS_IO_NONALERT | windows.FILE_OPEN_REPARSE_POINT |
		windows.FILE_OPEN_FOR_BACKUP_INTENT
	err = windows.NtCreateFile(&h, access|windows.SYNCHRONIZE, &attributes, &status, nil, windows.FILE_ATTRIBUTE_NORMAL,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, disposition, options|kind, 0, 0)
	runtime.KeepAlive(dir)
	if s := windows.NTStatus(0); errors.As(err, &s) {
		err = s.Errno()
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(h), name), nil
}
