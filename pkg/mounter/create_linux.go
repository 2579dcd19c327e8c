package mounter

import (
	"os"

	"golang.org/x/sys/unix"
)

// reserve allocates the first size bytes of a file, and makes it at least size bytes large:
// fallocate(2). Bytes that the file has stay.
func reserve(file *os.File, size int64) error {
	return unix.Fallocate(int(file.Fd()), 0, 0, size)
}
