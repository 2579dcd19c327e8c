package driver

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// stagedMount is a [mounter.Mount] in a staging record. The names of the fields on disk do not
// follow those in Go.
type stagedMount struct {
	Kind      mounter.Kind `json:"kind"`
	Source    string       `json:"source,omitempty"`
	FSType    string       `json:"fsType,omitempty"`
	Sector    int          `json:"sector,omitempty"`
	Options   []string     `json:"options,omitempty"`
	ReadOnly  bool         `json:"readOnly,omitempty"`
	Buffered  bool         `json:"buffered,omitempty"`
	ReadAhead int          `json:"readAhead,omitempty"`
	Tenant    string       `json:"tenant,omitempty"`

	Credentials mounter.Credentials `json:"-"` // always empty

	Serial   string   `json:"serial,omitempty"`
	Format   []string `json:"format,omitempty"`
	Size     int64    `json:"size,omitempty"`
	Sequence uint64   `json:"sequence,omitempty"`
}

// newStagedMount returns the form of m in a record, without credentials. Options of an empty slice
// and of nil are equal in a record.
func newStagedMount(m mounter.Mount) *stagedMount {
	if len(m.Options) == 0 {
		m.Options = nil
	}
	if len(m.Format) == 0 {
		m.Format = nil
	}
	m.Credentials = mounter.Credentials{}
	st := stagedMount(m)
	return &st
}

// equal reports whether both are nil, or describe the same mount.
func (m *stagedMount) equal(other *stagedMount) bool { return reflect.DeepEqual(m, other) }

// mountAt returns the Mount with which a volume was staged at path. The result is false if the
// volume is not staged there with this publish context, or if a release without mounts in its
// records staged it.
func (s *stagingRecords) mountAt(id, path string, publishContext map[string]string) (mounter.Mount, bool) {
	st, ok := s.recordAt(path)
	if !ok || st.VolumeID != id || st.Mount == nil {
		return mounter.Mount{}, false
	}
	if text, err := publishContextText(publishContext); err != nil || text != st.PublishContext {
		return mounter.Mount{}, false
	}
	return mounter.Mount(*st.Mount), true
}

// liveMounts returns the Mounts of all volumes that are staged on this node, those of the same
// source once.
func (s *stagingRecords) liveMounts() []mounter.Mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	bySource := map[string]mounter.Mount{}
	for path, st := range s.byPath {
		if s.live[path] > 0 && st.Mount != nil {
			bySource[st.Mount.Source] = mounter.Mount(*st.Mount)
		}
	}
	return slices.SortedFunc(maps.Values(bySource), func(a, b mounter.Mount) int {
		return cmp.Compare(a.Source, b.Source)
	})
}

// mountsOf returns the Mounts with which a volume was staged on this node, and whether all of its
// records have one.
func (s *stagingRecords) mountsOf(id string) (mounts []mounter.Mount, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.byPath {
		switch {
		case st.VolumeID != id:
		case st.Mount == nil:
			return nil, false
		default:
			mounts = append(mounts, mounter.Mount(*st.Mount))
		}
	}
	return mounts, len(mounts) > 0
}
