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

// volumeFormat is the form of a volume's record.json. Version 1 is the first.
var volumeFormat = record.Format{Version: 1}

// volume is the content of a record.json. It never changes once it is in the index.
type volume struct {
	ID   string `json:"id"`
	Name string `json:"name"` // given to CreateVolume, or the kubelet's handle of an inline volume
	content
	Inline  bool      `json:"inline,omitempty"`
	From    *origin   `json:"from,omitempty"`    // nil if it was made empty
	Class   settings  `json:"class,omitempty"`   // that it was made with
	Mutable settings  `json:"mutable,omitempty"` // that came later, and override Class
	Created time.Time `json:"created"`

	// Of a directory: how its limit is found, nil if it can have none; whether it has one; and whether it had none when
	// it was made, though that was preferred.
	Mark     *quota.Mark `json:"mark,omitempty"`
	Enforced bool        `json:"enforced,omitempty"`
	Promised bool        `json:"promised,omitempty"`

	namespace string // while it is made; see namespaceOf
}

// origin is what a volume was made from: nothing, a snapshot or a volume, either of which may be gone.
type origin struct {
	Snapshot string `json:"snapshot,omitempty"` // ID
	Volume   string `json:"volume,omitempty"`   // ID
}

func (o origin) String() string {
	switch {
	case o.Snapshot != "":
		return "snapshot " + o.Snapshot
	case o.Volume != "":
		return "volume " + o.Volume
	}
	return "nothing"
}

func (v *volume) origin() origin {
	if v.From == nil {
		return origin{}
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
		SourceSnapshot: v.origin().Snapshot, SourceVolume: v.origin().Volume, Context: v.context(),
	}
}

// Most volumes have nothing but the standard in these. They share it, as a list has thousands: nobody changes it.
var (
	plainParameters = map[kind]map[string]string{directory: {kindKey: string(directory)}, image: {kindKey: string(image)}}
	plainMutable    = map[kind]map[string]string{directory: mutableOf(&volume{content: content{Kind: directory}}), image: mutableOf(&volume{content: content{Kind: image}})}
	promised        = map[string]string{contextKey: contextPromised}
)

// contextKey is in the context of a directory whose size was not enforced when it was made, though that was preferred.
const contextKey = "size"

// contextPromised is its value.
const contextPromised = "promised"

// parameters are those that v was made with.
func (v *volume) parameters() map[string]string {
	if len(v.Class) == 0 {
		return plainParameters[v.Kind]
	}
	all := maps.Clone(plainParameters[v.Kind])
	maps.Copy(all, v.Class)
	return all
}

// mutable returns what holds for v, for those who ask.
func (v *volume) mutable() map[string]string {
	if len(v.Class) == 0 && len(v.Mutable) == 0 {
		return plainMutable[v.Kind]
	}
	return mutableOf(v)
}

// context is what the CO hands on to every use of v.
func (v *volume) context() map[string]string {
	if v.Promised && !v.Inline {
		return promised
	}
	return nil
}

// set returns what holds for v.
func (v *volume) set(key string) string {
	for _, s := range []settings{v.Mutable, v.Class} {
		if value, ok := s[key]; ok {
			return value
		}
	}
	return knownSettings[key].standard
}

// mutableOf returns all settings of a volume, as they hold.
func mutableOf(v *volume) map[string]string {
	all := map[string]string{}
	for key, known := range knownSettings {
		if v.Kind == image || !known.images {
			all[key] = v.set(key)
		}
	}
	return all
}

// bytes returns a setting that is a number of bytes, 0 if it isn't set.
func (v *volume) bytes(key string) int64 {
	n, _ := strconv.ParseInt(v.set(key), 10, 64) // it was read when it was set
	return n
}

