//go:build unix

package archive

import (
	"io/fs"
	"os"
	"syscall"
)

// nonblock: open(2) of a named pipe in place of a file does not wait for a writer.
const nonblock = syscall.O_NONBLOCK

// chmod sets the permissions of a directory below a root. It opens the directory where that is possible:
// Root.Chmod needs Linux 6.6 in a process without /proc.
func chmod(root *os.Root, name string, mode fs.FileMode) error {
	dir, err := root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return root.Chmod(name, mode)
	}
	defer dir.Close()
	return dir.Chmod(mode)
}

func owner(info fs.FileInfo) (uid, gid int) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid), int(s.Gid)
	}
	return 0, 0
}
