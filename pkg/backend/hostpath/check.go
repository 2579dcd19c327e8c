package hostpath

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// A record with the right checksum can still hold a combination of fields that no code expects, by
// a manual change or a defect. The functions in this file return record.ErrDamaged for each
// combination that no release can have written, and record.ErrNewer for a value that a later
// release may add. The records of all earlier releases pass: the checks leave out limits that a
// later release may tighten, such as the limits of class parameters.

// maxName is more than the driver allows for any name, in bytes.
const maxName = 1 << 10

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", record.ErrDamaged, fmt.Errorf(format, args...))
}

// newer returns ErrNewer for a value that this release does not know in a record whose checksum is
// right: a newer release wrote it.
func newer(format string, args ...any) error {
	return fmt.Errorf("%w: %w", record.ErrNewer, fmt.Errorf(format, args...))
}

// checkID returns the parsed ID of a record in the directory called dir.
func checkID(id, dir string, kinds ...volumeid.Kind) (volumeid.ID, error) {
	parsed, err := volumeid.Parse(dir)
	switch {
	case err != nil:
		return parsed, err
	case id != dir:
		return parsed, damaged("id: %.64q, in the directory %q", id, dir)
	case !slices.Contains(kinds, parsed.Kind):
		return parsed, damaged("id: %q is of another kind of object", id)
	}
	return parsed, nil
}

// checkName returns an error for a name that no object can have, or if the ID is not derived from
// an element of digested.
func checkName(id volumeid.ID, name string, digested ...string) error {
	switch {
	case name == "" || len(name) > maxName:
		return damaged("name: %d bytes, must be 1 to %d", len(name), maxName)
	case !slices.ContainsFunc(digested, func(from string) bool { return volumeid.NameDigest(from) == id.Name }):
		return damaged("id and name: the ID is not made from %.128q", name)
	}
	return nil
}

// checkCreated returns an error for a time that the API cannot represent.
func checkCreated(t time.Time) error {
	if t.IsZero() || t.UTC().Year() > 9999 {
		return damaged("created: %v", t)
	}
	return nil
}

func isOfKind(id string, kind volumeid.Kind) bool {
	parsed, err := volumeid.Parse(id)
	return err == nil && parsed.Kind == kind
}

