package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/causeway-csi/causeway/internal/atomicfile"
	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/regular"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// stagingRecord remembers the capability, the publish context and the Mount of a staged volume. CSI
// passes the first two to no later call about the volume but NodePublishVolume. Later calls use the
// Mount instead of asking the backend, whose storage may not answer. Only the mount table of the
// kernel shows whether the volume is still staged. The names "use" and "attachment" are from an
// older format: records of earlier releases have them.
type stagingRecord struct {
	VolumeID       string `json:"volumeID"`
	Capability     digest `json:"use"`
	PublishContext string `json:"attachment,omitempty"` // a publish context, as JSON with sorted keys; "": none

	// Mount is nil in the records of releases that did not remember it.
	Mount *stagedMount `json:"mount,omitempty"`

	// OldCredentials reports that the secrets of the volume have changed and that the kernel could
	// not give them to the mount.
	OldCredentials bool `json:"oldCredentials,omitempty"`

	// Boot identifies the boot of the machine in which the volume was staged. It is empty in the
	// records of earlier releases, and on systems that do not tell.
	Boot string `json:"boot,omitempty"`
}

// publishContextText returns a publish context in the form of a record.
func publishContextText(publishContext map[string]string) (string, error) {
	if len(publishContext) == 0 {
		return "", nil
	}
	text, err := json.Marshal(publishContext)
	return string(text), err
}

// sameUse reports whether both records are of the same volume, with the same capability and publish
// context.
func (st stagingRecord) sameUse(other stagingRecord) bool {
	return st.sameCapability(other) && st.PublishContext == other.PublishContext
}

// sameCapability reports whether both records are of the same volume, with the same capability.
func (st stagingRecord) sameCapability(other stagingRecord) bool {
	return st.VolumeID == other.VolumeID && st.Capability == other.Capability
}

// stagingRecordFile is the content of the file of a record.
type stagingRecordFile struct {
	Path string `json:"path"`
	stagingRecord
}

// stagingRecords keeps a small file for each staging path, so that a restarted driver knows the
// staged volumes. The files are not synced: after a power failure nothing is mounted, and a record
// without a mount has no effect.
type stagingRecords struct {
	path   string // path of the directory
	boot   string // see bootID
	dir    *beneath.Dir
	mu     sync.Mutex
	byPath map[string]stagingRecord
	// live has the staging paths that are mounted, and that no call is staging or unstaging. The
	// values are numbers of mounts, each with its own number.
	live   map[string]int
	mounts int // number of the last mount
	// lost has the staging paths of this boot that were not mounted when this process began.
	lost map[string]bool
}

// stagingRecordsDir is the directory of the records in the state directory.
const stagingRecordsDir = "staged"

// stagingRecordName matches the names of the files. Files with other names are never touched.
var stagingRecordName = regexp.MustCompile(`^[0-9a-f]{32}\.json(\.new)?$`)

// maxStagingRecord is the maximum size of a file in bytes. A path has at most 4096.
const maxStagingRecord = 64 << 10

// openStagingRecords reads the files. openStagingRecords removes a damaged file, and a file for
// whose path mounted returns false, unless the volume was staged in the present boot at a directory
// that is still there: then another program has unmounted it, and the path is lost. If mounted
// returns an error, the file stays; after mounter.ErrPath it does not. report gets an error for
// each entry that is not a file and cannot be removed. Such an entry affects only the volume at its
// own path.
//
// A driver that died in the middle of a NodeStageVolume or a NodeUnstageVolume leaves such a file,
// too, until the kubelet has repeated the call.
func openStagingRecords(stateDir, boot string,
	mounted func(path string) (bool, error), report func(error)) (_ *stagingRecords, err error) {
	dir := filepath.Join(stateDir, stagingRecordsDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := beneath.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			root.Close()
		}
	}()
	s := &stagingRecords{path: dir, boot: boot, dir: root, byPath: map[string]stagingRecord{}, live: map[string]int{},
		lost: map[string]bool{}}
	names, err := root.Names(".")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !stagingRecordName.MatchString(name) {
			continue
		}
		keep, err := s.read(name, mounted)
		if err != nil {
			return nil, err
		}
		if keep {
			continue
		}
		if err := root.Remove(name); err != nil {
			report(fmt.Errorf("not removed: %w", err))
		}
	}
	return s, nil
}

