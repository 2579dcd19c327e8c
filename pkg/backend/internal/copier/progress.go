package copier

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Progress is the progress of a single copy. Its methods may be called by any goroutine. The zero
// value is ready for use.
type Progress struct {
	bytes, held, entries atomic.Int64

	mu      sync.Mutex
	workers []*worksite
}

// Bytes returns the number of bytes of file content that are done. Holes and shared blocks count.
func (p *Progress) Bytes() int64 { return p.bytes.Load() }

// OnDisk returns the number of bytes that the files of the copy take on the disk. Blocks that
// several files share count for each of them; holes do not count.
func (p *Progress) OnDisk() int64 { return p.held.Load() }

// Entries returns the number of entries that are done: names of files, links, nodes, directories.
func (p *Progress) Entries() int64 { return p.entries.Load() }

// Oldest returns the path and the time of the last progress of the entry that is being copied with
// the oldest progress. The path is that of error messages: the name of an image, otherwise the end
// of the path from the top of the tree. If no entry is being copied, path is "": at its end, a copy
// waits for the disk, which no tenant can delay.
func (p *Progress) Oldest() (path string, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var oldest locator
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

// locator is a directory or an image. It has the paths of its entries.
type locator interface {
	// path returns the path of an entry of the directory, or of the locator itself if name is "".
	path(name string) string
}

// worksite is the entry that a goroutine is copying.
type worksite struct {
	mu    sync.Mutex
	in    locator // nil: no entry
	name  string
	since time.Time // of the last progress
}

// enter adds the worksite of a goroutine. The caller calls leave at the end of the goroutine.
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

// beginEntry records that the copy of an entry begins. in is nil while the goroutine is idle.
func (w *worksite) beginEntry(in locator, name string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in, w.name, w.since = in, name, now
}

// moved records progress in the current entry.
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
