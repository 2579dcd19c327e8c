package smb

import (
	"fmt"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// maxID is the maximum length of an ID in bytes. CSI spec v1.13, size limits.
const maxID = 128

// object identifies a volume or a snapshot: the ID of volumeid.New over its source and name, and
// the source. Its text is the ID of CSI: key@server[:port]/share[/directory].
type object struct {
	key    string
	source mounter.ShareSource
}

// newObject returns the object of a name. Errors: backend.ErrInvalid if its ID is too long.
func newObject(kind volumeid.Kind, source mounter.ShareSource, name string) (object, error) {
	o := object{volumeid.New(kind, fold(source.String()), name), source}
	if id := o.String(); len(id) > maxID {
		return o, fmt.Errorf("%w: source %s makes an ID of %d bytes: must be at most %d, so the source must be at "+
			"most %d bytes", backend.ErrInvalid, source, len(id), maxID, len(source.String())-(len(id)-maxID))
	}
	return o, nil
}

func (o object) String() string { return o.key + "@" + strings.TrimPrefix(o.source.String(), "//") }

// parseObject parses the ID of a volume or snapshot. Errors: backend.ErrNotFound for any ID that
// newObject cannot return.
func parseObject(kind volumeid.Kind, id string) (object, error) {
	unknown := fmt.Errorf("%w: ID %.128q", backend.ErrNotFound, id)
	key, address, found := volumeid.Cut(id)
	parsed, err := volumeid.Parse(key)
	if !found || err != nil || parsed.Kind != kind || len(id) > maxID {
		return object{}, unknown
	}
	source, err := mounter.ParseShare("//" + address)
	if err != nil {
		return object{}, unknown
	}
	o := object{key, source}
	if o.String() != id || parsed.Node != volumeid.NodeDigest(fold(source.String())) {
		return object{}, unknown
	}
	return o, nil
}

// fold returns a text that is equal for names that differ in case only: servers do not distinguish
// them.
func fold(s string) string { return strings.ToLower(strings.ToUpper(s)) }

// isForeign reports whether id is a handle of csi-driver-smb: its parts are separated by "#".
func isForeign(id string) bool { return strings.Contains(id, "#") }
