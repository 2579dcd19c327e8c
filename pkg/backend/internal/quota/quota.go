// Package quota limits the size of directories by means of the filesystem: projects of xfs
// and ext4 with project quotas, and subvolumes of btrfs with quota groups. The package never
// enables quotas, which affect the whole filesystem: that is the decision of its owner.
//
// A write beyond the limit fails with EDQUOT, on xfs with ENOSPC. A limit does not restrict root: a
// process with CAP_SYS_RESOURCE may exceed the limit of a project on ext4, and the owner of a file
// may move the file to another project.
//
// The functions take an open directory and a name in it, and follow no link. A change is
// durable once a later change in the same filesystem is durable, for example the record of the
// volume.
package quota

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

// ErrNotEnforced reports that the filesystem does not enforce the size of a directory. The text
// after it has the reason and a remedy.
var ErrNotEnforced = errors.New("sizes are not enforced")

// Kind is the mechanism that limits a directory.
type Kind string

// Kinds of limits.
const (
	Project   Kind = "project"   // a project of xfs or ext4: quotactl(2)
	Subvolume Kind = "subvolume" // a subvolume of btrfs, with the quota group of its own: btrfs-quota(5)
)

// Mechanism describes the mechanism of a filesystem.
type Mechanism struct {
	Kind Kind

	// Simple reports simple quotas of btrfs (squota). They count an extent for the subvolume that
	// wrote it, as long as any subvolume refers to it. The blocks that a snapshot shares with a
	// directory do not count for the directory.
	Simple bool
}

// Mark identifies the limit of a directory. The record of the volume stores it. The zero value is
// that of a directory that this package did not make.
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

// Options describe a new directory.
type Options struct {
	// permissions, independent of the umask; on btrfs a full subvolume has no space for a later
	// change
	Mode   fs.FileMode
	Size   int64                     // bytes; 0: no limit; Set can add a limit
	Volume string                    // the ID of the volume, from which that of a project is derived
	Taken  func(project uint32) bool // reports whether a project is in the record of any volume; may be nil
}

// Usage is the usage of a directory, as the filesystem reports it.
type Usage struct {
	Limit int64 // bytes; 0: none
	Used  int64 // bytes; on btrfs those of its last commit, up to 30 s ago
	Files int64 // files and directories; 0 on btrfs, which does not count them
}

// grain is the largest number of bytes to which filesystems round a limit: xfs has blocks of up to
// 64 KiB.
const grain = 64 << 10

// Holds reports whether the limit is size bytes, also after rounding by the filesystem.
func (u Usage) Holds(size int64) bool { return size > 0 && u.Limit >= size && u.Limit-size < grain }

// Project IDs come from a range far from the IDs that administrators choose, and from 0, which
// means no project.
const (
	firstProject = 0x40000000
	lastProject  = 0x7fffffff
)

// candidates is the number of IDs that are tried for a directory. A directory among 1,000 volumes
// finds its first ID in use with a probability of 1 to 1,000,000.
const candidates = 64

// candidate returns the nth ID to try for a volume. The sequence is the same in each attempt, and
// differs between volumes.
func candidate(volume string, n int) uint32 {
	sum := sha256.Sum256([]byte(volume + "/" + strconv.Itoa(n)))
	return firstProject + binary.BigEndian.Uint32(sum[:])%(lastProject-firstProject+1)
}

func notEnforced(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrNotEnforced, fmt.Errorf(format, args...))
}
