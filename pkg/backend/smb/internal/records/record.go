// Package records has the records of volumes and snapshots: files on the share, beside the volumes.
package records

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
)

// Parameters of a volume that its record has. The volume context has those without OnDeleteKey and
// ExistingKey.
const (
	SourceKey   = "source"
	SubDirKey   = "subDir"
	OnDeleteKey = "onDelete"
	EncryptKey  = "encrypt"
	OutageKey   = "outage"
	ExistingKey = "existing"
)

// Values of OnDeleteKey.
const (
	DeleteData  = "delete"
	RetainData  = "retain"
	ArchiveData = "archive"
)

// Choices are the values of the parameters with a fixed list of values, the default first.
var Choices = map[string][]string{
	OnDeleteKey: {DeleteData, RetainData, ArchiveData},
	EncryptKey:  {"false", "true"},
	OutageKey:   {"error", "wait"},
	ExistingKey: {"refuse", "use"},
}

// State is the state of a volume or snapshot in its record.
type State string

// The states of a volume or snapshot.
const (
	Creating State = "creating" // the directory may exist: it is ours if it is empty and newer than the record
	Made     State = "made"     // the directory exists, is ours, and may be incomplete
	Ready    State = "ready"
	Deleting State = "deleting" // the directory is moved to Target next
)

// Common is the part of a record that volumes and snapshots share.
type Common struct {
	State   State     `json:"state"`
	Name    string    `json:"name"`
	Size    int64     `json:"size"` // bytes
	Created time.Time `json:"created"`
	Target  string    `json:"target,omitempty"` // path in the store to which the directory of a deleted object moves

	// Written is the time at which the server wrote the first record of the state Ready, once the
	// record was written again. Zero: the time of the file.
	Written time.Time `json:"written,omitzero"`
}

// Volume is the record of a volume.
type Volume struct {
	Object `json:"-"`
	Common
	SubDir     string            `json:"subDir"`           // path in the store
	Shared     bool              `json:"shared,omitempty"` // the directory existed before, and is never deleted
	Parameters map[string]string `json:"parameters"`       // with defaults
	OnDelete   string            `json:"onDelete,omitempty"`
	Volume     string            `json:"volume,omitempty"`   // ID of the volume from which the volume was cloned
	Snapshot   string            `json:"snapshot,omitempty"` // ID of the snapshot from which it was restored
}

// Snapshot is the record of a snapshot.
type Snapshot struct {
	Object `json:"-"`
	Common
	Volume string `json:"volume"` // ID of the source
}

// Formats of records on shares.
var (
	VolumeFormat   = record.Format{Version: 1}
	SnapshotFormat = record.Format{Version: 1}
)

// Check returns record.ErrNewer for a parameter, a value or a state that this release does not know:
// the checksum proves that a release wrote it. This release would ignore it, and delete the data of
// a volume with another value of OnDeleteKey, for example.
func (v *Volume) Check() error {
	if err := v.check(); err != nil {
		return unusable(v.Object, err)
	}
	return nil
}

func (v *Volume) check() error {
	for _, key := range slices.Sorted(maps.Keys(v.Parameters)) {
		values, isChoice := Choices[key]
		switch {
		case !isChoice && key != SourceKey && key != SubDirKey:
			return fmt.Errorf("%w: parameter %.64q", record.ErrNewer, key)
		case isChoice && !slices.Contains(values, v.Parameters[key]):
			return fmt.Errorf("%w: parameter %s: %.64q", record.ErrNewer, key, v.Parameters[key])
		}
	}
	if v.OnDelete != "" && !slices.Contains(Choices[OnDeleteKey], v.OnDelete) {
		return fmt.Errorf("%w: onDelete: %.64q", record.ErrNewer, v.OnDelete)
	}
	return v.State.check()
}

func (s State) check() error {
	switch s {
	case Creating, Made, Ready, Deleting:
		return nil
	case "":
		return fmt.Errorf("%w: no state", record.ErrDamaged)
	}
	return fmt.Errorf("%w: state: %.64q", record.ErrNewer, s)
}

// Public returns the volume as the contract describes it.
func (v *Volume) Public() backend.Volume {
	return backend.Volume{
		ID: v.String(), Size: v.Size, Parameters: maps.Clone(v.Parameters), Context: v.Context(),
		Mutable: map[string]string{OnDeleteKey: v.DeletePolicy()}, SourceVolume: v.Volume, SourceSnapshot: v.Snapshot,
	}
}

// Context returns the volume context.
func (v *Volume) Context() map[string]string {
	return map[string]string{SourceKey: v.Source.String(), SubDirKey: v.SubDir, EncryptKey: v.Parameters[EncryptKey],
		OutageKey: v.Parameters[OutageKey]}
}

// DeletePolicy returns the effect of the deletion of the volume on its directory.
func (v *Volume) DeletePolicy() string {
	if v.OnDelete != "" {
		return v.OnDelete
	}
	return v.Parameters[OnDeleteKey]
}

// Fits returns ErrExists if a request for a volume of the same name asks for another volume.
func (v *Volume) Fits(want *Volume, o backend.CreateOptions) error {
	differs := func(format string, args ...any) error {
		return fmt.Errorf("%w: volume %.64q %s", backend.ErrExists, v.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case v.Size < o.Required:
		return differs("has %d bytes, and %d are requested", v.Size, o.Required)
	case o.Limit > 0 && v.Size > o.Limit:
		return differs("has %d bytes, and at most %d are requested", v.Size, o.Limit)
	case v.Volume != want.Volume || v.Snapshot != want.Snapshot:
		return differs("was created from another source")
	}
	for _, key := range slices.Sorted(maps.Keys(v.Parameters)) {
		if key != SourceKey && v.Parameters[key] != want.Parameters[key] {
			return differs("has the parameter %s=%.64q, and %.64q is requested", key, v.Parameters[key],
				want.Parameters[key])
		}
	}
	if value, ok := o.Mutable[OnDeleteKey]; ok && value != v.DeletePolicy() {
		return differs("has %s=%s, and %s is requested", OnDeleteKey, v.DeletePolicy(), value)
	}
	return nil
}

// Public returns the snapshot as the contract describes it.
func (n *Snapshot) Public() backend.Snapshot {
	return backend.Snapshot{ID: n.String(), Source: n.Volume, Size: n.Size, Created: n.Created}
}

// Dir returns the directory of the data of a snapshot, in the store.
func (n *Snapshot) Dir() string { return strings.Join([]string{MetaDir, SnapshotsDir, n.Key}, "/") }

// Fits returns ErrExists if the snapshot is one of another volume.
func (n *Snapshot) Fits(source string) error {
	if n.Volume != source {
		return fmt.Errorf("%w: snapshot %.64q of volume %s", backend.ErrExists, n.Name, n.Volume)
	}
	return nil
}
