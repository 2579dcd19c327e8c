package tree

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// AttributeSet holds mount options in both encodings of the kernel: the attributes that
// mount_setattr(2) takes, and the flags that statfs(2) must show afterwards.
type AttributeSet struct {
	set, clear uint64 // MOUNT_ATTR_*
	Flags      int64  // ST_*
}

const (
	accessFlags = unix.ST_NOATIME | unix.ST_RELATIME
	// ManagedFlags are the flags of statfs(2) that the options of a mount decide.
	ManagedFlags = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NODIRATIME | accessFlags
)

// linuxOptions holds the effect of each of Directory: bits to clear (Out) and bits to set
// (In). The last option wins.
var linuxOptions = map[string]struct {
	attrOut, attrIn uint64
	flagOut, flagIn int64
}{
	"ro":          {0, unix.MOUNT_ATTR_RDONLY, 0, unix.ST_RDONLY},
	"rw":          {unix.MOUNT_ATTR_RDONLY, 0, unix.ST_RDONLY, 0},
	"exec":        {unix.MOUNT_ATTR_NOEXEC, 0, unix.ST_NOEXEC, 0},
	"noexec":      {0, unix.MOUNT_ATTR_NOEXEC, 0, unix.ST_NOEXEC},
	"suid":        {unix.MOUNT_ATTR_NOSUID, 0, unix.ST_NOSUID, 0},
	"nosuid":      {0, unix.MOUNT_ATTR_NOSUID, 0, unix.ST_NOSUID},
	"nodev":       {0, unix.MOUNT_ATTR_NODEV, 0, unix.ST_NODEV},
	"relatime":    {unix.MOUNT_ATTR__ATIME, unix.MOUNT_ATTR_RELATIME, accessFlags, unix.ST_RELATIME},
	"noatime":     {unix.MOUNT_ATTR__ATIME, unix.MOUNT_ATTR_NOATIME, accessFlags, unix.ST_NOATIME},
	"strictatime": {unix.MOUNT_ATTR__ATIME, unix.MOUNT_ATTR_STRICTATIME, accessFlags, 0},
	"nodiratime":  {0, unix.MOUNT_ATTR_NODIRATIME, 0, unix.ST_NODIRATIME},
}

// OptionFlags returns the ST_* flags of mount options in mountinfo, which commas separate.
func OptionFlags(options string) (flags int64) {
	for option := range strings.SplitSeq(options, ",") {
		flags |= linuxOptions[option].flagIn
	}
	return flags
}

// Attributes returns the options of m in the encodings of the kernel. nodev is always set, because
// a pod must not open device nodes that are stored in a volume. nosuid is set unless the options
// include suid.
func Attributes(m mounter.Mount) (AttributeSet, error) {
	if _, isType := options.Image[m.FSType]; !isType && slices.Contains(mounter.FSTypes(), m.FSType) {
		return AttributeSet{}, fmt.Errorf("%w: %w: the filesystem %s on Linux", mounter.ErrFormat,
			errors.ErrUnsupported, m.FSType)
	}
	if err := mounter.CheckOptions(m.Kind, m.FSType, m.Options); err != nil {
		return AttributeSet{}, err
	}
	if m.IsDevice() {
		return AttributeSet{}, nil // with nodev, no program could open the node
	}
	a := AttributeSet{
		set:   unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID,
		Flags: unix.ST_NODEV | unix.ST_NOSUID,
	}
	for _, name := range m.Options {
		o := linuxOptions[name] // empty for an option of the filesystem
		a.set = a.set&^o.attrOut | o.attrIn
		a.Flags = a.Flags&^o.flagOut | o.flagIn
		if o.flagOut&accessFlags != 0 {
			a.clear = unix.MOUNT_ATTR__ATIME // the kernel requires a clear before it sets access time flags
		}
	}
	if m.ReadOnly {
		a.set |= unix.MOUNT_ATTR_RDONLY
		a.Flags |= unix.ST_RDONLY
	}
	return a, nil
}

// ClearFlags returns the ST_* flags that a bind mount does not inherit from its source.
func (a AttributeSet) ClearFlags() int64 {
	if a.clear != 0 {
		return accessFlags
	}
	return 0
}

// mountFlags converts ST_* flags to the MS_* flags of mount(2). They have the same values, except
// for the access time flags.
func mountFlags(flags int64) uintptr {
	ms := uintptr(flags &^ accessFlags)
	switch flags & accessFlags {
	case unix.ST_NOATIME:
		return ms | unix.MS_NOATIME
	case unix.ST_RELATIME:
		return ms | unix.MS_RELATIME
	}
	return ms | unix.MS_STRICTATIME
}

// ownFlags are the options of filesystems that mount(2) takes as flags. mount(2) takes the others
// as text.
var ownFlags = map[string]uintptr{
	"sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC, "lazytime": unix.MS_LAZYTIME,
}

// Fresh holds the options of a new mount of a filesystem, in the encoding of each system call. In
// contrast, a bind mount shares a filesystem that is mounted already.
type Fresh struct {
	Attributes uint64   // MOUNT_ATTR_*, of fsmount(2)
	super      []string // of the filesystem, which fsconfig(2) takes as text and mount(2) as flags
	Text       []string // of the filesystem, which both take as text
	label      string   // of SELinux, or empty; fsconfig(2) takes it as it is, and mount(2) in quotes
	flags      uintptr  // MS_*, of mount(2)
	Shown      int64    // ST_* that statfs(2) must show afterwards
}

// Fresh returns the options for a new mount of a filesystem: those of a, and the filesystem's own.
func (a AttributeSet) Fresh(fsType string, own []string) Fresh {
	f := Fresh{Attributes: a.set, Shown: a.Flags}
	if a.clear == 0 {
		f.Shown |= unix.ST_RELATIME // the kernel's default
	}
	f.flags = mountFlags(f.Shown)
	if a.Flags&unix.ST_RDONLY != 0 {
		f.super = append(f.super, "ro")
	}
	if fsType == "ext4" { // the superblock may request a kernel panic on errors
		f.Text = append(f.Text, "errors=remount-ro")
	}
	for _, o := range own {
		if flag, ok := ownFlags[o]; ok {
			f.super, f.flags = append(f.super, o), f.flags|flag
		} else if l, ok := options.Label(o); ok {
			f.label = l
		} else if _, ok := linuxOptions[o]; !ok {
			f.Text = append(f.Text, o)
		}
	}
	return f
}

// parameters returns the options of the filesystem, as fsconfig(2) takes each.
func (f Fresh) parameters() []string {
	all := slices.Concat(f.super, f.Text)
	if f.label != "" {
		all = append(all, options.Context+"="+f.label)
	}
	return all
}

// data returns the options of the filesystem that mount(2) takes as text. Quotes keep the commas of
// a label from ending the option: selinux_sb_eat_lsm_opts in security/selinux/hooks.c of Linux.
func (f Fresh) data() string {
	all := slices.Clone(f.Text)
	if f.label != "" {
		all = append(all, options.Context+`="`+f.label+`"`)
	}
	return strings.Join(all, ",")
}
