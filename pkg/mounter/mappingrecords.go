package mounter

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// mappingRecord is a mapping that this driver has made, or begun to make. It has no credentials.
type mappingRecord struct {
	Root    string `json:"root"`
	User    string `json:"user"` // as userDigest
	Private bool   `json:"private,omitempty"`
}

// isOf reports whether the mapping has the user of c.
func (r mappingRecord) isOf(c Credentials) bool { return r.User == userDigest(r.Root, c) }

// userDigest identifies a user of the server with a root. A user name comes from a secret.
func userDigest(root string, c Credentials) string {
	sum := sha256.Sum256([]byte(rootServer(root) + "\x00" + userOf(c)))
	return hex.EncodeToString(sum[:16])
}

// mappingRecords are the records of mappings.
type mappingRecords struct{ *recordMap[mappingRecord] }

// loadMappingRecords reads the records. A record that is torn is removed: its mapping is then one of
// another program, and is never removed.
func loadMappingRecords(store recordStore) (mappingRecords, error) {
	m, err := loadRecords(store, "a mapping", func(r mappingRecord) string { return recordName(r.Root) }, nil,
		func(r mappingRecord) bool {
			root, isShare := rootOf(r.Root + `\`)
			return isShare && root == r.Root
		})
	return mappingRecords{m}, err
}

func (rs mappingRecords) at(root string) (mappingRecord, bool) {
	return rs.recordMap.at(recordName(root))
}

// all returns all records, sorted by their roots.
func (rs mappingRecords) all() []mappingRecord {
	all := rs.recordMap.all()
	slices.SortFunc(all, func(a, b mappingRecord) int { return strings.Compare(a.Root, b.Root) })
	return all
}

func (rs mappingRecords) put(r mappingRecord) error {
	if old, ok := rs.at(r.Root); ok && old == r {
		return nil
	}
	return rs.recordMap.put(r)
}

func (rs mappingRecords) remove(root string) error { return rs.recordMap.remove(recordName(root)) }
