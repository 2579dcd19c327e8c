package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/causeway-csi/causeway/containercopy/client"
)

// report prints progress, warnings and the end of a copy.
type report struct {
	out    io.Writer
	every  time.Duration // between lines of progress; 0: none
	ending string        // of a line of progress

	mu    sync.Mutex
	start time.Time
	last  time.Time
	open  bool // a line of progress is on the terminal
}

// newReport returns a report by the value of --progress.
func newReport(out io.Writer, progress string) *report {
	r := &report{out: out, start: time.Now(), last: time.Now()}
	f, isFile := out.(*os.File)
	switch {
	case progress == "plain":
		r.every, r.ending = 5*time.Second, "\n"
	case progress == "auto" && isFile && term.IsTerminal(int(f.Fd())):
		r.every, r.ending = 200*time.Millisecond, "\r"
	}
	return r
}

// note prints the progress, not too often.
func (r *report) note(bytes int64) {
	if r.every == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.last) < r.every {
		return
	}
	r.last = now
	fmt.Fprintf(r.out, "%s, %s/s %s", size(bytes), size(int64(float64(bytes)/now.Sub(r.start).Seconds())), r.ending)
	r.open = r.ending == "\r"
}

// newLine leaves a line of progress. The caller holds mu.
func (r *report) newLine() {
	if r.open {
		fmt.Fprintln(r.out)
		r.open = false
	}
}

// warn prints an entry that is not copied. Names of a container may have control characters.
func (r *report) warn(path, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newLine()
	fmt.Fprintf(r.out, "kubectl copy: skipped %q: %s\n", path, printable(reason))
}

// end prints the result of a copy.
func (r *report) end(result client.Result, sha256 bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newLine()
	if err != nil {
		fmt.Fprintf(r.out, "kubectl copy: %s\n", printable(err.Error()))
		return
	}
	entries := "entries"
	if result.Entries == 1 {
		entries = "entry"
	}
	fmt.Fprintf(r.out, "%d %s, %s", result.Entries, entries, size(result.Sum.Size))
	if sha256 {
		fmt.Fprintf(r.out, ", SHA-256 of the tar stream %x", result.Sum.SHA256)
	}
	fmt.Fprintln(r.out)
}

// printable returns a text without control characters.
func printable(text string) string {
	quoted := fmt.Sprintf("%q", text)
	for _, c := range text {
		if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 {
			return quoted
		}
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
