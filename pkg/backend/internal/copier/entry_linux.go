package copier

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// entry copies an entry of a directory that was listed as anything but a directory.
func (w *walker) entry(o *opened, name string) error {
	src, err := openAt(o.src, name, openPath) // from now on a swap of names has no effect
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return o.dir.wrong("open", name, mounted(err))
	}
	defer unix.Close(src)
	e := entry{of: o, name: name, src: src}
	if err := statx(src, &e.st); err != nil {
		return o.dir.wrong("look at", name, err)
	}
	if e.kind() == unix.S_IFDIR { // a directory has replaced the listed entry
		return nil
	}
	dst, err := w.makeEntry(&e)
	if errors.Is(err, errTwice) {
		return nil
	}
	if err != nil {
		return o.dir.wrong("make", name, err)
	}
	if dst >= 0 {
		defer unix.Close(dst)
		if err := w.complete(&e, dst); err != nil {
			return o.dir.wrong("copy", name, err)
		}
	}
	w.progress.addEntry()
	return nil
}

// entry is an entry of the source that is not a directory.
type entry struct {
	of   *opened
	name string
	src  int // open as a path
	st   unix.Statx_t
}

func (e *entry) kind() uint32 { return uint32(e.st.Mode) & unix.S_IFMT }

// makeEntry makes the entry in the target, empty, and returns it open, as a path unless it is a
// regular file. dst is -1 if the entry is another name of a file that is in the copy already.
// Errors: errTwice.
func (w *walker) makeEntry(e *entry) (dst int, err error) {
	if e.st.Nlink > 1 {
		return w.links.makeEntry(w.tree, e)
	}
	return e.make()
}

// errTwice: the directory was changed during its listing, which returned the entry twice. The
// target was empty, and no other process changes it: the copy has made every name that exists
// there.
var errTwice = errors.New("the entry is in the copy already")

// twice converts EEXIST to errTwice.
func twice(err error) error {
	if errors.Is(err, unix.EEXIST) {
		return errTwice
	}
	return err
}

// make makes the entry in the target. Errors: errTwice.
func (e *entry) make() (dst int, err error) {
	switch kind := e.kind(); kind {
	case unix.S_IFREG:
		err = retry(func() error { dst, err = unix.Openat(e.of.dst, e.name, makeFile, 0o600); return err })
		return dst, twice(err)
	case unix.S_IFLNK:
		var to [unix.PathMax]byte
		n, err := unix.Readlinkat(e.src, "", to[:])
		if err != nil {
			return -1, fmt.Errorf("read the link: %w", err)
		}
		if err := unix.Symlinkat(string(to[:n]), e.of.dst, e.name); err != nil {
			return -1, twice(err)
		}
	default:
		dev := unix.Mkdev(e.st.Rdev_major, e.st.Rdev_minor)
		if err := unix.Mknodat(e.of.dst, e.name, kind|0o600, int(dev)); err != nil {
			return -1, twice(err)
		}
	}
	return openAt(e.of.dst, e.name, openPath)
}

// complete copies the content and the attributes of an entry to dst, its empty copy.
func (w *walker) complete(e *entry, dst int) error {
	if e.kind() != unix.S_IFREG {
		w.made.node()
		return w.nodeAttributes(e.src, dst, &e.st)
	}
	src, err := w.leases.open(w.ctx, e.src)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer unix.Close(src)
	if err := w.content.copy(w.ctx, &w.site, src, dst, int64(e.st.Size)); err != nil {
		return err
	}
	if err := w.fileAttributes(src, dst, &e.st); err != nil {
		return err
	}
	return w.made.add(dst, e.of.dir, e.name)
}
