package quota

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/btrfs.h.
var (
	createSubvolume = request{0x50009418, "BTRFS_IOC_SUBVOL_CREATE_V2"}
	createSnapshot  = request{0x50009417, "BTRFS_IOC_SNAP_CREATE_V2"}
	destroy         = request{0x5000943F, "BTRFS_IOC_SNAP_DESTROY_V2"}
	getFlags        = request{0x80089419, "BTRFS_IOC_SUBVOL_GETFLAGS"}
	setFlags        = request{0x4008941A, "BTRFS_IOC_SUBVOL_SETFLAGS"}
	lookUp          = request{0xD0009412, "BTRFS_IOC_INO_LOOKUP"}
	search          = request{0xD0009411, "BTRFS_IOC_TREE_SEARCH"}
	limitGroup      = request{0x8030942B, "BTRFS_IOC_QGROUP_LIMIT"}
	createGroup     = request{0x4010942A, "BTRFS_IOC_QGROUP_CREATE"}
	rescanStatus    = request{0x8040942D, "BTRFS_IOC_QUOTA_RESCAN_STATUS"}
	rescanWait      = request{0x0000942E, "BTRFS_IOC_QUOTA_RESCAN_WAIT"}
	startSync       = request{0x80089418, "BTRFS_IOC_START_SYNC"}
	waitSync        = request{0x40089416, "BTRFS_IOC_WAIT_SYNC"}
)

const (
	readOnlyFlag = 1 << 1 // BTRFS_SUBVOL_RDONLY
	byID         = 1 << 4 // BTRFS_SUBVOL_SPEC_BY_ID
	maxReferred  = 1 << 0 // BTRFS_QGROUP_LIMIT_MAX_RFER

	// the inode of the root directory of each subvolume, and the first ID:
	// BTRFS_FIRST_FREE_OBJECTID
	top           = 256
	lastSubvolume = 1<<48 - 1 // larger IDs belong to other groups
)

// From linux/btrfs_tree.h: trees, types of items, and flags of the status of quotas.
const (
	rootTree  = 1 // BTRFS_ROOT_TREE_OBJECTID
	quotaTree = 8 // BTRFS_QUOTA_TREE_OBJECTID

	itemInode  = 1   // BTRFS_INODE_ITEM_KEY
	itemRoot   = 132 // BTRFS_ROOT_ITEM_KEY: a subvolume, until its content is removed
	itemChild  = 156 // BTRFS_ROOT_REF_KEY: a subvolume inside another
	itemStatus = 240 // BTRFS_QGROUP_STATUS_KEY
	itemUsage  = 242 // BTRFS_QGROUP_INFO_KEY
	itemLimit  = 244 // BTRFS_QGROUP_LIMIT_KEY

	quotasOn           = 1 << 0 // BTRFS_QGROUP_STATUS_FLAG_ON
	quotasRescan       = 1 << 1 // BTRFS_QGROUP_STATUS_FLAG_RESCAN
	quotasInconsistent = 1 << 2 // BTRFS_QGROUP_STATUS_FLAG_INCONSISTENT
	quotasSimple       = 1 << 3 // BTRFS_QGROUP_STATUS_FLAG_SIMPLE_MODE, of Linux 6.7
)

// volumeArgs is struct btrfs_ioctl_vol_args_v2.
type volumeArgs struct {
	fd    int64
	_     uint64
	flags uint64
	_     [4]uint64
	name  [4040]byte // or an ID in the first bytes
}

// lookUpArgs is struct btrfs_ioctl_ino_lookup_args.
type lookUpArgs struct {
	tree, object uint64
	_            [4080]byte
}

// limitArgs is struct btrfs_ioctl_qgroup_limit_args.
type limitArgs struct {
	group         uint64
	flags         uint64
	maxReferenced uint64
	_             [3]uint64
}

// createArgs is struct btrfs_ioctl_qgroup_create_args.
type createArgs struct{ create, group uint64 }

// rescanArgs is struct btrfs_ioctl_quota_rescan_args.
type rescanArgs struct {
	running uint64
	_       [7]uint64
}

// searchArgs is struct btrfs_ioctl_search_args.
type searchArgs struct {
	tree                         uint64
	minObject, maxObject         uint64
	minOffset, maxOffset         uint64
	minGeneration, maxGeneration uint64
	minType, maxType             uint32
	items                        uint32
	_                            uint32
	_                            [4]uint64
	found                        [3992]byte
}

