package links

import "github.com/causeway-csi/causeway/pkg/mounter"

// linkRecord is a mount of a links.
type linkRecord struct {
	Path     string       `json:"path"`
	Kind     mounter.Kind `json:"kind"`
	Source   string       `json:"source"`
	ReadOnly bool         `json:"readOnly,omitempty"`
	// Image or Serial identify the disk of a volume whose folder is Source.
	Image  string `json:"image,omitempty"`
	Serial string `json:"serial,omitempty"`

	adopted bool // from a link without a record: Kind and ReadOnly are unknown
}

// equal reports whether r is a mount as want. Both have the same path.
func (r linkRecord) equal(want linkRecord, form PathForm) bool {
	return sourceKey(form, r.Source) == sourceKey(form, want.Source) &&
		(r.adopted || r.Kind == want.Kind && r.ReadOnly == want.ReadOnly)
}

// linkRecords are the records of mounts.
type linkRecords struct {
	*recordMap[linkRecord]
	form PathForm
}

// loadLinkRecords reads the records. A record that is torn is removed: the link has the source.
func loadLinkRecords(store recordStore, form PathForm) (rs *linkRecords, err error) {
	rs = &linkRecords{form: form}
	rs.recordMap, err = loadRecords(store, "a mount", func(r linkRecord) string { return recordName(form.Key(r.Path)) },
		func(r linkRecord) string { return sourceKey(form, r.Source) },
		func(r linkRecord) bool { return r.Source != "" })
	return rs, err
}

func (rs *linkRecords) name(path string) string { return recordName(rs.form.Key(path)) }

func (rs *linkRecords) get(path string) (linkRecord, bool) { return rs.recordMap.get(rs.name(path)) }

func (rs *linkRecords) remove(path string) error {
	if r, ok := rs.get(path); !ok || r.adopted { // it has no file
		rs.forget(rs.name(path))
		return nil
	}
	return rs.recordMap.remove(rs.name(path))
}

// withSource returns the records with a source, in no order.
func (rs *linkRecords) withSource(source string) []linkRecord {
	return rs.group(sourceKey(rs.form, source))
}
