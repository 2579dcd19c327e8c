package mounter

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/helper"
)

// A system call on a share waits for its server, and a thread in the kernel cannot be given up. So
// helper processes mount and unmount shares, and read their usage: SIGKILL ends their system calls
// while they wait for a server. These calls never ask the server, and are made in this process:
// statx(2) with AT_STATX_DONT_SYNC of the root of a mount, open(2) of the root with O_PATH,
// open_tree(2), move_mount(2) and reads of mountinfo. Measured with Linux 6.1 and 6.12.

const (
	cifs = "cifs" // type of the filesystem, as fsopen(2) and mountinfo name it

	// shareLimit bounds the mount of a share and the read of its usage, if the context does not.
	shareLimit = time.Minute
	// unmountLimit bounds the unmount of a share, after which the mount is detached.
	unmountLimit = 5 * time.Second
	// reapLimit bounds the wait for the end of a helper after SIGKILL.
	reapLimit = 2 * time.Second
)

// shareRequest is the request of a task on a share. Only the socket of the helper carries the
// credentials, which are in no argument, environment variable or file.
type shareRequest struct {
	Parameters [][2]string `json:"parameters"` // of fsconfig(2), in their order; without a value: a flag
	Secret     string      `json:"secret"`     // the password
	Attributes uint64      `json:"attributes"` // MOUNT_ATTR_*, of fsmount(2)
	Name       string      `json:"name"`       // last element of a path
	Flags      int         `json:"flags"`      // of umount2(2)
}

// mountShareTask mounts a share on its file, an O_PATH descriptor of a directory. The mount has no
// path until the last system call, so that a killed helper leaves nothing.
var mountShareTask = helper.Task{Name: "mount share", Errors: []error{errors.ErrUnsupported},
	Run: func(j *helper.Job) (any, error) {
		var r shareRequest
		if err := j.Request(&r); err != nil {
			return nil, err
		}
		fsys, err := unix.Fsopen(cifs, unix.FSOPEN_CLOEXEC)
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOSYS) {
			return nil, fmt.Errorf("%w: the kernel cannot mount SMB shares: load its module cifs (Linux 5.11 or newer)",
				errors.ErrUnsupported)
		}
		if err != nil {
			return nil, fmt.Errorf("fsopen: %w", err)
		}
		defer unix.Close(fsys)
		if err := r.configure(fsys, "password"); err != nil {
			return nil, err
		}
		if err := unix.FsconfigCreate(fsys); err != nil {
			return nil, fmt.Errorf("log in: %w%s", err, r.messages(fsys))
		}
		fd, err := unix.Fsmount(fsys, unix.FSMOUNT_CLOEXEC, int(r.Attributes))
		if err != nil {
			return nil, fmt.Errorf("fsmount: %w%s", err, r.messages(fsys))
		}
		defer unix.Close(fd)
		err = unix.MoveMount(fd, "", int(j.Files[0].Fd()), "",
			unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		if err != nil {
			return nil, fmt.Errorf("move_mount: %w", err)
		}
		return nil, nil
	}}

// renewShareTask gives a mounted share, its file, new credentials. The request has every parameter
// of the mount but source and address: the kernel resets a parameter that a reconfiguration lacks.
var renewShareTask = helper.Task{Name: "renew share", Run: func(j *helper.Job) (any, error) {
	var r shareRequest
	if err := j.Request(&r); err != nil {
		return nil, err
	}
	// password2 is for a live session. The kernel takes another password only after the session is
	// lost.
	err := r.reconfigure(int(j.Files[0].Fd()), "password2")
	if err != nil {
		err = errors.Join(err, r.reconfigure(int(j.Files[0].Fd()), "password"))
	}
	return nil, err
}}

func (r shareRequest) reconfigure(root int, key string) error {
	fsys, err := unix.Fspick(root, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH|unix.FSPICK_NO_AUTOMOUNT)
	if err != nil {
		return fmt.Errorf("fspick: %w", err)
	}
	defer unix.Close(fsys)
	if err := r.configure(fsys, key); err != nil {
		return err
	}
	if err := unix.FsconfigReconfigure(fsys); err != nil {
		return fmt.Errorf("change the credentials: %w%s", err, r.messages(fsys))
	}
	return nil
}

