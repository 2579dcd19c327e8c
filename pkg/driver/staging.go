package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
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
	dir    *os.Root
	mu     sync.Mutex
	byPath map[string]staging
}

const stagingSuffix = ".json"

// openStagings reads the files in dir. One that is damaged, or whose staging path is gone, is removed.
func openStagings(dir string) (*stagings, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &stagings{dir: root, byPath: map[string]staging{}}
	d, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, stagingSuffix) {
			continue
		}
		var old stagingFile
		data, err := root.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(data, &old)
		}
		if _, gone := os.Lstat(old.Path); err != nil || fileOf(old.Path) != name || errors.Is(gone, fs.ErrNotExist) {
			if err := root.Remove(name); err != nil {
				return nil, err
			}
			continue
		}
		s.byPath[old.Path] = old.staging
	}
	return s, nil
}

// at returns what was staged at path.
func (s *stagings) at(path string) (staging, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.byPath[path]
	return st, ok
}

// of returns the paths at which a volume was staged, sorted.
func (s *stagings) of(id string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var paths []string
	for path, st := range s.byPath {
		if st.VolumeID == id {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

func (s *stagings) put(path string, st staging) error {
	if old, ok := s.at(path); ok && old == st {
		return nil
	}
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
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byPath, path)
	return nil
}

func fileOf(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:16]) + stagingSuffix
}
