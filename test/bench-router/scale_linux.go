package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/test/figures"
	"github.com/causeway-csi/causeway/test/simnode"
)

// pageSize is how many entries are asked for.
const pageSize = 1000

// maxRouter is the goal for the RSS of a router before 500 nodes, in MiB: a third more than the 58
// of the former router, in which all nodes shared a gRPC channel.
const maxRouter = 77

const (
	pages = "a page of ListVolumes"
	gets  = "ControllerGetVolume"
)

// simulation is a fleet, and a router of its own before it.
type simulation struct {
	fleet
	router  *process
	servers []*grpc.Server
	ids     []string // of volumes, the nodes in turn
	token   string   // of the next page
	calls   int

	found, foundCPU time.Duration // until all nodes answered
	idleCPU         time.Duration // of each second while there was nothing to do
	listed          time.Duration // all volumes, page by page
	rounds          []figures.Stopwatch
}

func (s *simulation) String() string {
	return fmt.Sprintf("%d nodes, %d volumes", s.nodes, s.volumes)
}

// hundreds compares the calls of routers before many and before few simulated nodes, call by call
// in turn.
func hundreds(ctx context.Context, dir, bin string, o options) (err error) {
	certs, names, err := certificates(dir, o.fleets)
	if err != nil {
		return err
	}
	var all []*simulation
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.end())
		}
	}()
	for i, f := range o.fleets {
		s := &simulation{fleet: f}
		all = append(all, s)
		if err := s.begin(ctx, bin, filepath.Join(dir, fmt.Sprint("fleet-", i)), certs, names[:f.nodes]); err != nil {
			return err
		}
	}
	for round := range o.rounds + 1 { // the first round warms up
		for _, s := range all {
			s.rounds = append(s.rounds, figures.Stopwatch{})
		}
		for i := range o.calls {
			for turn := range all {
				if err := all[(turn+i)%len(all)].call(ctx, round); err != nil {
					return err
				}
			}
		}
	}
	if err := rest(ctx, all, o.idle); err != nil {
		return err
	}
	for _, s := range all {
		if err := s.listAll(ctx); err != nil {
			return err
		}
		if err := s.report(all[0]); err != nil {
			return err
		}
	}
	return nil
}

// certificates makes certificates for the router and for each node of the largest fleet.
func certificates(dir string, fleets []fleet) (certs string, names []string, err error) {
	certs = filepath.Join(dir, "certs")
	if err := os.Mkdir(certs, 0o700); err != nil {
		return "", nil, err
	}
	if err := unix.Mount("none", certs, "tmpfs", 0, ""); err != nil { // they are synced individually
		return "", nil, err
	}
	for _, f := range fleets {
		for i := len(names); i < f.nodes; i++ {
			names = append(names, fmt.Sprintf("node-%04d", i))
		}
	}
	_, err = peertls.Make(certs, peertls.MakeOptions{Client: routerName, Nodes: names})
	return certs, names, err
}

// begin starts the nodes in this process, and the router in a process of its own.
func (s *simulation) begin(ctx context.Context, bin, dir, certs string, names []string) error {
	var addresses []string
	var volumes [][]string
	for _, name := range names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		id, err := credsOf(filepath.Join(certs, "nodes", name))
		if err != nil {
			return errors.Join(err, l.Close())
		}
		sim := simnode.New(driverName, name, s.volumes/s.nodes, 1<<40)
		s.servers = append(s.servers, sim.Serve(l, id.Server(routerName)))
		addresses, volumes = append(addresses, l.Addr().String()), append(volumes, sim.IDs())
	}
	for i := range s.volumes / s.nodes {
		for _, ids := range volumes {
			s.ids = append(s.ids, ids[i])
		}
	}
	var err error
	if s.router, s.found, err = startRouter(ctx, bin, dir, certs, addresses); err != nil {
		return err
	}
	s.foundCPU, err = s.router.cpu()
	return err
}

func (s *simulation) end() (err error) {
	if s.router != nil {
		err = s.router.stop()
	}
	for _, server := range s.servers {
		server.Stop()
	}
	return err
}