// configure sets the parameters of a filesystem context, and the password as key.
func (r shareRequest) configure(fsys int, key string) error {
	parameters := r.Parameters
	if r.Secret != "" {
		parameters = append(parameters[:len(parameters):len(parameters)], [2]string{key, r.Secret})
	}
	for _, p := range parameters {
		var err error
		if p[1] == "" {
			err = unix.FsconfigSetFlag(fsys, p[0])
		} else {
			err = unix.FsconfigSetString(fsys, p[0], p[1])
		}
		if err != nil {
			return fmt.Errorf("fsconfig %s: %w%s", p[0], err, r.messages(fsys))
		}
	}
	return nil
}

// messages returns the messages of the kernel, unless they contain the password.
func (r shareRequest) messages(fsys int) string {
	text := kernelMessages(fsys)
	if r.Secret != "" && strings.Contains(text, r.Secret) {
		return ""
	}
	return text
}

// unmountShareTask unmounts the mount with a name in a directory, its file.
var unmountShareTask = helper.Task{Name: "unmount share", Run: func(j *helper.Job) (any, error) {
	var r shareRequest
	if err := j.Request(&r); err != nil {
		return nil, err
	}
	p := pathHandle{parent: int(j.Files[0].Fd()), name: r.Name}
	return nil, unix.Unmount(p.proc(), r.Flags|unix.UMOUNT_NOFOLLOW)
}}

// usageTask returns the result of statfs(2) for its file.
var usageTask = helper.Task{Name: "usage", Run: func(j *helper.Job) (any, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(j.Files[0].Fd()), &st); err != nil {
		return nil, fmt.Errorf("statfs: %w", err)
	}
	return usageOf(st), nil
}}

// staleTask returns unix.ESTALE if the directory of a mounted share, its file, was deleted on the
// server. It waits for the server.
var staleTask = helper.Task{Name: "stale", Run: func(j *helper.Job) (any, error) {
	var st unix.Statx_t
	return nil, unix.Statx(int(j.Files[0].Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE, &st)
}}

// pathLock is the lock of a path. It is held until the last helper of the call has ended.
type pathLock struct {
	release func()
	helpers []<-chan struct{} // each is closed when its helper has ended
}

// lockPath takes the lock of a path: until a helper has ended, another mount could be made by it.
func (l *linux) lockPath(ctx context.Context, path string) (*pathLock, error) {
	release, err := l.paths.lock(ctx, path)
	if err != nil {
		return nil, err
	}
	return &pathLock{release: release}, nil
}

// free releases the lock when all helpers have ended. It does not wait for them.
func (h *pathLock) free() {
	if len(h.helpers) == 0 {
		h.release()
		return
	}
	go func() {
		for _, gone := range h.helpers {
			<-gone
		}
		h.release()
	}()
}

// onShare runs a task on a share in a helper, until the context ends or limit has passed. files
// stay the caller's. A helper that has not ended some time after SIGKILL is ErrStalled, and keeps
// hold.
func (l *linux) onShare(ctx context.Context, limit time.Duration, hold *pathLock, task helper.Task, r shareRequest,
	result any, files ...*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := l.shareHelpers.Start(task, r, files...)
	if err != nil {
		return err
	}
	err = s.Result(ctx, result, nil)
	s.Close()
	if s.Ended() || errors.Is(err, helper.ErrDied) {
		return err
	}
	select {
	case <-s.Gone():
		return fmt.Errorf("%s: the server does not answer: %w", task.Name, err)
	case <-time.After(reapLimit):
		if hold != nil {
			hold.helpers = append(hold.helpers, s.Gone())
		}
		return fmt.Errorf("%s: %w: %w", task.Name, ErrStalled, err)
	}
}

// shares remembers the filesystems that are shares, by device number. The number of an unmounted
// share can become that of another filesystem, so mountinfo decides.
type shares struct {
	mu      sync.Mutex
	devices map[[2]uint32]bool
}

func (s *shares) add(major, minor uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.devices == nil {
		s.devices = map[[2]uint32]bool{}
	}
	s.devices[[2]uint32{major, minor}] = true
}

func (s *shares) forget(major, minor uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.devices, [2]uint32{major, minor})
}

// may reports whether the filesystem of at may be a share.
func (s *shares) may(at state) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return at.id.major == 0 && s.devices[[2]uint32{at.id.major, at.id.minor}]
}

// secrets remembers a digest of the credentials of each share, by path, so that a repeated mount
// changes nothing. The key of the digests is in memory only. The zero value is empty and usable.
type secrets struct {
	mu      sync.Mutex
	key     [32]byte
	digests map[string][32]byte
}

