package mounter

import "sync"

// known remembers which paths were mounted from the same source. It is a hint that costs nothing to ask: whoever
// uses it looks at each path again. Its zero value is empty.
type known struct {
	mu      sync.Mutex
	sources map[string]string              // by path
	paths   map[string]map[string]struct{} // by source
}

// add remembers that path shows source. Any string that names the source will do.
func (k *known) add(path, source string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(path, source)
}

// addFrom remembers that path shows what is at from: where that is itself a mount, the source of it.
func (k *known) addFrom(path, from string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s, ok := k.sources[from]; ok {
		from = s
	}
	k.put(path, from)
}

func (k *known) put(path, source string) {
	k.drop(path)
	if k.sources == nil {
		k.sources, k.paths = map[string]string{}, map[string]map[string]struct{}{}
	}
	if k.paths[source] == nil {
		k.paths[source] = map[string]struct{}{}
	}
	k.sources[path] = source
	k.paths[source][path] = struct{}{}
}

func (k *known) forget(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(path)
}

func (k *known) drop(path string) {
	source, ok := k.sources[path]
	if !ok {
		return
	}
	delete(k.sources, path)
	if delete(k.paths[source], path); len(k.paths[source]) == 0 {
		delete(k.paths, source)
	}
}

// siblings returns the other paths that show what path shows, in no order.
func (k *known) siblings(path string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var others []string
	for other := range k.paths[k.sources[path]] {
		if other != path {
			others = append(others, other)
		}
	}
	return others
}
