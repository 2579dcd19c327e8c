package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/pkg/volumeid"
	"github.com/causeway-csi/causeway/test/figures"
)

// The ways to a node.
const (
	direct = "directly"
	routed = "through the router"
	alone  = "a driver beside the caller"
)

const (
	smallFiles = 16      // in the directory of which snapshots are made
	imageSize  = 1 << 30 // bytes
)

// way is a way to call a node that has storage.
type way struct {
	name, node string
	csi.ControllerClient
	tree, image    string // volumes of which snapshots are made
	volume, copied string // the last that were made
}

// trial has three nodes, a router before them, and the ways to call the first node. The third way
// leads to a driver with all services in a single process, without network or TLS, as in node
// deployment. Its figures are for comparison.
type trial struct {
	ctx    context.Context
	images bool
	undo   []func() error
	ways   []*way
}

func (t *trial) end() (err error) {
	for i := range t.undo {
		err = errors.Join(err, t.undo[len(t.undo)-1-i]())
	}
	return err
}

func onDisk(ctx context.Context, dir, bin string, o options) error {
	return compared(ctx, filepath.Join(dir, "disk"), bin, o, false)
}

// onXFS has images too: there they are copied by sharing blocks.
func onXFS(ctx context.Context, dir, bin string, o options) error {
	disk, err := figures.Disk(ctx, dir, "xfs")
	if err != nil || disk == "" {
		return err
	}
	return compared(ctx, disk, bin, o, true)
}

// compared measures each call by all ways, call by call in turn, so that the disk's moods meet all
// of them.
func compared(ctx context.Context, dir, bin string, o options, images bool) (err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the idle threads of a single caller would only disturb
	t := &trial{ctx: ctx, images: images}
	defer func() { err = errors.Join(err, t.end()) }()
	if err := t.begin(dir, bin); err != nil {
		return err
	}
	var rounds []figures.Stopwatch
	for round := range o.rounds + 1 {
		w := figures.Stopwatch{}
		for i := range o.calls {
			if err := t.life(w, fmt.Sprintf("v-%d-%d", round, i), i); err != nil {
				return err
			}
		}
		if round > 0 { // the first round warms up
			rounds = append(rounds, w)
		}
	}
	for _, s := range t.steps() {
		s.report(rounds)
	}
	return nil
}

// begin starts all processes.
func (t *trial) begin(dir, bin string) error {
	certs, names := filepath.Join(dir, "certs"), []string{"node-1", "node-2", "node-3"}
	if _, err := peertls.Make(certs, peertls.MakeOptions{Client: routerName, Nodes: names}); err != nil {
		return err
	}
	var addresses, roots []string
	for _, name := range names {
		p, err := startNode(t.ctx, bin, dir, name, "--mode=node", "--peer-listen=127.0.0.1:0",
			"--peer-certs="+filepath.Join(certs, "nodes", name))
		if err != nil {
			return err
		}
		t.undo = append(t.undo, p.stop)
		address, err := p.address("the router")
		if err != nil {
			return err
		}
		addresses, roots = append(addresses, address), append(roots, filepath.Join(p.dir, "root"))
	}
	router, _, err := startRouter(t.ctx, bin, filepath.Join(dir, "router"), certs, addresses)
	if err != nil {
		return err
	}
	conn, err := dialNode(addresses[0], certs)
	if err != nil {
		return errors.Join(err, router.stop())
	}
	t.undo = append(t.undo, router.stop, conn.Close)
	whole, err := startNode(t.ctx, bin, dir, "whole")
	if err != nil {
		return err
	}
	t.undo = append(t.undo, whole.stop)
	t.ways = []*way{
		{name: direct, node: names[0], ControllerClient: csi.NewControllerClient(conn)},
		{name: routed, node: names[0], ControllerClient: router},
		{name: alone, node: "whole", ControllerClient: whole},
	}
	for i, root := range []string{roots[0], roots[0], filepath.Join(whole.dir, "root")} {
		if err := t.ways[i].prepare(t.ctx, root, t.images); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes the volumes of which snapshots are made.
func (w *way) prepare(ctx context.Context, root string, images bool) error {
	tree, err := w.CreateVolume(ctx, w.create("tree "+w.name, false))
	if err != nil {
		return err
	}
	w.tree = tree.GetVolume().GetVolumeId()
	for i := range smallFiles {
		if err := os.WriteFile(filepath.Join(root, "volumes", w.tree, "data", fmt.Sprint(i)), make([]byte, 4096),
			0o600); err != nil {
			return err
		}
	}
	if !images {
		return nil
	}
	image, err := w.CreateVolume(ctx, w.create("image "+w.name, true))
	w.image = image.GetVolume().GetVolumeId()
	return err
}

// topology is that of the node, and of no other.
func (w *way) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{topologyKey: volumeid.Segment(w.node)}}
}

