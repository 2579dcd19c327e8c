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

// settings are the parameters that can change while a volume is used, in the form in which they are compared and kept.
// A class may say them (StorageClass), and a VolumeAttributesClass overrides it.
type settings map[string]string

const (
	enforceKey   = "enforce"   // the size of a directory
	directIOKey  = "direct-io" // between an image and its disk
	readAheadKey = "readahead" // of an image's device, in bytes
	labelKey     = "label"     // for people; nothing depends on it
)

// enforce is what happens where the size of a directory can't be enforced.
const (
	required  = "required"  // there is no such volume
	preferred = "preferred" // it says so in its health
	off       = "off"       // it is not even tried
)

const (
	maxReadAhead = 1 << 30 // bytes
	maxLabel     = 128     // bytes
)

// setting is how one of them is read.
type setting struct {
	standard string // what holds if nobody says anything
	images   bool   // it is for volumes of kind image

	// read returns the form in which a value is kept. Errors: ErrInvalid.
	read func(value string) (string, error)
}

var knownSettings = map[string]setting{
	enforceKey:  {preferred, false, func(value string) (string, error) { return value, oneOf(value, required, preferred, off) }},
	directIOKey: {"true", true, func(value string) (string, error) { return value, oneOf(value, "true", "false") }},
	readAheadKey: {"", true, func(value string) (string, error) {
		size, err := backend.ParseSize(value)
		if err == nil && (size%sizeUnit != 0 || size > maxReadAhead) {
			err = fmt.Errorf("%w: %.32q is no multiple of %d up to %d", backend.ErrInvalid, value, sizeUnit, maxReadAhead)
		}
		return strconv.FormatInt(size, 10), err
	}},
	labelKey: {"", false, func(value string) (string, error) {
		if len(value) > maxLabel || !utf8.ValidString(value) || strings.ContainsFunc(value, isHidden) {
			return "", fmt.Errorf("%w: a label must be UTF-8 of at most %d bytes, without control characters, line separators, byte order marks and marks"+
				" of the writing direction", backend.ErrInvalid, maxLabel)
		}
		return value, nil
	}},
}

// isHidden reports whether a character in a label could change how a terminal shows the text around it.
func isHidden(c rune) bool {
	const byteOrderMark = 0xfeff
	return unicode.In(c, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control) || c == byteOrderMark
}

func oneOf(value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%w: %.32q is none of %q", backend.ErrInvalid, value, allowed)
}

// readSettings returns those of parameters that are settings. "" is the same as not to say it.
func readSettings(parameters map[string]string, k kind) (settings, error) {
	var all settings
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		known, ok := knownSettings[key]
		if !ok || parameters[key] == "" {
			continue
		}
		value, err := known.read(parameters[key])
		switch {
		case err != nil:
		case known.images && k != image:
			err = fmt.Errorf("%w: it is for volumes of kind %s", backend.ErrInvalid, image)
		case k == image && key == enforceKey && value == off:
			err = fmt.Errorf("%w: the size of an image is always enforced", backend.ErrInvalid)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if all == nil {
			all = settings{}
		}
		all[key] = value
	}
	return all, nil
}

// onlySettings returns ErrInvalid for a parameter that isn't one.
func onlySettings(parameters map[string]string) error {
	for key := range parameters {
		if _, ok := knownSettings[key]; !ok {
			return fmt.Errorf("%w: unknown mutable parameter %.64q: must be one of %q", backend.ErrInvalid, key, slices.Sorted(maps.Keys(knownSettings)))
		}
	}
	return nil
}
