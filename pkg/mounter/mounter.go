// Package mounter describes mounts of volumes, and the operations of a machine on them.
//
// A mount is a value. A backend describes a mount (Mount), and the driver passes the description to
// the Mounter, which makes the mount. A backend that keeps volumes in images works on them with
// Images. A Host is both. So backends are portable, and all differences between operating systems
// are in the Host: the package host has that of this machine, and mountertest has Hosts that keep
// their mounts in memory, or have the logic of Windows over files of this machine, for tests.
package mounter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
)

// Kind is the kind of a Mount.
type Kind string

const (
	// Directory is a directory of this machine: a bind mount on Linux, a link on Windows.
	Directory Kind = "directory"
	// Image is a file with a filesystem in it.
	Image Kind = "image"
	// Disk is a file as a block device, which is then found in the directory at the path, as
	// DeviceName.
	Disk Kind = "disk"
	// Device is the node of a block device that is mounted already. The path is a file.
	Device Kind = "device"
	// BlockDevice is a block device of this machine, such as a disk that was attached to it. With
	// an FSType, the filesystem on the device is mounted, and made first if the device is blank.
	// Without an FSType, the device itself is mounted, as a Disk: on Linux only. On Windows, Mount
	// finds the disk by its Serial, and Source is not used.
	BlockDevice Kind = "block-device"
	// Share is a directory on an SMB server.
	Share Kind = "share"
)

// DeviceName is the name of the block device in the directory at which a Disk, or a BlockDevice
// without a filesystem, is mounted.
const DeviceName = "device"

// Mount describes a mount.
type Mount struct {
	Kind      Kind
	Source    string   // the absolute path of the directory, file or device; of a Share: see ParseShare
	FSType    string   // of an Image: one of FSTypes; of a BlockDevice, too, or "" for the device itself
	Sector    int      // of an Image or Disk: the logical block size in bytes, on which its filesystem depends
	Options   []string // mount options, each of which passed CheckOptions; none for a Disk or Device
	ReadOnly  bool     // enforced by the kernel, regardless of Options
	Buffered  bool     // of an Image or Disk: its device uses the page cache of its file, too
	ReadAhead int      // of an Image or Disk: the read-ahead of its device, in bytes; 0: the kernel's default
	// of an Image or BlockDevice: the namespace of its claim, for fair shares; "" if it is unknown
	Tenant string

	// Credentials are those of a Share. Mount gives them to the kernel. No other call needs them,
	// and no record contains them.
	Credentials Credentials `json:"-"`

	// Serial identifies a BlockDevice: a serial number or another name from the storage that no
	// other device ever has. Only a device with a Serial is formatted.
	Serial string
	// Format are further arguments of mkfs for a BlockDevice, each of which passed CheckFormat.
	Format []string
	// Size is the least size of a BlockDevice, in bytes; 0: any.
	Size int64
	// Sequence is the sequence number that the kernel gave the BlockDevice when the backend found
	// it, from FindDevice. Mount and Grow refuse another device under the same name. 0: not
	// compared.
	Sequence uint64
}

// IsDevice reports whether m shows a block device and no filesystem.
func (m Mount) IsDevice() bool {
	return m.Kind == Disk || m.Kind == Device || (m.Kind == BlockDevice && m.FSType == "")
}

// TooSmall is the error of a BlockDevice with fewer bytes than m.Size.
func TooSmall(m Mount, size int64) error {
	return fmt.Errorf("%w: %s has %d bytes, must have at least %d: attach the disk of this volume, or, if the disk "+
		"grew, let the node see its new size", ErrDevice, m.Source, size, m.Size)
}

// BindFrom returns the bind mount whose source is the mount of m at path.
func (m Mount) BindFrom(path string) Mount {
	again := Mount{Kind: Directory, Source: path, ReadOnly: m.ReadOnly}
	if m.IsDevice() {
		again.Kind, again.Source = Device, filepath.Join(path, DeviceName)
	}
	for _, o := range m.Options {
		if slices.Contains(options.Directory, o) { // all others hold for all mounts of the filesystem
			again.Options = append(again.Options, o)
		}
	}
	return again
}

