// Package mounter puts a volume at a path on this operating system.
//
// A mount is a value. A backend returns what to mount (Mount), never how, and the driver passes it to the Mounter.
// A backend that keeps volumes in images works on them with Images. New returns both as one Host. So backends are
// portable, and everything that differs between operating systems is in this package: mounter_linux.go has the real
// Host, those of mounter_windows.go and mounter_other.go are errors, and Fake keeps its mounts in memory, for tests.
package mounter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/helper"
)

// Kind is the way in which a Mount is made.
type Kind string

const (
	// Directory is a directory of this machine: a bind mount on Linux, a link on Windows.
	Directory Kind = "directory"
	// Image is a file with a filesystem in it.
	Image Kind = "image"
	// Disk is a file as a block device, which is then found in the directory at the path, as DeviceName.
	Disk Kind = "disk"
	// Device is a block device that is mounted already, once more: the path is a file.
	Device Kind = "device"
	// BlockDevice is a block device of this machine, such as a disk that was attached to it: the
	// filesystem on it, which is made where the device is blank, or, with no FSType, the device
	// itself, as a Disk. Linux only.
	BlockDevice Kind = "block-device"
)

// DeviceName is the name of the block device in the directory at which a Disk, or a BlockDevice
// without a filesystem, is mounted.
const DeviceName = "device"

// Mount says what is to be at a path.
type Mount struct {
	Kind      Kind
	Source    string   // the absolute path of what is mounted
	FSType    string   // of an Image: one of FSTypes; of a BlockDevice, too, or "" for the device itself
	Sector    int      // of an Image or Disk: the logical block size in bytes, which a filesystem depends on
	Options   []string // mount options, each of which passed CheckOptions; none for a Disk or Device
	ReadOnly  bool     // enforced by the kernel, whatever Options say
	Buffered  bool     // of an Image or Disk: its blocks go through this machine's page cache, once more
	ReadAhead int      // of an Image or Disk: how far its device is read ahead, in bytes; 0 is the kernel's default
	Tenant    string   // of an Image or BlockDevice: the namespace of its claim, for fair shares; "" where it is not known

	// Serial is what the storage knows a BlockDevice by: a serial number or another name that no
	// other device ever has. Only a device that has one is formatted.
	Serial string
	// Format are further arguments of mkfs for a BlockDevice, each of which passed CheckFormat.
	Format []string
	// Size is the least size of a BlockDevice, in bytes; 0: any.
	Size int64
	// Sequence is the sequence number that the kernel gave the BlockDevice when the backend found it,
	// from FindDevice. Mount and Grow refuse another device under the same name. 0: not compared.
	Sequence uint64
}

// isNode reports whether m shows a block device and no filesystem.
func (m Mount) isNode() bool {
	return m.Kind == Disk || m.Kind == Device || (m.Kind == BlockDevice && m.FSType == "")
}

// tooSmall is the error of a BlockDevice with fewer bytes than m.Size.
func tooSmall(m Mount, size int64) error {
	return fmt.Errorf("%w: %s has %d bytes, must have at least %d: attach the disk of this volume, or, if the disk grew, let the node"+
		" see its new size", ErrDevice, m.Source, size, m.Size)
}

// BindFrom returns the Mount that shows at a further path what m shows at path.
func (m Mount) BindFrom(path string) Mount {
	again := Mount{Kind: Directory, Source: path, ReadOnly: m.ReadOnly}
	if m.isNode() {
		again.Kind, again.Source = Device, filepath.Join(path, DeviceName)
	}
	for _, o := range m.Options {
		if slices.Contains(directoryOptions, o) { // the others are the filesystem's, and hold for all of its mounts
			again.Options = append(again.Options, o)
		}
	}
	return again
}

// Failure is what is wrong with a filesystem.
type Failure struct {
	Kind    FailureKind
	Message string // for a person
}

// FailureKind is how bad a Failure is.
type FailureKind int

const (
	Erroneous      FailureKind = iota + 1 // it has found errors, in itself or on its device, and goes on
	TurnedReadOnly                        // it takes no writes any more
	Down                                  // it answers with errors only
	Stalled                               // a system call on it hangs, or it is frozen and cannot be thawed
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
	Pool  string // its work
	Busy  int    // helpers that are at work or hang
	Limit int
}

// Usage is how full the filesystem behind a path is, as statfs(2) tells it. Where the filesystem keeps a limit for
// the directory (a project quota), the numbers are those of the limit.
type Usage struct {
	TotalBytes, UsedBytes, AvailableBytes    int64
	TotalInodes, UsedInodes, AvailableInodes int64 // all 0 where the filesystem has no fixed number of inodes
}

