//go:build !linux && !windows

package hostpath

import "golang.org/x/sys/unix"

const readOnlyFlag = unix.MNT_RDONLY
