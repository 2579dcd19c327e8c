//go:build !linux

package process

import "syscall"

// DieWithThread does nothing: no other kernel ties the life of a child to its parent. A test that
// is killed leaves its processes behind there; a test that ends does not. A terminal's Ctrl-C ends
// them too, as they are in its group.
func DieWithThread() *syscall.SysProcAttr { return nil }
