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

// Tree copies all that is in the directory src, and the attributes of src itself, to the empty directory dst: files
// as File does, directories, symbolic links, hard links within the tree, device nodes, fifos, sockets; modes, owners,
// times, extended attributes with ACLs and capabilities. What it can't copy is an error that names it; so is a mount
// inside src. Subvolumes of btrfs become directories. Of the flags of chattr only C of btrfs is copied.
//
// It is durable when Tree returns, but for the entry of dst in its directory. Nobody else may change what is in dst.
// It holds about five descriptors a worker, however deep the tree is. errors.Is knows ENOSPC and EDQUOT. After an
// error what is in dst is to be discarded.
func Tree(ctx context.Context, src, dst *os.File, o Options) (How, error) {
	t := newTree(ctx, src, dst, o)
	err := t.copy()
	return t.content.how(), err
}

func newTree(ctx context.Context, src, dst *os.File, o Options) *tree {
	t := &tree{ctx: ctx, from: src, to: dst, workers: o.Workers}
	if t.workers <= 0 {
		t.workers = min(runtime.GOMAXPROCS(0), 8)
	}
	t.content.progress = o.Progress
	t.change.L = &t.mu
	return t
}

// tree is a copy of a tree that is under way. A worker lists a directory, or helps with the entries of one that
// another worker has listed. Directories that are found wait as names: only those in work are open.
type tree struct {
	ctx      context.Context
	from, to *os.File
	src, dst int          // of from and to
	target   unix.Statx_t // of dst
	content  content
	links    links
	made     made

	failed  atomic.Bool // err is set: stop
	mu      sync.Mutex
	change  sync.Cond
	err     error   // the first
	dirs    []*dir  // to be listed; the last one next
	lists   []*list // in which there may be entries that nobody has taken
	workers int     // that run
	idle    int     // of them, that wait for something to do
}

// dir is a directory of both trees.
type dir struct {
	parent *dir // nil at the top
	name   string
	// times are those of the source, from when it was opened.
	times [2]unix.Timespec

	// The rest is set while it is in work.
	src, dst int
	st       unix.Statx_t // of the source
	users    atomic.Int32 // workers with it in their hands; the last one finishes it
}

// list is a part of the names in a directory.
type list struct {
	dir   *dir
	names []string
	taken atomic.Int64
}

// left tells whether there are entries that nobody has taken.
func (l *list) left() bool { return l.taken.Load() < int64(len(l.names)) }

// copy copies everything and makes it durable.
func (t *tree) copy() error {
	defer runtime.KeepAlive(t.from) // or the collector may close it in the middle
	defer runtime.KeepAlive(t.to)
	t.src, t.dst = int(t.from.Fd()), int(t.to.Fd())
	if err := statx(t.dst, &t.target); err != nil {
		return fmt.Errorf("look at %q: %w", t.to.Name(), err)
	}
	for _, acl := range []string{"system.posix_acl_default", "system.posix_acl_access"} { // or all would inherit it
		if err := unix.Fremovexattr(t.dst, acl); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("remove the ACL of %q: %w", t.to.Name(), err)
		}
	}
	t.dirs = []*dir{{}}
	var all sync.WaitGroup
	for range t.workers {
		all.Go(t.work)
	}
	all.Wait()
	if t.err != nil {
		return t.err
	}
	return t.sync()
}

// work does what there is to do until there is no more.
func (t *tree) work() {
	for {
		l, d := t.next()
		switch {
		case l != nil:
			t.fail(t.entries(l))
			t.fail(t.release(l.dir))
		case d != nil:
			t.fail(t.directory(d))
		default:
			return
		}
	}
}

// fail ends the work if err isn't nil.
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

// next waits for something to do, and returns nothing when all is done or has failed. A directory comes first: two
// workers in one are in each other's way. The caller releases that of a list.
func (t *tree) next() (*list, *dir) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.idle++; ; t.change.Wait() {
		if t.failed.Load() {
			return nil, nil // and idle: for the others that is an end too
		}
		if n := len(t.dirs); n > 0 {
			t.idle--
			d := t.dirs[n-1]
			t.dirs = t.dirs[:n-1]
			return nil, d
		}
		if i := slices.IndexFunc(t.lists, (*list).left); i >= 0 {
			t.idle--
			t.lists[i].dir.users.Add(1)
			return t.lists[i], nil
		}
		if t.idle == t.workers {
			t.change.Broadcast()
			return nil, nil
		}
	}
}

// found leaves a directory to be listed.
func (t *tree) found(d *dir) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dirs = append(t.dirs, d)
	t.change.Signal()
}

// directory copies what is in d, which exists in the target.
func (t *tree) directory(d *dir) error {
	switch there, err := t.open(d); {
	case err != nil:
		return err
	case !there:
		return t.vanished(d)
	}
	d.users.Store(1)
	t.fail(t.everything(d)) // before release, which finishes d only if all went well
	return t.release(d)
}

