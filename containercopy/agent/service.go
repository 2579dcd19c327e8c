// Package agent has the calls and streams of the agent of a node (KEP-4582). The agent finds
// containers by CRI, gives each copy a worker with the identity of its container, and passes the
// messages between worker and caller. It holds no file of a container itself.
package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/cri"
	"github.com/causeway-csi/causeway/containercopy/place"
	"github.com/causeway-csi/causeway/containercopy/quota"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
	"github.com/causeway-csi/causeway/containercopy/worker"
)

// Config is the configuration of an agent. All fields are necessary.
type Config struct {
	Runtime  *cri.Finder
	Starter  Starter
	Slots    *quota.Slots
	URL      string         // of the streams, without stream.Path
	Archive  archive.Limits // of a copy; Bytes is ContainerCopySizeLimit
	Idle     time.Duration  // see stream.Limits
	Total    time.Duration
	Peer     func(context.Context) string // identifies the caller of a call, as stream.Peer does for its stream
	Log      *slog.Logger
	Finished func(Report) // for metrics
}

// Starter starts workers.
type Starter interface {
	// Start starts a worker in the container with this ID. found is the container at the call of
	// the copy, and find asks the runtime for it again. Errors: those of find, of
	// container.Node.Open and of container.Container.Start.
	Start(ctx context.Context, id string, found cri.Container, find func(context.Context) (cri.Container, error),
		s worker.Spec) (Worker, error)
}

// Worker is a worker, as container.Worker.
type Worker interface {
	wire.Messages
	Stop() bool
	Ended() <-chan struct{}
	Gone() bool // its container has ended
}

// Report describes a copy that has ended.
type Report struct {
	From    bool
	Bytes   int64
	Seconds float64
	Err     error
}

// Agent serves the calls and the streams of a node. The caller calls Close.
type Agent struct {
	v1alpha1.UnimplementedContainerCopyServer

	config  Config
	tickets *stream.Tickets[*transfer]

	mu     sync.Mutex
	copies map[string]*transfer // by ID

	active stream.Active
}

// New returns an Agent.
func New(c Config) *Agent {
	a := &Agent{config: c, copies: map[string]*transfer{}}
	a.tickets = stream.NewTickets(func(t *transfer) { a.drop(t, errUnused) })
	return a
}

// Close ends all copies.
func (a *Agent) Close() {
	a.tickets.Close()
	for _, t := range a.list() {
		t.cancel(errEnds)
	}
}

// transfer is a copy that has a slot.
type transfer struct {
	id        string
	container string
	found     cri.Container // at the call
	pod       cri.Pod
	caller    *v1alpha1.Caller
	spec      worker.Spec
	slot      *quota.Slot
	created   time.Time
	ctx       context.Context // ends with CancelCopy
	cancel    context.CancelCauseFunc

	mu     sync.Mutex
	begun  bool
	worker Worker // of a copy whose checksum was computed first
	ended  bool
}

// list returns all copies, in the order of their creation.
func (a *Agent) list() []*transfer {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []*transfer
	for _, t := range a.copies {
		all = append(all, t)
	}
	slices.SortFunc(all, func(x, y *transfer) int {
		return cmp.Or(x.created.Compare(y.created), strings.Compare(x.id, y.id))
	})
	return all
}

// drop ends a copy without a stream.
func (a *Agent) drop(t *transfer, err error) {
	t.mu.Lock()
	w := t.worker
	t.mu.Unlock()
	a.finish(t, w, stream.Result{Err: err})
}

// CopyToContainer takes a slot, and returns the URL of the stream.
func (a *Agent) CopyToContainer(ctx context.Context, req *v1alpha1.CopyToContainerRequest) (
	*v1alpha1.CopyToContainerResponse, error) {
	spec := worker.Spec{Path: req.GetPath(), Contents: req.GetContents(),
		Overwrite: place.Overwrite(req.GetOverwrite()), Mode: req.GetPreserveMode(),
		Times: req.GetPreserveTimes(), Owner: req.GetPreserveOwner()}
	if spec.Overwrite < place.Never || spec.Overwrite > place.Tree {
		return nil, status.Errorf(codes.InvalidArgument, "invalid overwrite %d", req.GetOverwrite())
	}
	if n := len(req.GetSha256()); n != 0 && n != 32 {
		return nil, status.Errorf(codes.InvalidArgument, "invalid sha256 of %d bytes: must have 32", n)
	}
	if req.GetDeclared() {
		if limit := a.config.Archive.Bytes; limit > 0 && req.GetSize() > uint64(limit) {
			return nil, status.Errorf(codes.OutOfRange, "the copy has %d bytes: the limit is %d", req.GetSize(), limit)
		}
		if req.GetSize() > 1<<62 {
			return nil, status.Errorf(codes.InvalidArgument, "invalid size %d", req.GetSize())
		}
		spec.Declared = &archive.Sum{Size: int64(req.GetSize()), CRC32C: req.GetChecksum()}
	}
	spec.SHA256 = req.GetSha256AtEnd()
	if len(req.GetSha256()) > 0 {
		if spec.Declared == nil {
			return nil, status.Error(codes.InvalidArgument, "a sha256 needs declared, with size and checksum")
		}
		spec.SHA256, spec.Declared.SHA256 = true, bytes.Clone(req.GetSha256())
	}
	t, err := a.begin(ctx, req.GetContainerId(), req.GetPod(), req.GetCaller(), spec)
	if err != nil {
		return nil, err
	}
	url, expires, err := a.issue(ctx, t)
	if err != nil {
		return nil, err
	}
	return &v1alpha1.CopyToContainerResponse{Url: url, CopyId: t.id, Expires: expires}, nil
}

