package quota

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/quota.h and linux/dqblk_xfs.h. ext4 serves the calls that are named after xfs, too.
const (
	projectQuota = 2 // PRJQUOTA

	getQuota = 0x5803<<8 | projectQuota // QCMD(Q_XGETQUOTA, PRJQUOTA)
	setLimit = 0x5804<<8 | projectQuota // Q_XSETQLIM
	getState = 0x5808<<8 | projectQuota // Q_XGETQSTATV

	versionOfQuota = 1      // FS_DQUOT_VERSION
	versionOfState = 1      // FS_QSTATV_VERSION1
	flagProject    = 2      // FS_PROJ_QUOTA
	fieldHardLimit = 1 << 3 // FS_DQ_BHARD
	accounted      = 1 << 4 // FS_QUOTA_PDQ_ACCT
	enforced       = 1 << 5 // FS_QUOTA_PDQ_ENFD
)

// unit is the unit of quotas, in bytes. ext4 rounds limits to 1024.
const (
	unit     = 512
	limitsIn = 1024
)

// diskQuota is struct fs_disk_quota of linux/dqblk_xfs.h.
type diskQuota struct {
	version   int8
	flags     int8
	fields    uint16
	id        uint32
	hardLimit uint64 // units
	softLimit uint64
	fileLimit uint64
	softFiles uint64
	used      uint64 // units
	files     uint64
	_         [2]int32
	_         [2]uint16
	_         [4]int8
	realtime  [3]uint64
	_         int32
	_         uint16
	_         int16
	_         [8]byte
}

func (q diskQuota) empty() bool {
	return q.hardLimit|q.softLimit|q.fileLimit|q.softFiles|q.used|q.files|q.realtime[0]|q.realtime[1]|q.realtime[2] == 0
}

// quotaState is struct fs_quota_statv of linux/dqblk_xfs.h.
type quotaState struct {
	version int8
	_       uint8
	flags   uint16
	_       uint32
	_       [3][3]uint64 // files of the quotas
	_       [3]int32
	_       [4]uint16
	_       uint32
	_       [7]uint64
}

// fsxattr is struct fsxattr of linux/fs.h: ioctl_xfs_fsgetxattr(2).
type fsxattr struct {
	flags      uint32
	extentSize uint32
	extents    uint32
	project    uint32
	cowExtent  uint32
	_          [8]byte
}

// inherit gives new entries of a directory its project: FS_XFLAG_PROJINHERIT.
const inherit = 0x200

var (
	getXattr = request{0x801C581F, "FS_IOC_FSGETXATTR"}
	setXattr = request{0x401C5820, "FS_IOC_FSSETXATTR"}
)

// quotactl is quotactl_fd(2), of Linux 5.14.
func quotactl(file *os.File, command uint32, id uint32, arg unsafe.Pointer) error {
	return with(file, func(fd int) error {
		if _, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(command), uintptr(id), uintptr(arg),
			0, 0); errno != 0 {
			return errno
		}
		return nil
	})
}

// stateOf returns the state of project quotas: accounted, enforced.
func stateOf(dir *os.File) (uint16, error) {
	state := quotaState{version: versionOfState}
	err := quotactl(dir, getState, 0, unsafe.Pointer(&state))
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // no quotas; no project quotas
		return 0, nil
	}
	if err != nil {
		return 0, &os.PathError{Op: "Q_XGETQSTATV", Path: dir.Name(), Err: err}
	}
	return state.flags, nil
}

// projectsEnforced returns ErrNotEnforced, with a remedy, unless the limits of projects hold and
// this process may set them.
func projectsEnforced(dir *os.File) error {
	state, err := stateOf(dir)
	if err != nil {
		return err
	}
	if state&enforced == 0 {
		return howToEnforce(dir, state)
	}
	_, err = getProject(dir, firstProject)
	return unprivileged(err)
}

func howToEnforce(dir *os.File, state uint16) error {
	magic, err := magicOf(dir)
	if err != nil {
		return err
	}
	// A kernel that knows the call reports an invalid descriptor.
	if _, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, ^uintptr(0), getState, 0, 0, 0, 0); errno == unix.ENOSYS {
		return notEnforced("the kernel has no quotactl_fd: it is older than Linux 5.14, or was built without quotas")
	}
	switch {
	case magic == unix.XFS_SUPER_MAGIC && state&accounted != 0:
		return notEnforced("xfs counts the usage of projects but has no limits: mount it with prjquota, not " +
			"pqnoenforce")
	case magic == unix.XFS_SUPER_MAGIC:
		return notEnforced("unmount the xfs, and mount it with the option prjquota (which a remount does not set; " +
			"for / it is rootflags=prjquota on the kernel's command line)")
	case magic == unix.EXT4_SUPER_MAGIC && state&accounted != 0:
		return notEnforced("ext4 counts the usage of projects but has no limits: mount it with the option prjquota")
	case magic == unix.EXT4_SUPER_MAGIC:
		return notEnforced("unmount the ext4, run tune2fs -O project,quota -Q prjquota on its device, and mount it " +
			"with the option prjquota")
	}
	return notEnforced("this filesystem (of type %#x) has no quotas of projects: take xfs, ext4 or btrfs", magic)
}