// everything copies the entries of d, with the help of idle workers.
func (t *tree) everything(d *dir) error {
	buffer := make([]byte, 32<<10)
	for {
		var n int
		err := retry(func() (err error) { n, err = unix.Getdents(d.src, buffer); return })
		if errors.Is(err, unix.ENOENT) || err == nil && n == 0 { // ENOENT: it has been removed
			return nil
		}
		if err != nil {
			return d.wrong("read", "", err)
		}
		l := &list{dir: d}
		_, _, l.names = unix.ParseDirent(buffer[:n], -1, nil)
		t.mu.Lock()
		t.lists = append(t.lists, l)
		t.change.Broadcast()
		t.mu.Unlock()
		err = t.entries(l)
		t.mu.Lock()
		t.lists = slices.DeleteFunc(t.lists, func(o *list) bool { return o == l })
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// entries copies those of a list that nobody else takes.
func (t *tree) entries(l *list) error {
	for !t.failed.Load() {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		i := int(l.taken.Add(1)) - 1
		if i >= len(l.names) {
			break
		}
		if err := t.entry(l.dir, l.names[i]); err != nil {
			return err
		}
	}
	return nil
}

// release gives d back. The last worker sets what the entries have changed, unless the copy has failed.
func (t *tree) release(d *dir) error {
	if d.users.Add(-1) > 0 {
		return nil
	}
	defer unix.Close(d.src)
	defer unix.Close(d.dst)
	if t.failed.Load() {
		return nil
	}
	if err := t.attributes(d.src, d.dst, &d.st); err != nil {
		return d.wrong("copy", "", err)
	}
	if err := copyNoCow(d.src, d.dst); err != nil { // not earlier: the files in it would have inherited it
		return d.wrong("set the flags of", "", err)
	}
	t.made.add(d, "")
	return nil
}

const (
	openDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	openPath = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	// Without a link and without "..", which no path here has, there is only the way down. RESOLVE_BENEATH would add
	// nothing, but that a file which is moved in that moment looks like one on another mount.
	stayBelow = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
)

// openBelow opens what a path leads to from a directory. A link on the way is ELOOP and a mount EXDEV.
func openBelow(dir int, path string, flags uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: flags, Resolve: stayBelow}
	err = retry(func() error { fd, err = unix.Openat2(dir, path, &how); return err })
	if flags&unix.O_NOATIME != 0 && errors.Is(err, unix.EPERM) { // not ours
		return openBelow(dir, path, flags&^unix.O_NOATIME)
	}
	return fd, err
}

// open opens a directory in both trees. It is not there if it was removed, moved or replaced since it was found.
func (t *tree) open(d *dir) (there bool, err error) {
	d.src, err = d.openFrom(t.src, openDir|unix.O_NOATIME)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return false, nil
	case err != nil:
		return false, d.wrong("open", "", mounted(err))
	}
	if d.dst, err = d.openFrom(t.dst, openDir); err == nil {
		if err = statx(d.src, &d.st); err == nil {
			d.times = times(&d.st)
			return true, nil
		}
		unix.Close(d.dst)
	}
	unix.Close(d.src)
	return false, d.wrong("open", "", err)
}

// vanished takes d out of the target again.
func (t *tree) vanished(d *dir) error {
	if d.parent == nil {
		return d.wrong("open", "", unix.ENOENT)
	}
	parent, err := d.parent.openFrom(t.dst, openDir)
	if err != nil {
		return d.wrong("open", "", err)
	}
	defer unix.Close(parent)
	err = unix.Unlinkat(parent, d.name, unix.AT_REMOVEDIR)
	if err == nil { // its times may be set already
		err = unix.UtimesNanoAt(parent, "", d.parent.times[:], unix.AT_EMPTY_PATH)
	}
	if err != nil {
		return d.wrong("remove", "", err)
	}
	return nil
}

// maxPath is the longest path that is given to the kernel, in bytes. A deeper directory is reached in several steps.
const maxPath = 4000

// openFrom opens the directory below the top of one of the trees.
func (d *dir) openFrom(top int, flags uint64) (int, error) {
	return openSteps(top, d.names(), flags)
}

// openSteps opens what names lead to from a directory.
func openSteps(top int, names []string, flags uint64) (int, error) {
	at := top
	for {
		path, n := ".", 0
		for n < len(names) && len(path)+1+len(names[n]) < maxPath {
			path += "/" + names[n]
			n++
		}
		names = names[n:]
		next := uint64(openPath | unix.O_DIRECTORY)
		if len(names) == 0 {
			next = flags
		}
		fd, err := openBelow(at, path, next)
		if at != top {
			unix.Close(at)
		}
		if err != nil || len(names) == 0 {
			return fd, err
		}
		at = fd
	}
}

// names are those of the directories from the top to this one.
func (d *dir) names() []string {
	var names []string
	for ; d.parent != nil; d = d.parent {
		names = append(names, d.name)
	}
	slices.Reverse(names)
	return names
}