// call asks for a page, and for a volume of the next node.
func (s *simulation) call(ctx context.Context, round int) error {
	w := s.rounds[round]
	s.calls++
	return errors.Join(
		w.Time(pages, func() error { return s.page(ctx) }),
		w.Time(gets, func() error {
			_, err := s.router.ControllerGetVolume(ctx,
				&csi.ControllerGetVolumeRequest{VolumeId: s.ids[s.calls%len(s.ids)]})
			return err
		}))
}

// page requests the next page. All pages have the same size, so that they can be compared.
func (s *simulation) page(ctx context.Context) error {
	resp, err := s.router.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: pageSize, StartingToken: s.token})
	if err != nil {
		return err
	}
	if n := len(resp.GetEntries()); n != min(pageSize, s.volumes) {
		return fmt.Errorf("a page has %d entries", n)
	}
	s.token = resp.GetNextToken()
	return nil
}

// listAll lists all volumes, and makes sure that all are there.
func (s *simulation) listAll(ctx context.Context) error {
	var ids []string
	begin := time.Now()
	for token := "?"; token != ""; {
		resp, err := s.router.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: strings.Trim(token, "?")})
		if err != nil {
			return err
		}
		for _, e := range resp.GetEntries() {
			ids = append(ids, e.GetVolume().GetVolumeId())
		}
		token = resp.GetNextToken()
	}
	s.listed = time.Since(begin)
	slices.Sort(ids)
	if !slices.Equal(ids, slices.Sorted(slices.Values(s.ids))) {
		return fmt.Errorf("%s: %d volumes are listed, or others", s, len(ids))
	}
	return nil
}

// rest measures idle routers.
func rest(ctx context.Context, all []*simulation, idle time.Duration) error {
	for _, s := range all {
		before, err := s.router.cpu()
		if err != nil {
			return err
		}
		s.idleCPU = -before
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(idle):
	}
	for _, s := range all {
		after, err := s.router.cpu()
		if err != nil {
			return err
		}
		s.idleCPU = time.Duration(float64(s.idleCPU+after) / idle.Seconds())
	}
	return nil
}

// report prints the cost of a router, beside that of a router before another fleet.
func (s *simulation) report(few *simulation) error {
	if err := s.router.scrape(); err != nil { // as Prometheus does, and it takes memory
		return err
	}
	fmt.Printf(" %s\n", s)
	var within, memory []figures.Goal
	if s.compared {
		within, memory = []figures.Goal{figures.AtMost(2)}, []figures.Goal{figures.Under(maxRouter)}
	}
	for _, what := range []string{pages, gets} {
		p50 := func(s *simulation) float64 {
			return figures.Median(s.rounds[1:], func(w figures.Stopwatch) float64 { return w.P50(what) })
		}
		figures.Row(what, p50(s), "µs")
		if s != few {
			figures.Row(fmt.Sprintf("%s, to that before %s", what, few), p50(s)/p50(few), "", within...)
		}
	}
	figures.Row("ListVolumes of all, in pages of 2,000", figures.Micro(s.listed)/1000, "ms")
	figures.Row("RSS of the router", float64(figures.Status(s.router.cmd.Process.Pid, "VmRSS"))/1024, "MB", memory...)
	figures.Row("peak RSS of the router", float64(figures.Status(s.router.cmd.Process.Pid, "VmHWM"))/1024, "MB",
		memory...)
	figures.Row("from its start until all nodes answer", figures.Micro(s.found)/1000, "ms")
	figures.Row("CPU until then", figures.Micro(s.foundCPU)/1000, "ms")
	figures.Row("CPU of each second in which it has nothing to do", figures.Micro(s.idleCPU)/1000, "ms")
	return nil
}

// scrape reads the metrics.
func (p *process) scrape() error {
	address, err := p.address("metrics")
	if err != nil {
		return err
	}
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// tick is the unit of times in /proc/<pid>/stat on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpu returns how long the process has computed.
func (p *process) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var user, system int64
	_, after, _ := strings.Cut(string(stat), ") ") // the name of the program
	if fields := strings.Fields(after); len(fields) > 13 {
		_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	}
	return time.Duration(user+system) * tick, err
}
