package win

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"golang.org/x/sys/windows"
)

// windowsShares are the shares of Windows.
type windowsShares struct{ library }

// Probe asks for the attributes of the directory, and opens no file in it. It follows links.
func (windowsShares) Probe(path string) error {
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

func (windowsShares) ShareUsage(path string) (mounter.Usage, error) {
	u, err := windowsLinks{}.Usage(path)
	return u, portable(err)
}

// portable gives an error of Windows its code. An Errno of package syscall is no WindowsCode.
func portable(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("%w: %w", links.WindowsCode(errno), err)
	}
	return err
}
