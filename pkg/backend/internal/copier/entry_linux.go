package copier

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// entry copies one entry of a directory. Of a directory it makes an empty one, to be filled later.
func (t *tree) entry(d *dir, name string) error {
	src, err := openBelow(d.src, name, openPath) // whatever is swapped from here on, it is this one that is copied
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return d.wrong("open", name, mounted(err))
	}
	defer unix.Close(src)
	var st unix.Statx_t
	if err := statx(src, &st); err != nil {
		return d.wrong("look at", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return t.node(d, name, src, &st)
	}
	if same(&st, &t.target) {
		return d.wrong("copy", name, errors.New("it is the target of the copy"))
	}
	if err := unix.Mkdirat(d.dst, name, 0o700); err != nil {
		return d.wrong("make", name, err)
	}
	t.found(&dir{parent: d, name: name})
	return nil
}

// node copies what isn't a directory.
func (t *tree) node(d *dir, name string, src int, st *unix.Statx_t) error {
	var dst int
	linked, err := t.links.once(t, d, name, st, func() (err error) {
		dst, err = makeNode(d, name, src, st)
		return err
	})
	if linked || err != nil {
		return err
	}
	defer unix.Close(dst)
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		if err := t.file(src, dst, st); err != nil {
			return d.wrong("copy", name, err)
		}
		t.made.add(d, name)
	} else {
		t.made.special()
	}
	if err := t.attributes(src, dst, st); err != nil {
		return d.wrong("copy", name, err)
	}
	return nil
}

// makeNode makes an empty file, or what else src is, and returns it open.
func makeNode(d *dir, name string, src int, st *unix.Statx_t) (dst int, err error) {
	switch kind := uint32(st.Mode & unix.S_IFMT); kind {
	case unix.S_IFREG:
		const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
		err = retry(func() error { dst, err = unix.Openat(d.dst, name, flags, 0o600); return err })
		if err != nil {
			return 0, d.wrong("make", name, err)
		}
		return dst, nil
	case unix.S_IFLNK:
		var to [unix.PathMax]byte
		n, err := unix.Readlinkat(src, "", to[:])
		if err != nil {
			return 0, d.wrong("read the link", name, err)
		}
		err = unix.Symlinkat(string(to[:n]), d.dst, name)
		if err != nil {
			return 0, d.wrong("make the link", name, err)
		}
	default:
		dev := unix.Mkdev(st.Rdev_major, st.Rdev_minor)
		if err := unix.Mknodat(d.dst, name, kind|0o600, int(dev)); err != nil {
			return 0, d.wrong("make the node", name, err)
		}
	}
	if dst, err = openBelow(d.dst, name, openPath); err != nil {
		return 0, d.wrong("open the copy of", name, err)
	}
	return dst, nil
}

// file copies the content of a regular file that is open as a path only.
func (t *tree) file(src, dst int, st *unix.Statx_t) error {
	in, err := reopen(src)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer unix.Close(in)
	return t.content.copy(t.ctx, in, dst, int64(st.Size))
}

// reopen opens a regular file that is open as a path, to be read. By name it could be a device by now, and to open
// one of these is to do something.
func reopen(fd int) (in int, err error) {
	const flags = unix.O_RDONLY | unix.O_CLOEXEC
	err = retry(func() error { in, err = unix.Open(proc(fd), flags|unix.O_NOATIME, 0); return err })
	if errors.Is(err, unix.EPERM) { // not ours
		err = retry(func() error { in, err = unix.Open(proc(fd), flags, 0); return err })
	}
	return in, err
}

// proc is a path to what is open, link or not, for calls that don't take a descriptor of a path.
func proc(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// attributes gives dst what src has. The order matters: a new owner takes capabilities and the bits of setuid away,
// and an ACL sets bits of the mode.
func (t *tree) attributes(src, dst int, st *unix.Statx_t) error {
	var now unix.Statx_t
	if err := statx(dst, &now); err != nil {
		return err
	}
	chown := now.Uid != st.Uid || now.Gid != st.Gid
	if chown {
		if err := unix.Fchownat(dst, "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH); err != nil {
			return fmt.Errorf("owner %d, group %d: %w", st.Uid, st.Gid, err)
		}
	}
	xattrs, err := copyXattrs(proc(src), proc(dst))
	if err != nil {
		return err
	}
	if (chown || xattrs || now.Mode != st.Mode) && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(proc(dst), uint32(st.Mode)&0o7777); err != nil {
			return fmt.Errorf("mode: %w", err)
		}
	}
	when := times(st)
	if err := unix.UtimesNanoAt(dst, "", when[:], unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("times: %w", err)
	}
	return nil
}

