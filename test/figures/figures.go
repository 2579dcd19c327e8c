// Package figures times calls, and prints figures beside their goals. The benchmarks use it.
package figures

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/gobuild"
)

// Goal is the goal for a figure.
type Goal struct {
	word  string
	limit float64
}

// AtLeast is the goal that a figure is at least limit.
func AtLeast(limit float64) Goal { return Goal{"at least", limit} }

// AtMost is the goal that a figure is at most limit.
func AtMost(limit float64) Goal { return Goal{"at most", limit} }

// Under is the goal that a figure is below limit.
func Under(limit float64) Goal { return Goal{"under", limit} }

// met judges a figure as it is printed, with two decimals. A figure that is not positive was not
// measured.
func (g Goal) met(figure float64) bool {
	figure = math.Round(figure*100) / 100
	switch g.word {
	case "at least":
		return figure >= g.limit
	case "at most":
		return figure > 0 && figure <= g.limit
	default:
		return figure > 0 && figure < g.limit
	}
}

// Row prints a line: the name, the figure, its goal, and whether that was missed.
func Row(what string, figure float64, unit string, asked ...Goal) {
	text := ""
	for _, g := range asked {
		text += "asked: " + g.Judge(figure) + " "
	}
	fmt.Printf("  %-68s %9.2f %-6s %s\n", what, figure, unit, strings.TrimSpace(text))
}

// Judge returns the goal for a figure, and whether it was missed.
func (g Goal) Judge(figure float64) string {
	text := fmt.Sprintf("%s %v", g.word, g.limit)
	if !g.met(figure) {
		text += " MISSED"
	}
	return text
}

// Sample is how long each of many calls took, and all of them together.
type Sample struct {
	Times []time.Duration
	All   time.Duration
}

// Quantile returns the quantile q of the durations.
func (s Sample) Quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s.Times))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// PerSecond returns the number of calls per second.
func (s Sample) PerSecond() float64 { return float64(len(s.Times)) / s.All.Seconds() }

// Stopwatch collects how long things take, by name.
type Stopwatch map[string]*Sample

// Time measures a call under a name.
func (w Stopwatch) Time(name string, call func() error) error {
	start := time.Now()
	err := call()
	took := time.Since(start)
	if w[name] == nil {
		w[name] = &Sample{}
	}
	w[name].Times = append(w[name].Times, took)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// P50 is the median of the durations under a name, in microseconds.
func (w Stopwatch) P50(name string) float64 { return Micro(w[name].Quantile(.5)) }

// Micro returns d in microseconds.
func Micro(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// Median returns the median of f over xs.
func Median[T any](xs []T, f func(T) float64) float64 {
	var all []float64
	for _, x := range xs {
		all = append(all, f(x))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// Status reads a number of KiB from /proc/<pid>/status. Status returns 0 if that is unknown.
func Status(pid int, key string) (kib int64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			fmt.Sscan(rest, &kib)
		}
	}
	return kib
}

// BuildDriver builds the driver in dir, and returns the path of the program.
func BuildDriver(ctx context.Context, dir string) (string, error) {
	bin := filepath.Join(dir, "driver")
	return bin, gobuild.Program{Package: gobuild.Driver}.Copy(ctx, bin)
}

// Disk mounts a new filesystem of a type at dir/<type> and returns that path. If it cannot, it
// returns "" and prints that.
func Disk(ctx context.Context, dir, fsType string) (string, error) {
	disk := filepath.Join(dir, fsType)
	file, err := os.Create(disk + ".img")
	if err == nil {
		err = errors.Join(file.Truncate(64<<30), file.Close(), os.MkdirAll(disk, 0o755))
	}
	if err != nil {
		return "", err
	}
	for _, command := range [][]string{{"mkfs." + fsType, "-q", file.Name()},
		{"mount", "-t", fsType, "-o", "loop,noatime", file.Name(), disk}} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			fmt.Printf("  (left out on %s, which root could measure: %s: %v %.80s)\n", fsType, command[0], err, out)
			return "", nil
		}
	}
	return disk, nil
}
