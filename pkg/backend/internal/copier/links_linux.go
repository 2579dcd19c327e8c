package copier

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"

	"golang.org/x/sys/unix"
)

// links makes the hard links of the target. For each file of the source with several names, a
// directory in the top of the target holds an additional name of the copy, until the copy has as
// many names as its source. So the memory does not grow with the number of such files, and each
// link takes the same time. The directory is inside the target: a directory elsewhere could be in
// another project or subvolume, where links from the target are impossible.
//
// The directory is made for the first such file, and removed at the end of the copy.
type links struct {
	name string // of the directory: random, so that the source has no such name

	mu sync.Mutex
	fd int // of the directory; -1 before the first file with several names

	// files keep out workers that have another name of the same file.
	files [64]sync.Mutex
	seed  maphash.Seed
}

func (l *links) init() error {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	l.name, l.fd, l.seed = ".causeway-links-"+hex.EncodeToString(random[:]), -1, maphash.MakeSeed()
	return nil
}

// close closes the directory. After an error the directory stays in the target, which the caller
// discards.
func (l *links) close() {
	if l.fd >= 0 {
		unix.Close(l.fd)
	}
	l.fd = -1
}

// open returns the directory. The first call makes it.
func (l *links) open(t *tree) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 {
		return l.fd, nil
	}
	err := unix.Mkdirat(t.dst, l.name, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) { // the directory exists if an earlier call could not open it
		return -1, err
	}
	fd, err := openAt(t.dst, l.name, openDir)
	if err != nil {
		return -1, err
	}
	l.fd = fd
	t.made.node() // an fsync of single files could lose names that were moved; syncfs cannot
	return fd, nil
}

// sideName returns the name, in the directory, of the copy of a file. A filesystem reuses the inode
// number of a removed file, but not with the same time of birth.
func sideName(st *unix.Statx_t) string {
	return fmt.Sprintf("%x.%x.%x.%x.%x", st.Dev_major, st.Dev_minor, st.Ino, st.Btime.Sec, st.Btime.Nsec)
}

// makeEntry makes an entry whose file has several names. makeEntry returns the new file, open, or
// -1 if the file is in the copy already and the entry is a further name. Errors: errTwice.
func (l *links) makeEntry(t *tree, e *entry) (dst int, err error) {
	side, err := l.open(t)
	if err != nil {
		return -1, fmt.Errorf("make the directory for hard links: %w", err)
	}
	key := sideName(&e.st)
	mu := &l.files[maphash.String(l.seed, key)%uint64(len(l.files))]
	mu.Lock()
	defer mu.Unlock()
	linked, err := e.link(side, key)
	if linked || err != nil {
		return -1, err
	}
	if dst, err = e.make(); err != nil {
		return -1, err
	}
	if err := unix.Linkat(e.of.dst, e.name, side, key, 0); err != nil {
		unix.Close(dst)
		return -1, fmt.Errorf("link: %w", err)
	}
	return dst, nil
}

// link makes the entry another name of the file key in the directory side, if this file exists. The
// last name is made by moving the name out of side: the file may already have as many names as its
// filesystem permits.
func (e *entry) link(side int, key string) (linked bool, err error) {
	var st unix.Statx_t
	err = unix.Statx(side, key, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_NLINK, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if st.Nlink != e.st.Nlink {
		err = unix.Linkat(side, key, e.of.dst, e.name, 0)
		if !errors.Is(err, unix.EMLINK) {
			return true, twice(err)
		}
	}
	err = unix.Renameat2(side, key, e.of.dst, e.name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // the filesystem has no RENAME_NOREPLACE
		if err = unix.Linkat(side, key, e.of.dst, e.name, 0); err == nil {
			err = unix.Unlinkat(side, key, 0)
		}
	}
	return true, twice(err)
}

// remove removes the directory and the names that are left in it: those of files that have names
// outside the tree, or that lost a name during the copy.
func (l *links) remove(t *tree) error {
	if l.fd < 0 {
		return nil
	}
	for more := true; more; { // a removal during the listing may hide an entry from the listing
		var err error
		if more, err = l.empty(t); err != nil {
			return err
		}
	}
	return unix.Unlinkat(t.dst, l.name, unix.AT_REMOVEDIR)
}

// empty removes the names that a listing of the directory finds, and reports whether there was a
// name.
func (l *links) empty(t *tree) (found bool, err error) {
	fd, err := openAt(l.fd, ".", openDir)
	if err != nil {
		return false, err
	}
	var names listing
	names.open(fd)
	defer names.close()
	for {
		e, _, ok, err := names.next()
		if !ok || err != nil {
			return found, err
		}
		if e.self() {
			continue
		}
		if err := t.ctx.Err(); err != nil {
			return found, err
		}
		found = true
		if err := unix.Unlinkat(l.fd, string(e.name), 0); err != nil {
			return found, err
		}
	}
}
