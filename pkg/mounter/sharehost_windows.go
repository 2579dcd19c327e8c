package mounter

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/windows"
)

// windowsShares are the shares of Windows.
type windowsShares struct{ library }

// probe asks for the attributes of the directory, and opens no file in it. It follows links.
func (windowsShares) probe(path string) error {
	name, err := windows.UTF16PtrFromString(long(path))
	if err != nil {
		return err
	}
	attributes, err := windows.GetFileAttributes(name)
	if err == nil && attributes&windows.FILE_ATTRIBUTE_DIRECTORY == 0 {
		err = windows.ERROR_DIRECTORY
	}
	return portable(err)
}

func (windowsShares) shareUsage(path string) (Usage, error) {
	u, err := windowsLinks{}.usage(path)
	return u, portable(err)
}

// portable gives an error of Windows its code. An Errno of package syscall is no windowsCode.
func portable(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("%w: %w", windowsCode(errno), err)
	}
	return err
}
