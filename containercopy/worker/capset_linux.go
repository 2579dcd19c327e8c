package worker

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setCapabilities is capset(2) in all threads: Capset of x/sys is for one.
func setCapabilities(header *unix.CapUserHeader, data *[2]unix.CapUserData) error {
	err := allThreads("capset", unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(data)), 0)
	runtime.KeepAlive(header)
	runtime.KeepAlive(data)
	return err
}
