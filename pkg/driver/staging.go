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
)

// staging is what is remembered of a volume that was staged: with which capability. Whether it is staged still, only
// the kernel knows.
type staging struct {
	VolumeID string `json:"volumeID"`
	Use      digest `json:"use"`
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
	dir    *os.Root
	mu     sync.Mutex
	byPath map[string]staging
	live   map[string]int // those that are mounted, and not just being staged or unstaged: which time it was
	times  int
}

// stagingsDir is where they are, in the driver's state directory.
const stagingsDir = "staged"

// stagingName is what their names look like. Nothing else in the directory is touched.
var stagingName = regexp.MustCompile(`^[0-9a-f]{32}\.json(\.new)?$`)

// openStagings reads the files. One that is damaged is removed, and so is one of whose path mounted says false: the
// machine was booted since, or somebody has cleaned up. Where mounted can't tell, the file stays.
func openStagings(stateDir string, mounted func(path string) (bool, error)) (*stagings, error) {
	dir := filepath.Join(stateDir, stagingsDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &stagings{path: dir, dir: root, byPath: map[string]staging{}, live: map[string]int{}}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !stagingName.MatchString(e.Name()) {
			continue
		}
		if err := s.read(e.Name(), mounted); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// read reads one file, or removes it. What ends with .new was never put in place.
func (s *stagings) read(name string, mounted func(path string) (bool, error)) error {
	if strings.HasSuffix(name, ".new") {
		return s.dir.Remove(name)
	}
	data, err := s.dir.ReadFile(name)
	if err != nil {
		return err
	}
	var old stagingFile
	if json.Unmarshal(data, &old) != nil || fileOf(old.Path) != name {
		return s.dir.Remove(name)
	}
	there, err := mounted(old.Path)
	if err == nil && !there {
		return s.dir.Remove(name)
	}
	s.byPath[old.Path] = old.staging
	s.setLive(old.Path, there)
	return nil
}

// at returns what was staged at path.
func (s *stagings) at(path string) (staging, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.byPath[path]
	return st, ok
}

// liveOf returns the paths at which a volume is mounted, if nobody else has unmounted it, and when that was: two that
// are the same are one mount.
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
	if err := s.dir.WriteFile(name+".new", data, 0o600); err != nil {
		return err
	}
	if err := s.dir.Rename(name+".new", name); err != nil {
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
