package copier

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// asCopier is set in the environment of a process that makes a copy, to the measure, the source and
// the target with line feeds between them.
const asCopier = "CAUSEWAY_TEST_AS_COPIER"

// measure is a measure of memory.
type measure string

const (
	live     measure = "live"     // highest
	resident measure = "resident" // VmHWM of proc_pid_status(5)
)

// TestAsCopier is the main function of that process, and does nothing otherwise. It prints the peak
// of the measure, in bytes.
func TestAsCopier(t *testing.T) {
	args := strings.Split(os.Getenv(asCopier), "\n")
	if len(args) != 3 {
		return
	}
	stop, most := make(chan struct{}), make(chan int64, 1)
	if measure(args[0]) == live {
		go func() { most <- highest(stop) }()
	}
	_, err := copyTreeWith(context.Background(), t, args[1], args[2], ways[0], Options{Workers: 8, Progress: new(Progress)})
	must(t, err)
	close(stop)
	if measure(args[0]) == resident {
		status, err := os.ReadFile("/proc/self/status")
		must(t, err)
		kb, err := strconv.ParseInt(string(regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)[1]), 10, 64)
		must(t, err)
		most <- kb << 10
	}
	fmt.Printf("peak: %d\n", <-most)
}

// highest collects garbage again and again until stop is closed, and returns the 90th percentile of
// the live heap and the stacks, in bytes. It is not the maximum, as a collection counts the garbage
// that other goroutines make during it. A test cannot compare resident memory: that depends on the
// times of the collections, and so on the load of the machine.
func highest(stop <-chan struct{}) int64 {
	read := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	for samples := []uint64(nil); ; {
		runtime.GC()
		metrics.Read(read)
		samples = append(samples, read[0].Value.Uint64()+read[1].Value.Uint64())
		select {
		case <-stop:
			slices.Sort(samples)
			return int64(samples[len(samples)*9/10])
		case <-time.After(time.Millisecond):
		}
	}
}

// peak returns the peak of the memory of a process that copies a tree, in bytes.
func peak(t testing.TB, m measure, src, dst string) int64 {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAsCopier$")
	cmd.Env = append(os.Environ(), asCopier+"="+string(m)+"\n"+src+"\n"+dst)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := regexp.MustCompile(`peak: (\d+)`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("no peak: %s", out)
	}
	bytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	must(t, err)
	return bytes
}

// vast makes a tree of more than 3n entries: n in one directory, n empty directories in another,
// and files with two names, the second names in directories of 100; and a chain. vast returns the
// number of entries.
func vast(t testing.TB, dir string, n, depth int) int {
	t.Helper()
	for _, sub := range []string{"wide", "empty", "links", "deep"} {
		must(t, os.Mkdir(dir+"/"+sub, 0o700))
	}
	for i := range n {
		must(t, os.WriteFile(fmt.Sprint(dir, "/wide/a file with a name ", i), nil, 0o600))
		must(t, os.Mkdir(fmt.Sprint(dir, "/empty/a directory with a name ", i), 0o700))
	}
	for i := range n / 2 {
		if i%100 == 0 {
			must(t, os.Mkdir(fmt.Sprint(dir, "/links/", i/100), 0o700))
		}
		path := fmt.Sprint(dir, "/links/file ", i)
		must(t, os.WriteFile(path, nil, 0o600))
		must(t, os.Link(path, fmt.Sprint(dir, "/links/", i/100, "/", i)))
	}
	chain(t, dir+"/deep", depth, deepName)
	return 5 + 3*n + (n+199)/200 + 3*depth
}

// TestMemory: the memory of a copy does not grow with the number of entries.
func TestMemory(t *testing.T) {
	dir := filesystems[0].mount(t)
	var peaks []int64
	for _, n := range []int{6000, 60_000} {
		src := fmt.Sprint(dir, "/src", n)
		must(t, os.Mkdir(src, 0o700))
		vast(t, src, n, n/100)
		peaks = append(peaks, peak(t, live, src, src+".copy"))
	}
	t.Logf("%d and %d KiB", peaks[0]>>10, peaks[1]>>10)
	if grown := peaks[1] - peaks[0]; grown > 2<<20 {
		t.Errorf("ten times as many entries take %d additional bytes", grown)
	}
}
