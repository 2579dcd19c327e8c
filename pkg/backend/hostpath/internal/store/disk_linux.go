package store

import "golang.org/x/sys/unix"

const readOnlyFlag = unix.ST_RDONLY

// blockSize returns the unit of f_blocks, in bytes: statfs(2).
func blockSize(st *unix.Statfs_t) int64 { return st.Frsize }
