package mounter

// linkRecord is a mount of a links.
type linkRecord struct {
	Path     string `json:"path"`
	Kind     Kind   `json:"kind"`
	Source   string `json:"source"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Image or Serial identify the disk of a volume whose folder is Source.
	Image  string `json:"image,omitempty"`
	Serial string `json:"serial,omitempty"`

	adopted bool // from a link without a record: Kind and ReadOnly are unknown
}

// equal reports whether r is a mount as want. Both have the same path.
func (r linkRecord) equal(want linkRecord, form pathForm) bool {
	return sourceKey(form, r.Source) == sourceKey(form, want.Source) &&
		(r.adopted || r.Kind == want.Kind && r.ReadOnly == want.ReadOnly)
}

// linkRecords are the records of mounts.
type linkRecords struct {
	*recordMap[linkRecord]
	form pathForm
}

// loadLinkRecords reads the records. A record that is torn is removed: the link has the source.
func loadLinkRecords(store recordStore, form pathForm) (rs *linkRecords, err error) {
	rs = &linkRecords{form: form}
	rs.recordMap, err = loadRecords(store, "a mount", func(r linkRecord) string { return recordName(form.key(r.Path)) },
		func(r linkRecord) string { return sourceKey(form, r.Source) },
		func(r linkRecord) bool { return r.Source != "" })
	return rs, err
}

func (rs *linkRecords) name(path string) string { return recordName(rs.form.key(path)) }

func (rs *linkRecords) at(path string) (linkRecord, bool) { return rs.recordMap.at(rs.name(path)) }

func (rs *linkRecords) remove(path string) error {
	if r, ok := rs.at(path); !ok || r.adopted { // it has no file
		rs.forget(rs.name(path))
		return nil
	}
	return rs.recordMap.remove(rs.name(path))
}

// of returns the records with a source, in no order.
func (rs *linkRecords) of(source string) []linkRecord { return rs.group(sourceKey(rs.form, source)) }
