//go:build !linux

package process

import "syscall"

// dieWithParent asks for nothing: no other kernel ties a child's life to its parent's. A test that is killed leaves its
// processes behind there; one that ends by itself doesn't. In the terminal's group a Ctrl-C ends them too.
func dieWithParent() *syscall.SysProcAttr { return nil }
