package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/test/figures"
)

// client is a connection to a driver.
type client struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
	conn     *grpc.ClientConn
	endpoint string
	name     string // of the driver
	dir      string // for staging and target paths
}

func dial(ctx context.Context, endpoint, dir string) (*client, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, err
	}
	c := &client{csi.NewIdentityClient(conn), csi.NewControllerClient(conn), csi.NewNodeClient(conn), conn, endpoint,
		"", dir}
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	info, err := c.GetPluginInfo(wait, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", endpoint, err), conn.Close())
	}
	c.name = info.GetName()
	return c, os.MkdirAll(dir, 0o750)
}

// peakRSS returns the peak memory of the driver's process, in KiB, or 0 if it is unknown.
func (c *client) peakRSS() int64 { return figures.Status(c.pid(), "VmHWM") }

// pid returns the process that serves the socket.
func (c *client) pid() int {
	path, ok := strings.CutPrefix(c.endpoint, "unix://")
	if !ok {
		return 0
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

func use() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

// volume is a volume during its life.
type volume struct {
	*client
	name, id        string
	context         map[string]string
	staging, target string
	// Steps that may have been done and are not undone: the result of a call without an answer is
	// unknown.
	created, staged, published bool
}

func (c *client) volumes(n int, prefix string) ([]*volume, error) {
	var vs []*volume
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		v := &volume{client: c, name: name, staging: filepath.Join(c.dir, "staging-"+name),
			target: filepath.Join(c.dir, "target-"+name)}
		vs = append(vs, v)
		if err := os.MkdirAll(v.staging, 0o750); err != nil {
			return vs, err
		}
	}
	return vs, nil
}

func (v *volume) create(ctx context.Context) error {
	v.created = true
	resp, err := v.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: v.name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{use()},
	})
	if err != nil {
		return err
	}
	v.id, v.context = resp.GetVolume().GetVolumeId(), resp.GetVolume().GetVolumeContext()
	return nil
}

func (v *volume) stage(ctx context.Context) error {
	v.staged = true
	_, err := v.NodeStageVolume(ctx,
		&csi.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: use(),
			VolumeContext: v.context})
	return err
}

func (v *volume) publish(ctx context.Context) error {
	v.published = true
	_, err := v.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.target, VolumeCapability: use(),
		VolumeContext: v.context,
	})
	return err
}

func (v *volume) stats(ctx context.Context) error {
	_, err := v.NodeGetVolumeStats(ctx,
		&csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.target, StagingTargetPath: v.staging})
	return err
}

func (v *volume) unpublish(ctx context.Context) error {
	_, err := v.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target})
	v.published = v.published && err != nil
	return err
}

func (v *volume) unstage(ctx context.Context) error {
	_, err := v.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	v.staged = v.staged && err != nil
	return err
}

func (v *volume) delete(ctx context.Context) error {
	_, err := v.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
	v.created = v.created && err != nil
	return err
}

