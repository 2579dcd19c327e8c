package mounter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// A system call on a share waits for its server, and a thread in the kernel cannot be given up. So
// helper processes mount and unmount shares, and read their usage: SIGKILL ends their system calls
// while they wait for a server. These calls never ask the server, and are made in this process:
// statx(2) with AT_STATX_DONT_SYNC of the root of a mount, open(2) of the root with O_PATH,
// open_tree(2), move_mount(2) and reads of mountinfo. Measured with Linux 6.1 and 6.12.

const (
	cifs = "cifs" // type of the filesystem, as fsopen(2) and mountinfo name it

	// shareLimit bounds the mount of a share, if the context does not.
	shareLimit = time.Minute
	// usageLimit bounds the read of the usage of a share.
	usageLimit = 10 * time.Second
	// unmountLimit bounds the unmount of a share, after which the mount is detached.
	unmountLimit = 5 * time.Second
	// unmountWait bounds the wait of an unmount for its helper.
	unmountWait = 3 * time.Second
	// silentFor is the time for which a server counts as silent after an unmount has not ended.
	silentFor = time.Minute
	// reapLimit bounds the wait for the end of a helper after SIGKILL.
	reapLimit = 2 * time.Second
)

// mountShare mounts a share, or gives its mount at p the credentials of m.
func (l *linux) mountShare(ctx context.Context, m Mount, p pathHandle, attr attributeSet) error {
	src, err := ParseShare(m.Source)
	if err == nil {
		err = m.Credentials.Check()
	}
	if err != nil {
		return err
	}
	hold, err := l.lockPath(ctx, p.path)
	if err != nil {
		return err
	}
	defer hold.free()
	o := attr.fresh(cifs, nil)
	for {
		t, done, err := p.prepare(unix.S_IFDIR, func(at state, _ int) (bool, error) {
			i, err := l.shareAt(at)
			if err != nil || i == nil || !showsShare(i, src) {
				return false, err
			}
			return true, errors.Join(verifyShown(i, o.shown), verifySuper(i, m.Options))
		})
		if err != nil {
			return err
		}
		if !done {
			defer t.close()
			return t.failed(m, l.mountNewShare(ctx, m, src, t, o, hold))
		}
		stale, err := l.renewShare(ctx, m, src, p, hold)
		if !stale || err != nil {
			return err
		}
	}
}

