//go:build !unix

package archive

import (
	"io/fs"
	"os"
)

const nonblock = 0

// chmod sets the permissions of a directory below a root.
func chmod(root *os.Root, name string, mode fs.FileMode) error { return root.Chmod(name, mode) }

// owner returns root: files have no numeric owner here.
func owner(fs.FileInfo) (uid, gid int) { return 0, 0 }
