package hostpath

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// volumeFormat is the format of a volume's record.json. Version 1 is the first.
var volumeFormat = record.Format{Version: 1}

// volume is the content of a record.json. A volume in the index never changes.
type volume struct {
	ID   string `json:"id"`
	Name string `json:"name"` // given to CreateVolume, or the kubelet's handle of an inline volume
	content
	Inline  bool              `json:"inline,omitempty"`
	From    *contentSource    `json:"from,omitempty"`    // nil if the volume was created empty
	Class   mutableParameters `json:"class,omitempty"`   // set by the creation
	Mutable mutableParameters `json:"mutable,omitempty"` // set later; they override Class
	Created time.Time         `json:"created"`

	// Of a directory: the mark of its limit, nil if it cannot have a limit; whether it has a limit;
	// and whether it had no limit at its creation although enforce was "preferred".
	Mark     *quota.Mark `json:"mark,omitempty"`
	Enforced bool        `json:"enforced,omitempty"`
	Promised bool        `json:"promised,omitempty"`

	namespace string // during its creation; see namespaceOf
}

// contentSource is the source of a volume: none, a snapshot or a volume. Either may be deleted by
// now.
type contentSource struct {
	Snapshot string `json:"snapshot,omitempty"` // ID
	Volume   string `json:"volume,omitempty"`   // ID
}

func (o contentSource) String() string {
	switch {
	case o.Snapshot != "":
		return "snapshot " + o.Snapshot
	case o.Volume != "":
		return "volume " + o.Volume
	}
	return "nothing"
}

func (v *volume) contentSource() contentSource {
	if v.From == nil {
		return contentSource{}
	}
	return *v.From
}

func (v *volume) public() backend.Volume {
	id := v.ID
	if v.Inline {
		id = v.Name
	}
	return backend.Volume{
		ID: id, Size: v.Size, Parameters: v.parameters(), Mutable: v.mutable(), Inline: v.Inline,
		SourceSnapshot: v.contentSource().Snapshot, SourceVolume: v.contentSource().Volume, Context: v.context(),
	}
}

// Volumes with default parameters share these maps, as a list has thousands of volumes. Do not
// modify the maps.
var (
	plainParameters = map[kind]map[string]string{directory: {kindKey: string(directory)},
		image: {kindKey: string(image)}}
	plainMutable = map[kind]map[string]string{directory: mutableOf(&volume{content: content{Kind: directory}}),
		image: mutableOf(&volume{content: content{Kind: image}})}
	promised = map[string]string{contextKey: contextPromised}
)

// contextKey is in the volume context of a directory whose size was preferred, but not enforced at
// its creation.
const contextKey = "size"

// contextPromised is its value.
const contextPromised = "promised"

// parameters are the parameters with which v was created.
func (v *volume) parameters() map[string]string {
	if len(v.Class) == 0 {
		return plainParameters[v.Kind]
	}
	all := maps.Clone(plainParameters[v.Kind])
	maps.Copy(all, v.Class)
	return all
}

// mutable returns the current values of the parameters that callers see.
func (v *volume) mutable() map[string]string {
	if len(v.Class) == 0 && len(v.Mutable) == 0 {
		return plainMutable[v.Kind]
	}
	return mutableOf(v)
}

// context is the volume context: the CO passes it with every call for v.
func (v *volume) context() map[string]string {
	if v.Promised && !v.Inline {
		return promised
	}
	return nil
}

// value returns the current value of a setting of v.
func (v *volume) value(key string) string {
	for _, s := range []mutableParameters{v.Mutable, v.Class} {
		if value, ok := s[key]; ok {
			return value
		}
	}
	return knownMutable[key].standard
}

// asksFor reports whether the volume or its class sets a parameter to a value, which may be the
// standard.
func (v *volume) asksFor(key, value string) bool {
	_, class := v.Class[key]
	_, mutable := v.Mutable[key]
	return (class || mutable) && v.value(key) == value
}

// mutableOf returns the current values of all parameters of a volume.
func mutableOf(v *volume) map[string]string {
	all := map[string]string{}
	for key, known := range knownMutable {
		if v.Kind == image || !known.images {
			all[key] = v.value(key)
		}
	}
	return all
}

// bytes returns a setting that is a number of bytes, 0 if it is not set.
func (v *volume) bytes(key string) int64 {
	n, _ := strconv.ParseInt(v.value(key), 10, 64) // the value was validated when it was set
	return n
}

