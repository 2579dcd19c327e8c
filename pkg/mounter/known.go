package mounter

import (
	"crypto/sha256"
	"slices"
	"sync"
)

// known remembers which paths were mounted from the same source. It is a hint that costs nothing to ask: whoever
// uses it looks at each path again. Its zero value is empty.
type known struct {
	mu      sync.Mutex
	sources map[string]sourceID   // by path
	paths   map[sourceID][]string // by source
}

// sourceID stands for a source: there may be many, and their names are long.
type sourceID [16]byte

func idOf(source string) sourceID {
	sum := sha256.Sum256([]byte(source))
	return sourceID(sum[:])
}

// add remembers that path shows source.
func (k *known) add(path string, source sourceID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(path, source)
}

// addFrom remembers that path shows what the mount at from shows, and returns false if none is known there.
func (k *known) addFrom(path, from string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	source, ok := k.sources[from]
	if ok {
		k.put(path, source)
	}
	return ok
}

func (k *known) put(path string, source sourceID) {
	k.drop(path)
	if k.sources == nil {
		k.sources, k.paths = map[string]sourceID{}, map[sourceID][]string{}
	}
	k.sources[path] = source
	k.paths[source] = append(k.paths[source], path)
}

func (k *known) forget(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(path)
}

// forgetFrom forgets path if it shows source still: somebody may have mounted another there meanwhile.
func (k *known) forgetFrom(path string, source sourceID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sources[path] == source {
		k.drop(path)
	}
}

func (k *known) drop(path string) {
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

// siblings returns the other paths that show what path shows, in no order, and what that is.
func (k *known) siblings(path string) (others []string, source sourceID) {
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