// create returns the request that the provisioner makes for a pod that has a node.
func (w *way) create(name string, image bool) *csi.CreateVolumeRequest {
	c := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	req := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{c},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{w.topology()},
			Preferred: []*csi.Topology{w.topology()}},
	}
	if image {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		req.CapacityRange.RequiredBytes, req.Parameters = imageSize, map[string]string{"kind": "image"}
	}
	return req
}

// step is a call that is timed, or a call that undoes another.
type step struct {
	name      string
	call      func(w *way, name string) error
	ratio     bool // the goal is a ratio of times
	routeOnly bool // there is no other way to do it
	silent    bool // not reported
}

// steps are the life of a volume.
func (t *trial) steps() []step {
	snapshot := func(what string, of func(*way) string) func(w *way, name string) error {
		return func(w *way, name string) error {
			resp, err := w.CreateSnapshot(t.ctx,
				&csi.CreateSnapshotRequest{Name: what + name + w.name, SourceVolumeId: of(w)})
			w.copied = resp.GetSnapshot().GetSnapshotId()
			return err
		}
	}
	made := func(resp *csi.CreateVolumeResponse, err error, w *way) error {
		w.volume = resp.GetVolume().GetVolumeId()
		return err
	}
	remove := func(w *way, _ string) error {
		_, err := w.DeleteVolume(t.ctx, &csi.DeleteVolumeRequest{VolumeId: w.volume})
		return err
	}
	forget := func(w *way, _ string) error {
		_, err := w.DeleteSnapshot(t.ctx, &csi.DeleteSnapshotRequest{SnapshotId: w.copied})
		return err
	}
	steps := []step{
		{name: "CreateVolume", ratio: true, call: func(w *way, name string) error {
			resp, err := w.CreateVolume(t.ctx, w.create(name+w.name, false))
			return made(resp, err, w)
		}},
		{name: "ControllerGetVolume", call: func(w *way, _ string) error {
			_, err := w.ControllerGetVolume(t.ctx, &csi.ControllerGetVolumeRequest{VolumeId: w.volume})
			return err
		}},
		{name: "GetCapacity", call: func(w *way, _ string) error {
			_, err := w.GetCapacity(t.ctx, &csi.GetCapacityRequest{AccessibleTopology: w.topology()})
			return err
		}},
		{name: "DeleteVolume", call: remove},
		{name: fmt.Sprintf("CreateSnapshot of %d small files", smallFiles), ratio: true,
			call: snapshot("tree", func(w *way) string { return w.tree })},
		{name: "DeleteSnapshot", call: forget},
		{name: "CreateVolume on any of three nodes", routeOnly: true, call: func(w *way, name string) error {
			req := w.create(name+"any", false)
			req.AccessibilityRequirements = nil
			resp, err := w.CreateVolume(t.ctx, req)
			return made(resp, err, w)
		}},
		{name: "its DeleteVolume", routeOnly: true, silent: true, call: remove},
	}
	if t.images {
		steps = append(steps,
			step{name: "CreateSnapshot of an image", ratio: true,
				call: snapshot("image", func(w *way) string { return w.image })},
			step{name: "its DeleteSnapshot", silent: true, call: forget})
	}
	return steps
}

// life makes each call once by each way. The first way changes from one life to the next.
func (t *trial) life(w figures.Stopwatch, name string, turn int) error {
	for _, s := range t.steps() {
		for i := range t.ways {
			by := t.ways[(turn+i)%len(t.ways)]
			if s.routeOnly && by.name != routed {
				continue
			}
			if err := w.Time(s.name+" "+by.name, func() error { return s.call(by, name) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// report prints the durations of a call.
func (s step) report(rounds []figures.Stopwatch) {
	if s.silent {
		return
	}
	quantile := func(way string, q float64) float64 {
		return figures.Median(rounds, func(w figures.Stopwatch) float64 { return s.took(w, way, q) })
	}
	more := func(q float64) float64 {
		return figures.Median(rounds, func(w figures.Stopwatch) float64 {
			return s.took(w, routed, q) - s.took(w,
				direct, q)
		})
	}
	for _, way := range []string{direct, routed, alone} {
		if s.routeOnly && way != routed {
			continue
		}
		figures.Row(fmt.Sprintf("%s, %s (p99 %.0f)", s.name, way, quantile(way, .99)), quantile(way, .5), "µs")
	}
	if s.routeOnly {
		return
	}
	var asked []figures.Goal
	if s.ratio {
		asked = []figures.Goal{figures.AtMost(1.3)}
	}
	figures.Row(s.name+", routed to direct",
		figures.Median(rounds, func(w figures.Stopwatch) float64 {
			return s.took(w, routed, .5) / s.took(w, direct,
				.5)
		}), "", asked...)
	figures.Row(s.name+", routed less direct", more(.5), "µs", figures.AtMost(250))
	// other load on the machine disturbs these least
	figures.Row(s.name+", the same of the fastest tenth", more(.1), "µs")
}

// took is a quantile in microseconds.
func (s step) took(w figures.Stopwatch, way string, q float64) float64 {
	return figures.Micro(w[s.name+" "+way].Quantile(q))
}
