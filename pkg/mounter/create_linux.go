package mounter

import (
	"os"

	"golang.org/x/sys/unix"
)

// reserve makes an empty file size bytes large and allocates them: fallocate(2).
func reserve(file *os.File, size int64) error {
	return unix.Fallocate(int(file.Fd()), 0, 0, size)
}
