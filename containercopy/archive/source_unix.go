//go:build unix

package archive

import (
	"io/fs"
	"syscall"
)

// nonblock: open(2) of a named pipe in place of a file does not wait for a writer.
const nonblock = syscall.O_NONBLOCK

func owner(info fs.FileInfo) (uid, gid int) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid), int(s.Gid)
	}
	return 0, 0
}