// same reports whether the share at path was mounted with these credentials by this process.
func (s *secrets) same(path string, c Credentials) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	digest, ok := s.digests[path]
	return ok && digest == s.digest(c)
}

func (s *secrets) set(path string, c Credentials) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.digests == nil {
		s.digests = map[string][32]byte{}
		rand.Read(s.key[:])
	}
	s.digests[path] = s.digest(c)
}

func (s *secrets) forget(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.digests, path)
}

func (s *secrets) digest(c Credentials) [32]byte {
	mac := hmac.New(sha256.New, s.key[:])
	for _, field := range []string{c.Username, c.Domain, c.Password} {
		mac.Write([]byte(strconv.Quote(field)))
	}
	return [32]byte(mac.Sum(nil))
}

// shareAt returns the entry of mountinfo for a mount if the mount is one of a share. The result is
// nil for every other mount. The cost for mounts of other filesystems does not grow with the number
// of mounts.
func (l *linux) shareAt(at state) (*mountinfo.Info, error) {
	if !l.shares.may(at) {
		return nil, nil
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == at.mount
		return !found, found
	})
	if err != nil {
		return nil, err
	}
	if len(infos) == 0 || infos[0].FSType != cifs {
		if len(infos) > 0 {
			l.shares.forget(at.id.major, at.id.minor)
		}
		return nil, nil
	}
	return infos[0], nil
}

// shownFlags returns the ST_* flags of a mount in mountinfo.
func shownFlags(i *mountinfo.Info) int64 {
	flags := int64(0)
	for option := range strings.SplitSeq(i.Options, ",") {
		flags |= linuxOptions[option].flagIn
	}
	return flags
}

// verifyShown is verifyFlags for a mount of a share, which is in mountinfo. statfs(2) asks the
// server.
func verifyShown(i *mountinfo.Info, want int64) error {
	if got := shownFlags(i); got&managedFlags != want {
		return fmt.Errorf("has the mount flags %#x, not %#x", got&managedFlags, want)
	}
	return nil
}

// flagsAt returns the ST_* flags of the mount at, which fd refers to.
func (l *linux) flagsAt(fd int, at state) (int64, error) {
	i, err := l.shareAt(at)
	if err != nil {
		return 0, err
	}
	if i != nil {
		return shownFlags(i), nil
	}
	return flagsOf(fd)
}

// verifyFlagsAt is verifyFlags for a mount that may be one of a share.
func (l *linux) verifyFlagsAt(fd int, at state, want int64) error {
	i, err := l.shareAt(at)
	if err != nil {
		return err
	}
	if i != nil {
		return verifyShown(i, want)
	}
	return verifyFlags(fd, want)
}

// verifyRoot is verifyShown for the mount whose root is root.
func (l *linux) verifyRoot(root int, want int64) error {
	at, err := statFD(root)
	if err != nil {
		return err
	}
	i, err := l.shareAt(at)
	if err == nil && i == nil {
		err = errors.New("mountinfo does not list the new mount of the share")
	}
	if err != nil {
		return err
	}
	return verifyShown(i, want)
}

// shareMounted reports whether path shows the share of m.
func (l *linux) shareMounted(m Mount, path string) (bool, error) {
	src, err := ParseShare(m.Source)
	if err != nil {
		return false, err
	}
	return l.shows(path, func(at state) (bool, error) {
		i, err := l.shareAt(at)
		return i != nil && showsShare(i, src), err
	})
}

// showsShare reports whether an entry of mountinfo is a mount of the whole of src.
func showsShare(i *mountinfo.Info, src ShareSource) bool {
	shown, err := parseShown(i.Source)
	return err == nil && i.Root == "/" && shown.same(src)
}

