package cifs

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

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/keylock"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// Shares mounts shares.
type Shares struct {
	Helpers       helper.Pool // for system calls on shares, which wait for a server
	Registry      Registry
	slots         *fair.Slots // of the helpers for mounts and usage of shares
	unmountSlots  *fair.Slots // of the helpers for unmounts of shares, which a silent server must not delay
	secrets       secrets
	usages        usages
	silentServers silentServers
	paths         keylock.Locks[string] // held by calls that mount or unmount a path, until their helpers have ended
	tree          *tree.Tree
}

// New returns Shares without a mount. SetTree completes them.
func New() *Shares {
	return &Shares{slots: fair.New(shareSlots), unmountSlots: fair.New(unmountSlots)}
}

// SetTree sets the kubelet directory, which itself needs the Registry.
func (sh *Shares) SetTree(tr *tree.Tree) { sh.tree = tr }

// HelperTasks are the tasks of this package that run in helper processes.
func HelperTasks() []helper.Task {
	return []helper.Task{mountShareTask, renewShareTask, unmountShareTask, usageTask, staleTask}
}

// A system call on a share waits for its server, and a thread in the kernel cannot be given up. So
// helper processes mount and unmount shares, and read their usage: SIGKILL ends their system calls
// while they wait for a server. These calls never ask the server, and are made in this process:
// statx(2) with AT_STATX_DONT_SYNC of the root of a mount, open(2) of the root with O_PATH,
// open_tree(2), move_mount(2) and reads of mountinfo. Measured with Linux 6.1 and 6.12.

