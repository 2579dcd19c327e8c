package router

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// view has the nodes that answer at a moment. It never changes.
type view struct {
	nodes     []*node // in the order of key
	byDigest  map[string]*node
	silent    []absent            // nodes with an address come first; in the order of their addresses
	twice     map[string][]string // by digest: the addresses of a node that answers at several
	lookupErr error               // of the last lookup of addresses: some may be missing
	known     bool                // a lookup has succeeded
}

// absent is an address at which no node answers.
type absent struct {
	address, last string // last is the ID of the node that answered there before, or "": for messages only
	err           error
}

func (a absent) String() string {
	if a.last == "" {
		return a.address
	}
	return fmt.Sprintf("%s (%s)", a.last, a.address)
}

// gone reports whether the node has no address now.
func (a absent) gone() bool { return errors.Is(a.err, errNoAddress) }

// key orders the nodes in lists. It need not be the digest in the IDs of the node.
func (n *node) key() string { return n.digests[0] }

// newView returns the view of this moment. The caller holds mu, or is New.
func (r *Router) newView() *view {
	v := &view{byDigest: map[string]*node{}, twice: map[string][]string{}, lookupErr: r.lookupErr, known: r.known}
	same := map[string][]*node{}
	addressed := map[string]bool{} // silent nodes that have an address
	for _, e := range r.endpoints {
		if e.node == nil {
			v.silent = append(v.silent, e.absent())
			addressed[e.last] = true
			continue
		}
		same[e.node.key()] = append(same[e.node.key()], e.node)
	}
	for id, g := range r.gone {
		if !addressed[id] && !r.cfg.Forgotten.node(id) && same[volumeid.NodeDigest(id)] == nil {
			v.silent = append(v.silent, absent{g.address, id, errNoAddress})
		}
	}
	rank := map[bool]int{true: 1}
	slices.SortFunc(v.silent, func(a, b absent) int {
		return cmp.Or(rank[a.gone()]-rank[b.gone()], strings.Compare(a.address, b.address))
	})
	for key, nodes := range same {
		if len(nodes) > 1 { // the data may be on any of them
			for _, n := range nodes {
				v.twice[key] = append(v.twice[key], n.String())
			}
			slices.Sort(v.twice[key])
			continue
		}
		v.nodes = append(v.nodes, nodes[0])
		v.byDigest[key] = nodes[0]
	}
	slices.SortFunc(v.nodes, func(a, b *node) int { return strings.Compare(a.key(), b.key()) })
	for _, n := range v.nodes {
		// the name may be a digest itself; a node with that digest as its first counts more
		for _, d := range n.digests[1:] {
			if v.byDigest[d] == nil {
				v.byDigest[d] = n
			}
		}
	}
	return v
}

// maxNamed is the largest number of nodes that an error names.
const maxNamed = 5

// requireAll returns UNAVAILABLE unless all nodes answer: without a node, no statement about all of
// them is possible.
func (v *view) requireAll() error {
	if !v.known {
		return status.Errorf(codes.Unavailable, "the nodes are not known yet: %v", cmp.Or(v.lookupErr, errNotLooked))
	}
	var away []string
	for _, p := range v.silent {
		away = append(away, fmt.Sprintf("%s: %v", p, p.err))
	}
	for _, where := range v.twice {
		away = append(away, fmt.Sprintf("several addresses report the same node: %s", strings.Join(where, ", ")))
	}
	slices.Sort(away)
	switch n := len(away); {
	case n == 0:
		return nil
	case n > maxNamed:
		away = append(away[:maxNamed], fmt.Sprintf("and %d more", n-maxNamed))
	}
	return status.Errorf(codes.Unavailable, "not all nodes answer: %s", strings.Join(away, "; "))
}

// early reports whether an address was not asked yet: a missing node may be there.
func (v *view) early() bool {
	return !v.known || slices.ContainsFunc(v.silent, func(a absent) bool { return errors.Is(a.err, errNotAsked) })
}

