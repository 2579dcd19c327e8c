package hostpath

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// mutableParameters are the mutable parameters of a volume, in the normalized form in which they
// are compared and stored. A StorageClass can set them, and a VolumeAttributesClass overrides the
// StorageClass.
type mutableParameters map[string]string

const (
	enforceKey   = "enforce"   // whether the size of a directory is enforced
	directIOKey  = "direct-io" // whether an image bypasses the page cache of its disk
	readAheadKey = "readahead" // read-ahead of an image's device, in bytes
	labelKey     = "label"     // a text for users; no code depends on it
)

// Values of enforce, for a directory whose size cannot be enforced.
const (
	required  = "required"  // CreateVolume fails
	preferred = "preferred" // the health of the volume reports it
	off       = "off"       // the driver does not try
)

const (
	maxReadAhead = 1 << 30 // bytes
	maxLabel     = 128     // bytes
)

// setting describes a mutable parameter.
type setting struct {
	standard string // the value without a class that sets it
	images   bool   // only volumes of kind image have it

	// read validates a value and returns its normalized form. Errors: ErrInvalid.
	read func(value string) (string, error)
}

var knownMutable = map[string]setting{
	enforceKey: {preferred, false,
		func(value string) (string, error) { return value, oneOf(value, required, preferred, off) }},
	directIOKey: {"true", true, func(value string) (string, error) { return value, oneOf(value, "true", "false") }},
	readAheadKey: {"", true, func(value string) (string, error) {
		size, err := backend.ParseSize(value)
		if err == nil && (size%sizeUnit != 0 || size > maxReadAhead) {
			err = fmt.Errorf("%w: invalid value %.32q: must be a multiple of %d, at most %d", backend.ErrInvalid, value,
				sizeUnit, maxReadAhead)
		}
		return strconv.FormatInt(size, 10), err
	}},
	labelKey: {"", false, func(value string) (string, error) {
		if len(value) > maxLabel || !utf8.ValidString(value) || strings.ContainsFunc(value, isHidden) {
			return "", fmt.Errorf("%w: invalid label: must be UTF-8 of at most %d bytes, without control characters, "+
				"line separators, byte order marks and marks of the writing direction", backend.ErrInvalid, maxLabel)
		}
		return value, nil
	}},
}

// isHidden reports whether a character in a label could change the display of the text around it in
// a terminal.
func isHidden(c rune) bool {
	const byteOrderMark = 0xfeff
	return unicode.In(c, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control) || c == byteOrderMark
}

func oneOf(value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%w: invalid value %.32q: must be one of %q", backend.ErrInvalid, value, allowed)
}

// readParameters returns the parameters among parameters. The value "" is the same as no parameter.
func readParameters(parameters map[string]string, k kind) (mutableParameters, error) {
	var all mutableParameters
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		known, ok := knownMutable[key]
		if !ok || parameters[key] == "" {
			continue
		}
		value, err := known.read(parameters[key])
		switch {
		case err != nil:
		case known.images && k != image:
			err = fmt.Errorf("%w: only volumes of kind %s have this parameter", backend.ErrInvalid, image)
		case k == image && key == enforceKey && value == off:
			err = fmt.Errorf("%w: the size of an image is always enforced", backend.ErrInvalid)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if all == nil {
			all = mutableParameters{}
		}
		all[key] = value
	}
	return all, nil
}

// onlyMutable returns ErrInvalid for a parameter that is not mutable.
func onlyMutable(parameters map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) { // the same key in each attempt
		if _, ok := knownMutable[key]; !ok {
			return fmt.Errorf("%w: unknown mutable parameter %.64q: must be one of %q", backend.ErrInvalid, key,
				slices.Sorted(maps.Keys(knownMutable)))
		}
	}
	return nil
}