// Failure describes the failure of a filesystem.
type Failure struct {
	Kind    FailureKind
	Message string // for a person
}

// FailureKind is the severity of a Failure.
type FailureKind int

// Kinds of failures, from the mildest.
const (
	PageCached     FailureKind = iota + 1 // the device uses the page cache of the disk, whether or not Buffered is set
	Erroneous                             // the filesystem has found errors, in itself or on its device, and continues
	TurnedReadOnly                        // the filesystem rejects writes
	Down                                  // the filesystem returns errors only
	Stalled                               // a system call hangs, or the filesystem is frozen and cannot be thawed
	Unmountable                           // the last mount found no filesystem that it could mount or repair
)

// Check is a check, or growth, of the filesystem in an image before it is mounted.
type Check struct {
	Image   string // absolute path
	Tenant  string // as Mount.Tenant
	Running bool
	Since   time.Time // when it began to run, or to wait
}

// Helpers is a pool of helper processes.
type Helpers struct {
	Pool  string // name
	Busy  int    // helpers that work or hang
	Limit int
}

// Usage is the usage of the filesystem at a path, as in statfs(2). If the filesystem has a limit
// for the directory (a project quota), the numbers are those of the limit.
type Usage struct {
	TotalBytes, UsedBytes, AvailableBytes    int64
	TotalInodes, UsedInodes, AvailableInodes int64 // all 0 for a filesystem without a fixed number of inodes
}

// Errors that a Host returns wrapped, with the operation and its object.
var (
	// outside the kubelet directory, relative, unclean, or through a link
	ErrPath     = paths.Err
	ErrConflict = errors.New("occupied by another mount")   // or by the same mount with other options
	ErrBusy     = errors.New("in use")                      // files below the path are open
	ErrNotEmpty = errors.New("not an empty directory")      // a mount would hide files
	ErrOption   = errors.New("mount option not allowed")    // not on the list of this kind
	ErrReadOnly = errors.New("read-only")                   // and m is writable
	ErrFormat   = errors.New("not the filesystem expected") // on an image; it is never formatted again
	ErrThawed   = errors.New("no longer one point in time") // the data was copied while a freeze did not last
	ErrFrozen   = errors.New("still frozen")                // writes hang until the thaw
	ErrNoAnswer = errors.New("a device does not answer")    // and it is not known whether it has the file
	ErrStalled  = errors.New("not answering")               // a system call on it hangs, in a process that was given up
	// The program that checks a filesystem was killed or had no memory: its state is not known.
	ErrCheck = errors.New("filesystem check not completed")
	// a BlockDevice with other data, too small, or unreadable; it is as it was
	ErrDevice = errors.New("device cannot be used")
	// of a Share
	ErrServer   = errors.New("server does not answer")      // or refuses connections
	ErrAccess   = errors.New("server denies access")        // to these credentials
	ErrNotFound = errors.New("no such share, or directory") // on this server
	// the mount is as it was, and lasts until its session ends
	ErrCredentials = errors.New("credentials of a mounted share not changed")
)

