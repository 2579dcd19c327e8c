// Package record keeps a small value in a file, so that a reader finds it whole or not at all, and can tell a file
// that is damaged from one that a newer release wrote.
//
// A file is JSON: {"version":1,"crc32c":"…","data":{…}}. The sum is over data without white space.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/causeway-csi/causeway/internal/atomicfile"
	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/regular"
)

var (
	// ErrDamaged says that a file isn't what was written.
	ErrDamaged = errors.New("damaged record")
	// ErrNewer says that a newer release wrote the file.
	ErrNewer = errors.New("record of a newer version")
)

// maxSize bounds what Read takes into memory, in bytes, and so what is written.
const maxSize = 1 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Format is the form of one kind of record.
type Format struct {
	// Version is what Write writes, from 1.
	Version int
	// Upgrades turn data of version n into data of version n+1. A version for which there is none can't be read.
	Upgrades map[int]func(data []byte) ([]byte, error)
}

type envelope struct {
	Version int             `json:"version"`
	Sum     string          `json:"crc32c"`
	Data    json.RawMessage `json:"data"`
}

// Encode returns v as a file of this format. It fails only for a v that isn't JSON.
func (f Format) Encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	file, err := json.Marshal(envelope{Version: f.Version, Sum: sum(data), Data: data})
	return append(file, '\n'), err
}

// Decode reads a file of this format, or of an older one that can be upgraded, into v. Errors: ErrDamaged, ErrNewer.
func (f Format) Decode(file []byte, v any) error {
	var head struct{ Version int } // first of all, since a newer release may have changed the rest
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
	if err := unmarshal(raw, v); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// Create writes v to a new file called name in dir, durably; only the directory is left for the caller
// to sync. It is for directories that nobody reads yet.
func (f Format) Create(dir *beneath.Dir, name string, v any) error {
	file, err := f.bounded(v)
	if err != nil {
		return err
	}
	return atomicfile.Create(dir, name, file)
}

// bounded is Encode, and fails for a file that Read would not take.
func (f Format) bounded(v any) ([]byte, error) {
	file, err := f.Encode(v)
	if err != nil {
		return nil, err
	}
	if len(file) > maxSize {
		return nil, fmt.Errorf("a record of %d bytes could not be read again: the limit is %d", len(file), maxSize)
	}
	return file, nil
}

// Replace writes v to the file called name in dir, durably, in place of a file that may be there. At
// every moment one of the two is there, whole.
func (f Format) Replace(dir *beneath.Dir, name string, v any) error {
	file, err := f.bounded(v)
	if err != nil {
		return err
	}
	return atomicfile.Writer{Dir: dir}.Write(name, file)
}

// Read reads the file called name in dir into v. Errors: fs.ErrNotExist, ErrDamaged, ErrNewer.
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

// unmarshal is json.Unmarshal that takes no unknown fields and nothing after the value.
func unmarshal(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the value")
	}
	return nil
}

func sum(data []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli)) }
