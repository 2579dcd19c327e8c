// Package inventory lists the volumes and snapshots of a driver through its CSI endpoint. kubectl
// causeway compares the list with the objects of the cluster, and an operator may delete a volume
// that no object names. So a list is complete, or an error.
package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// maxMessage is the largest size of a response, in bytes. A page has up to 4 MiB of node IDs alone.
const maxMessage = 64 << 20

// Options are the settings of a list.
type Options struct {
	Page int32         // entries in a page of a list; 0: the default of the driver
	Call time.Duration // time limit of a call to the driver; 0: none
}

// Inventory has the volumes and snapshots of a driver, sorted by ID, without inline volumes, which
// have no object of their own. All IDs are those of package volumeid, perhaps with an address.
type Inventory struct {
	Driver    string   `json:"driver"` // name
	Volumes   []Object `json:"volumes"`
	Snapshots []Object `json:"snapshots"`
}

// Object is a volume or a snapshot.
type Object struct {
	ID      string    `json:"id"`
	Group   string    `json:"group,omitempty"` // group snapshot of a member
	Size    int64     `json:"size"`            // bytes
	Nodes   []string  `json:"nodes,omitempty"` // values of its topology
	Created time.Time `json:"created,omitzero"`
	Source  string    `json:"source,omitempty"` // ID of the source
}

// Key returns the part of an ID that identifies its object, which a volumeid.Finder finds in text.
func Key(id string) string {
	id, _, _ = volumeid.Cut(id)
	return id
}

// List lists all objects of the driver at conn. Errors: those of the driver, and an ID of an
// unknown form, as no text shows whether it is named.
func List(ctx context.Context, conn grpc.ClientConnInterface, o Options) (*Inventory, error) {
	c := csi.NewControllerClient(conn)
	name, err := name(ctx, conn, o)
	if err != nil {
		return nil, err
	}
	can, err := capabilities(ctx, c, o)
	if err != nil {
		return nil, err
	}
	if !can[csi.ControllerServiceCapability_RPC_LIST_VOLUMES] {
		return nil, errors.New("it cannot list volumes (LIST_VOLUMES): ask the controller's socket, or that of a " +
			"node which serves its own storage")
	}
	volumes, err := pages(ctx, o, func(ctx context.Context, token string) ([]Object, string, error) {
		resp, err := c.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: o.Page, StartingToken: token},
			grpc.MaxCallRecvMsgSize(maxMessage))
		return entries(resp.GetEntries(), volume), resp.GetNextToken(), err
	})
	if err != nil {
		return nil, err
	}
	if !can[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS] {
		if can[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT] {
			return nil, errors.New("it makes snapshots and cannot list them (LIST_SNAPSHOTS)")
		}
		return sorted(name, volumes, nil)
	}
	snapshots, err := pages(ctx, o, func(ctx context.Context, token string) ([]Object, string, error) {
		resp, err := c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{MaxEntries: o.Page, StartingToken: token},
			grpc.MaxCallRecvMsgSize(maxMessage))
		return entries(resp.GetEntries(), snapshot), resp.GetNextToken(), err
	})
	if err != nil {
		return nil, err
	}
	return sorted(name, volumes, snapshots)
}

// name returns the name of the driver.
func name(ctx context.Context, conn grpc.ClientConnInterface, o Options) (string, error) {
	ctx, cancel := o.call(ctx)
	defer cancel()
	resp, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	return resp.GetName(), err
}

// capabilities returns the controller capabilities of the driver.
func capabilities(ctx context.Context, c csi.ControllerClient,
	o Options) (map[csi.ControllerServiceCapability_RPC_Type]bool, error) {
	ctx, cancel := o.call(ctx)
	defer cancel()
	resp, err := c.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return nil, err
	}
	can := map[csi.ControllerServiceCapability_RPC_Type]bool{}
	for _, c := range resp.GetCapabilities() {
		can[c.GetRpc().GetType()] = true
	}
	return can, nil
}

// call returns the context of a call to the driver.
func (o Options) call(ctx context.Context) (context.Context, context.CancelFunc) {
	if o.Call == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, o.Call)
}

// pages reads all pages of a list and returns the entries by ID: an entry may be on two pages.
func pages(ctx context.Context, o Options,
	ask func(ctx context.Context, token string) ([]Object, string, error)) (map[string]Object, error) {
	all, seen := map[string]Object{}, map[string]bool{}
	for token := ""; ; {
		call, cancel := o.call(ctx)
		page, next, err := ask(call, token)
		cancel()
		if err != nil {
			return nil, err
		}
		for _, o := range page {
			all[o.ID] = o
		}
		if next == "" {
			return all, nil
		}
		if seen[next] {
			return nil, fmt.Errorf("it handed out the paging token %.64q twice: the list has no end", next)
		}
		seen[next] = true
		token = next
	}
}

// sorted sorts and checks the entries.
func sorted(name string, volumes, snapshots map[string]Object) (*Inventory, error) {
	all := &Inventory{Driver: name, Volumes: []Object{}, Snapshots: []Object{}}
	byID := func(a, b Object) int { return cmp.Compare(a.ID, b.ID) }
	for _, v := range slices.SortedFunc(maps.Values(volumes), byID) {
		switch id, err := volumeid.Parse(Key(v.ID)); {
		case err != nil:
			return nil, fmt.Errorf("volume %.128q: %w", v.ID, err)
		case id.Kind == volumeid.Inline:
		default:
			all.Volumes = append(all.Volumes, v)
		}
	}
	for _, s := range slices.SortedFunc(maps.Values(snapshots), byID) {
		if _, err := volumeid.Parse(Key(s.ID)); err != nil {
			return nil, fmt.Errorf("snapshot %.128q: %w", s.ID, err)
		}
		if s.Group != "" {
			if _, err := volumeid.Parse(Key(s.Group)); err != nil {
				return nil, fmt.Errorf("snapshot %s is in group %.128q: %w", s.ID, s.Group, err)
			}
		}
		all.Snapshots = append(all.Snapshots, s)
	}
	return all, nil
}

func entries[E any](all []E, what func(E) Object) []Object {
	page := make([]Object, 0, len(all))
	for _, e := range all {
		page = append(page, what(e))
	}
	return page
}

func volume(e *csi.ListVolumesResponse_Entry) Object {
	v := e.GetVolume()
	return Object{
		ID: v.GetVolumeId(), Size: v.GetCapacityBytes(), Nodes: segments(v.GetAccessibleTopology()),
		Source: cmp.Or(v.GetContentSource().GetSnapshot().GetSnapshotId(),
			v.GetContentSource().GetVolume().GetVolumeId()),
	}
}

func snapshot(e *csi.ListSnapshotsResponse_Entry) Object {
	s := e.GetSnapshot()
	o := Object{
		ID: s.GetSnapshotId(), Group: s.GetGroupSnapshotId(), Size: s.GetSizeBytes(),
		Nodes: segments(s.GetAccessibleTopology()), Source: s.GetSourceVolumeId(),
	}
	if s.GetCreationTime() != nil {
		o.Created = s.GetCreationTime().AsTime()
	}
	return o
}

// segments returns the values of a topology, without their keys and without the operating systems
// of nodes, which identify no node.
func segments(all []*csi.Topology) (values []string) {
	for _, t := range all {
		for key, value := range t.GetSegments() {
			if !strings.HasSuffix(key, "/os") {
				values = append(values, value)
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}
