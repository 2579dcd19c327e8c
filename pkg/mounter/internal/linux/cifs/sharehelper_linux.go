package cifs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
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
var mountShareTask = helper.Task{Name: "mount share", Errors: []error{errors.ErrUnsupported, mounter.ErrOption},
	Run: func(j *helper.Job) (any, error) {
		var r shareRequest
		if err := j.Request(&r); err != nil {
			return nil, err
		}
		fsys, err := unix.Fsopen(FSType, unix.FSOPEN_CLOEXEC)
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOSYS) {
			return nil, fmt.Errorf("%w: the kernel cannot mount SMB shares: load its module cifs (Linux 5.11 or newer)",
				errors.ErrUnsupported)
		}
		if err != nil {
			return nil, fmt.Errorf("fsopen: %w", err)
		}
		defer unix.Close(fsys)
		err = r.configure(fsys, "password")
		if errors.Is(err, unix.EINVAL) { // such as context= without SELinux, or an option of newer kernels
			err = fmt.Errorf("%w: this kernel refuses it: %w", mounter.ErrOption, err)
		}
		if err != nil {
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
	text := tree.KernelMessages(fsys)
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
	p := tree.Handle{Parent: int(j.Files[0].Fd()), Name: r.Name}
	return nil, unix.Unmount(p.Proc(), r.Flags|unix.UMOUNT_NOFOLLOW)
}}

// usageTask returns the result of statfs(2) for its file.
var usageTask = helper.Task{Name: "usage", Run: func(j *helper.Job) (any, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(j.Files[0].Fd()), &st); err != nil {
		return nil, fmt.Errorf("statfs: %w", err)
	}
	return tree.UsageOf(st), nil
}}

// staleTask returns unix.ESTALE if the directory of a mounted share, its file, was deleted on the
// server. It waits for the server.
var staleTask = helper.Task{Name: "stale", Run: func(j *helper.Job) (any, error) {
	var st unix.Statx_t
	return nil, unix.Statx(int(j.Files[0].Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE, &st)
}}

// PathLock is the lock of a path. It is held until the last helper of the call has ended.
type PathLock struct {
	release func()
	helpers []<-chan struct{} // each is closed when its helper has ended
}

// LockPath takes the lock of a path: until a helper has ended, another mount could be made by it.
func (sh *Shares) LockPath(ctx context.Context, path string) (*PathLock, error) {
	release, err := sh.paths.Lock(ctx, path)
	if err != nil {
		return nil, err
	}
	return &PathLock{release: release}, nil
}

// Free releases the lock when all helpers have ended. It does not wait for them.
func (h *PathLock) Free() {
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

// Limits of the helpers for shares at the same time: a server that does not answer takes a part of
// them. A Pool has 64: those that are left detach mounts, which does not ask the server.
var (
	shareSlots   = fair.Limits{Slots: 40, Tenant: 16, Kind: 40}
	unmountSlots = fair.Limits{Slots: 16, Tenant: 8, Kind: 16}
)

// errNoSlot reports that helpers which wait for servers leave none for a task.
var errNoSlot = errors.New("other calls wait for servers that do not answer")

// run runs a task on a share of a server in a helper, until the context ends or the limit of
// the task has passed. files stay the caller's. A helper that has not ended some time after SIGKILL
// is ErrStalled, and keeps hold. Errors: errNoSlot.
func (sh *Shares) run(ctx context.Context, server string, hold *PathLock, task helper.Task, r shareRequest,
	result any, files ...*os.File) error {
	limit, wait, slots := shareLimit, shareLimit, sh.slots
	switch task.Name {
	case usageTask.Name:
		limit = usageLimit
	case unmountShareTask.Name:
		limit, wait, slots = unmountLimit, unmountWait, sh.unmountSlots
	}
	leave := func() {}
	if r.Flags&unix.MNT_DETACH == 0 {
		waiting, cancel := context.WithTimeout(ctx, wait)
		var err error
		leave, err = slots.Acquire(waiting, fair.Request{Kind: task.Name, Tenant: server, Volume: server})
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w: %w", task.Name, errNoSlot, waiting.Err())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := sh.Helpers.Start(task, r, files...)
	if err != nil {
		leave()
		if errors.Is(err, helper.ErrTooMany) {
			err = fmt.Errorf("%w: %w", mounter.ErrStalled, err)
		}
		return err
	}
	err = s.Result(ctx, result, nil)
	s.Close()
	if s.Ended() || errors.Is(err, helper.ErrDied) {
		leave()
		return err
	}
	go func() {
		<-s.Gone()
		leave()
	}()
	select {
	case <-s.Gone():
		return fmt.Errorf("%s: the server does not answer: %w", task.Name, err)
	case <-time.After(reapLimit):
		if hold != nil {
			hold.helpers = append(hold.helpers, s.Gone())
		}
		return fmt.Errorf("%s: %w: %w", task.Name, mounter.ErrStalled, err)
	}
}