// end undoes all steps of the volume. end stops at an error, as a kubelet does.
func (v *volume) end(ctx context.Context) error {
	lost := v.created && v.id == "" // no answer told the ID; a second create of the same name does
	for _, step := range []struct {
		due  bool
		call func(context.Context) error
	}{{v.published, v.unpublish}, {v.staged, v.unstage}, {lost, v.create}} {
		if !step.due {
			continue
		}
		switch err := settled(ctx, step.call); status.Code(err) {
		case codes.OK, codes.NotFound, codes.InvalidArgument, codes.Unimplemented: // the step was never done
		default:
			return err
		}
	}
	if v.created && v.id != "" {
		if err := settled(ctx, v.delete); err != nil {
			return err
		}
	}
	for _, dir := range []string{v.target, v.staging} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// settled makes a call, and repeats it while the driver is busy with an earlier one for the volume.
func settled(ctx context.Context, call func(context.Context) error) error {
	for {
		err := call(ctx)
		if status.Code(err) != codes.Aborted {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// phases are the life of a volume.
var phases = []struct {
	name string
	call func(*volume, context.Context) error
}{
	{"create", (*volume).create},
	{"create again", (*volume).create},
	{"stage", (*volume).stage},
	{"publish", (*volume).publish},
	{"stats", (*volume).stats},
	{"unpublish", (*volume).unpublish},
	{"unstage", (*volume).unstage},
	{"delete", (*volume).delete},
}

// each makes a call for each of n items, by several callers at a time. The first error ends it.
func each(ctx context.Context, n, callers int, call func(ctx context.Context, i int) error) (figures.Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := figures.Sample{Times: make([]time.Duration, n)}
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range callers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || ctx.Err() != nil {
					return
				}
				begin := time.Now()
				err := call(ctx, i)
				s.Times[i] = time.Since(begin)
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	s.All = time.Since(start)
	return s, context.Cause(ctx)
}

// compare drives a driver, or two drivers in turn, phase by phase, and prints medians over the
// rounds.
func compare(ctx context.Context, o options) (err error) {
	var clients []*client
	for i, endpoint := range o.endpoints {
		if endpoint == "" {
			continue
		}
		c, err := dial(ctx, endpoint, filepath.Join(o.dir, fmt.Sprint("bench-", os.Getpid(), "-", i)))
		if err != nil {
			return err
		}
		defer c.conn.Close()
		defer func() { err = errors.Join(err, os.Remove(c.dir)) }()
		clients = append(clients, c)
	}
	headings(clients)
	results := make([][][]figures.Sample, len(clients)) // by client, phase and round
	for i := range results {
		results[i] = make([][]figures.Sample, len(phases))
	}
	for round := range o.rounds {
		for i, c := range clients {
			if err := c.round(ctx, o, round, results[i]); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	report(clients, results)
	return nil
}

// headings makes the names of two drivers differ.
func headings(clients []*client) {
	if len(clients) == 2 && clients[0].name == clients[1].name {
		clients[0].name += " (first)"
		clients[1].name += " (second)"
	}
}

// round is a whole life of all volumes. round removes all of them, as the driver may belong to
// another user.
func (c *client) round(ctx context.Context, o options, round int, results [][]figures.Sample) (err error) {
	vs, err := c.volumes(o.volumes, fmt.Sprintf("bench-%d-%d", os.Getpid(), round))
	defer func() { err = errors.Join(err, tidy(ctx, vs, o.callers)) }()
	if err != nil {
		return err
	}
	for p, phase := range phases {
		s, err := each(ctx, len(vs), o.callers,
			func(ctx context.Context, i int) error { return phase.call(vs[i], ctx) })
		if err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
		results[p] = append(results[p], s)
	}
	return nil
}

// patience is the time in which a driver must remove the volumes of an interrupted round.
const patience = 2 * time.Minute

// tidy removes volumes that may exist.
func tidy(ctx context.Context, vs []*volume, callers int) error {
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "bench: taking back what was made")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	errs := make([]error, len(vs))
	_, err := each(ctx, len(vs), callers, func(ctx context.Context, i int) error {
		errs[i] = vs[i].end(ctx)
		return nil
	})
	left := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("volumes that may be left: %d, the first because: %w", len(left), left[0]))
	}
	return err
}

// report prints a table, with ratios if there are two drivers.
func report(clients []*client, results [][][]figures.Sample) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	fmt.Fprint(w, "call\t")
	for _, c := range clients {
		fmt.Fprintf(w, "%s: p50\tp99\tcalls/s\t", c.name)
	}
	if len(clients) == 2 {
		fmt.Fprint(w, "p50 second/first\tcalls/s first/second\t")
	}
	fmt.Fprintln(w)
	for p, phase := range phases {
		fmt.Fprintf(w, "%s\t", phase.name)
		var p50, rate []float64
		for i := range clients {
			m := figures.Median(results[i][p], func(s figures.Sample) float64 { return figures.Micro(s.Quantile(.5)) })
			p50 = append(p50, m)
			rate = append(rate, figures.Median(results[i][p], figures.Sample.PerSecond))
			fmt.Fprintf(w, "%.0f µs\t%.0f µs\t%.0f\t", m,
				figures.Median(results[i][p],
					func(s figures.Sample) float64 { return figures.Micro(s.Quantile(.99)) }), rate[i])
		}
		if len(clients) == 2 {
			fmt.Fprintf(w, "%.2f\t%.2f\t", p50[1]/p50[0], rate[0]/rate[1])
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "peak RSS\t")
	for _, c := range clients {
		fmt.Fprintf(w, "%.1f MB\t\t\t", float64(c.peakRSS())/1024)
	}
	fmt.Fprintln(w)
}