// Errors that a Host returns wrapped, with what was tried and on what.
var (
	ErrPath     = errors.New("invalid path")                // outside the kubelet directory, relative, unclean, or through a link
	ErrConflict = errors.New("something else is there")     // another mount, or the same with other options
	ErrBusy     = errors.New("in use")                      // files below the path are open
	ErrNotEmpty = errors.New("not an empty directory")      // mounting over it would hide somebody's files
	ErrOption   = errors.New("mount option not allowed")    // not on the list of this kind
	ErrReadOnly = errors.New("it is read-only")             // asked for writing
	ErrFormat   = errors.New("not the filesystem expected") // on an image; it is never formatted again
	ErrThawed   = errors.New("no longer one point in time") // what was cut while a freeze did not last
	ErrFrozen   = errors.New("still frozen")                // whoever writes to it hangs, until it can be thawed
	ErrNoAnswer = errors.New("a device does not answer")    // and may be the one that matters
	ErrStalled  = errors.New("not answering")               // a system call on it hangs, in a process that was given up
	ErrDevice   = errors.New("device cannot be used")       // a BlockDevice with other data, too small, or unreadable; it is as it was
)

// Main must be the first call of a program that uses Freeze or Grow, or of TestMain. In a process
// that a Host has started as its helper it does not return. Elsewhere it does nothing.
func Main() { helper.Main(HelperTasks()) }

// Mounter mounts below one directory, the kubelet's, and touches no path outside it: those are
// ErrPath. To be mounted at, a path must have a parent. No element of a path, or of a source, may be a
// symbolic link, also while a call runs; only the kubelet directory itself may be reached by one. Every
// method may be called by many goroutines, but for one path the caller makes one change at a time. All
// methods may be repeated.
type Mounter interface {
	// Mount puts m at path, and makes the last element of path where it is missing. If m is there
	// already, with the same options, nothing is done; Buffered and ReadAhead are not compared. Mount
	// returns nil only after the kernel has shown the mount at path, with its options. After an error
	// nothing of it is mounted anywhere, and path is as it was. A dead or deleted mount at path is
	// replaced. Errors: ErrPath, also if path was moved or replaced during the call, ErrConflict,
	// ErrNotEmpty, ErrOption, ErrReadOnly, ErrFormat, ErrBusy.
	//
	// Mount makes the filesystem of a BlockDevice if the device is blank and m is not read-only. A
	// device is blank if all places where filesystems, volume managers and partition tables keep
	// their signatures were read, and hold zeroes. A device that Mount began to format before, and
	// that nobody has used since, is formatted once more. Every other device without the filesystem
	// is ErrDevice, and stays as it was. So does one that is mounted elsewhere, or that another
	// program has open exclusively: ErrBusy.
	//
	// A read-only Mount of a BlockDevice never writes to the device. ErrDevice if its filesystem has a
	// log to replay: it must be mounted for writing once. ErrDevice if the Sequence of the device is
	// another one than m's.
	Mount(ctx context.Context, m Mount, path string) error

	// Unmount takes everything that is mounted at path away and leaves path itself. It never detaches a healthy mount
	// that is in use: that is ErrBusy. Nothing mounted, or no such path, is no error.
	Unmount(ctx context.Context, path string) error

	// Remove does what Unmount does, and then removes path: an empty directory, or a file that a
	// Mounter has made or used as the target of a Device. It never recurses. Errors: ErrPath, also for
	// any other file, ErrBusy, ErrNotEmpty.
	Remove(ctx context.Context, path string) error

	// Mounted reports whether path shows m's source, mounted by m or by m.BindFrom. Options are not compared. No such
	// path, or a dead mount, is false.
	Mounted(ctx context.Context, m Mount, path string) (bool, error)

	// Occupied reports whether anything that is alive is mounted at path.
	Occupied(ctx context.Context, path string) (bool, error)

	// OtherTargets returns the other paths, sorted, that were mounted below the directory from the same source as path.
	// It costs the same however many mounts the machine has. Errors: ErrBusy where one of them can't be looked at.
	OtherTargets(ctx context.Context, path string) ([]string, error)

	// Grow makes the filesystem or device that m shows at path as large as its image, or as its
	// BlockDevice, while it is used. Of a BlockDevice with an FSType, the filesystem that is mounted
	// counts, whichever type it has. A Directory has nothing to grow, nor has a BlockDevice without a
	// filesystem. Errors: ErrBusy where this machine can grow it only when it is mounted the next
	// time, ErrReadOnly, ErrDevice for a BlockDevice that is smaller than m.Size, or has another
	// Sequence.
	Grow(ctx context.Context, m Mount, path string) error

	// Usage tells how full the filesystem at path is. Of a block device it tells the size only.
	Usage(ctx context.Context, path string) (Usage, error)
}

