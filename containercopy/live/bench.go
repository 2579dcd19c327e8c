package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/local"
)

// rounds is the number of measurements of each command.
const rounds = 5

// sample is a measurement of a command.
type sample struct {
	seconds float64
	cpu     float64 // seconds of all processes of the machine
}

// bench compares kubectl copy with kubectl cp, side by side, and measures the memory of many
// copies. Other programs of the machine disturb it.
func (p play) bench() error {
	say("kubectl copy beside kubectl cp: medians of %d", rounds)
	if err := p.sources(); err != nil {
		return err
	}
	fmt.Println("| Copy | kubectl cp | kubectl copy | speedup | CPU cp | CPU copy | CPU ratio |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, name := range []string{"1KiB", "1MiB", "1GiB", "10000x4KiB"} {
		for _, in := range []bool{true, false} {
			if err := p.compare(name, in); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if err := p.nodePart(); err != nil {
		return fmt.Errorf("the node's part: %w", err)
	}
	for _, size := range []string{"1GiB", "4GiB"} {
		if err := p.crowd(size); err != nil {
			return err
		}
	}
	return nil
}

// sources makes the local files.
func (p play) sources() error {
	for name, size := range map[string]int{"1KiB": 1 << 10, "1MiB": 1 << 20, "1GiB": 1 << 30} {
		if err := p.random(name, size); err != nil {
			return err
		}
	}
	for i := range 10_000 {
		if err := p.random(fmt.Sprintf("10000x4KiB/%d/%d", i%100, i), 4<<10); err != nil {
			return err
		}
	}
	for _, name := range []string{"bench", "crowd-0", "crowd-1", "crowd-2", "crowd-3", "crowd-4", "crowd-5", "crowd-6",
		"crowd-7"} {
		if err := p.kubectl.Apply(p.ctx, strings.ReplaceAll(benchPod, "NAME", name)); err != nil {
			return err
		}
	}
	return p.show("wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
}

// compare measures both commands in turn, and verifies each copy.
func (p play) compare(name string, in bool) error {
	results := map[string][]sample{}
	remote := "/scratch/" + name
	if !in {
		if err := p.copy(0, "", p.path(name), "bench:"+remote); err != nil {
			return err
		}
	}
	for range rounds {
		for _, command := range []string{"cp", "copy"} {
			s, err := p.once(command, name, remote, in)
			if err != nil && command == "cp" { // it can end early: kubernetes/kubernetes#60140
				fmt.Println("kubectl cp has failed:", err)
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
			results[command] = append(results[command], s)
		}
	}
	if len(results["cp"]) == 0 {
		return errors.New("kubectl cp has failed each time")
	}
	way := map[bool]string{true: "in", false: "out"}[in]
	cp, its := median(results["cp"]), median(results["copy"])
	fmt.Printf("| %s %s | %.2f s | %.2f s | %.2f | %.2f s | %.2f s | %.2f |\n", name, way, cp.seconds, its.seconds,
		cp.seconds/its.seconds, cp.cpu, its.cpu, its.cpu/cp.cpu)
	return p.remove(remote)
}

// remove removes a file or a directory of the container.
func (p play) remove(remote string) error {
	_, err := p.kubectl.Run(p.ctx, "exec", "bench", "--", "rm", "-rf", remote)
	return err
}

// once makes a copy to a path that does not exist before it, and removes the copy.
func (p play) once(command, name, remote string, in bool) (sample, error) {
	local, err := os.MkdirTemp(p.dir, "bench-")
	if err != nil {
		return sample{}, err
	}
	local = filepath.Join(local, "copy")
	args := []string{"bench:" + remote, local}
	if in {
		args = []string{p.path(name), "bench:" + remote}
	}
	cmd := p.command()
	cmd.Args = append([]string{cmd.Args[0], command}, args...)
	before, start := busy(), time.Now()
	if text, err := cmd.CombinedOutput(); err != nil {
		return sample{}, fmt.Errorf("%w: %s", err, text)
	}
	s := sample{time.Since(start).Seconds(), busy() - before}
	if in {
		return s, errors.Join(p.verify(name, remote), p.remove(remote))
	}
	err = p.same(name, strings.TrimPrefix(local, p.dir+"/"))
	if name == "1GiB" {
		err = errors.Join(err, os.Remove(local))
	} // else it goes at the end: ext4 searches long for inodes that were not deleted just before
	return s, err
}

// verify compares the SHA-256 of all files of a copy in the container.
func (p play) verify(name, remote string) error {
	want, err := p.sums(name)
	if err != nil {
		return err
	}
	out, err := p.kubectl.Run(p.ctx, "exec", "bench", "--", "sh", "-c",
		"find "+remote+" -type f | sort | xargs sha256sum")
	if err != nil {
		return err
	}
	var got []string
	for line := range strings.Lines(out) {
		sum, path, _ := strings.Cut(strings.TrimSpace(line), "  ")
		got = append(got, strings.TrimPrefix(path, remote)+" "+sum)
	}
	wanted := strings.Split(strings.TrimSuffix(want, "\n"), "\n")
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		return fmt.Errorf("the copy differs: %.300q, want %.300q", got, wanted)
	}
	return nil
}

// median returns the medians of both figures.
func median(all []sample) sample {
	times, cpus := make([]float64, len(all)), make([]float64, len(all))
	for i, s := range all {
		times[i], cpus[i] = s.seconds, s.cpu
	}
	slices.Sort(times)
	slices.Sort(cpus)
	return sample{times[len(all)/2], cpus[len(all)/2]}
}

// busy returns the CPU time of all processes, in seconds: of those that live, with their children
// that have ended (proc_pid_stat(5), fields 14 to 17).
func busy() float64 {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	var ticks float64
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
		for _, f := range fields[11:15] {
			n, _ := strconv.ParseFloat(f, 64)
			ticks += n
		}
	}
	return ticks / 100 // USER_HZ
}

// crowd makes 16 copies of a size at once, to nowhere, and prints the largest memory of agent and
// workers.
func (p play) crowd(size string) error {
	say("16 copies of %s at once: PSS of the agent and the workers", size)
	if _, err := p.kubectl.Run(p.ctx, "exec", "bench", "--", "truncate", "-s", strings.TrimSuffix(size, "iB"),
		"/scratch/"+size); err != nil {
		return err
	}
	n, err := p.node()
	if err != nil {
		return err
	}
	ended, sampled := make(chan struct{}), make(chan int64)
	go func() { sampled <- peak(n, ended) }()
	errs := make([]error, 16)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			cmd := p.command(fmt.Sprintf("crowd-%d:/scratch/%s", i/2, size), "-")
			cmd.Stderr = os.Stderr
			errs[i] = cmd.Run()
		})
	}
	group.Wait()
	close(ended)
	most := <-sampled
	if most == 0 {
		return errors.New("no agent and no worker were found")
	}
	fmt.Printf("%d KiB\n", most>>10)
	return errors.Join(errs...)
}

// peak returns the largest sum of the proportional set sizes of agents and workers, in bytes.
func peak(n local.Node, ended <-chan struct{}) int64 {
	for most := int64(0); ; {
		most = max(most, memory(n))
		select {
		case <-ended:
			return most
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// memory returns the sum of the proportional set sizes of the agent and the workers of node-1,
// which has all copies.
func memory(n local.Node) int64 {
	out, _ := n.Run(context.Background(), "sh", "-c",
		`for p in $(pgrep -x 'agent|worker'); do grep -s ^Pss: /proc/$p/smaps_rollup; done`)
	var sum int64
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) > 1 {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += n << 10
		}
	}
	return sum
}
