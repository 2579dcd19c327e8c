package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

const (
	readersMode   = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	oneWriterMode = csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
	manyMode      = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
)

// attach attaches the volume and returns the publish context.
func (v *volume) attach(node string, change ...func(*csi.ControllerPublishVolumeRequest)) (map[string]string, error) {
	req := &csi.ControllerPublishVolumeRequest{VolumeId: v.id, NodeId: node, VolumeCapability: v.capability,
		VolumeContext: v.context}
	for _, c := range change {
		c(req)
	}
	resp, err := v.ControllerPublishVolume(context.Background(), req)
	return resp.GetPublishContext(), err
}

func (v *volume) detach(node string) error {
	_, err := v.ControllerUnpublishVolume(context.Background(),
		&csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: node})
	return err
}

// wantNodes fails the test unless ListVolumes and ControllerGetVolume report that the volume is
// attached to these nodes.
func (v *volume) wantNodes(want ...string) {
	v.Helper()
	one, err := v.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: v.id})
	v.want(codes.OK, err)
	all, err := v.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
	v.want(codes.OK, err)
	i := slices.IndexFunc(all.GetEntries(),
		func(e *csi.ListVolumesResponse_Entry) bool { return e.GetVolume().GetVolumeId() == v.id })
	if i < 0 || all.GetEntries()[i].GetStatus() == nil {
		v.Fatalf("the list does not contain %s: %v", v.id, all)
	}
	got, listed := one.GetStatus().GetPublishedNodeIds(), all.GetEntries()[i].GetStatus().GetPublishedNodeIds()
	if !slices.Equal(got, want) || !slices.Equal(listed, want) {
		v.Fatalf("%s is attached to %q, and to %q in the list, want %q", v.id, got, listed, want)
	}
}

func TestAVolumeIsAttachedAndDetached(t *testing.T) {
	d := startDriver(t, inMemory)
	v := d.create("v", capability(singleMode))
	v.wantNodes()
	d.want(codes.OK, v.detach("node-1"))
	first, err := v.attach("node-1")
	d.want(codes.OK, err)
	d.restart()
	again, err := v.attach("node-1")
	d.want(codes.OK, err)
	if len(first) == 0 || !maps.Equal(first, again) {
		t.Errorf("the publish context is %v, and was %v", again, first)
	}
	v.wantNodes("node-1")
	d.want(codes.FailedPrecondition, v.delete())
	for range 2 {
		d.want(codes.OK, v.detach("node-1"))
		v.wantNodes()
	}

	v.capability = capability(manyMode)
	for _, node := range []string{"node-3", "node-1", "node-2"} {
		_, err := v.attach(node)
		d.want(codes.OK, err)
	}
	v.wantNodes("node-1", "node-2", "node-3")
	d.want(codes.OK, v.detach("node-2"))
	v.wantNodes("node-1", "node-3")
	d.want(codes.OK, v.detach("")) // from all
	v.wantNodes()
	d.want(codes.OK, v.delete())
	d.want(codes.OK, v.detach("node-1"))
	d.want(codes.OK, v.detach(""))
}

