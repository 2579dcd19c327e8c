package mounter

import "golang.org/x/sys/unix"

// attributeSet is mount options in the kernel's two languages: what mount_setattr(2) is told, and what statfs(2) is
// to show afterwards.
type attributeSet struct {
	set, clear uint64 // MOUNT_ATTR_*
	flags      int64  // ST_*
}

const (
	accessFlags  = unix.ST_NOATIME | unix.ST_RELATIME
	managedFlags = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NODIRATIME | accessFlags
)

// linuxOptions says what each of directoryOptions does: it takes bits out and puts bits in. The last one wins.
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

// attributes turns the options of m into what the kernel understands. A device node in a volume is never one that
// a pod should open, so nodev always holds; nosuid holds unless suid is asked for.
func attributes(m Mount) (attributeSet, error) {
	if err := CheckOptions(m.Kind, m.FSType, m.Options); err != nil {
		return attributeSet{}, err
	}
	if m.isNode() {
		return attributeSet{}, nil // nodev would make it useless
	}
	a := attributeSet{
		set:   unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID,
		flags: unix.ST_NODEV | unix.ST_NOSUID,
	}
	for _, name := range m.Options {
		o := linuxOptions[name] // nothing, for what is the filesystem's
		a.set = a.set&^o.attrOut | o.attrIn
		a.flags = a.flags&^o.flagOut | o.flagIn
		if o.flagOut&accessFlags != 0 {
			a.clear = unix.MOUNT_ATTR__ATIME // the kernel wants it cleared before it is set
		}
	}
	if m.ReadOnly {
		a.set |= unix.MOUNT_ATTR_RDONLY
		a.flags |= unix.ST_RDONLY
	}
	return a, nil
}

// clearFlags are the ST_* flags that don't come over from the source.
func (a attributeSet) clearFlags() int64 {
	if a.clear != 0 {
		return accessFlags
	}
	return 0
}

// mountFlags turns ST_* flags into those of mount(2): they have the same numbers, but for the access times.
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

// ownFlags are the options of filesystems that mount(2) takes as flags. It takes the others as text.
var ownFlags = map[string]uintptr{"sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC, "lazytime": unix.MS_LAZYTIME}

// fresh are the options of a filesystem that is mounted now, in the words of each system call.
type fresh struct {
	attributes uint64   // MOUNT_ATTR_*, of fsmount(2)
	super      []string // of the filesystem, which fsconfig(2) takes as text and mount(2) as flags
	text       []string // of the filesystem, which both take as text
	flags      uintptr  // MS_*, of mount(2)
	shown      int64    // ST_* that statfs(2) is to show afterwards
}

// fresh returns how a filesystem is mounted with these options.
func (a attributeSet) fresh(fsType string, options []string) fresh {
	f := fresh{attributes: a.set, shown: a.flags}
	if a.clear == 0 {
		f.shown |= unix.ST_RELATIME // the kernel's default
	}
	f.flags = mountFlags(f.shown)
	if a.flags&unix.ST_RDONLY != 0 {
		f.super = append(f.super, "ro")
	}
	if fsType == "ext4" { // its superblock may ask for the kernel to panic
		f.text = append(f.text, "errors=remount-ro")
	}
	for _, o := range options {
		if flag, ok := ownFlags[o]; ok {
			f.super, f.flags = append(f.super, o), f.flags|flag
		} else if _, ok := linuxOptions[o]; !ok {
			f.text = append(f.text, o)
		}
	}
	return f
}
