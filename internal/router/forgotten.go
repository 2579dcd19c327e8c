package router

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/regular"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Forgotten is the list of nodes that are gone for good, from a file with a name on each line.
// Empty lines and text after a # are ignored. The volumes of a forgotten node are lost and can be
// deleted. A node that answers is not forgotten, even if the file names it. The file is read again
// when it has changed.
type Forgotten struct {
	path   string
	report func(message string, err error)

	mu       sync.Mutex
	modified time.Time
	size     int64
	failed   string
	names    map[string]string // by digest; names and segments are replaced, never changed
	segments map[string]bool
}

// OpenForgotten reads the list. The file must exist. If the file is missing later, the list stays.
func OpenForgotten(path string, report func(message string, err error)) (*Forgotten, error) {
	f := &Forgotten{path: path, report: report}
	return f, f.read()
}

// lists returns the names by digest and the values of the topology key, as the file is now.
func (f *Forgotten) lists() (names map[string]string, segments map[string]bool) {
	if f == nil {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	return f.names, f.segments
}

// digest returns the name of the forgotten node whose IDs have a digest.
func (f *Forgotten) digest(digest string) (name string, ok bool) {
	names, _ := f.lists()
	name, ok = names[digest]
	return name, ok
}

// node reports whether the node that NodeGetInfo calls id is forgotten.
func (f *Forgotten) node(id string) bool {
	names, _ := f.lists()
	return slices.ContainsFunc(volumeid.NodeDigests(id), func(d string) bool { return names[d] != "" })
}

// segment reports whether a value of the topology key is that of a forgotten node.
func (f *Forgotten) segment(value string) bool {
	_, segments := f.lists()
	return segments[value]
}

// refresh reads the file again if it has changed, and reports the new list. refresh reports an
// unreadable file once and keeps the list.
func (f *Forgotten) refresh() {
	was := f.names
	err := f.read()
	switch {
	case err == nil:
		f.failed = ""
		if !maps.Equal(f.names, was) {
			f.report(fmt.Sprintf("the forgotten nodes are now: %s",
				cmp.Or(strings.Join(slices.Sorted(maps.Values(f.names)), ", "), "none")), nil)
		}
	case err.Error() != f.failed:
		f.failed = err.Error()
		f.report("the forgotten nodes stay as they were", err)
	}
}

// maxForgotten is the largest file that is read, in bytes: a name of 253 bytes for each of 60,000
// nodes.
const maxForgotten = 16 << 20

func (f *Forgotten) read() error {
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if info.ModTime().Equal(f.modified) && info.Size() == f.size && f.names != nil {
		return nil
	}
	text, err := regular.ReadFile(f.path, maxForgotten)
	if err != nil {
		return err
	}
	names, segments := map[string]string{}, map[string]bool{}
	for i, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		name := strings.TrimSpace(line)
		if name == "" {
			continue
		}
		if err := volumeid.CheckNode(name); err != nil {
			return fmt.Errorf("%s, line %d: %w", f.path, i+1, err)
		}
		// the name may be a node ID of NodeGetInfo, which is a digest for long names
		for _, d := range volumeid.NodeDigests(name) {
			names[d] = name
		}
		segments[volumeid.Segment(name)] = true
	}
	f.names, f.segments, f.modified, f.size = names, segments, info.ModTime(), info.Size()
	return nil
}
