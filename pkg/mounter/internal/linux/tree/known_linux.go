package tree

import (
	"crypto/sha256"
	"slices"
	"sync"
)

// Known remembers the source of each mounted path, and the paths of each source. It is a cheap
// hint: callers verify each path. Its zero value is empty and usable.
type Known struct {
	mu      sync.Mutex
	sources map[string]SourceID   // by path
	paths   map[SourceID][]string // by source
}

// SourceID is a hash of the name of a source. It saves memory, as there may be many sources with
// long names.
type SourceID [16]byte

func idOf(source string) SourceID {
	sum := sha256.Sum256([]byte(source))
	return SourceID(sum[:])
}

// Add records that path shows source.
func (k *Known) Add(path string, source SourceID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(path, source)
}

// addFrom records that path shows the same source as from. addFrom returns false if from is not
// known.
func (k *Known) addFrom(path, from string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	source, ok := k.sources[from]
	if ok {
		k.put(path, source)
	}
	return ok
}

func (k *Known) put(path string, source SourceID) {
	k.drop(path)
	if k.sources == nil {
		k.sources, k.paths = map[string]SourceID{}, map[SourceID][]string{}
	}
	k.sources[path] = source
	k.paths[source] = append(k.paths[source], path)
}

// Forget removes the record of a path.
func (k *Known) Forget(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(path)
}

// forgetFrom forgets path if its recorded source is still source. Another call may have mounted
// another source there meanwhile.
func (k *Known) forgetFrom(path string, source SourceID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sources[path] == source {
		k.drop(path)
	}
}

func (k *Known) drop(path string) {
	source, ok := k.sources[path]
	if !ok {
		return
	}
	delete(k.sources, path)
	others := slices.DeleteFunc(k.paths[source], func(p string) bool { return p == path })
	if k.paths[source] = others; len(others) == 0 {
		delete(k.paths, source)
	}
}

// otherPaths returns the source of path, and in no order the other paths that show the same source.
func (k *Known) otherPaths(path string) (others []string, source SourceID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	source, ok := k.sources[path]
	if !ok {
		return nil, source
	}
	for _, other := range k.paths[source] {
		if other != path {
			others = append(others, other)
		}
	}
	return others, source
}
