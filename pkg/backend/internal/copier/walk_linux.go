package copier

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The walk is in pre-order. First a directory is filled: all its entries are made in the target,
// subdirectories empty, and it gets its attributes. Then the worker descends into the
// subdirectories, one by one. It finds them by listing the directory of the target, which no tenant
// can change, so it keeps no list of them. Changes in a subdirectory do not change the times of its
// parent.
//
// A worker keeps the nearest directories above it open: the window. A directory outside the window
// keeps its name, its identity and its position in the listing. The worker opens it again through
// the ".." of the subdirectory below it.

const (
	// window is the number of directories that a worker has open, besides the directory that it
	// fills.
	window = 8
	// maxMoves is the number of directories that a copy opens by their path from the top, as ".."
	// leads elsewhere. Each takes a time that grows with the depth.
	maxMoves = 100
)

// dir is a directory of both trees, from the top to the directory in which a worker is.
type dir struct {
	parent *dir // nil at the top
	name   string
	depth  int
	open   *opened // nil outside the window

	left           int              // subdirectories in the target that are not filled yet
	at             int64            // position of the current subdirectory in the target's listing
	times          [2]unix.Timespec // of the source, at the time of its open
	source, target identity         // target is set when the directory leaves the window
}

// opened holds the descriptors of a directory. Several workers may use them.
type opened struct {
	dir      *dir
	src, dst int          // src is -1 if the directory is no longer at its path
	listing  listing      // of the target, once the directory is filled
	st       unix.Statx_t // of the source, while the directory is filled
	fillers  atomic.Int32 // workers that fill the directory
	users    atomic.Int32 // workers that use the descriptors
}

// join adds a worker that helps to fill the directory. The worker then calls leave and release.
func (o *opened) join() {
	o.users.Add(1)
	o.fillers.Add(1)
}

