package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/causeway-csi/causeway/containercopy/client"
)

// report prints progress, warnings and the end of a copy.
type report struct {
	out     io.Writer
	every   time.Duration // between lines of progress; 0: none
	rewrite bool          // a line of progress replaces the last one
	bytes   atomic.Int64
	ended   chan struct{}

	mu     sync.Mutex
	action string // "": no progress yet
	start  time.Time
	width  int // of the line of progress at the cursor; 0: none
}

// newReport returns a report by the value of --progress. The caller calls end.
func newReport(out io.Writer, progress string) *report {
	r := &report{out: out, ended: make(chan struct{})}
	switch {
	case progress == "plain":
		r.every = 5 * time.Second
	case progress == "auto" && isTerminal(out):
		r.every, r.rewrite = 200*time.Millisecond, true
	}
	if r.every > 0 {
		go r.tick()
	}
	return r
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// tick prints the progress until the end.
func (r *report) tick() {
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		select {
		case <-r.ended:
			return
		case now := <-tick.C:
			r.line(now)
		}
	}
}

// begin begins an action that has progress.
func (r *report) begin(action string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes.Store(0)
	r.action, r.start = action, time.Now()
}

// note notes the progress of the action.
func (r *report) note(bytes int64) { r.bytes.Store(bytes) }

// line prints the progress.
func (r *report) line(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.action == "" {
		return
	}
	bytes := r.bytes.Load()
	rate := float64(bytes) / max(now.Sub(r.start), time.Millisecond).Seconds()
	text := fmt.Sprintf("%s %s, %s/s", r.action, size(bytes), size(int64(rate)))
	if !r.rewrite {
		fmt.Fprintln(r.out, text)
		return
	}
	fmt.Fprintf(r.out, "\r%-*s", r.width, text) // spaces cover the rest of a longer line
	r.width = len(text)
}

// newLine leaves a line of progress. The caller holds mu.
func (r *report) newLine() {
	if r.width > 0 {
		fmt.Fprintln(r.out)
		r.width = 0
	}
}

// warn prints a warning about an entry, or without a path about the copy. Names of a container may
// have control characters.
func (r *report) warn(path, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newLine()
	if path != "" {
		path = strconv.Quote(path) + ": "
	}
	fmt.Fprintf(r.out, "kubectl copy: warning: %s%s\n", path, printable(reason))
}

// end prints the result of a copy. No progress follows it.
func (r *report) end(result client.Result, sha256 bool, err error) {
	close(r.ended)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newLine()
	r.action = ""
	if err != nil {
		fmt.Fprintf(r.out, "kubectl copy: %s\n", printable(err.Error()))
		return
	}
	entries := "entries"
	if result.Entries == 1 {
		entries = "entry"
	}
	fmt.Fprintf(r.out, "%d %s, %d bytes of tar", result.Entries, entries, result.Sum.Size)
	if result.Sum.Size >= 1024 {
		fmt.Fprintf(r.out, " (%s)", size(result.Sum.Size))
	}
	if sha256 {
		fmt.Fprintf(r.out, ", SHA-256 of the tar %x", result.Sum.SHA256)
	}
	if result.Merged {
		fmt.Fprint(r.out, ", added to an existing directory")
	}
	fmt.Fprintln(r.out)
}

// printable returns a text, in quotes if it has a character that a terminal may not show as it is.
func printable(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// size prints a number of bytes.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(n), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
