//go:build unix

package place

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// withRights calls move. If a right is missing, it gives the owner all rights to these directories,
// calls move again, and sets the modes of before, wherever the directories are then: rename(2) needs
// the right to write to a directory that it moves, and root needs none.
func withRights(move func() error, dirs ...entry) error {
	err := move()
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	var all []unlocked
	for _, d := range dirs {
		if u, ok := unlock(d); ok {
			all = append(all, u)
		}
	}
	if len(all) == 0 {
		return err
	}
	err = move()
	for _, u := range all {
		err = errors.Join(err, u.dir.Chmod(u.mode), u.dir.Close())
	}
	return err
}

// unlocked is a directory whose owner has all rights, and its mode of before.
type unlocked struct {
	dir  *os.File
	mode fs.FileMode
}

// unlock gives the owner of a directory all rights to it, through a descriptor: another user can give
// its name to a link. It returns false if the owner has them, or if this process may not change them
// or read the directory.
func unlock(e entry) (unlocked, bool) {
	dir, err := e.root.OpenFile(e.name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return unlocked{}, false
	}
	info, err := dir.Stat()
	if err != nil || info.Mode().Perm()&0o700 == 0o700 || dir.Chmod(info.Mode()|0o700) != nil {
		dir.Close()
		return unlocked{}, false
	}
	return unlocked{dir, info.Mode()}, true
}