// Images works on images, the files that hold the filesystems of volumes, and on what this machine does
// with them. A backend calls it; only the driver calls a Mounter. Every method may be called by many
// goroutines, also while a Mounter mounts, unmounts or grows the same image.
type Images interface {
	// Format makes a filesystem in an image that nobody uses, whatever was in it. Errors: ErrFormat for a type that
	// isn't one of FSTypes, errors.ErrUnsupported where this machine can't make it.
	Format(ctx context.Context, image *os.File, fsType string) error

	// NewUUID gives the filesystem in an image that nobody uses another UUID, so that it can be mounted beside the one
	// it was copied from. The copy may be one of a filesystem in use, as a power cut would leave it: then its log is
	// replayed. sector is that of Mount. Nothing is made durable: image.Sync is the caller's. After an error, or a death
	// in the middle, the image is to be thrown away. Errors: ErrFormat, ErrBusy, errors.ErrUnsupported where this machine
	// lacks a program for it, or a kernel that mounts two such copies.
	NewUUID(ctx context.Context, image *os.File, fsType string, sector int) error

	// Freeze calls cut while the filesystems in these images, as far as they are mounted here, are
	// frozen: nothing is written to them. The images are absolute paths of files. Meanwhile no
	// other call of this Host mounts, unmounts or changes one of them: those calls wait, so cut
	// must make none. Raw block devices (Disk, Device) cannot be frozen. Freeze flushes them to
	// the image; writes continue.
	//
	// cut is called once, or not at all after an earlier error. Its context ends when limit has
	// passed since the freeze began. Processes that write wait meanwhile and cannot be killed, so
	// cut must not touch a frozen filesystem, and be short. Its error is returned as it is, or
	// joined with ErrThawed. The freeze is made by a helper process. When Freeze returns, or panics
	// with cut, nothing is frozen by it; when the driver dies, the helper thaws at once; when both
	// die, the next New thaws.
	//
	// A write that has begun and does not end keeps a filesystem from being frozen. Freeze gives up
	// at limit, and the image is stalled until the write ends: Failing reports it, and a further
	// Freeze fails at once. So do those of the tenant's other images while 8 of them are stalled,
	// as each keeps a helper process. tenant is as Mount.Tenant.
	//
	// Errors: ErrThawed if the freeze took or lasted longer than limit, or another process ended
	// it, so that cut's work is of no use; ErrStalled; ErrFrozen if a filesystem could not be
	// thawed, and the helper keeps trying; ErrBusy if another process has frozen one, or uses it
	// where that is not visible here; ErrFormat if an image is not a regular file.
	Freeze(ctx context.Context, tenant string, images []string, limit time.Duration, cut func(ctx context.Context) error) error

	// Tune makes the device that has m's image, if one has it now, Buffered or not, and reads it ahead, as m says. Where
	// this machine can't go past the page cache it stays Buffered. What is open already, and a btrfs, may go on as it was.
	Tune(ctx context.Context, m Mount) error

	// MountPointsOf returns every path of the machine, sorted, at which source or a directory below it is
	// mounted, except for source's own mount, or at which an overlay is mounted that has one of them
	// as a layer. Of a file it returns where the filesystem in it, or its device, is mounted; if
	// neither is and a device has the file, that device. It asks the kernel anew and costs as much as
	// the machine has mounts. It sees this mount namespace only. Of an overlay it sees a layer whose
	// path was absolute and leads to it still. Errors: ErrPath if an element of source is a link.
	MountPointsOf(source string) ([]string, error)

	// Failing returns the images whose filesystems are mounted, by any process, and have failed, with
	// the worst failure that is known of each, by their absolute paths. It asks the kernel anew. It
	// waits for no tenant, and some seconds at most for a filesystem that does not answer, which is
	// Stalled.
	Failing() (map[string]Failure, error)

	// Checks returns the checks of filesystems that run or wait for a slot. Few run at a time, and
	// no Tenant has all slots.
	Checks() []Check

	// Helpers returns the pools of helper processes, which make the system calls that can hang.
	Helpers() []Helpers
}

// Host is a machine: New returns the one on which the process runs, and a Fake plays one for tests. The
// two halves share locks, so a Mounter and the Images for the same files come from the same Host.
type Host interface {
	Mounter
	Images
}

// directoryOptions are the mount options that a Directory may have. Everything else is refused, above all what would
// name a device, a credential or another filesystem. nodev is always on; nosuid is, unless suid is asked for.
var directoryOptions = []string{
	"ro", "rw", "exec", "noexec", "suid", "nosuid", "nodev",
	"relatime", "noatime", "nodiratime", "strictatime",
}

