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

// view is who answers at one moment. It never changes.
type view struct {
	nodes    []*node // in the order of key
	byDigest map[string]*node
	silent   []absent            // in the order of their addresses
	twice    map[string][]string // by digest: the addresses at which more than one says that it is that node
	looked   error               // why addresses may be missing
	known    bool
}

// absent is an address at which no node answers.
type absent struct {
	address, last string // last is who was there before, if that is known: for messages only
	why           error
}

func (a absent) String() string {
	if a.last == "" {
		return a.address
	}
	return fmt.Sprintf("%s (%s)", a.last, a.address)
}

// key is where a node is in a list of all. It needn't be what its IDs begin with.
func (n *node) key() string { return n.digests[0] }

// look returns who answers now. The caller holds mu, or is alone.
func (r *Router) look() *view {
	v := &view{byDigest: map[string]*node{}, twice: map[string][]string{}, looked: r.looked, known: r.known}
	same := map[string][]*node{}
	placed := map[string]bool{} // who is silent at an address isn't without one
	for _, p := range r.places {
		if p.node == nil {
			v.silent = append(v.silent, p.absent())
			placed[p.last] = true
			continue
		}
		same[p.node.key()] = append(same[p.node.key()], p.node)
	}
	for id, g := range r.gone {
		if !placed[id] && !r.cfg.Forgotten.node(id) && same[volumeid.NodeDigest(id)] == nil {
			v.silent = append(v.silent, absent{g.address, id, errNoAddress})
		}
	}
	slices.SortFunc(v.silent, func(a, b absent) int { return strings.Compare(a.address, b.address) })
	for key, nodes := range same {
		if len(nodes) > 1 { // the data may be at any of them
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
		for _, d := range n.digests[1:] { // of a name that is too long to be told; a name that can be told counts more
			if v.byDigest[d] == nil {
				v.byDigest[d] = n
			}
		}
	}
	return v
}

// maxNamed is how many nodes an error names.
const maxNamed = 5

// all returns why not all nodes can be asked, or nil. What it says is UNAVAILABLE: nothing is known about that node, so
// nothing can be said about all of them.
func (v *view) all() error {
	if !v.known {
		return status.Errorf(codes.Unavailable, "the nodes are not known yet: %v", cmp.Or(v.looked, errNotLooked))
	}
	var away []string
	for _, p := range v.silent {
		away = append(away, fmt.Sprintf("%s: %v", p, p.why))
	}
	for _, where := range v.twice {
		away = append(away, fmt.Sprintf("more than one says that it is the same node: %s", strings.Join(where, ", ")))
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

// early reports whether somebody wasn't asked yet who it is: whoever isn't there may be that one.
func (v *view) early() bool {
	return !v.known || slices.ContainsFunc(v.silent, func(a absent) bool { return a.why == errNotAsked })
}

var errNotLooked = errors.New("their addresses are being looked up")

// owner returns the node whose IDs have this digest. Errors: UNAVAILABLE, NOT_FOUND if it is forgotten.
func (r *Router) owner(digest string) (*node, error) {
	v := r.view.Load()
	if where := v.twice[digest]; where != nil {
		return nil, status.Errorf(codes.Unavailable, "more than one says that it is this node: %s", strings.Join(where, ", "))
	}
	if n := v.byDigest[digest]; n != nil {
		return n, nil
	}
	if name, ok := r.cfg.Forgotten.digest(digest); ok {
		return nil, &forgotten{name}
	}
	for _, p := range v.silent {
		if p.last != "" && slices.Contains(volumeid.NodeDigests(p.last), digest) {
			return nil, status.Errorf(codes.Unavailable, "node %s does not answer: %v", p, p.why)
		}
	}
	if err := v.all(); err != nil {
		return nil, status.Errorf(codes.Unavailable, "no node that answers holds it: %s", status.Convert(err).Message())
	}
	return nil, status.Errorf(codes.Unavailable,
		"none of the %d nodes holds it, and all of them answer: if its node is gone for good, name it in --forgotten-nodes", len(v.nodes))
}

// of returns the node that an ID is of. what is what to call the ID. Errors: INVALID_ARGUMENT if there is none;
// malformed if no node made it; those of owner.
func (r *Router) of(what, id string) (*node, error) {
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

// malformed says that an ID is none of a node's. It is NOT_FOUND where nothing else is said.
type malformed struct{ what, id string }

func (m *malformed) Error() string {
	return fmt.Sprintf("%s %.128q: no node has made it", m.what, m.id)
}
func (m *malformed) GRPCStatus() *status.Status { return status.New(codes.NotFound, m.Error()) }

// forgotten says that the operator has given a node up. It is NOT_FOUND where nothing else is said.
type forgotten struct{ node string }

func (f *forgotten) Error() string {
	return fmt.Sprintf("node %s is gone for good: --forgotten-nodes names it", f.node)
}
func (f *forgotten) GRPCStatus() *status.Status { return status.New(codes.NotFound, f.Error()) }

// within returns the nodes that a topology includes.
func (v *view) within(t *csi.Topology) (nodes []*node) {
	for _, n := range v.nodes {
		if n.in(t) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// describeTopology returns a topology for a person.
func describeTopology(t *csi.Topology) string {
	var terms []string
	for key, value := range t.GetSegments() {
		terms = append(terms, key+"="+value)
	}
	slices.Sort(terms)
	return cmp.Or(strings.Join(terms, ","), "any topology")
}

// in reports whether a topology includes n.
func (n *node) in(t *csi.Topology) bool {
	for key, value := range t.GetSegments() {
		if n.segments[key] != value {
			return false
		}
	}
	return true
}

// silence returns for how long nobody has answered who may be in a topology: at least since the router was started, if
// nobody has ever. One that is gone from the addresses is silent since then too.
func (r *Router) silence(t *csi.Topology) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.lastSeen[t.GetSegments()[r.cfg.TopologyKey]]
	if !ok {
		last = r.started
	}
	return time.Since(last)
}