// getProject returns the quota of a project.
func getProject(dir *os.File, id uint32) (diskQuota, error) {
	var q diskQuota
	err := quotactl(dir, getQuota, id, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) { // xfs has no usage of the project
		return diskQuota{}, nil
	}
	if err != nil {
		return q, &os.PathError{Op: fmt.Sprintf("Q_XGETQUOTA of project %d", id), Path: dir.Name(), Err: err}
	}
	return q, nil
}

// limitProject sets the limit of a project, in bytes; 0 means no limit.
func limitProject(dir *os.File, id uint32, size int64) error {
	if state, err := stateOf(dir); err != nil {
		return err
	} else if state&enforced == 0 && (size > 0 || state&accounted == 0) {
		return howToEnforce(dir, state)
	}
	q := diskQuota{version: versionOfQuota, flags: flagProject, fields: fieldHardLimit, id: id}
	q.hardLimit = (uint64(size) + limitsIn - 1) / limitsIn * (limitsIn / unit)
	if err := quotactl(dir, setLimit, id, unsafe.Pointer(&q)); err != nil {
		return unprivileged(&os.PathError{Op: fmt.Sprintf("Q_XSETQLIM of project %d", id), Path: dir.Name(), Err: err})
	}
	return nil
}

// projects is locked from the search for an unused ID until the ID is in use.
var projects sync.Mutex

func makeProject(parent *os.File, name string, o Options) (Mark, error) {
	projects.Lock()
	defer projects.Unlock()
	id, err := unusedProject(parent, o)
	if err != nil {
		return Mark{}, err
	}
	if err := with(parent, func(fd int) error { return unix.Mkdirat(fd, name, 0o700) }); err != nil {
		return Mark{}, &os.PathError{Op: "mkdir", Path: parent.Name() + "/" + name, Err: err}
	}
	// The project is set before the limit, so that a crash between both leaves a directory with the
	// project, and never a limit without a directory.
	err = withDir(parent, name, func(dir *os.File) error {
		if err := errors.Join(dir.Chmod(o.Mode), enterProject(dir, id)); err != nil || o.Size == 0 {
			return err
		}
		return limitProject(dir, id, o.Size)
	})
	if err != nil {
		return Mark{}, removeAfter(err, func() error {
			return with(parent, func(fd int) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) })
		})
	}
	return Mark{Kind: Project, Project: id}, nil
}

// withDir calls do with the directory name in parent.
func withDir(parent *os.File, name string, do func(dir *os.File) error) error {
	dir, err := openBelow(parent, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(dir)
}

// unusedProject returns an ID that no volume has, and for which the filesystem has no usage.
func unusedProject(dir *os.File, o Options) (uint32, error) {
	for n := range candidates {
		id := candidate(o.Volume, n)
		if o.Taken != nil && o.Taken(id) {
			continue
		}
		q, err := getProject(dir, id)
		if err != nil {
			return 0, unprivileged(err)
		}
		if q.empty() {
			return id, nil
		}
	}
	return 0, fmt.Errorf("all of %d project IDs are in use", candidates)
}

func xattrOf(dir *os.File) (x fsxattr, err error) { return x, getXattr.call(dir, unsafe.Pointer(&x)) }

// enterProject adds an empty directory, and so its future content, to a project.
func enterProject(dir *os.File, id uint32) error {
	x, err := xattrOf(dir)
	if err != nil {
		return err
	}
	x.project, x.flags = id, x.flags|inherit
	return setXattr.call(dir, unsafe.Pointer(&x))
}

// inProject returns an error unless dir and its future entries belong to the project.
func inProject(dir *os.File, id uint32) error {
	x, err := xattrOf(dir)
	if err != nil {
		return err
	}
	if x.project != id || x.flags&inherit == 0 {
		return notEnforced("the directory is in project %d, inherited: %v, must be project %d, inherited: true: it "+
			"was changed outside the driver",
			x.project, x.flags&inherit != 0, id)
	}
	return nil
}

func lookAtProject(dir *os.File, id uint32) (Usage, error) {
	if err := inProject(dir, id); err != nil {
		return Usage{}, err
	}
	if err := projectsEnforced(dir); err != nil {
		return Usage{}, err
	}
	q, err := getProject(dir, id)
	return Usage{Limit: int64(q.hardLimit) * unit, Used: int64(q.used) * unit, Files: int64(q.files)}, err
}

// discardProject removes the limit from the project of a directory that is to be removed. The
// directory keeps the project's ID: while files have the ID, no other volume gets it.
func discardProject(parent, dir *os.File, taken func(project uint32) bool) error {
	x, err := xattrOf(dir)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) { // tmpfs, before Linux 6.6
		return nil
	}
	if err != nil {
		return err
	}
	if x.project < firstProject || x.project > lastProject || x.flags&inherit == 0 ||
		(taken != nil && taken(x.project)) {
		return nil
	}
	if around, err := xattrOf(parent); err != nil || around.project == x.project {
		return err
	}
	if err := limitProject(dir, x.project, 0); err != nil && !errors.Is(err, ErrNotEnforced) {
		return err
	}
	return nil
}