// searchHeader is the size of struct btrfs_ioctl_search_header, which precedes each item.
const searchHeader = 32

func newArgs(parent *os.File, name string) (*volumeArgs, error) {
	args := &volumeArgs{}
	if name == "" || len(name) >= len(args.name) {
		return nil, &os.PathError{Op: "make a subvolume", Path: parent.Name() + "/" + name, Err: unix.ENAMETOOLONG}
	}
	copy(args.name[:], name) // the kernel rejects slashes
	return args, nil
}

func makeSubvolume(parent *os.File, name string, o Options) error {
	args, err := newArgs(parent, name)
	if err != nil {
		return err
	}
	if err := createSubvolume.call(parent, unsafe.Pointer(args)); err != nil {
		return err
	}
	return finish(parent, name, func(dir *os.File) error {
		if err := dir.Chmod(o.Mode); err != nil || o.Size == 0 {
			return err
		}
		return limitTop(dir, o.Size)
	})
}

func makeSnapshot(src, parent *os.File, name string, size int64, readOnly bool) error {
	if _, err := subvolumeID(src); err != nil {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	args, err := newArgs(parent, name)
	if err != nil {
		return err
	}
	if readOnly {
		args.flags = readOnlyFlag
	}
	err = with(src, func(fd int) error {
		args.fd = int64(fd)
		return createSnapshot.call(parent, unsafe.Pointer(args))
	})
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTTY) { // another btrfs, another filesystem type
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return err
	}
	return finish(parent, name, func(dir *os.File) error {
		err := limitTop(dir, size) // the snapshot has the limit of src
		if size == 0 && errors.Is(err, ErrNotEnforced) {
			return nil
		}
		return err
	})
}

// finish calls do with a new subvolume, and removes the subvolume if do fails.
func finish(parent *os.File, name string, do func(dir *os.File) error) error {
	if err := withDir(parent, name, do); err != nil {
		return removeAfter(err, func() error { return Discard(parent, name, nil) })
	}
	return nil
}

