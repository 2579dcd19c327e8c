//go:build unix

package place

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// directory makes the open of anything else than a directory an error: a named pipe would block it.
const directory = syscall.O_DIRECTORY

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

// unlock gives the owner of a directory all rights to it. It returns false if the owner has them, or if
// this process may not change them.
func unlock(e entry) (unlocked, bool) {
	before, err := e.root.Lstat(e.name)
	if err != nil || !before.IsDir() || before.Mode().Perm()&0o700 == 0o700 {
		return unlocked{}, false
	}
	open := func() (*os.File, error) {
		return e.root.OpenFile(e.name, os.O_RDONLY|directory|syscall.O_NOFOLLOW, 0)
	}
	dir, err := open()
	if errors.Is(err, fs.ErrPermission) && chmodByName(e.root, e.name, before.Mode()|0o700) == nil {
		if dir, err = open(); err != nil {
			chmodByName(e.root, e.name, before.Mode()) // or another process has replaced it
		}
	}
	if err != nil {
		return unlocked{}, false
	}
	// The mode of before is set through the descriptor: another process can give the name to a link.
	if dir.Chmod(before.Mode()|0o700) != nil {
		dir.Close()
		return unlocked{}, false
	}
	return unlocked{dir, before.Mode()}, true
}