// read reads a file and reports whether the file stays. A file whose name ends with .new was never
// committed.
func (s *stagingRecords) read(name string, mounted func(path string) (bool, error)) (keep bool, err error) {
	if strings.HasSuffix(name, ".new") {
		return false, nil
	}
	data, err := s.dir.ReadFile(name, maxStagingRecord)
	switch {
	case errors.Is(err, beneath.ErrType), errors.Is(err, regular.ErrSize):
		return false, nil
	case err != nil:
		return false, err
	}
	var old stagingRecordFile
	if json.Unmarshal(data, &old) != nil || fileOf(old.Path) != name || !old.complete() {
		return false, nil
	}
	isMounted, err := mounted(old.Path)
	if errors.Is(err, mounter.ErrPath) { // below another kubelet directory, for example
		return false, nil
	}
	if err == nil && !isMounted {
		if _, err := os.Lstat(old.Path); err != nil || s.boot == "" || old.Boot != s.boot {
			return false, nil
		}
		s.lost[old.Path] = true
	}
	s.byPath[old.Path] = old.stagingRecord
	s.setLive(old.Path, isMounted)
	return true, nil
}

// complete reports whether st has all fields that every release writes.
func (st stagingRecord) complete() bool { return st.VolumeID != "" && st.Capability != digest{} }

// recordAt returns the record of path.
func (s *stagingRecords) recordAt(path string) (stagingRecord, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.byPath[path]
	return st, ok
}

// publishContext returns the publish context with which a volume was staged, or nil.
func (s *stagingRecords) publishContext(id string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.byPath {
		var publishContext map[string]string
		if st.VolumeID == id && st.PublishContext != "" &&
			json.Unmarshal([]byte(st.PublishContext), &publishContext) == nil {
			return publishContext
		}
	}
	return nil
}

// lostOf returns the staging paths of a volume that were not mounted when this process began.
func (s *stagingRecords) lostOf(id string) (paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.lost {
		if s.byPath[path].VolumeID == id {
			paths = append(paths, path)
		}
	}
	return paths
}

// liveOf returns the staging paths at which a volume is mounted, each with the number of its mount.
// Every mount has another number.
func (s *stagingRecords) liveOf(id string) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	paths := map[string]int{}
	for path, st := range s.byPath {
		if st.VolumeID == id && s.live[path] > 0 {
			paths[path] = s.live[path]
		}
	}
	return paths
}

// setLive records that path is mounted now (live), or that a call may unmount path from now on (not
// live).
func (s *stagingRecords) setLive(path string, live bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.live, path); live {
		delete(s.lost, path)
		s.mounts++
		s.live[path] = s.mounts
	}
}

// put writes a record, and returns a function that restores the previous state.
func (s *stagingRecords) put(path string, st stagingRecord) (undo func() error, err error) {
	st.Boot = s.boot
	old, was := s.recordAt(path)
	if was && old.sameUse(st) && old.Mount.equal(st.Mount) && old.OldCredentials == st.OldCredentials &&
		old.Boot == st.Boot {
		return func() error { return nil }, nil
	}
	if err := s.write(path, st); err != nil {
		return nil, fmt.Errorf("write the staging record in %s: %w", s.path, err)
	}
	if !was {
		return func() error { return s.remove(path) }, nil
	}
	return func() error { return s.write(path, old) }, nil
}

func (s *stagingRecords) write(path string, st stagingRecord) error {
	data, err := json.Marshal(stagingRecordFile{path, st})
	if err != nil {
		return err
	}
	name := fileOf(path)
	w := atomicfile.Writer{Dir: s.dir, Volatile: true}
	if err := w.Write(name, data); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPath[path] = st
	return nil
}

func (s *stagingRecords) remove(path string) error {
	if _, ok := s.recordAt(path); !ok {
		return nil
	}
	if err := s.dir.Remove(fileOf(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the staging record in %s: %w", s.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byPath, path)
	delete(s.live, path)
	delete(s.lost, path)
	return nil
}

func fileOf(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:16]) + ".json"
}
