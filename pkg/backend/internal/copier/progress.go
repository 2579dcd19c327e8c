package copier

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Progress shows how far a copy is, from any goroutine. The zero value is ready for use. It serves
// one copy.
type Progress struct {
	bytes, held, entries atomic.Int64

	mu      sync.Mutex
	workers []*worksite
}

// Bytes returns the number of bytes of file content that are done. Holes and shared blocks count.
func (p *Progress) Bytes() int64 { return p.bytes.Load() }

// Held returns the number of bytes that the files of the copy take on the disk. Blocks that several
// files share count for each of them; holes do not count.
func (p *Progress) Held() int64 { return p.held.Load() }

// Entries returns the number of entries that are done: names of files, links, nodes, directories.
func (p *Progress) Entries() int64 { return p.entries.Load() }

// Oldest returns the entry in work whose last progress is the longest ago, and the time of that.
// The path is the path in error messages: of an image its name, else relative to the top of the
// tree, and at most its last 1,000 bytes. Where no entry is in work, path is "": a copy waits for
// the disk at its end, as long as that takes, and no tenant can delay that.
func (p *Progress) Oldest() (path string, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var oldest place
	var name string
	for _, w := range p.workers {
		w.mu.Lock()
		if w.in != nil && (oldest == nil || w.since.Before(since)) {
			oldest, name, since = w.in, w.name, w.since
		}
		w.mu.Unlock()
	}
	if oldest == nil {
		return "", time.Time{}
	}
	return oldest.path(name), since
}

// place is a directory, or an image.
type place interface {
	// path returns the path of an entry of the directory, or of the place itself if name is "".
	path(name string) string
}

// worksite is the entry that a goroutine has in work.
type worksite struct {
	mu    sync.Mutex
	in    place // nil: none
	name  string
	since time.Time // of the last progress
}

// enter begins the work of one goroutine. The caller calls leave at its end.
func (p *Progress) enter(w *worksite) (leave func()) {
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers = append(p.workers, w)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.workers = slices.DeleteFunc(p.workers, func(o *worksite) bool { return o == w })
	}
}

// at notes that work on an entry begins. in is nil where the goroutine waits for work.
func (w *worksite) at(in place, name string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in, w.name, w.since = in, name, now
}

// moved notes progress in the entry in work.
func (w *worksite) moved() {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = now
}

func (p *Progress) addBytes(n int64) {
	if p != nil {
		p.bytes.Add(n)
	}
}

func (p *Progress) addHeld(n int64) {
	if p != nil {
		p.held.Add(n)
	}
}

func (p *Progress) addEntry() {
	if p != nil {
		p.entries.Add(1)
	}
}