// release ends the use of the descriptors by a worker. The last worker closes them.
func (o *opened) release() {
	if o.users.Add(-1) > 0 {
		return
	}
	for _, fd := range []int{o.src, o.dst} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// open opens a subdirectory of two open directories. d.open stays nil, without an error, if the
// source no longer has this directory.
func (t *tree) open(d *dir, src, dst int, name string) error {
	o := &opened{dir: d, src: -1, dst: -1, listing: listing{fd: -1}}
	o.join()
	err := func() (err error) {
		if o.src, err = openAt(src, name, openDir); err != nil {
			o.src = -1
			return mounted(err)
		}
		if err = statx(o.src, &o.st); err != nil {
			return err
		}
		if d.source = identityOf(&o.st); d.source == t.target {
			return errors.New("the directory is the target of the copy")
		}
		if o.dst, err = openAt(dst, name, openDir); err != nil {
			o.dst = -1
		}
		return err
	}()
	if err == nil {
		d.open, d.times = o, times(&o.st)
		return nil
	}
	gone := o.src < 0 && vanished(err)
	o.release()
	if gone && d.parent != nil {
		return nil
	}
	return d.wrong("open", "", err)
}

// close ends the use of d's descriptors.
func (d *dir) close() {
	if d.open == nil {
		return
	}
	if d.open.listing.fd >= 0 {
		d.open.listing.close()
	}
	d.open.release()
	d.open = nil
}

// walker is a worker in a subtree.
type walker struct {
	*tree
	site    worksite
	buffer  [32 << 10]byte // for entries of the source
	pending []*dir         // with subdirectories left, each a subdirectory of the previous entry
}

// subtree copies the subtree of an open directory.
func (w *walker) subtree(d *dir) (err error) {
	defer func() {
		for _, p := range w.pending { // after an error, here or in another worker
			p.close()
		}
		clear(w.pending)
		w.pending = w.pending[:0]
	}()
	for d != nil && err == nil {
		if err = w.fill(d); err == nil && d.left > 0 {
			err = w.push(d)
		} else {
			d.close()
		}
		if err == nil {
			d, err = w.descend()
		}
	}
	return err
}

// push adds a directory whose subdirectories come next, and closes the directory that leaves the
// window.
func (w *walker) push(d *dir) error {
	w.pending = append(w.pending, d)
	if len(w.pending) <= window {
		return nil
	}
	d = w.pending[len(w.pending)-1-window]
	if d.open == nil {
		return nil
	}
	var st unix.Statx_t
	if err := statx(d.open.dst, &st); err != nil {
		return d.wrong("look at the copy of", "", err)
	}
	d.target = identityOf(&st)
	d.close()
	return nil
}

// descend returns the next directory to be filled, open, or nil if the subtree is complete.
func (w *walker) descend() (*dir, error) {
	for n := len(w.pending); n > 0; n = len(w.pending) {
		if stop, err := w.stopped(); stop {
			return nil, err
		}
		d := w.pending[n-1]
		name, err := w.subdirectory(d)
		if err != nil {
			return nil, d.wrong("list the copy of", "", err)
		}
		if name == "" {
			if err := w.pop(); err != nil {
				return nil, err
			}
			continue
		}
		sub, err := w.enter(d, name)
		if err != nil {
			return nil, err
		}
		if sub != nil && (d.left == 0 || !w.offer(sub)) {
			return sub, nil
		}
	}
	return nil, nil
}

// subdirectory returns the name of the next subdirectory of d, or "" at the end.
func (w *walker) subdirectory(d *dir) (string, error) {
	l := &d.open.listing
	if l.fd < 0 {
		fd, err := openAt(d.open.dst, ".", openDir) // btrfs lists the entries that existed at the open
		if err != nil {
			return "", err
		}
		l.open(fd)
	}
	for {
		e, at, ok, err := l.next()
		if err != nil {
			return "", err
		}
		if !ok {
			if d.left != 0 {
				return "", errListing
			}
			return "", nil
		}
		isDir, err := e.isDir(l.fd)
		if err != nil {
			return "", err
		}
		if !isDir || e.self() || d.parent == nil && string(e.name) == w.links.name {
			continue
		}
		d.left--
		d.at = at
		return string(e.name), nil
	}
}

// enter opens a subdirectory. If the source no longer has it, enter removes it from the target and
// returns nil.
func (w *walker) enter(d *dir, name string) (*dir, error) {
	sub := &dir{parent: d, name: name, depth: d.depth + 1}
	w.site.beginEntry(sub, "")
	if sub.depth > MaxDepth {
		return nil, fmt.Errorf("%w: more than %d levels, below %q: move the lower directories up, or pack them into "+
			"an archive", ErrDepth, MaxDepth, sub.top())
	}
	if d.open.src >= 0 {
		if err := w.open(sub, d.open.src, d.open.dst, name); err != nil || sub.open != nil {
			return sub, err
		}
	}
	err := unix.Unlinkat(d.open.dst, name, unix.AT_REMOVEDIR)
	if err == nil { // d may have its final times already
		err = unix.UtimesNanoAt(d.open.dst, "", d.times[:], unix.AT_EMPTY_PATH)
	}
	if err != nil {
		return nil, sub.wrong("remove", "", err)
	}
	return nil, nil
}

// pop leaves a directory whose subdirectories are complete, and opens its parent again if the
// parent had left the window.
func (w *walker) pop() error {
	n := len(w.pending) - 1
	d := w.pending[n]
	w.pending[n] = nil
	w.pending = w.pending[:n]
	defer d.close()
	if n == 0 || w.pending[n-1].open != nil {
		return nil
	}
	return w.reopen(w.pending[n-1], d)
}

// reopen opens a directory that had left the window, through its subdirectory sub, and sets its
// listing behind sub.
func (w *walker) reopen(d, sub *dir) error {
	o := &opened{dir: d, src: -1, dst: -1, listing: listing{fd: -1}}
	o.users.Add(1)
	d.open = o
	up := []string{".."}
	var err error
	if o.dst, err = openSame(sub.open.dst, up, d.target); err == nil && o.dst < 0 {
		err = errListing
	}
	if err != nil {
		return d.wrong("open the copy of", "", err)
	}
	o.src, _ = openSame(sub.open.src, up, d.source) // an error means that the directory was moved
	if o.src < 0 {
		if err := w.find(d); err != nil {
			return err
		}
	}
	fd, err := openAt(o.dst, ".", openDir)
	if err == nil {
		o.listing.open(fd)
		err = o.listing.resume(sub.name, d.at)
	}
	if err != nil {
		return d.wrong("list the copy of", "", err)
	}
	return nil
}

// find opens a directory of the source by its path, as the ".." of its subdirectory leads
// elsewhere. d.open.src stays -1 if the directory is no longer at its path.
func (w *walker) find(d *dir) error {
	if w.moves.Add(1) > maxMoves {
		return d.wrong("open", "", ErrMoved)
	}
	fd, err := openSame(w.src, d.names(), d.source)
	if err != nil && !vanished(err) {
		return d.wrong("open", "", mounted(err))
	}
	d.open.src = fd
	return nil
}

// fill makes all entries of an open directory in the target, with the help of idle workers.
func (w *walker) fill(d *dir) error {
	w.fail(w.everything(d.open)) // before leave, which sets the attributes only if no worker has failed
	return w.leave(d.open)
}

// everything copies the entries of a directory part by part.
func (w *walker) everything(o *opened) error {
	for {
		w.site.beginEntry(o.dir, "")
		if stop, err := w.stopped(); stop {
			return err
		}
		n, err := getdents(o.src, w.buffer[:])
		if err != nil {
			return o.dir.wrong("read", "", err)
		}
		if n == 0 {
			return nil
		}
		if err := w.part(o, w.buffer[:n]); err != nil {
			return err
		}
	}
}

// part copies the entries that are in a buffer.
func (w *walker) part(o *opened, buffer []byte) error {
	l := &list{of: o}
	var dirs []string
	for rest := buffer; len(rest) > 0; {
		var e dirent
		e, rest = nextDirent(rest)
		if e.self() {
			continue
		}
		isDir, err := e.isDir(o.src)
		if err != nil {
			return o.dir.wrong("look at", string(e.name), err)
		}
		if isDir {
			dirs = append(dirs, string(e.name))
		} else {
			l.names = append(l.names, string(e.name))
		}
	}
	defer w.share(l)()
	if err := w.makeDirs(o, dirs); err != nil {
		return err
	}
	return w.entries(l)
}

// makeDirs makes subdirectories, empty, to be filled later.
func (w *walker) makeDirs(o *opened, names []string) error {
	for _, name := range names {
		if stop, err := w.stopped(); stop {
			return err
		}
		err := twice(unix.Mkdirat(o.dst, name, 0o700))
		if errors.Is(err, errTwice) {
			continue
		}
		if err != nil {
			return o.dir.wrong("make", name, err)
		}
		o.dir.left++
	}
	return nil
}

// entries copies those entries of a list that no other worker takes.
func (w *walker) entries(l *list) error {
	for {
		if stop, err := w.stopped(); stop {
			return err
		}
		i := int(l.taken.Add(1)) - 1
		if i >= len(l.names) {
			return nil
		}
		w.site.beginEntry(l.of.dir, l.names[i])
		if err := w.entry(l.of, l.names[i]); err != nil {
			return err
		}
	}
}

// leave is called by each worker that has filled a directory. The last worker sets the attributes
// of the directory, unless the copy has failed.
func (w *walker) leave(o *opened) error {
	if o.fillers.Add(-1) > 0 || w.failed.Load() || o.dir.parent == nil { // see finish for the top
		return nil
	}
	w.site.beginEntry(o.dir, "")
	if err := w.directoryAttributes(o.src, o.dst, &o.st); err != nil {
		return o.dir.wrong("copy", "", err)
	}
	w.progress.addEntry()
	if err := w.made.add(o.dst, o.dir, ""); err != nil {
		return o.dir.wrong("copy", "", err)
	}
	return nil
}
