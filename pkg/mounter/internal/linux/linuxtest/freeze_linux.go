package linuxtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/freeze"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// NewFreezeBench is a bench on which images can be frozen. After each test all images are thawed: a
// process that writes to a frozen image cannot be killed.
func NewFreezeBench(t *testing.T) *Bench {
	b := NewLoopBench(t)
	t.Cleanup(func() {
		b.thaw()
		await.True(t, "the helpers end", func() bool { return len(b.Freezers()) == 0 })
		if left, err := os.ReadDir(b.State()); err != nil || len(left) > 0 {
			t.Errorf("records are left: %v, %v", left, err)
		}
	})
	return b
}

// thaw thaws the images that are still frozen, mounted or not.
func (b *Bench) thaw() {
	b.T.Helper()
	for _, file := range b.Loops() {
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file)))
		for _, fsType := range LinuxFSTypes() {
			m, err := tree.MountDetached(device, fsType)
			if err != nil {
				continue
			}
			if freeze.Ioctl(m, freeze.ThawFS) == nil {
				b.T.Errorf("%s was left frozen", device)
			}
			m.Close()
		}
	}
}

// State returns the state directory of the Hosts of the bench.
func (b *Bench) State() string { return filepath.Join(filepath.Dir(b.Kubelet), "frozen") }

// Freezers returns the helper processes that have a mount of this bench open.
func (b *Bench) Freezers() []int {
	b.T.Helper()
	return slices.DeleteFunc(HelperProcesses(b.T), func(pid int) bool {
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		open, _ := os.ReadDir(dir)
		return !slices.ContainsFunc(open, func(fd os.DirEntry) bool {
			target, _ := os.Readlink(filepath.Join(dir, fd.Name()))
			return strings.HasPrefix(target, b.Kubelet)
		})
	})
}

// HelperProcesses returns all helper processes of this machine.
func HelperProcesses(t testing.TB) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if line, _ := os.ReadFile(file); string(line) != "causeway-helper\x00" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// WaitsIn reports whether a thread of a process waits in any of these functions of the kernel.
func WaitsIn(pid int, functions ...string) bool {
	stacks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", pid))
	for _, file := range stacks {
		stack, _ := os.ReadFile(file)
		for _, f := range functions {
			if bytes.Contains(stack, []byte(f)) {
				return true
			}
		}
	}
	return false
}

// Writer writes 1, 2, 3… to files, to each when the number is durable in the file before, until the
// end of the test.
type Writer struct {
	files []string
	Last  atomic.Uint64 // that is durable in all files
	stop  chan struct{}
	done  chan error
}

// NewWriter starts a process that writes to files until the test ends.
func (b *Bench) NewWriter(files ...string) *Writer {
	w := &Writer{files: files, stop: make(chan struct{}), done: make(chan error, 1)}
	go func() { w.done <- w.write() }()
	b.T.Cleanup(func() {
		b.thaw() // else it would never end
		if err := w.End(); err != nil {
			b.T.Errorf("the writer: %v", err)
		}
	})
	return w
}

func (w *Writer) write() error {
	var open []*os.File
	for _, name := range w.files {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		open = append(open, f)
	}
	for n := uint64(1); ; n++ {
		for _, f := range open {
			if _, err := f.Write(binary.LittleEndian.AppendUint64(nil, n)); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
		}
		w.Last.Store(n)
		select {
		case <-w.stop:
			return nil
		default:
		}
	}
}

// GoesOn waits until something new is durable.
func (w *Writer) GoesOn(t testing.TB) {
	t.Helper()
	before := w.Last.Load()
	await.True(t, "the writer goes on", func() bool { return w.Last.Load() > before+1 })
}

// End ends the writer and returns its error. A second call has no effect.
func (w *Writer) End() error {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	err := <-w.done
	w.done <- err
	return err
}

// LastOf returns the last number in such a file.
func LastOf(t testing.TB, file string) uint64 {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data = data[:len(data)/8*8]
	for n := range len(data) / 8 {
		if got := binary.LittleEndian.Uint64(data[8*n:]); got != uint64(n+1) {
			t.Fatalf("%s: number %d of %d is %d", file, n+1, len(data)/8, got)
		}
	}
	return uint64(len(data) / 8)
}