// CopyFromContainer takes a slot, and returns the URL of the stream. With precompute, a worker
// reads the source first.
func (a *Agent) CopyFromContainer(ctx context.Context, req *v1alpha1.CopyFromContainerRequest) (
	*v1alpha1.CopyFromContainerResponse, error) {
	spec := worker.Spec{From: true, Path: req.GetPath(), SHA256: req.GetSha256(), Precompute: req.GetPrecompute()}
	t, err := a.begin(ctx, req.GetContainerId(), req.GetPod(), req.GetCaller(), spec)
	if err != nil {
		return nil, err
	}
	resp := &v1alpha1.CopyFromContainerResponse{CopyId: t.id}
	if spec.Precompute {
		sum, err := a.precompute(ctx, t)
		if err != nil {
			a.drop(t, err)
			return nil, statusOf(err)
		}
		resp.Size, resp.Checksum = uint64(sum.Size), sum.CRC32C
	}
	if resp.Url, resp.Expires, err = a.issue(ctx, t); err != nil {
		return nil, err
	}
	return resp, nil
}

// begin checks a request, takes a slot, and looks for the container. It does not keep the container
// open: a volume of the container could not be unmounted until the stream begins.
func (a *Agent) begin(ctx context.Context, container string, pod *v1alpha1.Pod, caller *v1alpha1.Caller,
	spec worker.Spec) (*transfer, error) {
	of := cri.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUid()}
	switch {
	case container == "" || of.Namespace == "" || of.Name == "" || of.UID == "":
		return nil, status.Error(codes.InvalidArgument, "a copy needs a container ID, and the namespace, name and "+
			"UID of its pod")
	case !strings.HasPrefix(spec.Path, "/") || strings.Contains(spec.Path, "\x00"):
		return nil, status.Errorf(codes.InvalidArgument, "invalid path %.128q: must be absolute, without NUL",
			spec.Path)
	case len(spec.Path) > a.config.Archive.Path:
		return nil, status.Errorf(codes.InvalidArgument, "the path has %d bytes: the limit is %d", len(spec.Path),
			a.config.Archive.Path)
	}
	slot, err := a.config.Slots.TakeSlot(of.Namespace+"/"+of.Name+"/"+of.UID, of.Namespace+"/"+of.Name)
	if err != nil {
		return nil, statusOf(err)
	}
	found, err := a.config.Runtime.Find(ctx, container, of)
	if err != nil {
		slot.Release()
		return nil, statusOf(err)
	}
	spec.Limits = a.config.Archive
	t := &transfer{id: rand.Text(), container: container, found: found, pod: of, caller: caller, spec: spec, slot: slot,
		created: time.Now()}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.copies[t.id] = t
	return t, nil
}

// issue returns the URL of a copy, for the caller of this call.
func (a *Agent) issue(ctx context.Context, t *transfer) (string, *timestamppb.Timestamp, error) {
	token, expires, err := a.tickets.Issue(a.config.Peer(ctx), t)
	if err != nil {
		a.drop(t, err)
		return "", nil, statusOf(err)
	}
	return a.config.URL + stream.Path + token, timestamppb.New(expires), nil
}

// ListCopies returns all copies that have a slot.
func (a *Agent) ListCopies(context.Context, *v1alpha1.ListCopiesRequest) (*v1alpha1.ListCopiesResponse, error) {
	resp := new(v1alpha1.ListCopiesResponse)
	for _, t := range a.list() {
		t.mu.Lock()
		begun := t.begun
		t.mu.Unlock()
		resp.Copies = append(resp.Copies, &v1alpha1.Copy{CopyId: t.id, ContainerId: t.container,
			Pod:  &v1alpha1.Pod{Namespace: t.pod.Namespace, Name: t.pod.Name, Uid: t.pod.UID},
			From: t.spec.From, Path: t.spec.Path, Created: timestamppb.New(t.created), Begun: begun})
	}
	return resp, nil
}

// CancelCopy ends a copy: its stream, or the wait for its stream.
func (a *Agent) CancelCopy(_ context.Context, req *v1alpha1.CancelCopyRequest) (*v1alpha1.CancelCopyResponse, error) {
	if req.GetCopyId() == "" {
		return nil, status.Error(codes.InvalidArgument, "a cancellation needs the ID of a copy")
	}
	a.mu.Lock()
	t := a.copies[req.GetCopyId()]
	a.mu.Unlock()
	if t != nil {
		t.cancel(errCanceled)
		t.mu.Lock()
		waits := !t.begun
		t.begun = true // its URL is worth nothing now
		t.mu.Unlock()
		if waits {
			a.drop(t, errCanceled)
		}
	}
	return &v1alpha1.CancelCopyResponse{}, nil
}

// Causes of the end of a copy.
var (
	errCanceled = fmt.Errorf("the copy was canceled: %w", context.Canceled)
	errUnused   = fmt.Errorf("its URL was not used: %w", context.Canceled)
	errEnds     = errors.New("the agent of the node ends: retry the copy")
)
