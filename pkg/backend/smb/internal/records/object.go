package records

import (
	"fmt"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// MaxID is the maximum length of an ID in bytes. CSI spec v1.13, size limits.
const MaxID = 128

// Object identifies a volume or a snapshot: the ID of volumeid.New over its source and name, and
// the source. Its text is the ID of CSI: key@server[:port]/share[/directory].
type Object struct {
	Key    string
	Source mounter.ShareSource
}

// NewObject returns the object of a name. Errors: backend.ErrInvalid if its ID is too long.
func NewObject(kind volumeid.Kind, source mounter.ShareSource, name string) (Object, error) {
	o := Object{volumeid.New(kind, Fold(source.String()), name), source}
	if id := o.String(); len(id) > MaxID {
		return o, fmt.Errorf("%w: source %s makes an ID of %d bytes: must be at most %d, so the source must be at "+
			"most %d bytes", backend.ErrInvalid, source, len(id), MaxID, len(source.String())-(len(id)-MaxID))
	}
	return o, nil
}

func (o Object) String() string { return o.Key + "@" + strings.TrimPrefix(o.Source.String(), "//") }

// ParseObject parses the ID of a volume or snapshot. Errors: backend.ErrNotFound for any ID that
// NewObject cannot return.
func ParseObject(kind volumeid.Kind, id string) (Object, error) {
	unknown := fmt.Errorf("%w: ID %.128q", backend.ErrNotFound, id)
	key, address, found := volumeid.Cut(id)
	parsed, err := volumeid.Parse(key)
	if !found || err != nil || parsed.Kind != kind || len(id) > MaxID {
		return Object{}, unknown
	}
	source, err := mounter.ParseShare("//" + address)
	if err != nil {
		return Object{}, unknown
	}
	o := Object{key, source}
	if o.String() != id || parsed.Node != volumeid.NodeDigest(Fold(source.String())) {
		return Object{}, unknown
	}
	return o, nil
}

// Fold returns a text that is equal for names that differ in case only: servers do not distinguish
// them.
func Fold(s string) string { return strings.ToLower(strings.ToUpper(s)) }