// Mounter mounts below a single directory, the kubelet's. A path outside is ErrPath. The parent of
// a path must exist. No element of a path, or of a source, may be a symbolic link, also during a
// call; only the path of the kubelet directory itself may have links. Methods are safe for
// concurrent use, but the caller makes a single change of a path at a time. All methods may be
// repeated.
type Mounter interface {
	// Mount mounts m at path, and makes the last element of path if it is missing. If m is already
	// mounted there with the same options, Mount does nothing; Buffered and ReadAhead are not
	// compared. Mount returns nil only after the kernel has shown the mount at path, with its
	// options. After an error there is no mount, and path is unchanged. A dead or deleted mount at
	// path is replaced. Errors: ErrPath, also if path was moved or replaced during the call,
	// ErrConflict, ErrNotEmpty, ErrOption, ErrReadOnly, ErrFormat, ErrCheck, ErrBusy.
	//
	// Mount makes the filesystem of a BlockDevice if the device is blank and m is not read-only. A
	// device is blank if all ranges where filesystems, volume managers and partition tables keep
	// their signatures were read, and hold zeroes. A device whose format by Mount was interrupted,
	// and that was not used since, is formatted again. Every other device without the filesystem is
	// ErrDevice, and stays unchanged. A device that is mounted elsewhere, or that another program
	// has opened exclusively, is ErrBusy.
	//
	// A Share that is mounted at path already gets the Credentials of m: the kernel uses them when
	// it next logs in to the server. If the kernel cannot change them (Linux before 6.9), the error
	// is ErrCredentials and the mount stays as it was. Errors of a Share: ErrServer, ErrAccess,
	// ErrNotFound, and those of ctx if the server does not answer until then.
	//
	// A read-only Mount of a BlockDevice never writes to the device. If its filesystem has a log to
	// replay, the error is ErrDevice: the device must be mounted for writing first. If the Sequence
	// of the device differs from m's, the error is ErrDevice, too.
	Mount(ctx context.Context, m Mount, path string) error

	// Unmount removes all mounts at path, and leaves path itself. A healthy mount that is in use is
	// ErrBusy: Unmount never detaches it. A path without a mount, or a missing path, is no error. A
	// Share whose server does not answer is detached after 5 s.
	Unmount(ctx context.Context, path string) error

	// Remove is Unmount, followed by the removal of path: an empty directory, or a file that a
	// Mounter has made or used as the target of a Device. It is not recursive. Errors: ErrPath,
	// also for any other file, ErrBusy, ErrNotEmpty.
	Remove(ctx context.Context, path string) error

	// Mounted reports whether path shows m's source, mounted by m or by m.BindFrom. Options are not
	// compared. The result is false for a missing path and for a dead mount.
	Mounted(ctx context.Context, m Mount, path string) (bool, error)

	// Occupied reports whether a mount that is not dead is at path.
	Occupied(ctx context.Context, path string) (bool, error)

	// OtherTargets returns the other paths, sorted, that were mounted below the kubelet directory
	// from the same source as path. Its cost does not grow with the number of mounts. Errors:
	// ErrBusy if a path cannot be examined.
	OtherTargets(ctx context.Context, path string) ([]string, error)

	// Grow makes the filesystem or device of m, mounted at path, as large as its image or
	// BlockDevice, while pods use it. For a BlockDevice with an FSType, the mounted filesystem
	// counts, of any type. A Directory, a Share and a BlockDevice without a filesystem have nothing
	// to grow.
	// Errors: ErrBusy if this machine can only grow the filesystem at the next mount, ErrReadOnly,
	// ErrDevice for a BlockDevice that is smaller than m.Size, or has another Sequence.
	Grow(ctx context.Context, m Mount, path string) error

	// Usage returns the usage of the filesystem at path. For a block device it returns the size
	// only.
	Usage(ctx context.Context, path string) (Usage, error)
}

// PathCleaner is a Mounter to which one file can have several paths. On Windows the kubelet sends a
// staging path without a drive, and a target path with one. On Linux the kubelet directory can be a
// link to the directory of the kubelet.
type PathCleaner interface {
	// CleanPath returns the form in which the methods take and compare paths. Errors: ErrPath for a
	// path that no method accepts.
	CleanPath(path string) (string, error)
}

// RuntimeReadOnly is a Mounter of a system without read-only mounts, such as Windows: the container
// runtime makes a volume read-only, if readonly of NodePublishVolume requests it. Nothing else
// does.
type RuntimeReadOnly interface {
	// RuntimeReadOnly reports whether this is such a system.
	RuntimeReadOnly() bool
}

