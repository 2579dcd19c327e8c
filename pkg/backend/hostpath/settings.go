package hostpath

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
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
			return fmt.Errorf("%w: unknown mutable parameter %.64q: there are %q", backend.ErrInvalid, key, slices.Sorted(maps.Keys(knownSettings)))
		}
	}
	return nil
}

// set returns what holds for v.
func (v *volume) set(key string) string {
	for _, s := range []settings{v.Mutable, v.Class} {
		if value, ok := s[key]; ok {
			return value
		}
	}
	return knownSettings[key].standard
}

// mutableOf returns all settings of a volume, as they hold.
func mutableOf(v *volume) map[string]string {
	all := map[string]string{}
	for key, known := range knownSettings {
		if v.Kind == image || !known.images {
			all[key] = v.set(key)
		}
	}
	return all
}

// bytes returns a setting that is a number of bytes, 0 if it isn't set.
func (v *volume) bytes(key string) int64 {
	n, _ := strconv.ParseInt(v.set(key), 10, 64) // it was read when it was set
	return n
}

// Modify changes settings: the record first, then what is mounted now. If only the second fails, the next mount, or the
// same call again, does what the record says. A disk that is full or read-only is ErrUnavailable, whatever was tried on
// it: ErrInvalid would be final for the resizer.
func (b *Backend) Modify(ctx context.Context, id string, parameters, _ map[string]string) (err error) {
	defer func() {
		if store.IsFull(err) || store.IsReadOnly(err) {
			err = fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
		}
	}()
	s, err := b.ready()
	if err != nil {
		return err
	}
	v, err := b.persistent(id)
	if err != nil {
		return err
	}
	if err := onlySettings(parameters); err != nil {
		return err
	}
	changes, err := readSettings(parameters, v.Kind)
	if err != nil {
		return err
	}
	next := *v
	next.Mutable = maps.Clone(v.Mutable)
	for key := range parameters {
		delete(next.Mutable, key)
	}
	if len(changes) > 0 && next.Mutable == nil {
		next.Mutable = settings{}
	}
	maps.Copy(next.Mutable, changes)
	defer b.traffic.begin()()
	if !maps.Equal(next.Mutable, v.Mutable) {
		if next.set(enforceKey) != v.set(enforceKey) {
			if err := b.enforceAnew(ctx, s, &next); err != nil {
				return err
			}
		}
		if err := s.Rewrite(volumesDir, v.ID, volumeFormat, &next); err != nil {
			return err
		}
		b.catalog.PutVolume(&next)
	}
	crashpoint.Reached("modify:recorded")
	return b.apply(ctx, s, &next)
}

// apply makes what is mounted of v as its settings say.
func (b *Backend) apply(ctx context.Context, s *root, v *volume) error {
	if v.Kind != image {
		return nil
	}
	m, err := v.mount(s.dataPath(v), backend.Access{Block: v.Block})
	if err != nil {
		return err
	}
	return b.cfg.Images.Tune(ctx, m)
}
