package copier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Tree copies the content of the directory src, and the attributes of src itself, to the empty
// directory dst: files as File does, directories, symbolic links, hard links within the tree,
// device nodes, FIFOs, sockets; modes, owners, times, extended attributes with ACLs and
// capabilities. For an entry that cannot be copied, and for a mount inside src, Tree returns an
// error that names it. Subvolumes of btrfs become directories. Of the flags of chattr(1) only C of
// btrfs is copied.
//
// The copy is durable when Tree returns, except for the entry of dst in its directory. No other
// process may change the content of dst. Errors: ErrLease, ErrDepth, ErrMoved; errors.Is finds
// ENOSPC and EDQUOT. After an error the caller discards the content of dst.
//
// The time is linear in the number of entries at any depth. The memory is a constant for each
// worker, and up to some 400 bytes for each level that a worker is below the top. A worker holds at
// most 33 descriptors, a copy 20 more.
func Tree(ctx context.Context, src, dst *os.File, o Options) (How, error) {
	t := newTree(ctx, src, dst, o)
	err := t.copy()
	return t.content.how(), err
}

func newTree(ctx context.Context, src, dst *os.File, o Options) *tree {
	t := &tree{ctx: ctx, from: src, to: dst, progress: o.Progress, workers: o.Workers}
	if t.workers <= 0 {
		t.workers = min(runtime.GOMAXPROCS(0), 8)
	}
	t.content.progress, t.content.yield = o.Progress, o.Yield
	t.change.L = &t.mu
	return t
}

// tree is a copy of a tree. Each worker walks a subtree of its own. A worker with more than one
// subdirectory before it offers a subtree to the others. If there is no subtree to offer, idle
// workers help with the entries of a directory.
type tree struct {
	ctx      context.Context
	from, to *os.File
	src, dst int          // descriptors of from and to
	target   identity     // of dst
	top      unix.Statx_t // of src
	content  content
	links    links
	leases   leases
	made     made
	moves    atomic.Int32 // searches for a directory that was moved
	progress *Progress

	failed  atomic.Bool // err is set: stop
	mu      sync.Mutex
	change  sync.Cond
	err     error   // the first
	ready   []*dir  // open directories whose subtrees no worker has taken
	lists   []*list // entries in which idle workers may help
	workers int     // that run
	idle    int     // workers that wait
}

// copy copies everything and makes it durable.
func (t *tree) copy() error {
	defer runtime.KeepAlive(t.from) // otherwise the garbage collector could close it during the copy
	defer runtime.KeepAlive(t.to)
	defer t.made.close()
	defer t.links.close()
	t.src, t.dst = int(t.from.Fd()), int(t.to.Fd())
	if err := t.prepare(); err != nil {
		return fmt.Errorf("prepare %q for a copy: %w", t.to.Name(), err)
	}
	top := &dir{}
	if err := t.open(top, t.src, t.dst, "."); err != nil {
		return err
	}
	t.top = top.open.st
	t.ready = append(t.ready, top)
	var all sync.WaitGroup
	for range t.workers {
		all.Go(t.work)
	}
	all.Wait()
	for _, d := range t.ready { // after an error
		d.close()
	}
	if t.err != nil {
		return t.err
	}
	return t.finish(top)
}

// prepare reads the properties of the target, and removes its ACLs, so that its entries inherit
// nothing.
func (t *tree) prepare() error {
	var st unix.Statx_t
	if err := statx(t.dst, &st); err != nil {
		return err
	}
	t.target = identityOf(&st)
	var err error
	if t.content.noFlags, err = hasNoFlags(t.dst); err != nil {
		return err
	}
	if err := isEmpty(t.dst); err != nil {
		return err
	}
	for _, acl := range []string{"system.posix_acl_default", "system.posix_acl_access"} {
		err := unix.Fremovexattr(t.dst, acl)
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("remove %s: %w", acl, err)
		}
	}
	return t.links.init()
}