// Images works on images, the files that hold the filesystems of volumes, and on their use by this
// machine. A backend calls Images; only the driver calls a Mounter. Methods are safe for concurrent
// use, also while a Mounter mounts, unmounts or grows the same image.
type Images interface {
	// Supports returns errors.ErrUnsupported if no machine with this operating system can mount a
	// kind, or an Image with that filesystem, or a mount of them has no such options. It looks for
	// no program: MakeImage does.
	Supports(k Kind, fsType string, options []string) error

	// ImageExt returns the extension that the name of an image must have, such as ".vhdx": "" where
	// an image is a plain file with the bytes of its volume.
	ImageExt() string

	// MakeImage makes the file path, which must not exist: an image whose volume has size bytes,
	// with an empty filesystem of a type, or without one for "" (a raw block volume). No other
	// method makes a filesystem in an image. The content is durable when MakeImage returns; to make
	// the name durable is up to the caller. After an error MakeImage has removed the file. After a
	// death during the call, discard the file. On Linux a filesystem of at least LargeImage bytes
	// can be mounted with a Mount.Sector of up to 4096 bytes, and a smaller one with 512. Errors:
	// fs.ErrExist, fs.ErrNotExist for the directory, ErrPath, ErrFormat for a type outside of
	// FSTypes, errors.ErrUnsupported where this machine cannot make the image.
	MakeImage(ctx context.Context, path string, size int64, fsType string) error

	// GrowImage makes the volume in an image at least size bytes large, durably. It never makes the
	// volume smaller, and repeated calls are fine. The filesystem grows when it is mounted, or by
	// Grow. Errors: fs.ErrNotExist, ErrPath, ErrFormat if path is not an image, ErrBusy if the
	// image is in use and this machine can only grow an unused image.
	GrowImage(ctx context.Context, path string, size int64) error

	// ImageSize returns the size in bytes of the volume in an image, which may be in use. Errors:
	// fs.ErrNotExist, ErrPath, ErrFormat if path is not an image.
	ImageSize(path string) (int64, error)

	// NewUUID gives the filesystem in an unused image another UUID, so that it can be mounted
	// beside its source. The image can be a copy of a filesystem in use, in the state of a power
	// cut: then NewUUID replays its log. sector is that of Mount. The caller makes the change
	// durable with image.Sync. After an error, or a death during the call, discard the image.
	// Errors: ErrFormat, ErrBusy, errors.ErrUnsupported where this machine lacks a program, or a
	// kernel that mounts two such copies.
	NewUUID(ctx context.Context, image *os.File, fsType string, sector int) error

	// Freeze calls copyData while the filesystems in these images, as far as they are mounted here,
	// are frozen: they are not written. The images are absolute paths of files. Meanwhile no other
	// call of this Host mounts, unmounts or changes the images: such calls wait, so copyData must
	// make none. Raw block devices (Disk, Device) cannot be frozen. Freeze flushes them to the
	// image; writes continue.
	//
	// Freeze calls copyData once, or not at all after an earlier error. The context of copyData
	// ends when limit has passed since the start of the freeze. Processes that write wait meanwhile
	// and cannot be killed, so copyData must be short and must not touch a frozen filesystem.
	// Freeze returns the error of copyData unchanged, or joined with ErrThawed. A helper process
	// makes the freeze. When Freeze returns, or panics with copyData, it has thawed everything;
	// when the driver dies, the helper thaws at once; when both die, the next New thaws.
	//
	// A write that has begun and does not end prevents a freeze. Freeze gives up at limit, and the
	// image is stalled until the write ends: Failing reports the image, and a further Freeze fails
	// at once. While 8 images of a tenant are stalled, a Freeze of its other images fails, too, as
	// each occupies a helper process. tenant is as Mount.Tenant.
	//
	// Errors: ErrThawed if the freeze took or lasted longer than limit, or another process ended
	// it, so that the result of copyData is useless; ErrStalled; ErrFrozen if a filesystem could
	// not be thawed, and the helper keeps trying; ErrBusy if another process has frozen a
	// filesystem, or uses it in a mount namespace that is not visible here; ErrFormat if an image
	// is not a regular file.
	Freeze(ctx context.Context, tenant string, images []string, limit time.Duration,
		copyData func(ctx context.Context) error) error

	// Trim gives the blocks of an image that its filesystem does not use back to the disk, and
	// returns the bytes that the image takes less than before, or fewer: xfs may give some back a
	// moment later. It does nothing for an image without a filesystem that is mounted here. tenant
	// is as Mount.Tenant. Trim gives way: it ends with ErrBusy when a call of this Host unmounts,
	// grows or freezes the image. Then a part of the blocks is given back. A helper process makes
	// the system call.
	//
	// Errors: ErrBusy, ErrStalled, ErrFormat if the image is not a regular file,
	// errors.ErrUnsupported if the disk cannot take blocks back, or the system has no such call.
	Trim(ctx context.Context, tenant, image string) (freed int64, err error)

	// Tune sets Buffered and the read-ahead of the device of m's image, if it has a device now, as
	// in m. If this machine cannot bypass the page cache, the device stays Buffered. Files that are
	// open already, and a btrfs, may keep the old settings.
	Tune(ctx context.Context, m Mount) error

	// MountPointsOf returns the sorted paths of this machine at which source or a directory below
	// it is mounted, without source's own mount, and of overlays with such a directory as a layer.
	// For a file it returns the mount points of its filesystem or of its device; if there are none,
	// but a device has the file, that device. The cost grows with the number of mounts of the
	// machine. MountPointsOf sees only this mount namespace, and only layers whose path was
	// absolute and still leads to the directory. Errors: ErrPath if an element of source is a link.
	MountPointsOf(source string) ([]string, error)

	// Detach detaches the device of an image if no mount uses the device and no process has it
	// open: a program has unmounted the node of a Disk without Unmount, which leaves the device
	// attached. Detach returns the device if no mount uses it, but a process still has it open,
	// or another mount namespace. The device stays as it is then. Errors: fs.ErrNotExist, ErrPath,
	// ErrNoAnswer.
	Detach(ctx context.Context, image string) (device string, err error)

	// IsFilesystem reports whether a directory is the root of a filesystem, whose space then
	// belongs to the owner of the directory alone. Errors: errors.ErrUnsupported where this is not
	// known.
	IsFilesystem(dir string) (bool, error)

	// Failing returns the images whose filesystems are mounted, by any process, and have failed, by
	// absolute path, each with its worst known failure. It also returns images whose devices use the
	// page cache of the disk (PageCached), which harms no data. Failing asks the kernel. Failing does
	// not wait for tenants, and waits some seconds at most for a filesystem that does not answer,
	// which is Stalled.
	Failing() (map[string]Failure, error)

	// Checks returns the checks of filesystems that run or wait for a slot. Few run at a time, and
	// no Tenant has all slots.
	Checks() []Check

	// Helpers returns the pools of helper processes, which make the system calls that can hang.
	Helpers() []Helpers
}

