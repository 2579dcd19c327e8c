package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/causeway-csi/causeway/test/figures"
)

// cost is the cost of idle processes.
type cost struct {
	memory
	watches  float64
	requests float64 // to the API server in the window
	writes   float64 // of leases, among these
	stop     time.Duration
	held     int // leases with a holder at the end
}

// memory is the memory of all processes together.
type memory struct {
	rss, dirty float64 // MiB
	cpu        float64 // seconds since their start
}

// idling looks at each way when it has read all objects, and at how it ends.
func (b *bench) idling(ctx context.Context) error {
	// The use by the API server and the binder themselves is subtracted.
	before, err := b.requests(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, b.window); err != nil {
		return err
	}
	after, err := b.requests(ctx)
	if err != nil {
		return err
	}
	own := after - before
	separate, err := b.rest(ctx, b.separate(), own)
	if err != nil {
		return err
	}
	one, err := b.rest(ctx, b.combined(), own)
	if err != nil {
		return err
	}
	b.compareRest(separate, one)
	if !b.has(ctx, "health-monitor") {
		return nil
	}
	more, err := b.rest(ctx, b.one("with health-monitor", four+",health-monitor", nil), own)
	if err != nil {
		return err
	}
	b.table.compare("with health-monitor beside them: RSS, MiB", separate.rss, more.rss, figures.AtMost(.30))
	b.table.compare("with health-monitor: private dirty, MiB", separate.dirty, more.dirty, figures.AtMost(.37))
	b.table.limit("with health-monitor: watches", separate.watches, more.watches)
	return nil
}

func (b *bench) compareRest(separate, one cost) {
	t := &b.table
	t.compare("RSS, MiB", separate.rss, one.rss, figures.AtMost(.30))
	t.compare("private dirty memory, MiB", separate.dirty, one.dirty, figures.AtMost(.37))
	t.compare(fmt.Sprintf("CPU in the first %v, s", b.idle), separate.cpu, one.cpu)
	t.limit("watches", separate.watches, one.watches, figures.AtMost(13))
	t.compare(fmt.Sprintf("lease writes in %v", b.window), separate.writes, one.writes, figures.AtMost(.34))
	t.compare(fmt.Sprintf("requests in %v", b.window), separate.requests, one.requests)
	end := one.stop.Seconds()
	t.add("SIGTERM to the end of the last, s", number(separate.stop.Seconds()), number(end), "",
		judge(end, []figures.Goal{figures.AtMost(5)}))
	t.add("leases that are held after that", strconv.Itoa(separate.held), strconv.Itoa(one.held), "",
		released(one.held))
}

func released(held int) string {
	if held > 0 {
		return "none MISSED"
	}
	return "none"
}

// rest starts a way, waits, looks, and ends it.
func (b *bench) rest(ctx context.Context, w way, own float64) (r cost, err error) {
	watches, err := b.watches(ctx)
	if err != nil {
		return r, err
	}
	s, err := b.start(ctx, w)
	if err != nil {
		return r, err
	}
	defer s.kill()
	if err := pause(ctx, b.idle); err != nil {
		return r, err
	}
	if r.memory, err = s.memory(); err != nil {
		return r, err
	}
	now, err := b.watches(ctx)
	if err != nil {
		return r, err
	}
	r.watches = now - watches
	if err := b.count(ctx, &r, own); err != nil {
		return r, err
	}
	if r.stop, err = s.stop(); err != nil {
		return r, err
	}
	r.held, err = b.held(ctx)
	return r, err
}

// count counts requests in the window.
func (b *bench) count(ctx context.Context, r *cost, own float64) error {
	leases, err := b.plane.Kube.CoordinationV1().Leases(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	before, err := b.requests(ctx)
	if err != nil {
		return err
	}
	writes, err := writesIn(ctx, leases, b.window)
	if err != nil {
		return err
	}
	r.writes = writes
	after, err := b.requests(ctx)
	r.requests = after - before - own
	return err
}

// writesIn counts how often leases are written. The API server's own count has those of all
// namespaces.
func writesIn(ctx context.Context, leases watch.Interface, window time.Duration) (n float64, err error) {
	defer leases.Stop()
	over := time.After(window)
	for {
		select {
		case <-ctx.Done():
			return n, ctx.Err()
		case <-over:
			return n, nil
		case e, ok := <-leases.ResultChan():
			if !ok {
				return n, fmt.Errorf("the watch of leases ended")
			}
			if e.Type == watch.Modified {
				n++
			}
		}
	}
}

// held counts leases that have a holder.
func (b *bench) held(ctx context.Context) (n int, err error) {
	leases, err := b.plane.Kube.CoordinationV1().Leases(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for _, l := range leases.Items {
		if isHeld(l) {
			n++
		}
	}
	return n, nil
}

func isHeld(l coordinationv1.Lease) bool {
	return l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != ""
}

// watches is how many the API server has now, of all clients.
func (b *bench) watches(ctx context.Context) (float64, error) {
	return b.metric(ctx, "apiserver_longrunning_requests", `verb="WATCH"`)
}

// requests is how many the API server has answered. It counts a watch when it ends.
func (b *bench) requests(ctx context.Context) (float64, error) {
	return b.metric(ctx, "apiserver_request_total")
}

// metric is the sum of those of the API server's metrics of a name that have all labels.
func (b *bench) metric(ctx context.Context, name string, labels ...string) (sum float64, err error) {
	all, err := b.plane.APIServerMetrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(all) {
		line := strings.TrimSpace(string(line))
		if !strings.HasPrefix(line, name+"{") || !containsAll(line, labels) {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", line, err)
		}
		sum += v
	}
	return sum, nil
}

func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

// memory adds up the memory of the set's processes.
func (s *set) memory() (sum memory, err error) {
	if err := s.err(); err != nil {
		return sum, err
	}
	for i, p := range s.processes {
		m, err := memoryOf(p.Pid())
		if err != nil {
			return sum, err
		}
		fmt.Fprintf(os.Stderr, "  %-18s RSS %6.1f MiB, private dirty %6.1f MiB, CPU %5.2f s\n", s.names[i], m.rss,
			m.dirty, m.cpu)
		sum.rss, sum.dirty, sum.cpu = sum.rss+m.rss, sum.dirty+m.dirty, sum.cpu+m.cpu
	}
	return sum, nil
}

// memoryOf reads a process's own account of itself.
func memoryOf(pid int) (m memory, err error) {
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return m, err
	}
	m.rss, m.dirty = mib(rollup, "Rss:"), mib(rollup, "Private_Dirty:")
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return m, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, ticks := range fields[11:13] { // in user mode, and in the kernel
		n, err := strconv.ParseFloat(ticks, 64)
		if err != nil {
			return m, err
		}
		m.cpu += n / 100
	}
	return m, nil
}

// mib reads a line of smaps_rollup.
func mib(rollup []byte, key string) (mib float64) {
	for line := range bytes.Lines(rollup) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			fmt.Sscan(string(rest), &mib)
		}
	}
	return mib / 1024
}
