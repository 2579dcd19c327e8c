package rig

import (
	"cmp"
	"net"
	"syscall"
)

// peer returns the ID of the process at the other end of a connection.
func peer(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *syscall.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) {
		who, asked = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || asked != nil {
		return 0, cmp.Or(err, asked)
	}
	return int(who.Pid), nil
}
