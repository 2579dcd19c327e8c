//go:build unix && !linux

package place

import (
	"io/fs"
	"syscall"
)

// device returns the number of the filesystem of a file.
func device(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Dev)
	}
	return 0
}
