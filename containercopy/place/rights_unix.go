//go:build unix

package place

import (
	"errors"
	"io/fs"
	"os"
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

// unlock gives the owner of a directory all rights to it. It returns false if the owner has them, or
// if this process may not change them.
func unlock(e entry) (unlocked, bool) {
	info, err := e.root.Lstat(e.name)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o700 == 0o700 ||
		e.root.Chmod(e.name, info.Mode().Perm()|0o700) != nil {
		return unlocked{}, false
	}
	dir, err := e.root.Open(e.name)
	if err != nil {
		e.root.Chmod(e.name, info.Mode())
		return unlocked{}, false
	}
	return unlocked{dir, info.Mode()}, true
}
