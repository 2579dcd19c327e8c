// Package record stores a small value in a file. A reader finds the whole value or none, and
// distinguishes a damaged file from the file of a newer release.
//
// A file is JSON: {"version":1,"crc32c":"…","data":{…}}. The checksum is that of data without white
// space.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/causeway-csi/causeway/internal/atomicfile"
	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/regular"
)

var (
	// ErrDamaged reports a file with other content than was written.
	ErrDamaged = errors.New("damaged record")
	// ErrNewer reports a file that a newer release wrote.
	ErrNewer = errors.New("record of a newer version")
)

// maxSize is the largest size of a file that Read accepts, and that Create and Replace write, in
// bytes.
const maxSize = 1 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Format is the format of a kind of record.
type Format struct {
	// Version is the version that Write writes, from 1.
	Version int
	// Upgrades convert data of version n to data of version n+1. A version without an upgrade
	// cannot be read.
	Upgrades map[int]func(data []byte) ([]byte, error)
}

type envelope struct {
	Version int             `json:"version"`
	Sum     string          `json:"crc32c"`
	Data    json.RawMessage `json:"data"`
}

// Encode returns v as a file of this format. Encode fails only if v cannot be encoded as JSON.
func (f Format) Encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	file, err := json.Marshal(envelope{Version: f.Version, Sum: sum(data), Data: data})
	return append(file, '\n'), err
}

// Decode reads a file of this format, or of an older version that has an upgrade, into v. Errors:
// ErrDamaged; ErrNewer, also for a whole file of this version with a field that v does not have.
func (f Format) Decode(file []byte, v any) error {
	var head struct{ Version int } // decoded first, since a newer release may have changed the rest
	if err := json.Unmarshal(file, &head); err == nil && head.Version > f.Version {
		return fmt.Errorf("%w: %d, this release reads up to %d", ErrNewer, head.Version, f.Version)
	}
	var e envelope
	if err := unmarshal(file, &e); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	var data bytes.Buffer
	if err := json.Compact(&data, e.Data); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if got := sum(data.Bytes()); got != e.Sum {
		return fmt.Errorf("%w: its sum is %s, not %.20q", ErrDamaged, got, e.Sum)
	}
	raw := data.Bytes()
	for version := e.Version; version < f.Version; version++ {
		upgrade := f.Upgrades[version]
		if upgrade == nil {
			return fmt.Errorf("%w: no release wrote version %d", ErrDamaged, version)
		}
		var err error
		if raw, err = upgrade(raw); err != nil {
			return fmt.Errorf("%w: upgrade from version %d: %w", ErrDamaged, version, err)
		}
	}
	switch err := unmarshal(raw, v); {
	case err == nil:
		return nil
	case strings.HasPrefix(err.Error(), unknownField): // the sum proves that a release wrote it
		return fmt.Errorf("%w: %w", ErrNewer, err)
	default:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
}

// unknownField begins the error of encoding/json for a field that the value does not have.
const unknownField = "json: unknown field"

// Create writes v durably to the new file name in dir. The caller syncs dir. Create is for
// directories that have no readers yet.
func (f Format) Create(dir *beneath.Dir, name string, v any) error {
	file, err := f.bounded(v)
	if err != nil {
		return err
	}
	return atomicfile.Create(dir, name, file)
}

// bounded is Encode, and returns an error for a file that Read would reject.
func (f Format) bounded(v any) ([]byte, error) {
	file, err := f.Encode(v)
	if err != nil {
		return nil, err
	}
	if len(file) > maxSize {
		return nil, fmt.Errorf("the record has %d bytes: must be at most %d", len(file), maxSize)
	}
	return file, nil
}

// Replace writes v durably to the file name in dir, and replaces an existing file. At every moment
// the old file or the new file is there, whole.
func (f Format) Replace(dir *beneath.Dir, name string, v any) error {
	file, err := f.bounded(v)
	if err != nil {
		return err
	}
	return atomicfile.Writer{Dir: dir}.Write(name, file)
}

// Read reads the file name in dir into v. Errors: fs.ErrNotExist, ErrDamaged, ErrNewer.
func (f Format) Read(dir *beneath.Dir, name string, v any) error {
	file, err := dir.ReadFile(name, maxSize)
	switch {
	case errors.Is(err, beneath.ErrType), errors.Is(err, regular.ErrSize):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case err != nil:
		return err
	}
	return f.Decode(file, v)
}

// unmarshal is json.Unmarshal, but rejects unknown fields and text after the value.
func unmarshal(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("unexpected text after the value")
	}
	return nil
}

func sum(data []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli)) }