// LargeImage is the size in bytes from which on ext4 has blocks of 4096 bytes by default: its blocks
// cannot be smaller than the sectors of its device.
const LargeImage = 512 << 20

// Host is a machine: see the packages host and mountertest. Both halves share locks, so a Mounter
// and the Images for the same files come from the same Host.
type Host interface {
	Mounter
	Images
}

// formatOptions are the arguments of mkfs that a backend may set for a filesystem. Each has a
// value. Arguments that name a file or a further device are not among them.
var formatOptions = map[string][]string{
	"ext4":  {"-b", "-E", "-i", "-I", "-N", "-O", "-T"},
	"xfs":   {"-b", "-i", "-m", "-n", "-s"},
	"btrfs": {"-m", "-n", "-O", "-s"},
}

// CheckFormat returns ErrOption for arguments of mkfs that a BlockDevice with a filesystem of a
// type may not have. They are pairs of an option and its value, such as "-i", "8192".
func CheckFormat(fsType string, arguments []string) error {
	allowed := formatOptions[fsType]
	for i, a := range arguments {
		switch {
		case i%2 == 0 && (!slices.Contains(allowed, a) || i+1 == len(arguments)):
			return fmt.Errorf("%w: invalid argument %.32q of mkfs.%.32s: must be one of %q, with a value", ErrOption, a,
				fsType, allowed)
		case i%2 == 1 && (a == "" || strings.HasPrefix(a, "-") || strings.ContainsAny(a, "/\x00")):
			return fmt.Errorf("%w: invalid value %.32q of the argument %s of mkfs.%.32s: must not start with - or "+
				"hold a slash", ErrOption, a, arguments[i-1], fsType)
		}
	}
	return nil
}
