package dacl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

// descriptor returns the list in the language of security descriptors (SDDL). It replaces a list
// that the file inherits, and entries of a directory inherit it.
// https://learn.microsoft.com/windows/win32/secauthz/ace-strings
func (a Access) descriptor() string {
	const private = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;OW)"
	if a == Users {
		return private + "(A;OICI;0x1301bf;;;BU)" // modify
	}
	return private
}

// Set replaces the access control list of a file or directory.
func Set(path string, a Access) error {
	sd, err := windows.SecurityDescriptorFromString(a.descriptor())
	if err != nil {
		return err
	}
	list, _, err := sd.DACL()
	if err != nil {
		return err
	}
	const protected = windows.DACL_SECURITY_INFORMATION | windows.PROTECTED_DACL_SECURITY_INFORMATION
	if err := windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, protected, nil, nil, list, nil); err != nil {
		return fmt.Errorf("set the access control list of %s: %w", path, err)
	}
	return nil
}

// Mkdir makes a directory that has the list from its first moment. An existing directory keeps its
// list.
func Mkdir(path string, a Access) error {
	sd, err := windows.SecurityDescriptorFromString(a.descriptor())
	if err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err
	}
	attributes := windows.SecurityAttributes{SecurityDescriptor: sd}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	err = windows.CreateDirectory(name, &attributes)
	if errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

// Protect gives a file or directory the list Private if it still inherits its list. A list that an
// administrator has set stays.
func Protect(path string) error {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("read the access control list of %s: %w", path, err)
	}
	control, _, err := sd.Control()
	if err != nil || control&windows.SE_DACL_PROTECTED != 0 {
		return err
	}
	return Set(path, Private)
}

// MakePrivate makes a directory, with its parents, that other users cannot enter: a new one from
// its first moment.
func MakePrivate(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := Mkdir(path, Private); err != nil {
		return err
	}
	return Protect(path)
}
