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

// A list of all is the list of one node after the other, in the order of their keys. A paging token is the key of the node
// at which the next page begins, a dot, and that node's own token, which is empty where its list begins. So it stays right
// while nodes come and go: who goes is passed over, who comes before that place is missed, as if it had come later.

// maxPage is how many entries a page has at the most, whatever is asked for: as many as on a node.
const maxPage = 2000

// maxNodeToken is how long a node's own token may be, in bytes: with the key it is at most 128. CSI spec v1.13, size limits.
const maxNodeToken = 128 - 17

// longAnswer is for calls that are answered with a page.
var longAnswer = grpc.MaxCallRecvMsgSize(maxMessage)

var validToken = regexp.MustCompile(`^([0-9a-v]{16})\.(.*)$`)

// lister lists what one node has.
type lister[E any] func(ctx context.Context, n *node, token string, limit int32) (entries []E, next string, err error)

// list returns one page of what all nodes have. Errors: UNAVAILABLE if a node doesn't answer: a page that is short would
// look as if everything else were gone; ABORTED for a token that isn't ours; INVALID_ARGUMENT.
func list[E any](ctx context.Context, r *Router, token string, limit int32, ask lister[E]) (entries []E, next string, err error) {
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
	if err := v.all(); err != nil {
		return nil, "", err
	}
	at, found := slices.BinarySearchFunc(v.nodes, first, func(n *node, key string) int { return strings.Compare(n.key(), key) })
	if !found {
		rest = "" // of a node that has gone
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

// parseToken returns at which node a page begins, and that node's token. Errors: ABORTED.
func parseToken(token string) (key, rest string, err error) {
	if token == "" {
		return "", "", nil
	}
	m := validToken.FindStringSubmatch(token)
	if m == nil {
		return "", "", status.Errorf(codes.Aborted, "the token %.64q was not handed out by this driver: start with no token", token)
	}
	return m[1], m[2], nil
}

// page is one that is being filled.
type page[E any] struct {
	entries []E
	limit   int
	nodes   []*node // from which the rest is taken
	token   string  // where the list of the first of them goes on
	asked   int     // nodes so far
	ask     lister[E]
}

// answer is one node's.
type answer[E any] struct {
	entries []E
	next    string
}

// read asks the next nodes at the same time: as many as will fill the page, by what those before had. It takes what they
// say in their order, until one has more than there is place for. That one is asked again, for as many as there is place for: a
// token can stand at the end of a node's answer only.
func (p *page[E]) read(ctx context.Context) error {
	left := p.limit - len(p.entries)
	batch := p.nodes[:min(p.width(left), len(p.nodes))]
	at := make(map[*node]string, 1)
	at[batch[0]] = p.token
	answers, err := each(ctx, batch, func(ctx context.Context, n *node) (answer[E], error) {
		entries, next, err := p.ask(ctx, n, at[n], int32(left))
		if err == nil && (len(entries) > left || len(entries) == 0 && next != "" || len(next) > maxNodeToken) {
			err = status.Errorf(codes.Unavailable, "node %s answered with %d entries of %d, and a token of %d bytes", n, len(entries), left, len(next))
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

// width returns how many nodes to ask for so many entries.
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
		func(ctx context.Context, n *node, token string, limit int32) ([]*csi.ListVolumesResponse_Entry, string, error) {
			resp, err := controllerCall(ctx, c.Router, n, csi.ControllerClient.ListVolumes, &csi.ListVolumesRequest{StartingToken: token, MaxEntries: limit}, longAnswer)
			return resp.GetEntries(), resp.GetNextToken(), err
		})
	if err != nil {
		return nil, err
	}
	return &csi.ListVolumesResponse{Entries: entries, NextToken: next}, nil
}

func (c *controller) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	entries, next, err := list(ctx, c.Router, req.GetStartingToken(), req.GetMaxEntries(),
		func(ctx context.Context, n *node, token string, limit int32) ([]*csi.VolumeHealth, string, error) {
			resp, err := controllerCall(ctx, c.Router, n, csi.ControllerClient.ControllerListVolumeHealth, &csi.ControllerListVolumeHealthRequest{StartingToken: token, MaxEntries: limit}, longAnswer)
			return resp.GetEntries(), resp.GetNextToken(), err
		})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerListVolumeHealthResponse{Entries: entries, NextToken: next}, nil
}

// ListSnapshots asks one node where the request says of which snapshot or volume, and with that node's own tokens: the
// absence of others is nothing to it. CSI spec v1.13, ListSnapshots.
func (c *controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	what, id := "snapshot ID", req.GetSnapshotId()
	if id == "" {
		what, id = "source volume ID", req.GetSourceVolumeId()
	}
	if id != "" {
		n, err := c.of(what, id)
		if isNothing(err) {
			return &csi.ListSnapshotsResponse{}, nil
		}
		if err != nil {
			return nil, err
		}
		return controllerCall(ctx, c.Router, n, csi.ControllerClient.ListSnapshots, req, longAnswer)
	}
	entries, next, err := list(ctx, c.Router, req.GetStartingToken(), req.GetMaxEntries(),
		func(ctx context.Context, n *node, token string, limit int32) ([]*csi.ListSnapshotsResponse_Entry, string, error) {
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
