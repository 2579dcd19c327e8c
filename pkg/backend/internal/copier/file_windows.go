package copier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/windows"
)

// standardInfo is FILE_STANDARD_INFO.
type standardInfo struct {
	allocation, end int64
	names           uint32
	deleted, dir    bool
	_               [2]byte
}

// Its size is that of Windows.
var _ [24]byte = [unsafe.Sizeof(standardInfo{})]byte{}

// OnDisk returns how many bytes a file takes on its disk.
func OnDisk(file *os.File) (int64, error) {
	defer runtime.KeepAlive(file)
	var i standardInfo
	err := windows.GetFileInformationByHandleEx(handle(file), windows.FileStandardInfo, (*byte)(unsafe.Pointer(&i)),
		uint32(unsafe.Sizeof(i)))
	if err != nil {
		return 0, &os.PathError{Op: "GetFileInformationByHandleEx", Path: file.Name(), Err: err}
	}
	return i.allocation, nil
}

// File copies src, a regular file, to dst, an empty file: its main data stream, without the ranges
// that a sparse file does not have. The copy is of a point in time only if no process writes to
// src. dst is durable when File returns, but not its entry in the directory. Errors: errors.Is
// finds windows.ERROR_DISK_FULL. After an error the caller discards dst.
func File(ctx context.Context, src, dst *os.File, o Options) (How, error) {
	defer runtime.KeepAlive(src)
	defer runtime.KeepAlive(dst)
	t := &tree{ctx: ctx, progress: o.Progress, yield: o.Yield, buffer: make([]byte, bufferSize)}
	defer o.Progress.enter(&t.site)()
	if err := t.image(src, dst); err != nil {
		return Copied, fmt.Errorf("copy %q: %w", src.Name(), err)
	}
	o.Progress.addEntry()
	return Copied, nil
}

// image copies a whole file to an empty one, and makes the copy durable.
func (t *tree) image(src, dst *os.File) error {
	from, err := src.Stat()
	if err != nil {
		return err
	}
	to, err := dst.Stat()
	if err != nil {
		return err
	}
	if !from.Mode().IsRegular() || !to.Mode().IsRegular() || to.Size() != 0 {
		return fmt.Errorf("the source must be a regular file, and the target an empty regular file: %w",
			windows.ERROR_INVALID_PARAMETER)
	}
	info, err := basicInfoOf(handle(src))
	if err != nil {
		return err
	}
	if info.is(windows.FILE_ATTRIBUTE_SPARSE_FILE) {
		err = t.sparse(src, dst)
	} else {
		err = t.data(src, dst, 0, from.Size())
	}
	if err != nil {
		return err
	}
	if to, err = dst.Stat(); err == nil && to.Size() != from.Size() { // src became shorter meanwhile
		err = fmt.Errorf("%d of %d bytes: %w", to.Size(), from.Size(), io.ErrUnexpectedEOF)
	}
	return errors.Join(err, windows.FlushFileBuffers(handle(dst)))
}
