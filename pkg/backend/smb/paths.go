package smb

import (
	"strings"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// overlap reports whether two clean paths are the same, or one is below the other.
func overlap(a, b string) bool { return a == b || within(a, b) || within(b, a) }

// within reports whether a clean path is below another.
func within(inner, outer string) bool { return strings.HasPrefix(inner, outer+"/") }

// contains reports whether inner is outer or a directory below it. Paths are the same if fold
// returns the same text.
func contains(fold func(path string) string, outer, inner mounter.ShareSource) bool {
	a, b := fold(outer.Path), fold(inner.Path)
	return outer.Server == inner.Server && outer.Port == inner.Port && fold(outer.Share) == fold(inner.Share) &&
		(a == "" || a == b || within(b, a))
}