// plan makes v what o asks for; if from isn't nil, a copy of that. Errors: ErrInvalid, ErrOutOfRange.
func (v *volume) plan(o backend.CreateOptions, from *content) (err error) {
	if v.content, err = planContent(o, from); err != nil {
		return err
	}
	if err := onlySettings(o.Mutable); err != nil {
		return err
	}
	if v.Class, err = readSettings(o.Parameters, v.Kind); err != nil {
		return err
	}
	v.Mutable, err = readSettings(o.Mutable, v.Kind)
	return err
}

// fits returns ErrExists unless v is what o asks for, of which want is the plan.
func (v *volume) fits(want *volume, o backend.CreateOptions) error {
	if v.origin() != want.origin() {
		return fmt.Errorf("%w: it was made from %s, not from %s", backend.ErrExists, v.origin(), want.origin())
	}
	if v.Kind != want.Kind || v.FSType != want.FSType || v.Block != want.Block || v.Size < o.Required || (o.Limit > 0 && v.Size > o.Limit) {
		return fmt.Errorf("%w: it has %d bytes and is of kind %s, filesystem %q, block device: %v", backend.ErrExists, v.Size, v.Kind, v.FSType, v.Block)
	}
	if !maps.Equal(v.Class, want.Class) {
		return fmt.Errorf("%w: it was made with %v", backend.ErrExists, v.Class)
	}
	for key, value := range want.Mutable { // what isn't named may have been changed since
		if v.set(key) != value {
			return fmt.Errorf("%w: its %s is %q", backend.ErrExists, key, v.set(key))
		}
	}
	return nil
}

// mount returns what to mount for a use. data is the path of what pods see.
func (v *volume) mount(data string, a backend.Access) (mounter.Mount, error) {
	m := mounter.Mount{Kind: mounter.Directory, Source: data, Options: a.Options, ReadOnly: a.ReadOnly}
	if v.Kind == directory {
		return m, checkDirectory(a)
	}
	m.Sector, m.Buffered, m.ReadAhead = v.Sector, v.set(directIOKey) == "false", int(v.bytes(readAheadKey))
	switch {
	case a.Block && !v.Block:
		return m, fmt.Errorf("%w: volume %s was made for its filesystem, not as a block device", backend.ErrInvalid, v.ID)
	case a.Block:
		m.Kind, m.Options = mounter.Disk, nil
		return m, nil
	case v.FSType == "":
		return m, fmt.Errorf("%w: volume %s was made as a block device, without a filesystem", backend.ErrInvalid, v.ID)
	case a.FSType != "" && a.FSType != v.FSType:
		return m, fmt.Errorf("%w: volume %s has the filesystem %s, not %.32q", backend.ErrInvalid, v.ID, v.FSType, a.FSType)
	}
	m.Kind, m.FSType = mounter.Image, v.FSType
	if err := mounter.CheckOptions(m.Kind, m.FSType, a.Options); err != nil {
		return m, fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return m, nil
}

// grown returns the size that v has to have.
func (v *volume) grown(o backend.ExpandOptions) (int64, error) {
	size := max(v.Size, o.Required)
	if v.Kind == image {
		if size > 1<<62 {
			return 0, fmt.Errorf("%w: %d bytes", backend.ErrOutOfRange, size)
		}
		size = (size + sizeUnit - 1) / sizeUnit * sizeUnit
	}
	if o.Limit > 0 && size > o.Limit {
		return 0, fmt.Errorf("%w: the volume has %d bytes and would have %d, over the limit of %d", backend.ErrOutOfRange, v.Size, size, o.Limit)
	}
	return size, nil
}

// Key is the ID, or the kubelet's handle of an inline volume.
func (v *volume) Key() string {
	if v.Inline {
		return v.Name
	}
	return v.ID
}

func (v *volume) Reserved() int64 { return v.Size }

func (v *volume) Listed() bool { return !v.Inline }

// Project returns the project of a directory's quota, or 0.
func (v *volume) Project() uint32 {
	if v.Mark == nil {
		return 0
	}
	return v.Mark.Project
}

// snapshotFormat is the form of a snapshot's record.json. Version 1 is the first.
var snapshotFormat = record.Format{Version: 1}

// snapshot is the content of a record.json below snapshots/. Beside it is what a volume has: data/ or image.raw.
type snapshot struct {
	ID      string      `json:"id"`
	Name    string      `json:"name"`   // given to CreateSnapshot; in a group the volume's ID
	Source  string      `json:"source"` // ID of the volume
	Accept  consistency `json:"consistency"`
	content             // Size is the least that a volume made from it has
	Cloned  bool        `json:"cloned,omitempty"` // an image: all of its blocks were the volume's own
	Held    int64       `json:"held"`             // bytes of the disk, as if none of them were shared
	Group   string      `json:"group,omitempty"`  // ID
	Created time.Time   `json:"created"`          // when the data was cut
}

func (n *snapshot) public() backend.Snapshot {
	return backend.Snapshot{ID: n.ID, Source: n.Source, Size: n.Size, Created: n.Created, Group: n.Group}
}

// fits returns ErrExists unless n is what is asked for.
func (n *snapshot) fits(want *snapshot) error {
	if n.Source == want.Source && n.Accept == want.Accept {
		return nil
	}
	return fmt.Errorf("%w: it is of volume %s, with consistency: %s", backend.ErrExists, n.Source, n.Accept)
}

func (n *snapshot) Key() string { return n.ID }

func (n *snapshot) Reserved() int64 { return n.Held }

func (n *snapshot) VolumeID() string { return n.Source }

// A group's record.json is of version 1, the first, and that of a part (part.go) of version 2: an older release doesn't
// know what to do with a part, and has to leave it alone. With what it knows it can go on.
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
	All     []string `json:"all,omitempty"`
	Cut     string   `json:"cut,omitempty"`
	Settled bool     `json:"settled,omitempty"`
}

