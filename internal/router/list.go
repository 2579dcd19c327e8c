package router

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A list of all nodes is the lists of the nodes in turn, in the order of their keys. A paging token
// is the key of the node with which the next page begins, a dot, and the token of that node, which
// is empty at the beginning of its list. Tokens stay valid while nodes come and go: a node that is
// gone is skipped, and a new node with a lower key is missed.

// maxPage is the largest number of entries in a page, also if the caller asks for more. A node has
// the same limit.
const maxPage = 2000

// maxNodeToken is the largest length of a node's token, in bytes: with the key, at most 128. CSI
// spec v1.13, size limits.
const maxNodeToken = 128 - 17

// longAnswer is the option of calls that return a page.
var longAnswer = grpc.MaxCallRecvMsgSize(maxMessage)

var validToken = regexp.MustCompile(`^([0-9a-v]{16})\.(.*)$`)

// lister returns a page of the list of a node.
type lister[E any] func(ctx context.Context, n *node, token string, limit int32) (entries []E, next string, err error)

// list returns a page of the list of all nodes. Errors: UNAVAILABLE if a node does not answer, as a
// list without its objects would mean that they are deleted; ABORTED for an invalid token;
// INVALID_ARGUMENT.
func list[E any](ctx context.Context, r *Router, token string, limit int32,
	ask lister[E]) (entries []E, next string, err error) {
	first, rest, err := parseToken(token)
	switch {
	case err != nil:
		return nil, "", err
	case limit < 0:
		return nil, "", status.Errorf(codes.InvalidArgument, "max_entries is %d", limit)
	case limit == 0 || limit > maxPage:
		limit = maxPage
	}
	v := r.view.Load()
	if err := v.requireAll(); err != nil {
		return nil, "", err
	}
	at, found := slices.BinarySearchFunc(v.nodes, first,
		func(n *node, key string) int { return strings.Compare(n.key(), key) })
	if !found {
		rest = "" // the token of a node that is gone
	}
	p := &page[E]{nodes: v.nodes[at:], token: rest, limit: int(limit), ask: ask}
	for len(p.nodes) > 0 && len(p.entries) < p.limit {
		if err := p.read(ctx); err != nil {
			return nil, "", err
		}
	}
	if len(p.nodes) > 0 {
		next = p.nodes[0].key() + "." + p.token
	}
	return p.entries, next, nil
}

// parseToken returns the key of the node with which a page begins, and the token of that node.
// Errors: ABORTED.
func parseToken(token string) (key, rest string, err error) {
	if token == "" {
		return "", "", nil
	}
	m := validToken.FindStringSubmatch(token)
	if m == nil {
		return "", "", status.Errorf(codes.Aborted,
			"the token %.64q was not handed out by this driver: start with no token", token)
	}
	return m[1], m[2], nil
}

// page is a page that is being filled.
type page[E any] struct {
	entries []E
	limit   int
	nodes   []*node // whose entries are still missing
	token   string  // of the first of nodes
	asked   int     // number of nodes that were read
	ask     lister[E]
}

// answer is the answer of a node.
type answer[E any] struct {
	entries []E
	next    string
}

// read asks the next nodes at the same time: as many as will fill the page, judging by the nodes
// before. read takes their answers in order, up to the first that does not fit. That node is asked
// again for the entries that fit, as only the end of an answer has a token.
func (p *page[E]) read(ctx context.Context) error {
	left := p.limit - len(p.entries)
	batch := p.nodes[:min(p.width(left), len(p.nodes))]
	at := make(map[*node]string, 1)
	at[batch[0]] = p.token
	answers, err := each(ctx, batch, func(ctx context.Context, n *node) (answer[E], error) {
		entries, next, err := p.ask(ctx, n, at[n], int32(left))
		if err == nil && (len(entries) > left || len(entries) == 0 && next != "" || len(next) > maxNodeToken) {
			err = status.Errorf(codes.Unavailable, "node %s answered with %d entries of %d, and a token of %d bytes", n,
				len(entries), left, len(next))
		}
		return answer[E]{entries, next}, err
	})
	if err != nil {
		return err
	}
	for _, a := range answers {
		if len(p.entries)+len(a.entries) > p.limit {
			return nil
		}
		p.entries, p.token = append(p.entries, a.entries...), a.next
		if a.next != "" {
			return nil
		}
		p.nodes = p.nodes[1:]
		p.asked++
	}
	return nil
}

// width returns the number of nodes to ask for left entries.
func (p *page[E]) width(left int) int {
	switch {
	case p.asked == 0:
		return 1
	case len(p.entries) == 0:
		return min(2*p.asked, together)
	}
	return max(1, min(left*p.asked/len(p.entries), together))
}

func (c *controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	entries, next, err := list(ctx, c.Router, req.GetStartingToken(), req.GetMaxEntries(),
		func(ctx context.Context, n *node, token string, limit int32) ([]*csi.ListVolumesResponse_Entry, string,
			error) {
			resp, err := controllerCall(ctx, c.Router, n, csi.ControllerClient.ListVolumes,
				&csi.ListVolumesRequest{StartingToken: token, MaxEntries: limit}, longAnswer)
			return resp.GetEntries(), resp.GetNextToken(), err
		})
	if err != nil {
		return nil, err
	}
	return &csi.ListVolumesResponse{Entries: entries, NextToken: next}, nil
}

func (c *controller) ControllerListVolumeHealth(ctx context.Context,
	req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	entries, next, err := list(ctx, c.Router, req.GetStartingToken(), req.GetMaxEntries(),
		func(ctx context.Context, n *node, token string, limit int32) ([]*csi.VolumeHealth, string, error) {
			resp, err := controllerCall(ctx, c.Router, n, csi.ControllerClient.ControllerListVolumeHealth,
				&csi.ControllerListVolumeHealthRequest{StartingToken: token, MaxEntries: limit}, longAnswer)
			return resp.GetEntries(), resp.GetNextToken(), err
		})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerListVolumeHealthResponse{Entries: entries, NextToken: next}, nil
}

// ListSnapshots asks a single node, with the tokens of that node, if the request names a snapshot
// or a source volume: other nodes need not answer. CSI spec v1.13, ListSnapshots.
func (c *controller) ListSnapshots(ctx context.Context,
	req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	what, id := "snapshot ID", req.GetSnapshotId()
	if id == "" {
		what, id = "source volume ID", req.GetSourceVolumeId()
	}
	if id != "" {
		n, err := c.nodeOf(what, id)
		if isNothing(err) {
			return &csi.ListSnapshotsResponse{}, nil
		}
		if err != nil {
			return nil, err
		}
		return controllerCall(ctx, c.Router, n, csi.ControllerClient.ListSnapshots, req, longAnswer)
	}
	entries, next, err := list(ctx, c.Router, req.GetStartingToken(), req.GetMaxEntries(),
		func(ctx context.Context, n *node, token string, limit int32) ([]*csi.ListSnapshotsResponse_Entry, string,
			error) {
			one := proto.Clone(req).(*csi.ListSnapshotsRequest)
			one.StartingToken, one.MaxEntries = token, limit
			resp, err := controllerCall(ctx, c.Router, n, csi.ControllerClient.ListSnapshots, one, longAnswer)
			return resp.GetEntries(), resp.GetNextToken(), err
		})
	if err != nil {
		return nil, err
	}
	return &csi.ListSnapshotsResponse{Entries: entries, NextToken: next}, nil
}
