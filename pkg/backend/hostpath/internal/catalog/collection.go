package catalog

import (
	"fmt"
	"slices"
)

// collection holds all objects of one kind.
type collection[T Object] struct {
	kind   string // the name of the kind in messages
	byKey  map[string]T
	broken map[string]error // the reason why an object cannot be used, by key
	keys   []string         // of both, sorted: a page is a part of it
}

func newCollection[T Object](kind string, objects []T, broken map[string]error) collection[T] {
	t := collection[T]{kind: kind, byKey: make(map[string]T, len(objects)), broken: map[string]error{}}
	for _, o := range objects {
		t.byKey[o.Key()] = o
		t.keys = append(t.keys, o.Key())
	}
	for key, err := range broken {
		t.broken[key] = err
		t.keys = append(t.keys, key)
	}
	slices.Sort(t.keys)
	return t
}

// find returns the object. Errors: NotFound, or the reason why the object cannot be used.
func (t *collection[T]) find(key string) (object T, err error) {
	if object, ok := t.byKey[key]; ok {
		return object, nil
	}
	if err := t.broken[key]; err != nil {
		return object, fmt.Errorf("%s %s is unusable: %w", t.kind, key, err)
	}
	return object, &NotFound{t.kind, key}
}

func (t *collection[T]) put(object T) {
	t.byKey[object.Key()] = object
	t.keys = added(t.keys, object.Key())
}

func (t *collection[T]) breaks(key string, err error) {
	t.broken[key] = err
	t.keys = added(t.keys, key)
}

func (t *collection[T]) drop(key string) {
	delete(t.byKey, key)
	t.keys = removed(t.keys, key)
}

// after calls see with each object whose key is above after, in order, until see returns false. A
// broken object comes with its error only.
func (t *collection[T]) after(after string, see func(key string, object T, err error) bool) {
	for _, key := range above(t.keys, after) {
		if !see(key, t.byKey[key], t.broken[key]) {
			return
		}
	}
}

// added returns sorted with key in it.
func added(sorted []string, key string) []string {
	i, found := slices.BinarySearch(sorted, key)
	if found {
		return sorted
	}
	return slices.Insert(sorted, i, key)
}

// removed returns sorted without key.
func removed(sorted []string, key string) []string {
	i, found := slices.BinarySearch(sorted, key)
	if !found {
		return sorted
	}
	return slices.Delete(sorted, i, i+1)
}

// above returns the part of sorted that comes after key.
func above(sorted []string, key string) []string {
	i, found := slices.BinarySearch(sorted, key)
	if found {
		i++
	}
	return sorted[i:]
}
