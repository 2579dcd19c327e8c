// Package quota makes directories that can't get larger than they are meant to be, where the filesystem has a way to
// see to that: projects of xfs and ext4 with project quotas, and subvolumes of btrfs with quota groups. It turns no
// quotas on, as that is for the whole filesystem and its owner to decide: it finds out whether they are.
//
// A write beyond the limit is EDQUOT, or on xfs ENOSPC, to whoever writes. It is no fence against root: who has
// CAP_SYS_RESOURCE may exceed a project's limit on ext4, and the owner of a file may move it to another project.
//
// Directories are reached by name below an open one, and nothing is followed out of it. What is done here is durable
// once something is that was done later in the same filesystem: the record of the volume, say.
package quota

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

// ErrNotEnforced says that nothing holds a directory to a size. The words after it say why, and what a person can do.
var ErrNotEnforced = errors.New("sizes are not enforced")

// Kind is by what a directory is held to its size.
type Kind string

const (
	Project   Kind = "project"   // a project of xfs or ext4: quotactl(2)
	Subvolume Kind = "subvolume" // a subvolume of btrfs, with the quota group of its own: btrfs-quota(5)
)

// Mechanism is what a filesystem has.
type Mechanism struct {
	Kind Kind

	// Simple says that it is btrfs with simple quotas (squota). With these an extent counts for the subvolume that wrote
	// it, as long as anybody has it: what a directory shares with a snapshot doesn't count for it.
	Simple bool
}

// Mark is what is to be known of a directory to find its limit again. It belongs into the record of the volume, and
// there is none, the zero value, for a directory that was not made here.
type Mark struct {
	Kind    Kind   `json:"kind,omitempty"`
	Project uint32 `json:"project,omitempty"`
}

// Check returns an error for a mark that Make cannot have returned.
func (m Mark) Check() error {
	switch {
	case m.Kind == Project && (m.Project < firstProject || m.Project > lastProject):
		return fmt.Errorf("project: %d, must be from %d to %d", m.Project, firstProject, lastProject)
	case m.Kind == Subvolume && m.Project != 0:
		return fmt.Errorf("project: %d, a subvolume has none", m.Project)
	case m.Kind != Project && m.Kind != Subvolume:
		return fmt.Errorf("invalid kind %.32q: must be %q or %q", string(m.Kind), Project, Subvolume)
	}
	return nil
}

// Options are what a new directory is to be.
type Options struct {
	Mode   fs.FileMode               // permissions, whatever the umask is; on btrfs there may be no room to change them any more
	Size   int64                     // bytes; 0: no limit, and Set can give it one
	Volume string                    // the ID of the volume, from which that of a project is derived
	Taken  func(project uint32) bool // reports whether a project is in the record of any volume; may be nil
}

// Usage is what the filesystem says of a directory.
type Usage struct {
	Limit int64 // bytes; 0: none
	Used  int64 // bytes; on btrfs as of its last commit, which is up to 30 s ago
	Files int64 // files, directories and all; 0 on btrfs, which doesn't count them
}

// grain is to how many bytes filesystems round a limit, at most: xfs has blocks of up to 64 KiB.
const grain = 64 << 10

// Holds reports whether the limit is size bytes, or what the filesystem made of it.
func (u Usage) Holds(size int64) bool { return size > 0 && u.Limit >= size && u.Limit-size < grain }

// Project IDs are taken from a range that is far from those that people choose, and from 0, which is no project.
const (
	firstProject = 0x40000000
	lastProject  = 0x7fffffff
)

// candidates are how many IDs are tried for one directory. One of a thousand volumes finds its first one taken with a
// probability of one in a million.
const candidates = 64

// candidate returns the nth ID to try for a volume. They are the same in every try, and those of other volumes are others.
func candidate(volume string, n int) uint32 {
	sum := sha256.Sum256([]byte(volume + "/" + strconv.Itoa(n)))
	return firstProject + binary.BigEndian.Uint32(sum[:])%(lastProject-firstProject+1)
}

func notEnforced(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrNotEnforced, fmt.Errorf(format, args...))
}