// format is the form of g's record.
func (g *group) format() record.Format {
	if g.isPart() {
		return partFormat
	}
	return groupFormat
}

// member is one snapshot of a group.
type member struct {
	ID     string `json:"id"`
	Source string `json:"source"` // ID of the volume
	Half   string `json:"half"`   // its directory, below the root, before it was in its place
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

// fits returns ErrExists unless g is of these volumes, in the order of their IDs, and with all its parts of those.
func (g *group) fits(sources, all []string) error {
	if slices.Equal(g.sources(), sources) && slices.Equal(g.All, all) {
		return nil
	}
	return fmt.Errorf("%w: it is of the volumes %s%s", backend.ErrExists, strings.Join(g.sources(), ", "), g.beside())
}

// hasMembers returns ErrInvalid if snapshots are given, and aren't the members.
func (g *group) hasMembers(snapshots []string) error {
	if len(snapshots) == 0 || slices.Equal(g.members(), slices.Sorted(slices.Values(snapshots))) {
		return nil
	}
	return fmt.Errorf("%w: the members of group %s are %s", backend.ErrInvalid, g.ID, strings.Join(g.members(), ", "))
}

func (g *group) isPart() bool { return g.Cut != "" }

// beside says of which group g is a part, if it is one.
func (g *group) beside() string {
	if !g.isPart() {
		return ""
	}
	return ", as a part of a group of " + strings.Join(g.All, ", ")
}

// of returns ErrPrecondition unless g is of that cut, and ErrNotFound if it is no part.
func (g *group) of(cut string) error {
	switch {
	case !g.isPart():
		return fmt.Errorf("%w: group %.128q is a whole one", backend.ErrNotFound, g.ID)
	case g.Cut == cut:
		return nil
	}
	return fmt.Errorf("%w: group %s is of the cut %.64q, not of %.64q", backend.ErrPrecondition, g.ID, g.Cut, cut)
}

// nameOfMember returns the name from which the ID of the snapshot of a volume in a group is made.
// The name of no other snapshot has a NUL.
func nameOfMember(group, volume string) string { return group + "\x00" + volume }

func (g *group) Key() string { return g.ID }
