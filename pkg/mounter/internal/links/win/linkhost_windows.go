package win

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"golang.org/x/sys/windows"
)

// windowsLinks are the links of Windows. Entries are opened as themselves, never through a reparse
// point, and changed by their handles.
type windowsLinks struct{}

func (windowsLinks) Form() links.PathForm { return links.WindowsPaths }

// attributeTag is FILE_ATTRIBUTE_TAG_INFO.
type attributeTag struct{ attributes, tag uint32 }

// Its size is that of Windows.
var _ [8]byte = [unsafe.Sizeof(attributeTag{})]byte{}

func (windowsLinks) Entry(path string) (e links.LinkEntry, err error) {
	err = withEntry(path, 0, func(h windows.Handle) error {
		e, err = entryOf(h)
		return err
	})
	return e, pathError("look", path, err)
}

// withEntry opens the entry at path itself, and calls do with the handle.
func withEntry(path string, access uint32, do func(h windows.Handle) error) error {
	name, err := windows.UTF16PtrFromString(long(path))
	if err != nil {
		return err
	}
	h, err := windows.CreateFile(name, access,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_BACKUP_SEMANTICS|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(h), windows.CloseHandle(h))
}

// entryOf describes an open entry.
func entryOf(h windows.Handle) (links.LinkEntry, error) {
	var info attributeTag
	if err := windows.GetFileInformationByHandleEx(h, windows.FileAttributeTagInfo, (*byte)(unsafe.Pointer(&info)),
		uint32(unsafe.Sizeof(info))); err != nil {
		return links.LinkEntry{}, err
	}
	isDir := info.attributes&windows.FILE_ATTRIBUTE_DIRECTORY != 0
	if info.attributes&windows.FILE_ATTRIBUTE_REPARSE_POINT == 0 {
		return links.LinkEntry{Kind: kindOf(isDir, false, 0, "")}, nil
	}
	data := make([]byte, windows.MAXIMUM_REPARSE_DATA_BUFFER_SIZE)
	var n uint32
	if err := windows.DeviceIoControl(h, windows.FSCTL_GET_REPARSE_POINT, nil, 0, &data[0], uint32(len(data)), &n,
		nil); err != nil {
		return links.LinkEntry{}, err
	}
	tag, text, err := parseReparse(data[:n])
	if err != nil {
		return links.LinkEntry{}, err
	}
	return links.LinkEntry{Kind: kindOf(isDir, true, tag, text), Text: text}, nil
}

func (windowsLinks) Link(source, path string) error {
	name, err := windows.UTF16PtrFromString(long(path))
	if err != nil {
		return err
	}
	text, err := windows.UTF16PtrFromString(source)
	if err != nil {
		return err
	}
	return pathError("link", path, windows.CreateSymbolicLink(name, text, windows.SYMBOLIC_LINK_FLAG_DIRECTORY))
}

func (windowsLinks) Unlink(path string) error {
	return removeEntry("unlink", path, func(k links.EntryKind) bool {
		return k == links.DirLink ||
			k == links.OtherLink
	})
}

func (windowsLinks) Rmdir(path string) error {
	return removeEntry("rmdir", path, func(k links.EntryKind) bool { return k == links.PlainDir })
}

// removeEntry removes the entry at path if it is of a permitted kind.
func removeEntry(op, path string, isPermitted func(links.EntryKind) bool) error {
	err := withEntry(path, windows.DELETE, func(h windows.Handle) error {
		e, err := entryOf(h)
		if err != nil {
			return err
		}
		if !isPermitted(e.Kind) {
			return fmt.Errorf("%w: it is %s", mounter.ErrPath, e.Kind)
		}
		return dispose(h)
	})
	return pathError(op, path, err)
}

// dispose removes the name of an open entry at once, where the filesystem can do that. Elsewhere it
// is removed when the last handle is closed.
func dispose(h windows.Handle) error {
	flags := uint32(windows.FILE_DISPOSITION_DELETE | windows.FILE_DISPOSITION_POSIX_SEMANTICS)
	err := windows.SetFileInformationByHandle(h, windows.FileDispositionInfoEx, (*byte)(unsafe.Pointer(&flags)),
		uint32(unsafe.Sizeof(flags)))
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) || errors.Is(err, windows.ERROR_INVALID_FUNCTION) ||
		errors.Is(err, windows.ERROR_NOT_SUPPORTED) {
		yes := byte(1)
		err = windows.SetFileInformationByHandle(h, windows.FileDispositionInfo, &yes, 1)
	}
	return err
}

func (windowsLinks) Mkdir(path string) error {
	name, err := windows.UTF16PtrFromString(long(path))
	if err != nil {
		return err
	}
	return pathError("mkdir", path, windows.CreateDirectory(name, nil))
}

func (windowsLinks) Names(path string) ([]string, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

func (windowsLinks) Usage(path string) (mounter.Usage, error) {
	name, err := windows.UTF16PtrFromString(long(path))
	if err != nil {
		return mounter.Usage{}, err
	}
	var available, total, free uint64
	if err := windows.GetDiskFreeSpaceEx(name, &available, &total, &free); err != nil {
		return mounter.Usage{}, pathError("usage", path, err)
	}
	return mounter.Usage{TotalBytes: int64(total), UsedBytes: int64(total - free),
		AvailableBytes: int64(available)}, nil
}

// maxShort is the length of the longest path of a directory without \\?\ before it, in UTF-16
// units.
const maxShort = 247

// long returns a clean path, also of a share, in the form that has no limit of 260 characters.
func long(path string) string {
	if len(path) <= maxShort {
		return path
	}
	if unc, ok := strings.CutPrefix(path, `\\`); ok {
		return `\\?\UNC\` + unc
	}
	return `\\?\` + path
}

// pathError gives an error of Windows its path, and its class.
func pathError(op, path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, windows.ERROR_DIR_NOT_EMPTY):
		err = mounter.ErrNotEmpty
	case errors.Is(err, windows.ERROR_SHARING_VIOLATION), errors.Is(err, windows.ERROR_LOCK_VIOLATION):
		err = fmt.Errorf("%w: %w", mounter.ErrBusy, err)
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