const (
	// FSType is the type of the filesystem, as fsopen(2) and mountinfo name it.
	FSType = "cifs"

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

// Mount mounts a share, or gives its mount at p the credentials of m.
func (sh *Shares) Mount(ctx context.Context, m mounter.Mount, p tree.Handle, attr tree.AttributeSet) error {
	src, err := mounter.ParseShare(m.Source)
	if err == nil {
		err = m.Credentials.Check()
	}
	if err != nil {
		return err
	}
	hold, err := sh.LockPath(ctx, p.Path)
	if err != nil {
		return err
	}
	defer hold.Free()
	o := attr.Fresh(FSType, nil)
	for {
		t, done, err := p.Prepare(unix.S_IFDIR, func(at tree.State, _ int) (bool, error) {
			i, err := sh.InfoOf(at)
			if err != nil || i == nil || !showsShare(i, src) {
				return false, err
			}
			return true, errors.Join(verifyShown(i, o.Shown), verifySuper(i, m.Options))
		})
		if err != nil {
			return err
		}
		if !done {
			defer t.Close()
			return t.Failed(m, sh.mountNew(ctx, m, src, t, o, hold))
		}
		stale, err := sh.renew(ctx, m, src, p, hold)
		if !stale || err != nil {
			return err
		}
	}
}

// mountNew mounts a share on t.
func (sh *Shares) mountNew(ctx context.Context, m mounter.Mount, src mounter.ShareSource, t tree.Target,
	o tree.Fresh, hold *PathLock) error {
	parameters, err := shareParameters(ctx, m, src)
	if err != nil {
		return err
	}
	dir, err := tree.Dup(t.FD, t.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	r := shareRequest{Parameters: parameters, Secret: m.Credentials.Password, Attributes: o.Attributes}
	if err := sh.run(ctx, src.Server, hold, mountShareTask, r, nil, dir); err != nil {
		return errors.Join(shareError(err), sh.undo(src, t))
	}
	own, err := t.MountOn()
	if err != nil {
		return err
	}
	defer unix.Close(own.FD)
	if err := sh.confirmNew(m, own, src, t, o); err != nil {
		return errors.Join(err, own.Undo())
	}
	return nil
}

// undo detaches the mount of src on t, if a helper has made it before it was killed.
func (sh *Shares) undo(src mounter.ShareSource, t tree.Target) error {
	own, err := t.MountOn()
	if err != nil { // nothing is mounted there
		return nil
	}
	defer unix.Close(own.FD)
	at, err := tree.StatFD(own.FD)
	if err != nil {
		return err
	}
	sh.Registry.Add(at.ID.Major, at.ID.Minor)
	if i, err := sh.InfoOf(at); err != nil || i == nil || !showsShare(i, src) {
		return err
	}
	return own.Undo()
}

// confirmNew verifies that path leads to the new mount, and that the mount shows src with the
// expected flags.
func (sh *Shares) confirmNew(m mounter.Mount, own tree.OwnMount, src mounter.ShareSource, t tree.Target,
	o tree.Fresh) error {
	at, err := tree.StatFD(own.FD)
	if err != nil {
		return err
	}
	sh.Registry.Add(at.ID.Major, at.ID.Minor)
	i, err := sh.InfoOf(at)
	switch {
	case err != nil:
		return err
	case i == nil || !showsShare(i, src):
		return errors.New("another share was mounted")
	}
	sh.secrets.set(t.Path, m.Credentials)
	return errors.Join(verifyShown(i, o.Shown), sh.tree.Confirm(own, t.Path), sh.tree.RememberAs(t.Path, own.FD))
}

// renew gives the share at p the credentials of m. stale reports that the directory of the
// share was deleted on the server; the mount is detached then.
func (sh *Shares) renew(ctx context.Context, m mounter.Mount, src mounter.ShareSource, p tree.Handle,
	hold *PathLock) (stale bool, err error) {
	fd, err := p.OpenPath()
	if err != nil {
		return false, err
	}
	root := os.NewFile(uintptr(fd), p.Path)
	defer root.Close()
	if m.Credentials != (mounter.Credentials{}) && !sh.secrets.same(p.Path, m.Credentials) {
		r := shareRequest{Parameters: ownParameters(m), Secret: m.Credentials.Password}
		err = sh.run(ctx, src.Server, hold, renewShareTask, r, nil, root)
		if errors.Is(err, unix.EINVAL) {
			err = fmt.Errorf("%w: %s: delete the pods that use the volume, so that it is staged again: %w",
				mounter.ErrCredentials, sh.whyNotRenewed(root, m.Credentials), err)
		}
		if err != nil {
			return false, err
		}
		sh.secrets.set(p.Path, m.Credentials)
	}
	err = sh.run(ctx, src.Server, hold, staleTask, shareRequest{}, nil, root)
	if errors.Is(err, unix.ESTALE) {
		return true, unix.Unmount(p.Proc(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return false, shareError(err)
}

// whyNotRenewed returns the reason for which the kernel has refused credentials for a mount.
func (sh *Shares) whyNotRenewed(root *os.File, c mounter.Credentials) string {
	at, err := tree.StatFD(int(root.Fd()))
	if err == nil {
		if i, err := sh.InfoOf(at); err == nil && i != nil {
			if shown := superOption(i, "username"); shown != c.Username {
				return fmt.Sprintf("a mount keeps its user %.64q", shown)
			}
		}
	}
	return "the kernel does not support it (Linux 6.9 does)"
}

// shareParameters returns the parameters of fsconfig(2) for m.
func shareParameters(ctx context.Context, m mounter.Mount, src mounter.ShareSource) ([][2]string, error) {
	ip, err := lookup(ctx, src.Server)
	if err != nil {
		return nil, err
	}
	port := mounter.SMBPort
	if src.Port != 0 {
		port = src.Port
	}
	address := [][2]string{{"source", src.UNC()}, {"ip", ip.String()}, {"port", strconv.Itoa(port)}}
	return append(address, ownParameters(m)...), nil
}

// ownParameters returns the parameters of m without its source and password.
func ownParameters(m mounter.Mount) [][2]string {
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
		return netip.Addr{}, fmt.Errorf("%w: its name %s: %w", mounter.ErrServer, server, err)
	}
	return all[0].Unmap(), nil
}

// shareError adds the class to an error of a system call on a share.
func shareError(err error) error {
	for _, c := range []struct {
		class  error
		errnos []error
	}{
		{mounter.ErrAccess, []error{unix.EACCES, unix.EPERM, unix.ENOKEY, unix.EKEYEXPIRED, unix.EKEYREVOKED,
			unix.EKEYREJECTED}},
		{mounter.ErrNotFound, []error{unix.ENOENT, unix.ENOTDIR, unix.ENXIO}},
		{mounter.ErrServer, []error{unix.ECONNREFUSED, unix.EHOSTDOWN, unix.EHOSTUNREACH, unix.ENETUNREACH,
			unix.ETIMEDOUT, unix.ECONNRESET, unix.ENOTCONN, unix.EAGAIN}},
	} {
		for _, errno := range c.errnos {
			if errors.Is(err, errno) {
				return fmt.Errorf("%w: %w", c.class, err)
			}
		}
	}
	return err
}

// Unmount removes a mount of a share, shown, at p. If the server does not answer for some
// seconds, the mount is detached: the kernel then ends it without the server. Running reads of the
// usage end first: they keep the mount busy. Errors: ErrBusy, ErrStalled.
func (sh *Shares) Unmount(ctx context.Context, p tree.Handle, at tree.State, shown *mountinfo.Info,
	hold *PathLock) error {
	parent, err := tree.Dup(p.Parent, p.Path)
	if err != nil {
		return err
	}
	defer parent.Close()
	server := serverOf(shown)
	unmount := func(flags int) error {
		sh.usages.end(at.Mount)
		r := shareRequest{Name: p.Name, Flags: flags}
		return sh.run(context.WithoutCancel(ctx), server, hold, unmountShareTask, r, nil, parent)
	}
	err = unmount(0)
	for wait := time.Millisecond; errors.Is(err, unix.EBUSY) && wait <= 16*time.Millisecond; wait *= 2 {
		time.Sleep(wait)
		err = unmount(0)
	}
	switch {
	case err == nil, errors.Is(err, unix.EINVAL):
		sh.secrets.forget(p.Path)
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("unmount %s: %w", p.Path, mounter.ErrBusy)
	case errors.Is(err, errNoSlot) && !sh.silentServers.contains(server):
		return fmt.Errorf("unmount %s: %w: %w", p.Path, mounter.ErrStalled, err)
	case errors.Is(err, errNoSlot):
	case !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("unmount %s: %w", p.Path, err)
	default:
		sh.silentServers.add(server)
	}
	sh.secrets.forget(p.Path)
	if i, err := sh.InfoOf(at); err != nil || i == nil { // SIGKILL ended the wait, and the mount is gone
		return err
	}
	if err := unmount(unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("detach %s: %w", p.Path, err)
	}
	return nil
}

// silentServers remembers the servers that did not answer an unmount. The zero value is empty and
// usable.
type silentServers struct {
	mu    sync.Mutex
	since map[string]time.Time
}

func (s *silentServers) add(server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since == nil {
		s.since = map[string]time.Time{}
	}
	maps.DeleteFunc(s.since, func(_ string, since time.Time) bool { return time.Since(since) > silentFor })
	s.since[server] = time.Now()
}

// contains reports whether a server counts as silent.
func (s *silentServers) contains(server string) bool {
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

// Usage returns the usage of a share, shown, at p. Errors: ErrServer; ErrBusy if an unmount
// has ended the read.
func (sh *Shares) Usage(caller context.Context, p tree.Handle, at tree.State,
	shown *mountinfo.Info) (u mounter.Usage, err error) {
	ctx, end := sh.usages.begin(caller, at.Mount)
	defer end()
	fd, err := p.OpenPath()
	if err != nil {
		return u, err
	}
	root := os.NewFile(uintptr(fd), p.Path)
	defer root.Close()
	err = sh.run(ctx, serverOf(shown), nil, usageTask, shareRequest{}, &u, root)
	if ctx.Err() != nil && caller.Err() == nil {
		return u, fmt.Errorf("usage of %s: %w: it is being unmounted", p.Path, mounter.ErrBusy)
	}
	return u, shareError(err)
}