// plan sets the fields of v as o requests; if from is not nil, v is a copy of from. Errors:
// ErrInvalid, ErrOutOfRange.
func (v *volume) plan(o backend.CreateOptions, from *content) (err error) {
	if v.content, err = planContent(o, from); err != nil {
		return err
	}
	if err := onlyMutable(o.Mutable); err != nil {
		return err
	}
	if v.Class, err = readParameters(o.Parameters, v.Kind); err != nil {
		return err
	}
	v.Mutable, err = readParameters(o.Mutable, v.Kind)
	return err
}

// fits returns ErrExists unless v is as o requests. want is the plan of o.
func (v *volume) fits(want *volume, o backend.CreateOptions) error {
	if v.contentSource() != want.contentSource() {
		return fmt.Errorf("%w: the volume was created from %s, not from %s", backend.ErrExists, v.contentSource(),
			want.contentSource())
	}
	if v.Kind != want.Kind || v.FSType != want.FSType || v.Block != want.Block || v.Size < o.Required ||
		(o.Limit > 0 && v.Size > o.Limit) {
		return fmt.Errorf("%w: the volume has %d bytes (required: %d, limit: %d), kind %s (wanted: %s), filesystem %q "+
			"(wanted: %q), block device: %v (wanted: %v)", backend.ErrExists, v.Size, o.Required, o.Limit, v.Kind,
			want.Kind, v.FSType, want.FSType, v.Block, want.Block)
	}
	if !maps.Equal(v.Class, want.Class) {
		return fmt.Errorf("%w: the volume was created with %v", backend.ErrExists, v.Class)
	}
	for _, key := range slices.Sorted(maps.Keys(want.Mutable)) { // other parameters may have changed since
		if value := want.Mutable[key]; v.value(key) != value {
			return fmt.Errorf("%w: the volume's %s is %q, not %q", backend.ErrExists, key, v.value(key), value)
		}
	}
	return nil
}

