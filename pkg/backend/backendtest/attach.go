package backendtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Nodes are the IDs of the nodes that a [backend.Attacher] must know in [Run]. All other nodes must
// be unknown.
var Nodes = []string{"node-1", "node-2", "node-3"}

// attacher is a subject with a backend.Attacher.
type attacher struct {
	*subject
	backend.Attacher
}

func attaching(s *subject) *attacher {
	s.Helper()
	return &attacher{s, optional[backend.Attacher](s)}
}

// reopen closes the backend and opens the storage again, like a new process.
func (a *attacher) reopen() {
	a.Helper()
	a.subject.reopen()
	a.Attacher = a.Backend.(backend.Attacher)
}

// alone returns options that attach the volume to a single node.
func alone(node string) backend.AttachOptions {
	return backend.AttachOptions{Node: node, Capability: "alone"}
}

// shared returns options that allow further nodes.
func shared(node string) backend.AttachOptions {
	return backend.AttachOptions{Node: node, Capability: "shared", ManyNodes: true}
}

func readOnly(o backend.AttachOptions) backend.AttachOptions {
	o.Access.ReadOnly = true
	return o
}

func (a *attacher) attach(id string, o backend.AttachOptions) map[string]string {
	a.Helper()
	attachment, err := a.Attach(context.Background(), id, o)
	if err != nil {
		a.Fatalf("Attach(%q, %+v): %v", id, o, err)
	}
	return attachment
}

func (a *attacher) detach(id, node string) {
	a.Helper()
	if err := a.Detach(context.Background(), id, node, nil); err != nil {
		a.Fatalf("Detach(%q, %q): %v", id, node, err)
	}
}

// wantNodes checks that Get and List report these nodes for the volume.
func (a *attacher) wantNodes(id string, want ...string) {
	a.Helper()
	if v, err := a.Get(context.Background(), id, nil); err != nil || !slices.Equal(v.Nodes, want) {
		a.Errorf("Get reports that %s is attached to %q, %v, want %q", id, v.Nodes, err, want)
	}
	l, ok := a.Backend.(backend.Lister)
	if !ok {
		return
	}
	volumes, _, err := l.List(context.Background(), "", 1<<20)
	i := slices.IndexFunc(volumes, func(v backend.Volume) bool { return v.ID == id })
	if err != nil || i < 0 || !slices.Equal(volumes[i].Nodes, want) {
		a.Errorf("List = %+v, %v, want %s attached to %q", volumes, err, id, want)
	}
}

func attaches(s *subject) {
	a := attaching(s)
	v, other := a.create(s.request("pvc-1")), a.create(s.request("pvc-2"))
	a.wantNodes(v.ID)
	first := a.attach(v.ID, alone(Nodes[0]))
	a.wantNodes(v.ID, Nodes[0])
	a.reopen()
	a.wantNodes(v.ID, Nodes[0])
	if again := a.attach(v.ID, alone(Nodes[0])); !maps.Equal(again, first) {
		a.Errorf("the second Attach = %v, want %v as the first", again, first)
	}
	if again := a.create(s.request("pvc-1")); again.ID != v.ID {
		a.Errorf("Create of an attached volume = %+v, want the same volume", again)
	}
	a.wantNodes(other.ID)
	for range 3 {
		a.detach(v.ID, Nodes[0])
		a.wantNodes(v.ID)
	}
	a.attach(v.ID, alone(Nodes[1]))
	a.detach(v.ID, Nodes[0]) // not attached there
	a.wantNodes(v.ID, Nodes[1])
	a.detach(v.ID, Nodes[1])

	for _, i := range []int{2, 0, 1} {
		a.attach(v.ID, shared(Nodes[i]))
	}
	a.attach(other.ID, alone(Nodes[2]))
	a.wantNodes(v.ID, Nodes...)
	a.detach(v.ID, Nodes[1])
	a.wantNodes(v.ID, Nodes[0], Nodes[2])
	for range 2 {
		a.detach(v.ID, "") // from all
		a.wantNodes(v.ID)
	}
	a.wantNodes(other.ID, Nodes[2])
	a.reopen()
	a.wantNodes(v.ID)
	a.wantNodes(other.ID, Nodes[2])
}

