package links

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// mappingRecord is a mapping that this driver has made, or begun to make. It has no credentials.
type mappingRecord struct {
	Root    string `json:"root"`
	User    string `json:"user"` // as userDigest
	Private bool   `json:"private,omitempty"`
}

// isOf reports whether the mapping has the user of c.
func (r mappingRecord) isOf(c mounter.Credentials) bool { return r.User == userDigest(r.Root, c) }

// userDigest identifies a user of the server with a root. A user name comes from a secret.
func userDigest(root string, c mounter.Credentials) string {
	sum := sha256.Sum256([]byte(RootServer(root) + "\x00" + UserOf(c)))
	return hex.EncodeToString(sum[:16])
}

// mappingRecords are the records of mappings.
type mappingRecords struct{ *recordMap[mappingRecord] }

// loadMappingRecords reads the records. A record that is torn is removed: its mapping is then one
// of another program, and is never removed.
func loadMappingRecords(store recordStore) (mappingRecords, error) {
	m, err := loadRecords(store, "a mapping", func(r mappingRecord) string { return recordName(r.Root) }, nil,
		func(r mappingRecord) bool {
			root, isShare := RootOf(r.Root + `\`)
			return isShare && root == r.Root
		})
	return mappingRecords{m}, err
}

func (rs mappingRecords) get(root string) (mappingRecord, bool) {
	return rs.recordMap.get(recordName(root))
}

// all returns all records, sorted by their roots.
func (rs mappingRecords) all() []mappingRecord {
	all := rs.recordMap.all()
	slices.SortFunc(all, func(a, b mappingRecord) int { return strings.Compare(a.Root, b.Root) })
	return all
}

func (rs mappingRecords) put(r mappingRecord) error {
	if old, ok := rs.get(r.Root); ok && old == r {
		return nil
	}
	return rs.recordMap.put(r)
}

func (rs mappingRecords) remove(root string) error { return rs.recordMap.remove(recordName(root)) }
