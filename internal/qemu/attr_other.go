//go:build !linux

package qemu

import "syscall"

// dieWithThread does nothing: no other kernel ties the life of a child to its parent.
func dieWithThread() *syscall.SysProcAttr { return nil }