// shares attaches a volume to a node and then to another node.
func shares(s *subject) {
	a := attaching(s)
	v := a.create(s.request("pvc-1"))
	oneWriter := func(node string) backend.AttachOptions {
		o := shared(node)
		o.Capability, o.OneWriter = "one writer", true
		return o
	}
	one, two := Nodes[0], Nodes[1]
	for name, row := range map[string]struct {
		first, second backend.AttachOptions
		want          error
	}{
		"neither attachment is shared":                 {alone(one), alone(two), backend.ErrInUse},
		"neither attachment is shared, both read-only": {readOnly(alone(one)), readOnly(alone(two)), backend.ErrInUse},
		"only the second attachment is shared":         {alone(one), shared(two), backend.ErrInUse},
		"only the first attachment is shared":          {shared(one), alone(two), backend.ErrInUse},
		"both attachments are shared":                  {shared(one), shared(two), nil},
		"both attachments are shared and read-only":    {readOnly(shared(one)), readOnly(shared(two)), nil},
		"a second single writer":                       {oneWriter(one), oneWriter(two), backend.ErrInUse},
		"a reader after the single writer":             {oneWriter(one), readOnly(oneWriter(two)), nil},
		"the single writer after a reader":             {readOnly(oneWriter(one)), oneWriter(two), nil},
		"a shared writer after the single writer":      {oneWriter(one), shared(two), backend.ErrInUse},
		"the single writer after a shared writer":      {shared(one), oneWriter(two), backend.ErrInUse},
		"two readers with a single-writer access mode": {readOnly(oneWriter(one)), readOnly(oneWriter(two)), nil},
	} {
		a.attach(v.ID, row.first)
		_, err := a.Attach(context.Background(), v.ID, row.second)
		if !errors.Is(err, row.want) {
			a.Errorf("%s: %v, want %v", name, err, row.want)
		}
		if err != nil {
			a.wantNodes(v.ID, one)
			if !strings.Contains(err.Error(), one) {
				a.Errorf("%s: error %v does not name node %s", name, err, one)
			}
		} else {
			a.wantNodes(v.ID, one, two)
		}
		a.detach(v.ID, "")
	}
	a.attach(v.ID, alone(one))
	a.detach(v.ID, one)
	a.attach(v.ID, alone(two)) // after the other node was detached
}

func attachesAgain(s *subject) {
	a := attaching(s)
	v := a.create(s.request("pvc-1"))
	first := a.attach(v.ID, alone(Nodes[0]))
	for name, o := range map[string]backend.AttachOptions{
		"read-only":          readOnly(alone(Nodes[0])),
		"another capability": shared(Nodes[0]),
	} {
		if got, err := a.Attach(context.Background(), v.ID, o); !errors.Is(err, backend.ErrExists) {
			a.Errorf("%s: Attach = %v, %v, want ErrExists", name, got, err)
		}
	}
	if again := a.attach(v.ID, alone(Nodes[0])); !maps.Equal(again, first) {
		a.Errorf("Attach after the rejected calls = %v, want %v as before", again, first)
	}
	a.detach(v.ID, Nodes[0])
	a.attach(v.ID, readOnly(alone(Nodes[0])))
	if _, err := a.Attach(context.Background(), v.ID, alone(Nodes[0])); !errors.Is(err, backend.ErrExists) {
		a.Errorf("Attach for writing of a volume that is attached read-only = %v, want ErrExists", err)
	}
}

func attachesUnknown(s *subject) {
	a := attaching(s)
	ctx := context.Background()
	v := a.create(s.request("pvc-1"))
	for _, id := range append(unusual(v.ID), "", "\x00", v.ID[:len(v.ID)-1], strings.Repeat("x", 4096)) {
		if got, err := a.Attach(ctx, id, alone(Nodes[0])); !errors.Is(err, backend.ErrNotFound) {
			a.Errorf("Attach(%.60q) = %v, %v, want ErrNotFound", id, got, err)
		}
		a.detach(id, Nodes[0])
		a.detach(id, "")
	}
	for _, node := range append(unusual(Nodes[0]), "node-4", "\x00", strings.Repeat("x", 4096)) {
		if got, err := a.Attach(ctx, v.ID, alone(node)); !errors.Is(err, backend.ErrNotFound) {
			a.Errorf("Attach to the node %.60q = %v, %v, want ErrNotFound", node, got, err)
		}
		a.detach(v.ID, node)
	}
	forbidden := alone(Nodes[0])
	forbidden.Access.Options = []string{"password=hidden"}
	if got, err := a.Attach(ctx, v.ID, forbidden); !errors.Is(err, backend.ErrInvalid) ||
		strings.Contains(err.Error(), "hidden") {
		a.Errorf("Attach with a forbidden option = %v, %v, want ErrInvalid without its value", got, err)
	}
	a.wantNodes(v.ID)
	inliner, ok := a.Backend.(backend.Inliner)
	if !ok {
		return
	}
	handle := "csi-" + strings.Repeat("0", 64)
	if _, err := inliner.CreateInline(ctx, handle, backend.CreateOptions{Access: []backend.Access{{}}}); err != nil {
		a.Fatal(err)
	}
	if got, err := a.Attach(ctx, handle, alone(Nodes[0])); !errors.Is(err, backend.ErrNotFound) {
		a.Errorf("Attach of an inline volume = %v, %v, want ErrNotFound", got, err)
	}
	a.detach(handle, "")
}

func attachesReadOnly(s *subject) {
	a := attaching(s)
	ctx := context.Background()
	v := a.create(s.request("pvc-1"))
	for _, o := range []backend.AttachOptions{alone(Nodes[0]), readOnly(alone(Nodes[0]))} {
		got, err := a.Mount(ctx, v.ID, backend.Access{PublishContext: a.attach(v.ID, o)})
		if err != nil || got.Source == "" || got.ReadOnly != o.Access.ReadOnly {
			a.Errorf("Mount after Attach with ReadOnly %v = %+v, %v", o.Access.ReadOnly, got, err)
		}
		a.detach(v.ID, Nodes[0])
	}
	other := backend.Access{PublishContext: map[string]string{"color": "blue"}}
	if got, err := a.Mount(ctx, v.ID, other); !errors.Is(err, backend.ErrInvalid) {
		a.Errorf("Mount with the publish context of another volume = %+v, %v, want ErrInvalid", got, err)
	}
}

