package links

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/causeway-csi/causeway/internal/atomicfile"
	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/dacl"
)

// recordMap has records in memory and in a store.
type recordMap[R any] struct {
	store  recordStore
	what   string         // such as "a mount", for errors
	nameOf func(R) string // the name of the file of a record
	// groupOf, if not nil, is the group of a record: see group.
	groupOf func(R) string
	mu      sync.Mutex
	byName  map[string]R
	byGroup map[string]map[string]R // then by name
}

// recordName returns the name of the file of a record with a key.
func recordName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16]) + ".json"
}

// loadRecords reads the records of a store. It removes those that are torn or not valid.
func loadRecords[R any](store recordStore, what string, nameOf, groupOf func(R) string, isValid func(R) bool) (
	*recordMap[R], error) {
	files, err := store.read()
	if err != nil {
		return nil, fmt.Errorf("read the records of %s: %w", what, err)
	}
	m := &recordMap[R]{store: store, what: what, nameOf: nameOf, groupOf: groupOf,
		byName: map[string]R{}, byGroup: map[string]map[string]R{}}
	for name, data := range files {
		var r R
		if json.Unmarshal(data, &r) != nil || nameOf(r) != name || !isValid(r) {
			if err := store.remove(name); err != nil {
				return nil, fmt.Errorf("remove an unreadable record of %s: %w", what, err)
			}
			continue
		}
		m.set(r)
	}
	return m, nil
}

func (m *recordMap[R]) get(name string) (R, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.byName[name]
	return r, ok
}

func (m *recordMap[R]) put(r R) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = m.store.write(m.nameOf(r), data)
	}
	if err != nil {
		return fmt.Errorf("write the record of %s: %w", m.what, err)
	}
	m.set(r)
	return nil
}

// set keeps a record in memory only.
func (m *recordMap[R]) set(r R) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := m.nameOf(r)
	m.drop(name)
	m.byName[name] = r
	if m.groupOf == nil {
		return
	}
	g := m.groupOf(r)
	if m.byGroup[g] == nil {
		m.byGroup[g] = map[string]R{}
	}
	m.byGroup[g][name] = r
}

// drop removes a record from the maps. The caller holds the lock.
func (m *recordMap[R]) drop(name string) {
	r, ok := m.byName[name]
	delete(m.byName, name)
	if !ok || m.groupOf == nil {
		return
	}
	g := m.groupOf(r)
	if delete(m.byGroup[g], name); len(m.byGroup[g]) == 0 {
		delete(m.byGroup, g)
	}
}

func (m *recordMap[R]) remove(name string) error {
	if err := m.store.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of %s: %w", m.what, err)
	}
	m.forget(name)
	return nil
}

// forget removes a record from memory only.
func (m *recordMap[R]) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(name)
}

// all returns all records, in no order.
func (m *recordMap[R]) all() []R {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.byName))
}

// group returns the records of a group, in no order. Its cost does not grow with the other groups.
func (m *recordMap[R]) group(g string) []R {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.byGroup[g]))
}

// recordStore keeps records in files. A file that was written, or removed, survives a power cut.
type recordStore interface {
	read() (map[string][]byte, error) // all, by name
	write(name string, data []byte) error
	remove(name string) error
}

// recordDir is a recordStore in a directory.
type recordDir struct{ dir *beneath.Dir }

// maxRecordSize is the size of the largest record, in bytes.
const maxRecordSize = 64 << 10

func (d recordDir) read() (map[string][]byte, error) {
	names, err := d.dir.Names(".")
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, name := range names {
		if !strings.HasSuffix(name, ".json") { // the remains of a crash: the next write replaces it
			continue
		}
		if files[name], err = d.dir.ReadFile(name, maxRecordSize); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func (d recordDir) write(name string, data []byte) error {
	return atomicfile.Writer{Dir: d.dir}.Write(name, data)
}

func (d recordDir) remove(name string) error {
	if err := d.dir.Remove(name); err != nil {
		return err
	}
	return d.dir.Sync(".")
}

// Directories of records, in the state directory of the driver.
const (
	linkRecordsDir    = "mounts"
	mappingRecordsDir = "mappings"
	formatRecordsDir  = "formats"
)

// openRecords opens a directory of records until the process ends, and makes it if it is missing.
func openRecords(path string) (recordDir, error) {
	if err := dacl.MakePrivate(path); err != nil {
		return recordDir{}, fmt.Errorf("records: %w", err)
	}
	dir, err := beneath.Open(path)
	if err != nil {
		return recordDir{}, fmt.Errorf("records: %w", err)
	}
	return recordDir{dir}, nil
}

// stores are the records of a Host with links, in its directory of state.
type stores struct{ links, mappings, formats recordDir }

// openStores opens the records, until close or the end of the process.
func openStores(state string) (s stores, err error) {
	for _, d := range []struct {
		name string
		to   *recordDir
	}{{linkRecordsDir, &s.links}, {mappingRecordsDir, &s.mappings}, {formatRecordsDir, &s.formats}} {
		if *d.to, err = openRecords(filepath.Join(state, d.name)); err != nil {
			return s, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (s stores) close() (err error) {
	for _, r := range []recordDir{s.links, s.mappings, s.formats} {
		if r.dir != nil {
			err = errors.Join(err, r.dir.Close())
		}
	}
	return err
}