var errNotLooked = errors.New("their addresses are being looked up")

// owner returns the node whose IDs have a digest. Errors: UNAVAILABLE; NOT_FOUND if the node is
// forgotten.
func (r *Router) owner(digest string) (*node, error) {
	v := r.view.Load()
	if where := v.twice[digest]; where != nil {
		return nil, status.Errorf(codes.Unavailable, "several addresses report this node: %s",
			strings.Join(where, ", "))
	}
	if n := v.byDigest[digest]; n != nil {
		return n, nil
	}
	if name, ok := r.cfg.Forgotten.digest(digest); ok {
		return nil, &forgotten{name}
	}
	for _, p := range v.silent {
		if p.last != "" && slices.Contains(volumeid.NodeDigests(p.last), digest) {
			return nil, status.Errorf(codes.Unavailable, "node %s does not answer: %v", p, p.err)
		}
	}
	if err := v.requireAll(); err != nil {
		return nil, status.Errorf(codes.Unavailable, "no node that answers holds it: %s", status.Convert(err).Message())
	}
	return nil, status.Errorf(codes.Unavailable,
		"none of the %d nodes holds it, and all of them answer: if its node is gone for good, name it in "+
			"--forgotten-nodes", len(v.nodes))
}

// nodeOf returns the node of an ID. what names the ID in errors. Errors: INVALID_ARGUMENT for an
// empty ID; malformed if no node made the ID; those of owner.
func (r *Router) nodeOf(what, id string) (*node, error) {
	if id == "" {
		return nil, status.Errorf(codes.InvalidArgument, "the %s is missing", what)
	}
	parsed, err := volumeid.Parse(id)
	if err != nil || parsed.Node == volumeid.NodeDigest(volumeid.SeveralNodes) {
		return nil, &malformed{what, id}
	}
	n, err := r.owner(parsed.Node)
	if s, ok := status.FromError(err); err != nil && ok && s.Code() == codes.Unavailable {
		return nil, status.Errorf(codes.Unavailable, "%s %s: %s", what, id, s.Message())
	}
	return n, err
}

// malformed is the error of an ID that no node made. Its code is NOT_FOUND.
type malformed struct{ what, id string }

func (m *malformed) Error() string {
	return fmt.Sprintf("%s %.128q: no node has made it", m.what, m.id)
}
func (m *malformed) GRPCStatus() *status.Status { return status.New(codes.NotFound, m.Error()) }

// forgotten is the error of an ID whose node is forgotten. Its code is NOT_FOUND.
type forgotten struct{ node string }

func (f *forgotten) Error() string {
	return fmt.Sprintf("node %s is gone for good: --forgotten-nodes names it", f.node)
}
func (f *forgotten) GRPCStatus() *status.Status { return status.New(codes.NotFound, f.Error()) }

// within returns the nodes in a topology.
func (v *view) within(t *csi.Topology) (nodes []*node) {
	for _, n := range v.nodes {
		if n.in(t) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// describeTopology returns a topology for messages.
func describeTopology(t *csi.Topology) string {
	var terms []string
	for key, value := range t.GetSegments() {
		terms = append(terms, key+"="+value)
	}
	slices.Sort(terms)
	return cmp.Or(strings.Join(terms, ","), "any topology")
}

// in reports whether n is in a topology.
func (n *node) in(t *csi.Topology) bool {
	for key, value := range t.GetSegments() {
		if n.segments[key] != value {
			return false
		}
	}
	return true
}

// silence returns the time since a node in a topology last answered. If none has answered yet, it
// is the time since the start of the router. A node that lost its address is silent since then.
func (r *Router) silence(t *csi.Topology) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.lastSeen[t.GetSegments()[r.cfg.TopologyKey]]
	if !ok {
		last = r.started
	}
	return time.Since(last)
}