// hasFilesystemOfOneNode reports whether the volume is a disk with a filesystem that only a single
// node at a time can write.
func (s *subject) hasFilesystemOfOneNode(id string) bool {
	s.Helper()
	m, err := s.Mount(context.Background(), id, backend.Access{})
	return err == nil && m.Kind == mounter.BlockDevice && m.FSType != ""
}

func sharesNoFilesystem(s *subject) {
	a := attaching(s)
	v := a.create(s.request("pvc-1"))
	if !a.hasFilesystemOfOneNode(v.ID) {
		s.Skip("the volumes of this backend are not disks with a filesystem")
	}
	o := s.request("pvc-2")
	for _, access := range [][]backend.Access{
		{{SharedWrite: true}},
		{{}, {SharedWrite: true}},
		{{SharedWrite: true}, {Block: true}},
	} {
		o.Access = access
		a.refused(o, backend.ErrInvalid)
	}
	again := s.request("pvc-1")
	again.Access = []backend.Access{{SharedWrite: true}}
	a.refused(again, backend.ErrInvalid, backend.ErrExists)

	o.Access = []backend.Access{{Block: true, SharedWrite: true}}
	device := a.create(o)
	for _, node := range Nodes {
		to := shared(node)
		to.Access = o.Access[0]
		a.attach(device.ID, to)
	}
	a.wantNodes(device.ID, Nodes...)
	a.detach(device.ID, "")

	// A node to which the disk is attached read-only may mount it, although the access mode allows
	// writes.
	to := readOnly(shared(Nodes[0]))
	to.Access.SharedWrite = true
	access := backend.Access{SharedWrite: true, PublishContext: a.attach(v.ID, to)}
	if got, err := a.Mount(context.Background(), v.ID, access); err != nil || !got.ReadOnly {
		a.Errorf("Mount of a disk that is attached read-only = %+v, %v, want a read-only mount", got, err)
	}
	a.detach(v.ID, "")
}

func attachedStays(s *subject) {
	a := attaching(s)
	v := a.create(s.request("pvc-1"))
	a.attach(v.ID, alone(Nodes[0]))
	if err := a.Delete(context.Background(), v.ID, nil); !errors.Is(err, backend.ErrInUse) {
		a.Errorf("Delete of an attached volume = %v, want ErrInUse", err)
	}
	a.wantNodes(v.ID, Nodes[0])
	a.detach(v.ID, Nodes[0])
	a.delete(v.ID)
	a.detach(v.ID, Nodes[0])
	next := a.create(s.request("pvc-1")) // may have the same ID
	a.wantNodes(next.ID)
}

func attachesToTheLimit(s *subject) {
	a := attaching(s)
	limit := optional[backend.Limiter](s).NodeLimit()
	if limit == 0 || limit > 1000 {
		s.Skipf("the limit of a node is %d volumes", limit)
	}
	var ids []string
	for i := range limit {
		ids = append(ids, a.create(s.request(fmt.Sprint("pvc-", i))).ID)
		a.attach(ids[i], alone(Nodes[0]))
	}
	extra := a.create(s.request("extra")).ID
	if got, err := a.Attach(context.Background(), extra, alone(Nodes[0])); !errors.Is(err, backend.ErrExhausted) {
		a.Errorf("Attach beyond the limit of %d = %v, %v, want ErrExhausted", limit, got, err)
	}
	a.wantNodes(extra)
	a.attach(ids[0], alone(Nodes[0])) // already attached
	a.attach(extra, alone(Nodes[1]))  // another node, below its limit
	a.detach(extra, Nodes[1])
	a.detach(ids[0], Nodes[0])
	a.attach(extra, alone(Nodes[0]))
}

// attachesConcurrently makes a single changing call at a time for each volume, like the driver, and
// lists all volumes at the same time.
func attachesConcurrently(s *subject) {
	a := attaching(s)
	ctx := context.Background()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			v, err := a.Create(ctx, s.request(fmt.Sprint("pvc-", i)))
			if err != nil {
				a.Error(err)
				return
			}
			for j := range 10 {
				node := Nodes[(i+j)%len(Nodes)]
				attachment, err := a.Attach(ctx, v.ID, alone(node))
				if err != nil {
					a.Error(err)
					return
				}
				if _, err := a.Mount(ctx, v.ID, backend.Access{PublishContext: attachment}); err != nil {
					a.Error(err)
				}
				a.wantNodes(v.ID, node)
				if err := a.Detach(ctx, v.ID, node, nil); err != nil {
					a.Error(err)
				}
			}
			a.wantNodes(v.ID)
		})
	}
	wg.Wait()
}