// mountNewShare mounts a share on t.
func (l *linux) mountNewShare(ctx context.Context, m Mount, src ShareSource, t target, o fresh, hold *pathLock) error {
	parameters, err := shareParameters(ctx, m, src)
	if err != nil {
		return err
	}
	dir, err := dup(t.fd, t.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	r := shareRequest{Parameters: parameters, Secret: m.Credentials.Password, Attributes: o.attributes}
	if err := l.onShare(ctx, src.Server, hold, mountShareTask, r, nil, dir); err != nil {
		return errors.Join(shareError(err), l.undoShare(src, t))
	}
	own, err := t.mountOn()
	if err != nil {
		return err
	}
	defer unix.Close(own.fd)
	if err := l.confirmShare(m, own, src, t, o); err != nil {
		return errors.Join(err, own.undo())
	}
	return nil
}

// undoShare detaches the mount of src on t, if a helper has made it before it was killed.
func (l *linux) undoShare(src ShareSource, t target) error {
	own, err := t.mountOn()
	if err != nil { // nothing is mounted there
		return nil
	}
	defer unix.Close(own.fd)
	at, err := statFD(own.fd)
	if err != nil {
		return err
	}
	l.shares.add(at.id.major, at.id.minor)
	if i, err := l.shareAt(at); err != nil || i == nil || !showsShare(i, src) {
		return err
	}
	return own.undo()
}

// confirmShare verifies that path leads to the new mount, and that the mount shows src with the
// expected flags.
func (l *linux) confirmShare(m Mount, own ownMount, src ShareSource, t target, o fresh) error {
	at, err := statFD(own.fd)
	if err != nil {
		return err
	}
	l.shares.add(at.id.major, at.id.minor)
	i, err := l.shareAt(at)
	switch {
	case err != nil:
		return err
	case i == nil || !showsShare(i, src):
		return errors.New("another share was mounted")
	}
	l.secrets.set(t.path, m.Credentials)
	return errors.Join(verifyShown(i, o.shown), l.confirm(own, t.path), l.rememberAs(t.path, own.fd))
}

// renewShare gives the share at p the credentials of m. stale reports that the directory of the
// share was deleted on the server; the mount is detached then.
func (l *linux) renewShare(ctx context.Context, m Mount, src ShareSource, p pathHandle,
	hold *pathLock) (stale bool, err error) {
	fd, err := p.openPath()
	if err != nil {
		return false, err
	}
	root := os.NewFile(uintptr(fd), p.path)
	defer root.Close()
	if m.Credentials != (Credentials{}) && !l.secrets.same(p.path, m.Credentials) {
		r := shareRequest{Parameters: ownParameters(m), Secret: m.Credentials.Password}
		err = l.onShare(ctx, src.Server, hold, renewShareTask, r, nil, root)
		if errors.Is(err, unix.EINVAL) {
			err = fmt.Errorf("%w: %s: delete the pods that use the volume, so that it is staged again: %w",
				ErrCredentials, l.whyNotRenewed(root, m.Credentials), err)
		}
		if err != nil {
			return false, err
		}
		l.secrets.set(p.path, m.Credentials)
	}
	err = l.onShare(ctx, src.Server, hold, staleTask, shareRequest{}, nil, root)
	if errors.Is(err, unix.ESTALE) {
		return true, unix.Unmount(p.proc(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return false, shareError(err)
}

// whyNotRenewed returns the reason for which the kernel has refused credentials for a mount.
func (l *linux) whyNotRenewed(root *os.File, c Credentials) string {
	at, err := statFD(int(root.Fd()))
	if err == nil {
		if i, err := l.shareAt(at); err == nil && i != nil {
			if shown := superOption(i, "username"); shown != c.Username {
				return fmt.Sprintf("a mount keeps its user %.64q", shown)
			}
		}
	}
	return "the kernel does not support it (Linux 6.9 does)"
}

// shareParameters returns the parameters of fsconfig(2) for m.
func shareParameters(ctx context.Context, m Mount, src ShareSource) ([][2]string, error) {
	ip, err := lookup(ctx, src.Server)
	if err != nil {
		return nil, err
	}
	port := SMBPort
	if src.Port != 0 {
		port = src.Port
	}
	address := [][2]string{{"source", src.UNC()}, {"ip", ip.String()}, {"port", strconv.Itoa(port)}}
	return append(address, ownParameters(m)...), nil
}

// ownParameters returns the parameters of m without its source and password.
func ownParameters(m Mount) [][2]string {
	var parameters [][2]string
	version := [2]string{"vers", "3"} // SMB 3.0 or newer
	for _, o := range m.Options {
		name, value, _ := strings.Cut(o, "=")
		if l, ok := options.Label(o); ok {
			value = l
		}
		switch {
		case name == "vers":
			version[1] = value
		case options.IsShare(options.Share, o):
			parameters = append(parameters, [2]string{name, value})
		}
	}
	if m.Credentials.Username != "" {
		parameters = append(parameters, [2]string{"username", m.Credentials.Username})
	}
	if m.Credentials.Domain != "" {
		parameters = append(parameters, [2]string{"domain", m.Credentials.Domain})
	}
	if m.ReadOnly {
		parameters = append(parameters, [2]string{"ro", ""})
	}
	return append(parameters, version)
}

// lookup returns an address of a server. Errors: ErrServer.
func lookup(ctx context.Context, server string) (netip.Addr, error) {
	if ip, err := netip.ParseAddr(server); err == nil {
		return ip, nil
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", server)
	if err != nil || len(all) == 0 {
		return netip.Addr{}, fmt.Errorf("%w: its name %s: %w", ErrServer, server, err)
	}
	return all[0].Unmap(), nil
}

// shareError adds the class to an error of a system call on a share.
func shareError(err error) error {
	for _, c := range []struct {
		class  error
		errnos []error
	}{
		{ErrAccess, []error{unix.EACCES, unix.EPERM, unix.ENOKEY, unix.EKEYEXPIRED, unix.EKEYREVOKED,
			unix.EKEYREJECTED}},
		{ErrNotFound, []error{unix.ENOENT, unix.ENOTDIR, unix.ENXIO}},
		{ErrServer, []error{unix.ECONNREFUSED, unix.EHOSTDOWN, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ETIMEDOUT,
			unix.ECONNRESET, unix.ENOTCONN, unix.EAGAIN}},
	} {
		for _, errno := range c.errnos {
			if errors.Is(err, errno) {
				return fmt.Errorf("%w: %w", c.class, err)
			}
		}
	}
	return err
}

// unmountShare removes a mount of a share, shown, at p. If the server does not answer for some
// seconds, the mount is detached: the kernel then ends it without the server. Running reads of the
// usage end first: they keep the mount busy. Errors: ErrBusy, ErrStalled.
func (l *linux) unmountShare(ctx context.Context, p pathHandle, at state, shown *mountinfo.Info,
	hold *pathLock) error {
	parent, err := dup(p.parent, p.path)
	if err != nil {
		return err
	}
	defer parent.Close()
	server := serverOf(shown)
	unmount := func(flags int) error {
		l.usages.end(at.mount)
		r := shareRequest{Name: p.name, Flags: flags}
		return l.onShare(context.WithoutCancel(ctx), server, hold, unmountShareTask, r, nil, parent)
	}
	err = unmount(0)
	for wait := time.Millisecond; errors.Is(err, unix.EBUSY) && wait <= 16*time.Millisecond; wait *= 2 {
		time.Sleep(wait)
		err = unmount(0)
	}
	switch {
	case err == nil, errors.Is(err, unix.EINVAL):
		l.secrets.forget(p.path)
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("unmount %s: %w", p.path, ErrBusy)
	case errors.Is(err, errNoSlot) && !l.silent.is(server):
		return fmt.Errorf("unmount %s: %w: %w", p.path, ErrStalled, err)
	case errors.Is(err, errNoSlot):
	case !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("unmount %s: %w", p.path, err)
	default:
		l.silent.set(server)
	}
	l.secrets.forget(p.path)
	if i, err := l.shareAt(at); err != nil || i == nil { // SIGKILL ended the wait, and the mount is gone
		return err
	}
	if err := unmount(unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("detach %s: %w", p.path, err)
	}
	return nil
}

// silence remembers the servers that did not answer an unmount. The zero value is empty and usable.
type silence struct {
	mu    sync.Mutex
	since map[string]time.Time
}

func (s *silence) set(server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since == nil {
		s.since = map[string]time.Time{}
	}
	maps.DeleteFunc(s.since, func(_ string, since time.Time) bool { return time.Since(since) > silentFor })
	s.since[server] = time.Now()
}

// is reports whether a server counts as silent.
func (s *silence) is(server string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, ok := s.since[server]
	return ok && time.Since(since) <= silentFor
}

// usages are the running reads of the usage of shares, by mount ID. Each keeps its mount busy with
// a descriptor of the root. The zero value is empty and usable.
type usages struct {
	mu      sync.Mutex
	running map[uint64][]*usageRead
}

type usageRead struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// begin returns a context for a read, which ends with an unmount. The caller calls end when the
// descriptor is closed.
func (u *usages) begin(ctx context.Context, mount uint64) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	r := &usageRead{cancel, make(chan struct{})}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.running == nil {
		u.running = map[uint64][]*usageRead{}
	}
	u.running[mount] = append(u.running[mount], r)
	return ctx, func() {
		cancel()
		u.mu.Lock()
		defer u.mu.Unlock()
		others := slices.DeleteFunc(u.running[mount], func(other *usageRead) bool { return other == r })
		if u.running[mount] = others; len(others) == 0 {
			delete(u.running, mount)
		}
		close(r.ended)
	}
}

// end ends the reads of a mount, and waits until their descriptors are closed.
func (u *usages) end(mount uint64) {
	u.mu.Lock()
	running := slices.Clone(u.running[mount])
	u.mu.Unlock()
	for _, r := range running {
		r.cancel()
	}
	for _, r := range running {
		<-r.ended
	}
}

// shareUsage returns the usage of a share, shown, at p. Errors: ErrServer; ErrBusy if an unmount
// has ended the read.
func (l *linux) shareUsage(caller context.Context, p pathHandle, at state, shown *mountinfo.Info) (u Usage, err error) {
	ctx, end := l.usages.begin(caller, at.mount)
	defer end()
	fd, err := p.openPath()
	if err != nil {
		return u, err
	}
	root := os.NewFile(uintptr(fd), p.path)
	defer root.Close()
	err = l.onShare(ctx, serverOf(shown), nil, usageTask, shareRequest{}, &u, root)
	if ctx.Err() != nil && caller.Err() == nil {
		return u, fmt.Errorf("usage of %s: %w: it is being unmounted", p.path, ErrBusy)
	}
	return u, shareError(err)
}

// dup returns a further descriptor of the file that fd refers to.
func dup(fd int, path string) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.NewFile(uintptr(n), path), nil
}