// check returns an error for the record of a volume in the directory called dir.
func (v *volume) check(dir string) error {
	id, err := checkID(v.ID, dir, volumeid.Volume, volumeid.Inline)
	if err != nil {
		return err
	}
	if v.Inline != (id.Kind == volumeid.Inline) {
		return damaged("inline: %v, with the ID %s", v.Inline, v.ID)
	}
	for _, err := range []error{
		checkName(id, v.Name, v.Name), checkCreated(v.Created), v.content.check(), v.checkFrom(),
		v.Class.check("class", v.Kind), v.Mutable.check("mutable", v.Kind), v.checkLimit(),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkFrom returns an error unless the volume was created empty, from a snapshot or from a volume.
func (v *volume) checkFrom() error {
	switch from := v.From; {
	case from == nil:
		return nil
	case v.Inline:
		return damaged("inline and from: an inline volume has no source")
	case (from.Snapshot == "") == (from.Volume == ""):
		return damaged("from: snapshot %.64q and volume %.64q, must be exactly one of both", from.Snapshot, from.Volume)
	case from.Snapshot != "" && !isOfKind(from.Snapshot, volumeid.Snapshot):
		return damaged("from: %.64q is not the ID of a snapshot", from.Snapshot)
	case from.Volume != "" && !isOfKind(from.Volume, volumeid.Volume):
		return damaged("from: %.64q is not the ID of a volume", from.Volume)
	}
	return nil
}

// checkLimit returns an error for impossible fields about the limit of a directory. Promised and
// Enforced can both be set: quotas were enabled after the creation of the volume. Enforced and the
// setting enforce: off can both be set: a release recorded the setting before it could remove the
// limit.
func (v *volume) checkLimit() error {
	switch {
	case v.Kind == image && (v.Mark != nil || v.Enforced || v.Promised):
		return damaged("kind, mark, enforced and promised: an image has no quota")
	case v.Enforced && v.Mark == nil:
		return damaged("enforced without mark")
	case v.Mark == nil:
		return nil
	}
	if err := v.Mark.Check(); err != nil {
		return damaged("mark: %w", err)
	}
	return nil
}

// check returns an error for parameters that no volume of kind k has. field is their name in the
// record.
func (s mutableParameters) check(field string, k kind) error {
	for key, value := range s {
		known, ok := knownMutable[key]
		switch {
		case !ok:
			return newer("%s: unknown parameter %.64q", field, key)
		case known.images && k != image:
			return damaged("kind and %s: %s is for images", field, key)
		case k == image && key == enforceKey && value == off:
			return damaged("kind and %s: the size of an image is always enforced", field)
		case key == labelKey: // no code depends on it, and its character rules are for new labels
			if value == "" || len(value) > maxName {
				return damaged("%s: a label of %d bytes, must be 1 to %d", field, len(value), maxName)
			}
			continue
		}
		kept, err := known.read(value)
		switch {
		case err != nil && value != "":
			return newer("%s: %.64q is no value of %s", field, value, key)
		case kept != value, value == "":
			return damaged("%s: %.64q is not how a release writes a value of %s", field, value, key)
		}
	}
	return nil
}

// check returns an error for the content of a volume or snapshot.
//
// The size of an image need not be a multiple of sizeUnit: releases recorded the size of a file
// that an administrator had grown.
func (c *content) check() error {
	switch c.Kind {
	case directory:
		c.Kind = directory // shares the string among all volumes
		if c.FSType != "" || c.Block || c.Sector != 0 {
			return damaged("kind, fsType, block and sector: a directory has no filesystem and no sectors")
		}
	case image:
		c.Kind = image
		if err := c.checkImage(); err != nil {
			return err
		}
	case "":
		return damaged("kind: %.32q", c.Kind)
	default:
		return newer("kind: %.32q", c.Kind)
	}
	if c.Size <= 0 {
		return damaged("size: %d", c.Size)
	}
	return nil
}

func (c *content) checkImage() error {
	_, known := minSizes[c.FSType]
	switch {
	case c.Sector < minSector || c.Sector&(c.Sector-1) != 0:
		return damaged("sector: %d, must be a power of two from %d to %d", c.Sector, minSector, maxSector)
	case c.Sector > maxSector:
		return newer("sector: %d, this release has at most %d", c.Sector, maxSector)
	case c.Size > maxImage:
		return damaged("size: %d, an image has at most %d", c.Size, int64(maxImage))
	case !known:
		return newer("fsType: %.32q", c.FSType)
	case c.Block && c.FSType != "":
		return damaged("block and fsType: an image has a filesystem or is a block device")
	}
	return nil
}

// check returns an error for the record of a snapshot in the directory called dir.
func (n *snapshot) check(dir string) error {
	id, err := checkID(n.ID, dir, volumeid.Snapshot)
	if err != nil {
		return err
	}
	digested := []string{n.Name}
	if n.Group != "" {
		digested = digestedForMember(n.Group, n.Source)
	}
	switch {
	case !isOfKind(n.Source, volumeid.Volume):
		return damaged("source: %.64q is not the ID of a volume", n.Source)
	case n.OnDisk < 0:
		return damaged("held: %d", n.OnDisk)
	case n.Accept == "":
		return damaged("consistency: %.32q", n.Accept)
	case n.Accept != frozen && n.Accept != anyState:
		return newer("consistency: %.32q", n.Accept)
	case n.Cloned && n.Kind != image:
		return damaged("cloned and kind: a %.32s has no blocks", n.Kind)
	case n.Group != "" && !isOfKind(n.Group, volumeid.Group):
		return damaged("group: %.64q is not the ID of a group", n.Group)
	case n.Group != "" && (n.Name != n.Source || n.Accept != frozen || n.Kind != image):
		return damaged("group, name, consistency and kind: a member of a group is a frozen image with the name of " +
			"its source")
	}
	for _, err := range []error{checkName(id, n.Name, digested...), checkCreated(n.Created), n.content.check()} {
		if err != nil {
			return err
		}
	}
	return nil
}

// digestedForMember returns the names from which releases made the ID of the snapshot of a volume
// in a group.
func digestedForMember(group, volume string) []string {
	return []string{nameOfMember(group, volume), group + " " + volume}
}

// check returns an error for the record of a group in the directory called dir.
func (g *group) check(dir string) error {
	id, err := checkID(g.ID, dir, volumeid.Group)
	if err != nil {
		return err
	}
	if err := checkName(id, g.Name, g.Name); err != nil {
		return err
	}
	if err := checkCreated(g.Created); err != nil {
		return err
	}
	if len(g.Members) == 0 {
		return damaged("invalid members: must be at least one")
	}
	for i, m := range g.Members {
		if i > 0 && m.ID <= g.Members[i-1].ID {
			return damaged("members: must be in the order of their IDs, without duplicates")
		}
		if err := m.check(g.ID); err != nil {
			return err
		}
	}
	return g.checkPart(id)
}

// check returns an error for a member of a group.
func (m *member) check(group string) error {
	id, err := volumeid.Parse(m.ID)
	switch {
	case err != nil || id.Kind != volumeid.Snapshot:
		return damaged("members: %.64q is not the ID of a snapshot", m.ID)
	case !isOfKind(m.Source, volumeid.Volume):
		return damaged("members: %.64q is not the ID of a volume", m.Source)
	case !slices.ContainsFunc(digestedForMember(group, m.Source),
		func(from string) bool { return volumeid.NameDigest(from) == id.Name }):
		return damaged("members: %s is not the snapshot of volume %s in this group", m.ID, m.Source)
	}
	suffix, ok := strings.CutPrefix(m.Incomplete, path.Join(stagingDir, m.ID)+"-")
	if !ok || suffix == "" || strings.Trim(suffix, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return damaged("members: %.128q is not a directory in which %s was made", m.Incomplete, m.ID)
	}
	return nil
}

// checkPart returns an error unless the group has the fields of a part if, and only if, id is the
// ID of a part.
func (g *group) checkPart(id volumeid.ID) error {
	part := id.Node == volumeid.NodeDigest(volumeid.SeveralNodes)
	switch {
	case g.isPart() != part:
		return damaged("id and cut: a group has a cut if, and only if, it spans several nodes")
	case !part && (g.Committed || len(g.All) > 0):
		return damaged("id, settled and all: only a group that spans several nodes has settled or all")
	}
	for i, volume := range g.All {
		if i > 0 && volume <= g.All[i-1] {
			return damaged("all: %.64q must be above the ID before it", volume)
		}
	}
	for _, volume := range g.sources() {
		if _, ok := slices.BinarySearch(g.All, volume); part && !ok {
			return damaged("members and all: volume %s is not among those of all parts", volume)
		}
	}
	return nil
}