func TestAttachRequests(t *testing.T) {
	type request = csi.ControllerPublishVolumeRequest
	mode := func(m csi.VolumeCapability_AccessMode_Mode) func(*request) {
		return func(r *request) { r.VolumeCapability = capability(m) }
	}
	for name, tc := range map[string]struct {
		before  func(*request) // the request that attached the volume to node-1; nil: not attached
		change  func(*request) // of a request for node-1
		code    codes.Code
		wantErr string
	}{
		"no volume ID": {nil, func(r *request) { r.VolumeId = "" }, codes.InvalidArgument,
			"volume ID"},
		"no node ID": {nil, func(r *request) { r.NodeId = "" }, codes.InvalidArgument, "node ID"},
		"no capability": {nil, func(r *request) { r.VolumeCapability = nil }, codes.InvalidArgument,
			"neither block nor mount"},
		"an unknown access mode":       {nil, mode(99), codes.InvalidArgument, "access mode"},
		"a volume that does not exist": {nil, func(r *request) { r.VolumeId = "none" }, codes.NotFound, `"none"`},
		"a node that does not exist":   {nil, func(r *request) { r.NodeId = "node-9" }, codes.NotFound, `"node-9"`},
		"a node ID with a path":        {nil, func(r *request) { r.NodeId = "../node-1" }, codes.NotFound, ""},
		"another volume's context": {nil, func(r *request) { r.VolumeContext = map[string]string{"color": "blue"} },
			codes.InvalidArgument, "context"},
		"a reserved key in the context": {nil,
			func(r *request) { r.VolumeContext = map[string]string{"csi.storage.k8s.io/x": "y"} }, codes.OK, ""},
		"a forbidden mount flag": {nil, func(r *request) { r.VolumeCapability = capability(sharedMode, "dev") },
			codes.InvalidArgument, "mount option"},

		"the same again": {mode(sharedMode), mode(sharedMode), codes.OK, ""},
		"the same, but read-only": {mode(sharedMode), func(r *request) { r.Readonly = true },
			codes.AlreadyExists, ""},
		"the same, but another access mode": {mode(singleMode), mode(sharedMode), codes.AlreadyExists, ""},
		"the same, but another mount flag": {mode(sharedMode),
			func(r *request) { r.VolumeCapability = capability(sharedMode, "noexec") }, codes.AlreadyExists, ""},
		"a reader's mode, and read-only or not": {mode(readersMode),
			func(r *request) { mode(readersMode)(r); r.Readonly = true }, codes.OK, ""},

		"another node in a single-node mode": {mode(sharedMode), func(r *request) { r.NodeId = "node-2" },
			codes.FailedPrecondition, "node-1"},
		"another node for a single reader": {mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY),
			func(r *request) { mode(readersMode)(r); r.NodeId = "node-2" }, codes.FailedPrecondition, "node-1"},
		"another of many readers": {mode(readersMode),
			func(r *request) { mode(readersMode)(r); r.NodeId = "node-2" }, codes.OK, ""},
		"another of many writers": {mode(manyMode), func(r *request) { mode(manyMode)(r); r.NodeId = "node-2" },
			codes.OK, ""},
		"a second single writer": {mode(oneWriterMode),
			func(r *request) { mode(oneWriterMode)(r); r.NodeId = "node-2" }, codes.FailedPrecondition, "node-1"},
		"a reader beside the writer": {mode(oneWriterMode), func(r *request) {
			mode(oneWriterMode)(r)
			r.NodeId, r.Readonly = "node-2", true
		}, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDriver(t, inMemory)
			v := d.create("v", capability(sharedMode))
			var nodes []string
			if tc.before != nil {
				_, err := v.attach("node-1", tc.before)
				d.want(codes.OK, err)
				nodes = []string{"node-1"}
			}
			var asked string
			_, err := v.attach("node-1", func(r *request) { tc.change(r); asked = r.NodeId })
			d.want(tc.code, err)
			if err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v does not contain %q", err, tc.wantErr)
			}
			if err == nil && !slices.Contains(nodes, asked) {
				nodes = append(nodes, asked)
			}
			v.wantNodes(nodes...)
		})
	}
}

func TestANodeTakesNoMoreThanItsLimit(t *testing.T) {
	d := startDriver(t, inMemory)
	info, err := d.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
	d.want(codes.OK, err)
	if info.GetMaxVolumesPerNode() != 16 {
		t.Fatalf("NodeGetInfo = %v, want a limit of 16", info)
	}
	for i := range 17 {
		code := codes.OK
		if i == 16 {
			code = codes.ResourceExhausted
		}
		_, err := d.create(fmt.Sprint("v", i), capability(sharedMode)).attach(info.GetNodeId())
		d.want(code, err)
	}
}

func TestDetachNeedsAVolume(t *testing.T) {
	d := startDriver(t, inMemory)
	_, err := d.ControllerUnpublishVolume(context.Background(), &csi.ControllerUnpublishVolumeRequest{NodeId: "node-1"})
	d.want(codes.InvalidArgument, err)
}

func TestAnInlineVolumeIsNotAttached(t *testing.T) {
	d := startDriver(t, inMemory)
	v := &volume{testDriver: d, id: handle(1), capability: capability(singleMode),
		context: map[string]string{ephemeralKey: "true"}}
	d.want(codes.OK, v.publish("target"))
	_, err := v.attach("node-1")
	d.want(codes.NotFound, err)
	d.want(codes.OK, v.detach(""))
	d.want(codes.OK, v.unpublish("target"))
}