// parseShown parses a source in mountinfo, where kernels differ in the slash at the end and in the
// direction of slashes.
func parseShown(source string) (ShareSource, error) {
	return ParseShare(strings.TrimRight(strings.ReplaceAll(source, `\`, "/"), "/"))
}

// mountShare mounts a share, or gives its mount at p the credentials of m.
func (l *linux) mountShare(ctx context.Context, m Mount, p pathHandle, attr attributeSet) error {
	src, err := ParseShare(m.Source)
	if err == nil {
		err = m.Credentials.check()
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
		stale, err := l.renewShare(ctx, m, p, hold)
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
	if err := l.onShare(ctx, shareLimit, hold, mountShareTask, r, nil, dir); err != nil {
		return errors.Join(shareError(err), l.undoShare(t))
	}
	crashpoint.Reached("share:mounted")
	own, err := t.mountOn()
	if err != nil {
		return errors.Join(err, l.undoShare(t))
	}
	defer unix.Close(own.fd)
	if err := l.confirmShare(m, own, src, t, o); err != nil {
		return errors.Join(err, own.undo())
	}
	return nil
}

// undoShare detaches the mount on t that a helper may have made before it was killed.
func (l *linux) undoShare(t target) error {
	if err := unix.Unmount(procPath(t.fd), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("detach %s: %w", t.path, err)
	}
	return nil
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
func (l *linux) renewShare(ctx context.Context, m Mount, p pathHandle, hold *pathLock) (stale bool, err error) {
	fd, err := p.openPath()
	if err != nil {
		return false, err
	}
	root := os.NewFile(uintptr(fd), p.path)
	defer root.Close()
	if m.Credentials != (Credentials{}) && !l.secrets.same(p.path, m.Credentials) {
		r := shareRequest{Parameters: ownParameters(m), Secret: m.Credentials.Password}
		err = l.onShare(ctx, shareLimit, hold, renewShareTask, r, nil, root)
		if errors.Is(err, unix.EINVAL) {
			err = fmt.Errorf("%w: the kernel does not support it (Linux 6.9 does): delete the pods that use the "+
				"volume, so that it is staged again: %w", ErrCredentials, err)
		}
		if err != nil {
			return false, err
		}
		l.secrets.set(p.path, m.Credentials)
	}
	err = l.onShare(ctx, shareLimit, hold, staleTask, shareRequest{}, nil, root)
	if errors.Is(err, unix.ESTALE) {
		return true, unix.Unmount(p.proc(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return false, shareError(err)
}

// shareParameters returns the parameters of fsconfig(2) for m.
func shareParameters(ctx context.Context, m Mount, src ShareSource) ([][2]string, error) {
	ip, err := lookup(ctx, src.Server)
	if err != nil {
		return nil, err
	}
	port := smbPort
	if src.Port != 0 {
		port = src.Port
	}
	address := [][2]string{{"source", src.unc()}, {"ip", ip.String()}, {"port", strconv.Itoa(port)}}
	return append(address, ownParameters(m)...), nil
}

// ownParameters returns the parameters of m without its source and password.
func ownParameters(m Mount) [][2]string {
	var parameters [][2]string
	version := [2]string{"vers", "3"} // SMB 3.0 or newer
	for _, o := range m.Options {
		name, value, _ := strings.Cut(o, "=")
		switch {
		case name == "vers":
			version[1] = value
		case isShareOption(o):
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

// verifySuper compares the options that have a value with those that mountinfo shows. The kernel
// shows no option of which it does not know the name, and modes without leading zeroes.
func verifySuper(i *mountinfo.Info, options []string) error {
	shown := map[string]string{}
	for option := range strings.SplitSeq(i.VFSOptions, ",") {
		name, value, _ := strings.Cut(option, "=")
		shown[name] = strings.TrimLeft(value, "0")
	}
	for _, o := range options {
		name, value, hasValue := strings.Cut(o, "=")
		switch name {
		case "uid", "gid", "file_mode", "dir_mode":
			if got, ok := shown[name]; hasValue && ok && got != strings.TrimLeft(value, "0") {
				return fmt.Errorf("is mounted with another %s", name)
			}
		}
	}
	return nil
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

// unmountShare removes a mount of a share at p. If the server does not answer for some seconds, the
// mount is detached: the kernel then ends it without the server. Errors: ErrBusy, ErrStalled.
func (l *linux) unmountShare(ctx context.Context, p pathHandle, at state, hold *pathLock) error {
	parent, err := dup(p.parent, p.path)
	if err != nil {
		return err
	}
	defer parent.Close()
	unmount := func(flags int) error {
		r := shareRequest{Name: p.name, Flags: flags}
		return l.onShare(context.WithoutCancel(ctx), unmountLimit, hold, unmountShareTask, r, nil, parent)
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
	case !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("unmount %s: %w", p.path, err)
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

// shareUsage returns the usage of a share at p. Errors: ErrServer.
func (l *linux) shareUsage(ctx context.Context, p pathHandle) (u Usage, err error) {
	fd, err := p.openPath()
	if err != nil {
		return u, err
	}
	root := os.NewFile(uintptr(fd), p.path)
	defer root.Close()
	err = l.onShare(ctx, shareLimit, nil, usageTask, shareRequest{}, &u, root)
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