// mount returns the mount of v for a volume capability. data is the path of the data.
func (v *volume) mount(data string, a backend.Access) (mounter.Mount, error) {
	m := mounter.Mount{Kind: mounter.Directory, Source: data, Options: a.Options, ReadOnly: a.ReadOnly}
	if v.Kind == directory {
		return m, checkDirectory(a)
	}
	m.Sector, m.Buffered, m.ReadAhead = v.Sector, v.value(directIOKey) == "false", int(v.bytes(readAheadKey))
	switch {
	case a.Block && !v.Block:
		return m, fmt.Errorf("%w: volume %s was created with a filesystem, not as a block device", backend.ErrInvalid,
			v.ID)
	case a.Block:
		m.Kind, m.Options = mounter.Disk, nil
		return m, nil
	case v.FSType == "":
		return m, fmt.Errorf("%w: volume %s was created as a block device, without a filesystem", backend.ErrInvalid,
			v.ID)
	case a.FSType != "" && a.FSType != v.FSType:
		return m, fmt.Errorf("%w: volume %s has the filesystem %s, not %.32q", backend.ErrInvalid, v.ID, v.FSType,
			a.FSType)
	}
	m.Kind, m.FSType = mounter.Image, v.FSType
	if err := mounter.CheckOptions(m.Kind, m.FSType, a.Options); err != nil {
		return m, fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return m, nil
}

// grown returns the size that v must have after an expansion.
func (v *volume) grown(o backend.ExpandOptions) (int64, error) {
	size := max(v.Size, o.Required)
	if v.Kind == image {
		if size > maxImage {
			return 0, fmt.Errorf("%w: an image of %d bytes: must have at most %d", backend.ErrOutOfRange, size,
				int64(maxImage))
		}
		size = (size + sizeUnit - 1) / sizeUnit * sizeUnit
	}
	if o.Limit > 0 && size > o.Limit {
		return 0, fmt.Errorf("%w: the volume has %d bytes and would have %d, above the limit of %d",
			backend.ErrOutOfRange, v.Size, size, o.Limit)
	}
	return size, nil
}

// Key is the ID, or the handle of an inline volume.
func (v *volume) Key() string {
	if v.Inline {
		return v.Name
	}
	return v.ID
}

// Reserved is the size of v, but for an image that takes all of its space when it is made: the free
// bytes of the disk are without it already.
func (v *volume) Reserved() int64 {
	if v.Kind == image && v.FSType == "ntfs" {
		return 0
	}
	return v.Size
}

func (v *volume) Listed() bool { return !v.Inline }

// Project returns the project of a directory's quota, or 0.
func (v *volume) Project() uint32 {
	if v.Mark == nil {
		return 0
	}
	return v.Mark.Project
}

// snapshotFormat is the format of a snapshot's record.json. Version 1 is the first.
var snapshotFormat = record.Format{Version: 1}

// snapshot is the content of a record.json below snapshots/. Its data is in the same directory, as
// for a volume: data/ or the image.
type snapshot struct {
	ID      string      `json:"id"`
	Name    string      `json:"name"`   // given to CreateSnapshot; in a group the volume's ID
	Source  string      `json:"source"` // ID of the volume
	Accept  consistency `json:"consistency"`
	content             // Size is the smallest size of a volume made from it
	Cloned  bool        `json:"cloned,omitempty"` // an image: the copy shared all blocks with the volume
	OnDisk  int64       `json:"held"`             // bytes of the disk, shared blocks included
	Group   string      `json:"group,omitempty"`  // ID
	Created time.Time   `json:"created"`          // point in time of the data
}

func (n *snapshot) public() backend.Snapshot {
	return backend.Snapshot{ID: n.ID, Source: n.Source, Size: n.Size, Created: n.Created, Group: n.Group}
}

// fits returns ErrExists unless n is as requested.
func (n *snapshot) fits(want *snapshot) error {
	if n.Source == want.Source && n.Accept == want.Accept {
		return nil
	}
	return fmt.Errorf("%w: the snapshot is of volume %s, with consistency: %s", backend.ErrExists, n.Source, n.Accept)
}

func (n *snapshot) Key() string { return n.ID }

func (n *snapshot) Reserved() int64 { return n.OnDisk }

func (n *snapshot) VolumeID() string { return n.Source }

// The record.json of a group has version 1, the first, and that of a part (part.go) version 2: an
// older release cannot handle a part, and must leave it alone. It serves all other objects.
var (
	groupFormat = record.Format{Version: 1}
	partFormat  = record.Format{Version: 2, Upgrades: map[int]func([]byte) ([]byte, error){
		1: func(data []byte) ([]byte, error) { return data, nil },
	}}
)

// group is the content of a record.json below groups/.
type group struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`    // given to CreateVolumeGroupSnapshot
	Members []member  `json:"members"` // in the order of their IDs
	Created time.Time `json:"created"`

	// Of a part: see backend.Part.
	All       []string `json:"all,omitempty"`
	AttemptID string   `json:"cut,omitempty"`
	Committed bool     `json:"settled,omitempty"`
}

// format is the format of g's record.
func (g *group) format() record.Format {
	if g.isPart() {
		return partFormat
	}
	return groupFormat
}

// member is a snapshot of a group.
type member struct {
	ID         string `json:"id"`
	Source     string `json:"source"` // ID of the volume
	Incomplete string `json:"half"`   // its directory below the root before its rename
}

func (g *group) sources() []string {
	var ids []string
	for _, m := range g.Members {
		ids = append(ids, m.Source)
	}
	return slices.Sorted(slices.Values(ids))
}

func (g *group) members() []string {
	var ids []string
	for _, m := range g.Members {
		ids = append(ids, m.ID)
	}
	return ids
}

// fits returns ErrExists unless g has the volumes sources and its parts together have the volumes
// all. Both are in the order of their IDs.
func (g *group) fits(sources, all []string) error {
	if slices.Equal(g.sources(), sources) && slices.Equal(g.All, all) {
		return nil
	}
	return fmt.Errorf("%w: the group has the volumes %s%s", backend.ErrExists, strings.Join(g.sources(), ", "),
		g.beside())
}

// hasMembers returns ErrInvalid if snapshots is not empty and differs from the members.
func (g *group) hasMembers(snapshots []string) error {
	if len(snapshots) == 0 || slices.Equal(g.members(), slices.Sorted(slices.Values(snapshots))) {
		return nil
	}
	return fmt.Errorf("%w: the members of group %s are %s", backend.ErrInvalid, g.ID, strings.Join(g.members(), ", "))
}

func (g *group) isPart() bool { return g.AttemptID != "" }

// beside returns a text for messages with the volumes of all parts, or "" if g is not a part.
func (g *group) beside() string {
	if !g.isPart() {
		return ""
	}
	return ", as a part of a group of " + strings.Join(g.All, ", ")
}

// checkAttempt returns ErrNotFound if g is not a part, and ErrPrecondition if g is a part of
// another attempt.
func (g *group) checkAttempt(attemptID string) error {
	switch {
	case !g.isPart():
		return fmt.Errorf("%w: group %.128q is not a part", backend.ErrNotFound, g.ID)
	case g.AttemptID == attemptID:
		return nil
	}
	return fmt.Errorf("%w: group %s has the attempt ID %.64q, not %.64q", backend.ErrPrecondition, g.ID, g.AttemptID,
		attemptID)
}

// nameOfMember returns the name from which the ID of a volume's snapshot in a group is derived. The
// names of other snapshots have no NUL.
func nameOfMember(group, volume string) string { return group + "\x00" + volume }

func (g *group) Key() string { return g.ID }
