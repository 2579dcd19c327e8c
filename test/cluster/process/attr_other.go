//go:build !linux

package process

import "syscall"

// DieWithThread asks for nothing: no other kernel ties a child's life to its parent's. A test that is killed leaves its
// processes behind there; one that ends by itself doesn't. A terminal's Ctrl-C ends them too, as they are in its group.
func DieWithThread() *syscall.SysProcAttr { return nil }