// imageOptions are those that an Image may have beside directoryOptions, by the type of its filesystem. Not among them
// is what weakens a filesystem's promises, such as nobarrier or data=writeback.
var imageOptions = map[string][]string{
	"ext4":  {"discard", "lazytime", "sync", "dirsync", "data=journal"},
	"xfs":   {"discard", "lazytime", "sync", "dirsync", "largeio"},
	"btrfs": {"discard", "sync", "dirsync", "autodefrag", "compress=zstd", "compress=lzo", "compress=zlib"},
}

// FSTypes are the filesystems that an Image may have, sorted.
func FSTypes() []string { return slices.Sorted(maps.Keys(imageOptions)) }

// CheckOptions returns ErrOption for the first of options that a mount of kind k, with a filesystem of a type, may not
// have. It says which one it is but doesn't show it, as it may be a secret (CSI spec v1.13,
// VolumeCapability.mount_flags).
func CheckOptions(k Kind, fsType string, options []string) error {
	allowed := directoryOptions
	switch k {
	case Directory:
	case BlockDevice, Image:
		if k == BlockDevice && fsType == "" {
			allowed = nil
			break
		}
		own, ok := imageOptions[fsType]
		if !ok {
			return fmt.Errorf("%w: %.32q is none of %s", ErrFormat, fsType, strings.Join(FSTypes(), ", "))
		}
		allowed = slices.Concat(allowed, own)
	case Disk, Device:
		allowed = nil
	default:
		return fmt.Errorf("%w: a mount of kind %q", errors.ErrUnsupported, k)
	}
	for i, o := range options {
		if !slices.Contains(allowed, o) {
			return fmt.Errorf("%w: number %d of %d (allowed: %s)", ErrOption, i+1, len(options), cmp.Or(strings.Join(allowed, ", "), "none"))
		}
	}
	return nil
}

// formatOptions are the arguments of mkfs that a backend may give for a filesystem. Each has a value.
// What names a file or a further device is not among them.
var formatOptions = map[string][]string{
	"ext4":  {"-b", "-E", "-i", "-I", "-N", "-O", "-T"},
	"xfs":   {"-b", "-i", "-m", "-n", "-s"},
	"btrfs": {"-m", "-n", "-O", "-s"},
}

// CheckFormat returns ErrOption for arguments of mkfs that a BlockDevice with a filesystem of a type
// may not have. They are pairs of an option and its value, such as "-i", "8192".
func CheckFormat(fsType string, arguments []string) error {
	allowed := formatOptions[fsType]
	for i, a := range arguments {
		switch {
		case i%2 == 0 && (!slices.Contains(allowed, a) || i+1 == len(arguments)):
			return fmt.Errorf("%w: invalid argument %.32q of mkfs.%.32s: must be one of %q, with a value", ErrOption, a, fsType, allowed)
		case i%2 == 1 && (a == "" || strings.HasPrefix(a, "-") || strings.ContainsAny(a, "/\x00")):
			return fmt.Errorf("%w: invalid value %.32q of the argument %s of mkfs.%.32s: must not start with - or hold a slash", ErrOption, a, arguments[i-1], fsType)
		}
	}
	return nil
}

// IsOption reports whether an option is allowed for any kind: such a one is no secret.
func IsOption(option string) bool {
	for _, own := range imageOptions {
		if slices.Contains(own, option) {
			return true
		}
	}
	return slices.Contains(directoryOptions, option)
}

const (
	maxPath = 4095 // PATH_MAX of Linux, less the terminating NUL
	maxName = 255  // NAME_MAX: bytes of one element of a path
)

// below returns path relative to dir. Both must be absolute and clean, and path strictly below dir.
func below(dir, path string) (string, error) {
	if len(path) > maxPath || strings.IndexByte(path, 0) >= 0 {
		return "", fmt.Errorf("%w: a path has at most %d bytes, none of them NUL", ErrPath, maxPath)
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", fmt.Errorf("%w: %.128q is not absolute and clean", ErrPath, path)
	}
	rel, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
	if !ok || rel == "" {
		return "", fmt.Errorf("%w: %.128q is not below %q", ErrPath, path, dir)
	}
	for name := range strings.SplitSeq(rel, string(filepath.Separator)) {
		if len(name) > maxName {
			return "", fmt.Errorf("%w: %.64q… has %d bytes, over %d", ErrPath, name, len(name), maxName)
		}
	}
	return rel, nil
}

// checkDir returns an error for a directory that no Mounter can work below.
func checkDir(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return fmt.Errorf("%w: the kubelet directory %q is not absolute and clean", ErrPath, dir)
	}
	return nil
}
