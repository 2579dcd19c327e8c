package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// isDenied reports whether the error is ERROR_ACCESS_DENIED, or what Winsock has for it.
func isDenied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.WSAEACCES)
}

// explain names no owner: rights on Windows are a list that needs calls of their own to read.
func explain(err error, path string, _ uint32) error {
	return fmt.Errorf("%w: %s: run this container as the driver's account, or as NT AUTHORITY\\SYSTEM "+
		"(windowsOptions.runAsUserName)", err, path)
}