// isEmpty returns ENOTEMPTY for a directory with entries. If the directory was empty, the copy has
// made every name that exists in it.
func isEmpty(dir int) error {
	fd, err := openAt(dir, ".", openDir)
	if err != nil {
		return err
	}
	var l listing
	l.open(fd)
	defer l.close()
	for {
		switch e, _, ok, err := l.next(); {
		case err != nil || !ok:
			return err
		case !e.self():
			return unix.ENOTEMPTY
		}
	}
}

// finish completes the copy after the last entry. The attributes of the top come last: its mode can
// forbid this process to make and remove the directory for hard links, and both change the times of
// the top.
func (t *tree) finish(top *dir) error {
	var site worksite
	defer t.progress.enter(&site)()
	site.beginEntry(top, "")
	if err := t.links.remove(t); err != nil {
		return fmt.Errorf("remove the directory for hard links: %w", err)
	}
	if err := t.directoryAttributes(t.src, t.dst, &t.top); err != nil {
		return top.wrong("copy", "", err)
	}
	t.progress.addEntry()
	if err := t.made.add(t.dst, top, ""); err != nil {
		return top.wrong("copy", "", err)
	}
	site.beginEntry(nil, "")
	return t.sync()
}

// work is the goroutine of a worker: it walks subtrees and helps other workers until the copy is
// complete.
func (t *tree) work() {
	w := &walker{tree: t}
	defer t.progress.enter(&w.site)()
	for {
		w.site.beginEntry(nil, "")
		l, d := t.next()
		switch {
		case l != nil:
			t.fail(w.entries(l))
			t.fail(w.leave(l.of))
			l.of.release()
		case d != nil:
			t.fail(w.subtree(d))
		default:
			return
		}
	}
}

// fail ends the copy if err is not nil.
func (t *tree) fail(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
	t.failed.Store(true)
	t.change.Broadcast()
}

// stopped is called between two entries. It reports whether the worker must stop, with the error of
// the context if that is the reason.
func (t *tree) stopped() (bool, error) {
	if t.failed.Load() {
		return true, nil
	}
	if t.content.yield != nil {
		t.content.yield()
	}
	err := t.ctx.Err()
	return err != nil, err
}

// next waits for a directory or a list, and returns neither at the end of the copy. Directories
// come first, as two workers in the same directory slow each other down. next joins the directory
// of a list, and the caller releases it.
func (t *tree) next() (*list, *dir) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.idle++; ; t.change.Wait() {
		if t.failed.Load() {
			return nil, nil // this worker stays counted as idle, so that the others end, too
		}
		if n := len(t.ready); n > 0 {
			t.idle--
			d := t.ready[n-1]
			t.ready = t.ready[:n-1]
			return nil, d
		}
		if i := slices.IndexFunc(t.lists, (*list).left); i >= 0 {
			t.idle--
			t.lists[i].of.join()
			return t.lists[i], nil
		}
		if t.idle == t.workers {
			t.change.Broadcast()
			return nil, nil
		}
	}
}

// offer offers the subtree of an open directory to another worker, unless enough subtrees are
// offered already.
func (t *tree) offer(d *dir) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.ready) >= t.workers-1 {
		return false
	}
	t.ready = append(t.ready, d)
	t.change.Signal()
	return true
}

// list is a part of the names in a directory, without its subdirectories.
type list struct {
	of    *opened
	names []string
	taken atomic.Int64
}

// left reports whether there are names that no worker has taken.
func (l *list) left() bool { return l.taken.Load() < int64(len(l.names)) }

// share lets idle workers help with a list until unshare is called.
func (t *tree) share(l *list) (unshare func()) {
	if len(l.names) < 2 || t.workers < 2 {
		return func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lists = append(t.lists, l)
	if t.idle > 0 {
		t.change.Broadcast()
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.lists = slices.DeleteFunc(t.lists, func(o *list) bool { return o == l })
	}
}