// copyXattrs gives dst the extended attributes of src, ACLs among them, and tells whether there are any. Those that
// this process isn't shown, trusted ones in a user namespace, are left out.
func copyXattrs(src, dst string) (any bool, err error) {
	names, err := xattr(func(to []byte) (int, error) { return unix.Listxattr(src, to) })
	if errors.Is(err, unix.EOPNOTSUPP) { // the filesystem has none, or not for a node like this
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list attributes: %w", err)
	}
	if len(names) == 0 {
		return false, nil
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		value, err := xattr(func(to []byte) (int, error) { return unix.Getxattr(src, name, to) })
		if errors.Is(err, unix.ENODATA) { // it has vanished
			continue
		}
		if err != nil {
			return true, fmt.Errorf("read attribute %q: %w", name, err)
		}
		if err := unix.Setxattr(dst, name, value, 0); err != nil {
			// A label may be given by the kernel, and be right already.
			now, differs := xattr(func(to []byte) (int, error) { return unix.Getxattr(dst, name, to) })
			if differs != nil || string(now) != string(value) {
				return true, fmt.Errorf("set attribute %q: %w", name, err)
			}
		}
	}
	return true, nil
}

// xattr returns what get writes. Without room get says how much it takes; it may grow meanwhile.
func xattr(get func([]byte) (int, error)) ([]byte, error) {
	for room := 0; ; {
		value := make([]byte, room)
		n, err := get(value)
		switch {
		case errors.Is(err, unix.ERANGE):
			room = 0
		case err != nil:
			return nil, err
		case n <= len(value):
			return value[:n], nil
		default:
			room = n
		}
	}
}

func times(st *unix.Statx_t) [2]unix.Timespec {
	return [2]unix.Timespec{
		{Sec: st.Atime.Sec, Nsec: int64(st.Atime.Nsec)},
		{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)},
	}
}

func same(a, b *unix.Statx_t) bool {
	return a.Ino == b.Ino && a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor
}

// mounted explains the error of a path that leads into a mount.
func mounted(err error) error {
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("something is mounted there, which is not part of the tree: %w", err)
	}
	return err
}

// maxName is how much of a path an error tells, in bytes. A path below a tree has no limit.
const maxName = 1000

// wrong returns the error of what was done to an entry of d, or to d itself where name is "".
func (d *dir) wrong(what, name string, err error) error {
	names := d.names()
	if name != "" {
		names = append(names, name)
	}
	path := strings.Join(names, "/")
	if path == "" {
		path = "."
	}
	if long := len(path) - maxName; long > 0 {
		path = "..." + path[long:]
	}
	return fmt.Errorf("%s %q: %w", what, path, err)
}

// links remembers files with several names, until all of these have been seen.
type links struct {
	mu   sync.Mutex
	seen map[inode]*link
}

// inode is a file of the source. A number is used again when its file is gone, but not with the same time.
type inode struct {
	major, minor uint32
	number       uint64
	born         unix.StatxTimestamp
}

// link is the first name of a file in the target.
type link struct {
	dir  *dir
	name string
	left uint32 // names that may still come
}

// once makes the file st, or links it where it is there already by another name.
func (l *links) once(t *tree, d *dir, name string, st *unix.Statx_t, makeIt func() error) (linked bool, err error) {
	if st.Nlink < 2 {
		return false, makeIt()
	}
	l.mu.Lock() // all the while: two workers may have two names of one file
	defer l.mu.Unlock()
	key := inode{st.Dev_major, st.Dev_minor, st.Ino, st.Btime}
	first := l.seen[key]
	if first == nil {
		if l.seen == nil {
			l.seen = map[inode]*link{}
		}
		l.seen[key] = &link{d, name, st.Nlink - 1}
		return false, makeIt()
	}
	from, err := first.dir.openFrom(t.dst, openPath|unix.O_DIRECTORY)
	if err != nil {
		return true, d.wrong("link", name, err)
	}
	defer unix.Close(from)
	if err := unix.Linkat(from, first.name, d.dst, name, 0); err != nil {
		return true, d.wrong("link", name, err)
	}
	if first.left--; first.left == 0 {
		delete(l.seen, key)
	}
	return true, nil
}
