//go:build !windows

package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// isDenied reports whether the error is EACCES or EPERM.
func isDenied(err error) bool { return errors.Is(err, fs.ErrPermission) }

// explain compares the process with the owner and the mode of the path, or of the parent that
// cannot be searched.
func explain(err error, path string, need uint32) error {
	at := path
	var info fs.FileInfo
	for ; ; at, need = filepath.Dir(at), maySearch {
		var failed error
		if info, failed = os.Stat(at); failed == nil {
			break
		}
		if at == filepath.Dir(at) {
			return err
		}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return err
	}
	groups, _ := os.Getgroups()
	uid, gid, mode := uint32(os.Geteuid()), os.Getegid(), uint32(info.Mode().Perm())
	return fmt.Errorf("%w: this process has uid %d, gid %d and groups %v; %s has owner %d:%d and mode %04o: %s", err,
		uid, gid, groups, at, stat.Uid, stat.Gid, mode,
		remedy(uid, append(groups, gid), stat.Uid, int(stat.Gid), mode, need))
}

// remedy returns the remedy for a process that lacks the permissions need at a file.
func remedy(uid uint32, groups []int, owner uint32, group int, mode, need uint32) string {
	class := mode
	switch {
	case uid == owner:
		class = mode >> 6
	case slices.Contains(groups, group):
		class = mode >> 3
	}
	if class&need == need {
		return "the mode permits it, so SELinux, AppArmor or seccomp denies it: see the node's audit log"
	}
	if uid == owner {
		owner = 0
	}
	right := map[uint32]string{maySearch: "search", mayWrite: "write", MayAddFile: "write and search"}[need]
	return fmt.Sprintf("set runAsUser: %d for this container, or give a group %s permission there and add the pod to "+
		"that group"+
		" (fsGroup or supplementalGroups)", owner, right)
}
