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
)

// staging is what is remembered of a volume that was staged: with which capability, and the publish
// context, which CSI passes to no later call about the volume but NodePublishVolume. Whether the volume
// is still staged, only the kernel knows.
type staging struct {
	VolumeID   string `json:"volumeID"`
	Use        digest `json:"use"`
	Attachment string `json:"attachment,omitempty"` // a publish context, as JSON with sorted keys; "": none
}

// attachmentText returns a publish context as staging keeps it.
func attachmentText(attachment map[string]string) (string, error) {
	if len(attachment) == 0 {
		return "", nil
	}
	text, err := json.Marshal(attachment)
	return string(text), err
}

// like reports whether two are of the same volume, with the same capability.
func (st staging) like(other staging) bool {
	return st.VolumeID == other.VolumeID && st.Use == other.Use
}

// stagingFile is the content of its file.
type stagingFile struct {
	Path string `json:"path"`
	staging
}

// stagings keeps one small file for each staging path, so that a restarted driver knows what it did. The files are
// not synced: after a power cut nothing is mounted, and a file without a mount means nothing.
type stagings struct {
	path   string // of the directory
	dir    *beneath.Dir
	mu     sync.Mutex
	byPath map[string]staging
	live   map[string]int // those that are mounted, and not just being staged or unstaged: which time it was
	times  int
}

// stagingsDir is where they are, in the driver's state directory.
const stagingsDir = "staged"

// stagingName is what their names look like. Nothing else in the directory is touched.
var stagingName = regexp.MustCompile(`^[0-9a-f]{32}\.json(\.new)?$`)

// maxStagingFile is more than a file has, in bytes: a path has 4096 at most.
const maxStagingFile = 64 << 10

// openStagings reads the files. It removes a damaged file, and a file for whose path mounted
// returns false: the machine was booted since, or the path was unmounted by hand. If mounted
// returns an error, the file stays. An entry that is not a file and can't be removed is reported;
// it concerns only the volume at its own path.
func openStagings(stateDir string, mounted func(path string) (bool, error), report func(error)) (_ *stagings, err error) {
	dir := filepath.Join(stateDir, stagingsDir)
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
	s := &stagings{path: dir, dir: root, byPath: map[string]staging{}, live: map[string]int{}}
	names, err := root.Names(".")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !stagingName.MatchString(name) {
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
			report(fmt.Errorf("it is left alone: %w", err))
		}
	}
	return s, nil
}

// read reads a file and reports whether it stays. A file whose name ends with .new was never put in
// place.
func (s *stagings) read(name string, mounted func(path string) (bool, error)) (keep bool, err error) {
	if strings.HasSuffix(name, ".new") {
		return false, nil
	}
	data, err := s.dir.ReadFile(name, maxStagingFile)
	switch {
	case errors.Is(err, beneath.ErrType), errors.Is(err, regular.ErrSize):
		return false, nil
	case err != nil:
		return false, err
	}
	var old stagingFile
	if json.Unmarshal(data, &old) != nil || fileOf(old.Path) != name || !old.whole() {
		return false, nil
	}
	there, err := mounted(old.Path)
	if err == nil && !there {
		return false, nil
	}
	s.byPath[old.Path] = old.staging
	s.setLive(old.Path, there)
	return true, nil
}

// whole reports whether st has all that a release writes.
func (st staging) whole() bool { return st.VolumeID != "" && st.Use != digest{} }

// at returns what was staged at path.
func (s *stagings) at(path string) (staging, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.byPath[path]
	return st, ok
}

// attachment returns the publish context with which a volume was staged, or nil.
func (s *stagings) attachment(id string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.byPath {
		var attachment map[string]string
		if st.VolumeID == id && st.Attachment != "" && json.Unmarshal([]byte(st.Attachment), &attachment) == nil {
			return attachment
		}
	}
	return nil
}

// liveOf returns the staging paths at which a volume is mounted, each with the number of its mount:
// two that are the same are one mount.
func (s *stagings) liveOf(id string) map[string]int {
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

// setLive notes that what is staged at path is mounted now, or may be unmounted from now on.
func (s *stagings) setLive(path string, live bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.live, path); live {
		s.times++
		s.live[path] = s.times
	}
}

// put remembers st, and returns what takes it back to what was remembered before.
func (s *stagings) put(path string, st staging) (undo func() error, err error) {
	old, was := s.at(path)
	if was && old == st {
		return func() error { return nil }, nil
	}
	if err := s.write(path, st); err != nil {
		return nil, fmt.Errorf("remember it in %s: %w", s.path, err)
	}
	if !was {
		return func() error { return s.remove(path) }, nil
	}
	return func() error { return s.write(path, old) }, nil
}

func (s *stagings) write(path string, st staging) error {
	data, err := json.Marshal(stagingFile{path, st})
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

func (s *stagings) remove(path string) error {
	if _, ok := s.at(path); !ok {
		return nil
	}
	if err := s.dir.Remove(fileOf(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget it in %s: %w", s.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byPath, path)
	delete(s.live, path)
	return nil
}

func fileOf(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:16]) + ".json"
}