// limitTop sets the limit of the subvolume with the root directory dir, in bytes; 0 means no limit.
// limitTop uses a descriptor outside of the subvolume: a full subvolume has no space for the
// change, and the kernel returns EDQUOT.
func limitTop(dir *os.File, size int64) error {
	id, err := subvolumeID(dir)
	if err != nil {
		return err
	}
	var fd int
	if err := with(dir, func(inside int) (err error) {
		fd, err = unix.Openat(inside, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	}); err != nil {
		return &os.PathError{Op: "open", Path: dir.Name() + "/..", Err: err}
	}
	outside := os.NewFile(uintptr(fd), dir.Name()+"/..")
	defer outside.Close()
	if err := limitSubvolume(outside, id, size); err != nil {
		return err
	}
	return commit(outside)
}

// commit makes changes of btrfs's own structures durable, which fsync(2) of a file does not. It
// does not write the data of files.
func commit(dir *os.File) error {
	var transaction uint64
	if err := startSync.call(dir, unsafe.Pointer(&transaction)); err != nil {
		return err
	}
	return waitSync.call(dir, unsafe.Pointer(&transaction))
}

// limitSubvolume sets the limit of a subvolume of the filesystem of dir.
func limitSubvolume(dir *os.File, id uint64, size int64) error {
	args := limitArgs{group: id, flags: maxReferred, maxReferenced: uint64(size)}
	if size == 0 {
		args.maxReferenced = math.MaxUint64
	}
	err := limitGroup.call(dir, unsafe.Pointer(&args))
	switch {
	case errors.Is(err, unix.ENOTCONN):
		return groupsOff()
	case errors.Is(err, unix.ENOENT):
		return groupGone(id)
	}
	return unprivileged(err)
}

func groupGone(id uint64) error {
	return notEnforced("the subvolume has lost its quota group: btrfs qgroup create 0/%d on the mount makes one, "+
		"then btrfs quota rescan", id)
}

func groupsOff() error {
	return notEnforced("this btrfs has no quotas enabled: btrfs quota enable --simple on its mount (Linux 6.7), or " +
		"without --simple")
}

// subvolumeID returns the ID of the subvolume with the root directory dir, or ErrNotEnforced.
func subvolumeID(dir *os.File) (uint64, error) {
	isBtrfs, err := onBtrfs(dir)
	if err != nil {
		return 0, err
	}
	var stat unix.Stat_t
	if err := with(dir, func(fd int) error { return unix.Fstat(fd, &stat) }); err != nil {
		return 0, &os.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	if !isBtrfs || stat.Ino != top {
		return 0, notEnforced("the directory is no subvolume of btrfs")
	}
	args := lookUpArgs{object: top}
	if err := lookUp.call(dir, unsafe.Pointer(&args)); err != nil {
		return 0, err
	}
	return args.tree, nil
}

// awaitRescan returns when btrfs has counted all extents. awaitRescan polls, as a wait in the
// kernel could not be canceled.
func awaitRescan(ctx context.Context, dir *os.File) error {
	const most = 100 * time.Millisecond
	for pause := time.Millisecond; ; pause = min(2*pause, most) {
		var args rescanArgs
		if err := rescanStatus.call(dir, unsafe.Pointer(&args)); err != nil {
			return unprivileged(err)
		}
		if args.running == 0 {
			return unprivileged(rescanWait.call(dir, nil)) // waits for the last step of the rescan
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for btrfs to count its extents: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

// groupsEnforced returns ErrNotEnforced, with a remedy, unless the limits of subvolumes hold.
// simple reports simple quotas.
func groupsEnforced(dir *os.File) (simple bool, err error) {
	status, err := item(dir, quotaTree, 0, itemStatus, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, groupsOff()
	}
	if err != nil {
		return false, unprivileged(err)
	}
	flags := field(status, 2) // version, generation, flags
	simple = flags&quotasSimple != 0
	switch {
	case flags&quotasOn == 0:
		return simple, groupsOff()
	case simple:
		return true, nil
	case flags&quotasRescan != 0:
		return false, notEnforced("btrfs is counting its extents: until then it knows no sizes")
	case flags&quotasInconsistent != 0:
		return false, notEnforced("btrfs has lost count of its extents, as after a large snapshot was deleted: btrfs " +
			"quota rescan on its mount")
	}
	return false, nil
}

func lookAtSubvolume(dir *os.File) (Usage, error) {
	id, err := subvolumeID(dir)
	if err != nil {
		return Usage{}, err
	}
	if _, err := groupsEnforced(dir); err != nil {
		return Usage{}, err
	}
	usage, err := item(dir, quotaTree, 0, itemUsage, id)
	if errors.Is(err, fs.ErrNotExist) {
		return Usage{}, groupGone(id)
	}
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Used: bytesOf(field(usage, 1))} // generation, referenced
	limit, err := item(dir, quotaTree, 0, itemLimit, id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u, err
	}
	if field(limit, 0)&maxReferred != 0 { // flags, maximum of referenced
		u.Limit = bytesOf(field(limit, 1))
	}
	return u, nil
}

// field returns the nth 64-bit number of an item, or 0 if the item is shorter.
func field(item []byte, n int) uint64 {
	if len(item) < 8*(n+1) {
		return 0
	}
	return binary.LittleEndian.Uint64(item[8*n:])
}

func bytesOf(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// item returns an item of a tree of the filesystem of dir. Errors: fs.ErrNotExist, also for a
// missing tree.
func item(dir *os.File, tree, object uint64, kind uint32, offset uint64) ([]byte, error) {
	var found []byte
	err := items(dir, tree, object, kind, offset, offset, func(_ uint64, item []byte) { found = item })
	if err == nil && found == nil {
		err = fs.ErrNotExist
	}
	return found, err
}

// items calls each for the items of a tree with the given object ID and type, and with an offset
// from first to last.
func items(dir *os.File, tree, object uint64, kind uint32, first, last uint64,
	each func(offset uint64, item []byte)) error {
	for {
		args := searchArgs{
			tree: tree, minObject: object, maxObject: object, minType: kind, maxType: kind,
			minOffset: first, maxOffset: last, maxGeneration: math.MaxUint64, items: math.MaxUint32,
		}
		if err := search.call(dir, unsafe.Pointer(&args)); err != nil || args.items == 0 {
			return err
		}
		rest := args.found[:]
		for range args.items {
			offset, size := binary.LittleEndian.Uint64(rest[16:]), binary.LittleEndian.Uint32(rest[28:])
			rest = rest[searchHeader:]
			each(offset, rest[:size])
			rest = rest[size:]
			if first = offset + 1; offset >= last {
				return nil
			}
		}
	}
}

// destroySubvolumes removes a subvolume and all subvolumes inside it. destroySubvolumes finds and
// removes them by ID, as a tenant may have chosen their names, paths and read-only flags.
func destroySubvolumes(dir *os.File, id uint64) error {
	all := []uint64{id}
	inside := map[uint64]uint64{} // subvolume ID to the ID of the subvolume around it
	for i := 0; i < len(all); i++ {
		err := items(dir, rootTree, all[i], itemChild, 0, math.MaxUint64, func(child uint64, _ []byte) {
			all, inside[child] = append(all, child), all[i]
		})
		if err != nil {
			return unprivileged(err)
		}
	}
	for _, id := range all { // a full subvolume rejects removals
		if err := limitSubvolume(dir, id, 0); err != nil && !errors.Is(err, ErrNotEnforced) {
			return err
		}
	}
	for _, id := range slices.Backward(all) {
		err := destroySubvolume(dir, id)
		if errors.Is(err, unix.EROFS) && inside[id] != 0 {
			if err = makeWritable(dir, inside[id]); err == nil {
				err = destroySubvolume(dir, id)
			}
		}
		if err != nil {
			return unprivileged(err)
		}
	}
	return nil
}

// destroySubvolume removes a subvolume that contains no others.
func destroySubvolume(dir *os.File, id uint64) error {
	args := volumeArgs{flags: byID}
	binary.NativeEndian.PutUint64(args.name[:], id)
	return destroy.call(dir, unsafe.Pointer(&args))
}

// sweepGroups removes the quota groups of subvolumes that no longer exist. Subvolume IDs are never
// used again. sweepGroups does not touch a group with usage: Linux 6.18 is about to remove such a
// group itself, and treats a removal by another process as a lost count.
func sweepGroups(dir *os.File) error {
	var stale []uint64
	var failed error
	err := items(dir, quotaTree, 0, itemLimit, top, lastSubvolume, func(id uint64, _ []byte) {
		there := false
		err := items(dir, rootTree, id, itemRoot, 0, math.MaxUint64, func(uint64, []byte) { there = true })
		if err == nil && !there {
			var usage []byte
			usage, err = item(dir, quotaTree, 0, itemUsage, id)
			there = err == nil && (field(usage, 1) != 0 || field(usage, 3) != 0) // referenced, exclusive
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
		if failed = errors.Join(failed, err); err == nil && !there {
			stale = append(stale, id)
		}
	})
	if errors.Is(err, unix.ENOENT) { // no quotas
		return nil
	}
	if err = errors.Join(err, failed); err != nil {
		return unprivileged(err)
	}
	for _, id := range stale {
		err := createGroup.call(dir, unsafe.Pointer(&createArgs{create: 0, group: id}))
		// With simple quotas a group stays in use while a snapshot shares blocks that its subvolume
		// wrote.
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTCONN) {
			return err
		}
	}
	return nil
}

// handleOfDirectory is FILEID_BTRFS_WITHOUT_PARENT, the type of the handles of files on btrfs:
// linux/exportfs.h.
const handleOfDirectory = 0x4d

// makeWritable makes a subvolume writable. makeWritable opens the subvolume by its ID.
func makeWritable(dir *os.File, id uint64) error {
	inode, err := item(dir, id, top, itemInode, 0)
	if err != nil {
		return err
	}
	handle := make([]byte, 20) // struct btrfs_fid: inode, subvolume, generation (32 bits)
	binary.NativeEndian.PutUint64(handle, top)
	binary.NativeEndian.PutUint64(handle[8:], id)
	binary.NativeEndian.PutUint32(handle[16:], uint32(field(inode, 0)))
	var fd int
	err = with(dir, func(mount int) (err error) {
		fd, err = unix.OpenByHandleAt(mount, unix.NewFileHandle(handleOfDirectory, handle),
			unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
		return err
	})
	if err != nil {
		return &os.PathError{Op: fmt.Sprintf("open subvolume %d", id), Path: dir.Name(), Err: err}
	}
	subvolume := os.NewFile(uintptr(fd), fmt.Sprintf("subvolume %d", id))
	defer subvolume.Close()
	var flags uint64
	if err := getFlags.call(subvolume, unsafe.Pointer(&flags)); err != nil {
		return err
	}
	flags &^= readOnlyFlag
	return setFlags.call(subvolume, unsafe.Pointer(&flags))
}