// TestTheNodeGetsThePublishContext attaches, stages and publishes a volume.
func TestTheNodeGetsThePublishContext(t *testing.T) {
	attached := func(v *volume, change ...func(*csi.ControllerPublishVolumeRequest)) map[string]string {
		t.Helper()
		publish, err := v.attach("node-1", change...)
		v.want(codes.OK, err)
		return publish
	}
	stage := func(v *volume, publish map[string]string) error {
		_, err := v.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
			VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.capability, PublishContext: publish,
		})
		return err
	}
	with := func(publish map[string]string) func(*csi.NodePublishVolumeRequest) {
		return func(r *csi.NodePublishVolumeRequest) { r.PublishContext = publish }
	}
	another := map[string]string{"number": "99"}

	t.Run("a volume is used as it is attached", func(t *testing.T) {
		d := startDriver(t, inMemory)
		v := d.create("v", capability(sharedMode))
		publish := attached(v)
		d.want(codes.InvalidArgument, stage(v, another))
		d.want(codes.OK, stage(v, publish))
		d.want(codes.InvalidArgument, v.publish("target", with(another)))
		d.want(codes.OK, v.publish("target", with(publish)))
		d.want(codes.OK, v.unpublish("target"))
		d.want(codes.OK, v.unstage())
		d.want(codes.OK, v.detach("node-1"))
		d.want(codes.InvalidArgument, stage(v, publish)) // the publish context is of an earlier attach call
	})
	t.Run("a volume that is attached read-only is not writable", func(t *testing.T) {
		d := startDriver(t, inMemory)
		v := d.create("v", capability(sharedMode))
		publish := attached(v, func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = true })
		d.want(codes.OK, stage(v, publish))
		d.want(codes.FailedPrecondition, v.publish("target", with(publish)))
		d.want(codes.OK, v.publish("target", with(publish), readOnly))
		for path, m := range d.mounter.(*mountertest.Fake).Mounts() {
			if !m.ReadOnly {
				t.Errorf("%s is writable: %+v", path, m)
			}
		}
		d.want(codes.OK, v.unpublish("target"))
		d.want(codes.OK, v.unstage())
	})
}

func TestTheLogNamesTheNode(t *testing.T) {
	d := startDriver(t, inMemory)
	v := d.create("v", capability(sharedMode))
	_, err := v.attach("node-2")
	d.want(codes.OK, err)
	d.want(codes.OK, v.detach("node-2"))
	d.stop()
	for _, call := range []string{"ControllerPublishVolume", "ControllerUnpublishVolume"} {
		lines := slices.DeleteFunc(strings.Split(d.log.String(), "\n"),
			func(l string) bool { return !strings.Contains(l, "msg="+call+" ") })
		if len(lines) != 1 || !strings.Contains(lines[0], "level=INFO") ||
			!strings.Contains(lines[0], " volume="+v.id+" node=node-2 ") {
			t.Errorf("the log of %s is %q", call, lines)
		}
	}
}

// TestManyAttachAtOnce lets 24 callers attach and detach a shared volume and volumes of their own,
// which no CO does.
func TestManyAttachAtOnce(t *testing.T) {
	d := startDriver(t, inMemory)
	contended := d.create("contended", capability(sharedMode))
	var wg sync.WaitGroup
	allowed := func(what string, err error, also ...codes.Code) {
		if code := codeOf(err); err != nil && code != codes.Aborted && !slices.Contains(also, code) {
			t.Errorf("%s = %v", what, err)
		}
	}
	for i := range 24 {
		own := d.create(fmt.Sprint("own-", i), capability(sharedMode))
		wg.Go(func() {
			node := fmt.Sprint("node-", i%3+1)
			for range 10 {
				_, err := contended.attach(node)
				allowed("attach a shared volume", err, codes.FailedPrecondition)
				if _, err := own.attach(node); err != nil {
					t.Errorf("attach an own volume: %v", err)
				}
				page, err := d.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
				if err != nil {
					t.Error(err)
				}
				for _, e := range page.GetEntries() {
					if n := e.GetStatus().GetPublishedNodeIds(); len(n) > 1 {
						t.Errorf("%s is attached to %q", e.GetVolume().GetVolumeId(), n)
					}
				}
				allowed("detach a shared volume", contended.detach(node))
				if err := own.detach(node); err != nil {
					t.Errorf("detach an own volume: %v", err)
				}
			}
		})
	}
	wg.Wait()
	d.want(codes.OK, contended.detach(""))
	for _, m := range d.memory.Metrics() {
		if m.Name == "attachments" && m.Value != 0 {
			t.Errorf("%v attachments are left", m.Value)
		}
	}
}

func TestVolumesWithManyNodesShortenPages(t *testing.T) {
	many := make([]string, 10_000)
	for i := range many {
		many[i] = fmt.Sprintf("%0256d", i) // 2.5 MiB a volume
	}
	few := []string{"node-1", "node-2"}
	for name, tc := range map[string]struct {
		nodes [][]string
		want  int
	}{
		"no volumes":                   {nil, 0},
		"volumes with few nodes":       {[][]string{few, nil, few}, 3},
		"a volume with many nodes":     {[][]string{few, many, few}, 3},
		"two volumes with many nodes":  {[][]string{few, many, many, few}, 2},
		"a volume with too many nodes": {[][]string{slices.Concat(many, many), few}, 1},
	} {
		var volumes []backend.Volume
		for i, nodes := range tc.nodes {
			volumes = append(volumes, backend.Volume{ID: fmt.Sprint(i), Nodes: nodes})
		}
		if got := fitting(volumes); got != tc.want {
			t.Errorf("%s: %d fit, want %d", name, got, tc.want)
		}
	}
}
