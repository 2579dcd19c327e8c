package copier

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// asCopier is set in the environment of a process that makes a copy, to source and target with a
// line feed between them.
const asCopier = "CAUSEWAY_TEST_AS_COPIER"

// TestAsCopier is the main function of that process, and does nothing otherwise. It prints the peak
// of the resident memory.
func TestAsCopier(t *testing.T) {
	src, dst, ok := strings.Cut(os.Getenv(asCopier), "\n")
	if !ok {
		return
	}
	_, err := copyTreeWith(context.Background(), t, src, dst, ways[0], Options{Workers: 8, Progress: new(Progress)})
	must(t, err)
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	fmt.Printf("%s", status)
}

// peak returns the peak of the resident memory of a process that copies a tree, in bytes.
func peak(t testing.TB, src, dst string) int64 {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAsCopier$")
	cmd.Env = append(os.Environ(), asCopier+"="+src+"\n"+dst)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("no peak: %s", out)
	}
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	must(t, err)
	return kb << 10
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
		peaks = append(peaks, peak(t, src, src+".copy"))
	}
	t.Logf("%d and %d KiB", peaks[0]>>10, peaks[1]>>10)
	if grown := peaks[1] - peaks[0]; grown > 8<<20 {
		t.Errorf("ten times as many entries take %d additional bytes", grown)
	}
}
